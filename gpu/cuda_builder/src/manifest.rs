//! The manifest beside committed PTX: which compiler made it, from which sources, and what is in it.
use crate::{Error, NvvmArch, Ptx, ptx};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Name of the manifest in the PTX folder.
pub const FILE: &str = "manifest.json";
const SCHEMA: &str = "coppice-ptx/1";

/// Sources, compiler and results of a PTX build.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    /// Format of this file.
    pub schema: String,
    /// `rustc --version` of the compiler.
    pub compiler: String,
    /// Files and folders under the crate that a GPU build does not read.
    pub ignored: Vec<String>,
    /// Hash of every source, by path from the crate's folder. Test modules at a file's end do not count.
    pub sources: BTreeMap<String, String>,
    /// What was built, by architecture (`sm_90`).
    pub ptx: BTreeMap<String, Built>,
}

/// One PTX file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Built {
    /// Its name in the PTX folder.
    pub file: String,
    /// Hash of its text.
    pub hash: String,
    /// Its kernels.
    pub kernels: BTreeMap<String, ptx::Kernel>,
}

impl Manifest {
    /// A manifest of the crate's present sources and of PTX just built.
    ///
    /// # Errors
    /// A source cannot be read.
    pub fn new(crate_dir: &Path, ignored: &[&str], compiler: &str, built: &[(NvvmArch, Ptx)]) -> Result<Self, Error> {
        let ignored: Vec<String> = ignored.iter().map(ToString::to_string).collect();
        let ptx = built.iter().map(|(arch, ptx)| {
            let built = Built { file: file_name(*arch), hash: hash(&ptx.text), kernels: ptx.kernels.clone() };
            (arch.target_cpu(), built)
        });
        let sources = sources(crate_dir, &ignored)?;
        Ok(Self { schema: SCHEMA.into(), compiler: compiler.into(), ignored, sources, ptx: ptx.collect() })
    }

    /// Reads the manifest in `ptx_dir`.
    ///
    /// # Errors
    /// It is missing or malformed.
    pub fn read(ptx_dir: &Path) -> Result<Self, Error> {
        let path = ptx_dir.join(FILE);
        let text = std::fs::read_to_string(&path).map_err(|e| Error::io("read", &path, e))?;
        serde_json::from_str(&text).map_err(|source| Error::Manifest { path, source })
    }

    /// Writes it into `ptx_dir`.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(&self, ptx_dir: &Path) -> Result<(), Error> {
        let path = ptx_dir.join(FILE);
        let text =
            serde_json::to_string_pretty(self).map_err(|source| Error::Manifest { path: path.clone(), source })?;
        std::fs::write(&path, text + "\n").map_err(|e| Error::io("write", &path, e))
    }

    /// Sources that differ from those the PTX was made from; empty when the PTX is current.
    ///
    /// # Errors
    /// A source cannot be read.
    pub fn changed_sources(&self, crate_dir: &Path) -> Result<Vec<String>, Error> {
        let now = sources(crate_dir, &self.ignored)?;
        let names = self.sources.keys().chain(now.keys()).filter(|name| self.sources.get(*name) != now.get(*name));
        let mut names: Vec<String> = names.cloned().collect();
        names.sort();
        names.dedup();
        Ok(names)
    }

    /// PTX files in `ptx_dir` whose text is not what the manifest says.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn changed_ptx(&self, ptx_dir: &Path) -> Result<Vec<String>, Error> {
        let mut changed = Vec::new();
        for built in self.ptx.values() {
            let path = ptx_dir.join(&built.file);
            let text = std::fs::read_to_string(&path).map_err(|e| Error::io("read", &path, e))?;
            if hash(&text) != built.hash {
                changed.push(built.file.clone());
            }
        }
        Ok(changed)
    }
}

/// Name of the PTX file of an architecture.
pub fn file_name(arch: NvvmArch) -> String {
    format!("kernels.{}.ptx", arch.target_cpu())
}

