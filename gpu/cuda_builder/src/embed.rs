//! For build scripts: the PTX to embed, committed where it is current, built where it is not.
use crate::{Compiler, CudaBuilder, Error, Manifest, NvvmArch, manifest};
use std::path::{Path, PathBuf};

/// PTX for one architecture, ready to be included.
#[derive(Clone, Debug)]
pub struct Embedded {
    /// What it is for.
    pub arch: NvvmArch,
    /// Where it lies.
    pub path: PathBuf,
    /// Where it comes from.
    pub origin: Origin,
}

/// Where PTX comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The repository: made from the present sources by this compiler.
    Committed(String),
    /// This build, by this compiler.
    Built(String),
}

/// The PTX of the kernel crate in `crate_dir` for every architecture: the committed files where their manifest matches the
/// sources, else (or when `rebuild` says so) fresh ones in `out_dir`. A build script should rerun when `crate_dir` changes.
///
/// # Errors
/// The sources have changed and there is no compiler, or they do not compile.
pub fn embed(crate_dir: &Path, out_dir: &Path, rebuild: bool) -> Result<Vec<Embedded>, Error> {
    let ptx_dir = crate_dir.join("ptx");
    let committed = if rebuild { None } else { current(crate_dir, &ptx_dir)? };
    if let Some(manifest) = committed {
        let embedded = |arch| Embedded {
            arch,
            path: ptx_dir.join(manifest::file_name(arch)),
            origin: Origin::Committed(manifest.compiler.clone()),
        };
        return Ok(NvvmArch::ALL.map(embedded).into());
    }
    let compiler = Compiler::find()?;
    let mut built = Vec::new();
    for arch in NvvmArch::ALL {
        let path = out_dir.join(manifest::file_name(arch));
        let builder = CudaBuilder::new(crate_dir).arch(arch).target_dir(out_dir.join("target-gpu")).copy_to(&path);
        builder.build_with(&compiler)?;
        built.push(Embedded { arch, path, origin: Origin::Built(compiler.version().into()) });
    }
    Ok(built)
}

/// The manifest, if the committed PTX is made from the present sources and complete.
fn current(crate_dir: &Path, ptx_dir: &Path) -> Result<Option<Manifest>, Error> {
    if !ptx_dir.join(manifest::FILE).is_file() {
        return Ok(None);
    }
    let manifest = Manifest::read(ptx_dir)?;
    let complete = NvvmArch::ALL.iter().all(|arch| manifest.ptx.contains_key(&arch.target_cpu()));
    let present = complete && manifest.ptx.values().all(|built| ptx_dir.join(&built.file).is_file());
    let good = present && manifest.changed_sources(crate_dir)?.is_empty() && manifest.changed_ptx(ptx_dir)?.is_empty();
    Ok(good.then_some(manifest))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Ptx;
    use std::collections::BTreeMap;

    fn crate_with_ptx() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let ptx_dir = dir.path().join("ptx");
        std::fs::create_dir_all(&ptx_dir).unwrap();
        std::fs::write(dir.path().join("Cargo.toml"), "[package]\n").unwrap();
        let built = NvvmArch::ALL.map(|arch| {
            let ptx = Ptx { text: format!("// {}\n", arch.target_cpu()), kernels: BTreeMap::new() };
            std::fs::write(ptx_dir.join(manifest::file_name(arch)), &ptx.text).unwrap();
            (arch, ptx)
        });
        Manifest::new(dir.path(), &[], "rustc 1.96", &built).unwrap().write(&ptx_dir).unwrap();
        dir
    }

    #[test]
    fn committed_ptx_is_used_while_the_sources_are_the_same() {
        let dir = crate_with_ptx();
        let embedded = embed(dir.path(), dir.path(), false).unwrap();
        assert_eq!(embedded.iter().map(|e| e.arch).collect::<Vec<_>>(), NvvmArch::ALL);
        for e in embedded {
            assert_eq!(e.origin, Origin::Committed("rustc 1.96".into()));
            assert_eq!(std::fs::read_to_string(e.path).unwrap(), format!("// {}\n", e.arch.target_cpu()));
        }
    }

    #[test]
    fn changed_sources_edited_or_missing_ptx_are_not_current() {
        let changes: [fn(&Path); 4] = [
            |dir| std::fs::write(dir.join("new.rs"), "").unwrap(),
            |dir| std::fs::write(dir.join("ptx/kernels.sm_90.ptx"), "edited").unwrap(),
            |dir| std::fs::remove_file(dir.join("ptx/kernels.sm_120.ptx")).unwrap(),
            |dir| std::fs::remove_file(dir.join("ptx/manifest.json")).unwrap(),
        ];
        for (i, change) in changes.into_iter().enumerate() {
            let dir = crate_with_ptx();
            let ptx_dir = dir.path().join("ptx");
            assert!(current(dir.path(), &ptx_dir).unwrap().is_some());
            change(dir.path());
            assert!(current(dir.path(), &ptx_dir).unwrap().is_none(), "change {i}");
        }
    }
}
