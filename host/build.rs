//! Tells the program which commit and compiler it was built from, and embeds the kernels' PTX.

use std::env;
use std::error::Error;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use cuda_builder::{Origin, manifest};

/// What the program is made of, from the root of the workspace.
const SOURCES: [&str; 6] = ["host", "model", "gpu", "Cargo.toml", "Cargo.lock", "rust-toolchain.toml"];

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    if let Err(error) = embed_ptx(&root.join("gpu")) {
        println!("cargo::error={}", error.to_string().replace('\n', " "));
    }
    describe_build(&root);
}

/// Writes a table of the PTX: what is committed where it is current, else (or with COPPICE_BUILD_PTX=1) built now.
fn embed_ptx(crate_dir: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed=COPPICE_BUILD_PTX");
    println!("cargo::rerun-if-env-changed=CUDA_BUILDER_RUSTC");
    let out_dir = PathBuf::from(env::var("OUT_DIR")?);
    let rebuild = env::var("COPPICE_BUILD_PTX").is_ok_and(|value| value == "1");
    let embedded = cuda_builder::embed(&crate_dir.canonicalize()?, &out_dir, rebuild)?;
    let mut table = format!("/// What the program has.\npub const EMBEDDED: [Ptx; {}] = [\n", embedded.len());
    for ptx in &embedded {
        let (compiler, committed) = match &ptx.origin {
            Origin::Committed(compiler) => (compiler, true),
            Origin::Built(compiler) => (compiler, false),
        };
        let hash = manifest::hash(&fs::read_to_string(&ptx.path)?);
        writeln!(
            table,
            "Ptx {{ capability: {}, text: include_str!({:?}), hash: {hash:?}, compiler: {compiler:?}, \
             committed: {committed} }},",
            ptx.arch.capability(),
            ptx.path,
        )?;
    }
    fs::write(out_dir.join("ptx.rs"), table + "];\n")?;
    Ok(())
}

fn describe_build(root: &Path) {
    let commit = commit(root);
    let dirty = match commit {
        Some(_) => {
            git(root, &[&["status", "--porcelain", "--"], &SOURCES[..]].concat()).map(|changes| !changes.is_empty())
        }
        None => None,
    };
    let rustc = env::var_os("RUSTC").and_then(|rustc| output(Command::new(rustc).arg("--version")));
    println!("cargo::rustc-env=COPPICE_TARGET={}", env::var("TARGET").unwrap_or_default());
    let unknown = || "unknown".to_owned();
    println!("cargo::rustc-env=COPPICE_COMMIT={}", commit.unwrap_or_else(unknown));
    println!("cargo::rustc-env=COPPICE_DIRTY={}", dirty.map_or_else(unknown, |dirty| dirty.to_string()));
    println!("cargo::rustc-env=COPPICE_RUSTC={}", rustc.unwrap_or_else(unknown));

    // A commit, a checkout or a reset is noted in these; an edit shows in the sources themselves.
    let notes = ["HEAD", "logs/HEAD"].iter().filter_map(|name| git(root, &["rev-parse", "--git-path", name]));
    let watched = notes.map(|path| root.join(path)).chain(SOURCES.iter().map(|path| root.join(path)));
    // Cargo takes an absent file for one that has changed.
    for path in watched.filter(|path| path.exists()) {
        println!("cargo::rerun-if-changed={}", path.display());
    }
}

/// The commit that is checked out, if the workspace is a repository of its own: sources unpacked inside another
/// repository are not of that one's commit.
fn commit(root: &Path) -> Option<String> {
    let top = PathBuf::from(git(root, &["rev-parse", "--show-toplevel"])?);
    let is_own = top.canonicalize().ok()? == root.canonicalize().ok()?;
    if is_own { git(root, &["rev-parse", "HEAD"]) } else { None }
}

fn git(root: &Path, args: &[&str]) -> Option<String> {
    output(Command::new("git").arg("-C").arg(root).args(args).env("GIT_OPTIONAL_LOCKS", "0"))
}

/// What a command prints; `None` if it is absent or fails.
fn output(command: &mut Command) -> Option<String> {
    let output = command.output().ok()?;
    if output.status.success() { Some(String::from_utf8(output.stdout).ok()?.trim().to_owned()) } else { None }
}