/// Rust sources and Cargo.toml files under `crate_dir`, hashed.
fn sources(crate_dir: &Path, ignored: &[String]) -> Result<BTreeMap<String, String>, Error> {
    let mut found = BTreeMap::new();
    let mut folders = vec![PathBuf::new()];
    while let Some(folder) = folders.pop() {
        let path = crate_dir.join(&folder);
        for entry in std::fs::read_dir(&path).map_err(|e| Error::io("read", &path, e))? {
            let name = entry.map_err(|e| Error::io("read", &path, e))?.file_name();
            let relative = folder.join(&name);
            let key = relative.to_string_lossy().replace('\\', "/");
            let (name, full) = (name.to_string_lossy(), crate_dir.join(&relative));
            if ignored.contains(&key) {
                continue;
            }
            if full.is_dir() {
                folders.push(relative);
            } else if name.ends_with(".rs") || name == "Cargo.toml" {
                let text = std::fs::read_to_string(&full).map_err(|e| Error::io("read", &full, e))?;
                found.insert(key, hash(without_tests(&text.replace('\r', ""))));
            }
        }
    }
    Ok(found)
}

/// A source without the test module at its end, which no GPU build sees.
fn without_tests(text: &str) -> &str {
    text.find("#[cfg(test)]\nmod tests {").map_or(text, |end| &text[..end])
}

/// FNV-1a, 64 bits: tells versions apart, keeps nobody out.
pub fn hash(text: &str) -> String {
    let hash =
        text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |h, byte| (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{hash:016x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(dir: &Path, name: &str, text: &str) {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn only_sources_that_a_gpu_build_reads_count() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), "src/lib.rs", "fn a() {}\n#[cfg(test)]\nmod tests {\n}\n");
        write(dir.path(), "src/b.rs", "fn b() {}\n");
        write(dir.path(), "std/src/simulate/x.rs", "host only\n");
        write(dir.path(), "Cargo.toml", "[package]\n");
        let ptx = Ptx { text: "ptx\n".into(), kernels: BTreeMap::new() };
        let built = [(NvvmArch::Compute90, ptx)];
        let manifest = Manifest::new(dir.path(), &["std/src/simulate", "ptx"], "rustc 1", &built).unwrap();
        assert_eq!(manifest.sources.keys().collect::<Vec<_>>(), ["Cargo.toml", "src/b.rs", "src/lib.rs"]);

        write(dir.path(), "src/lib.rs", "fn a() {}\r\n#[cfg(test)]\r\nmod tests {\n more }\n");
        write(dir.path(), "std/src/simulate/x.rs", "changed\n");
        assert!(manifest.changed_sources(dir.path()).unwrap().is_empty());
        write(dir.path(), "src/b.rs", "fn b() { }\n");
        write(dir.path(), "src/c.rs", "");
        assert_eq!(manifest.changed_sources(dir.path()).unwrap(), ["src/b.rs", "src/c.rs"]);
    }

    #[test]
    fn a_manifest_survives_the_file_and_notices_edited_ptx() {
        let dir = tempfile::tempdir().unwrap();
        let ptx = Ptx { text: "ptx\n".into(), kernels: [("k".into(), ptx::Kernel::default())].into() };
        let manifest = Manifest::new(dir.path(), &[], "rustc 1", &[(NvvmArch::Compute120, ptx)]).unwrap();
        manifest.write(dir.path()).unwrap();
        assert_eq!(Manifest::read(dir.path()).unwrap(), manifest);
        write(dir.path(), "kernels.sm_120.ptx", "ptx\n");
        assert!(manifest.changed_ptx(dir.path()).unwrap().is_empty());
        write(dir.path(), "kernels.sm_120.ptx", "ptx2\n");
        assert_eq!(manifest.changed_ptx(dir.path()).unwrap(), ["kernels.sm_120.ptx"]);
    }

    #[test]
    fn a_malformed_manifest_is_named() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), FILE, "{}");
        let error = Manifest::read(dir.path()).unwrap_err().to_string();
        assert!(error.contains("manifest.json is not readable: missing field `schema`"), "{error}");
    }
}
