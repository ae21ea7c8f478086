//! Finds a rustc that can compile for the GPU: it needs the sources of `core` beside it.
use crate::Error;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A rustc, the cargo that belongs to it, and what it calls itself.
#[derive(Clone, Debug)]
pub struct Compiler {
    rustc: PathBuf,
    cargo: PathBuf,
    version: String,
}

impl Compiler {
    /// The first that will do of: `CUDA_BUILDER_RUSTC`, the active toolchain, Debian's `rustc-web`.
    ///
    /// # Errors
    /// None will do; the message says why for each.
    pub fn find() -> Result<Self, Error> {
        let mut tried = Vec::new();
        let named = std::env::var_os("CUDA_BUILDER_RUSTC").map(PathBuf::from);
        let active = std::env::var_os("RUSTC").map_or_else(|| PathBuf::from("rustc"), PathBuf::from);
        for rustc in named.into_iter().chain([active, PathBuf::from("/usr/bin/rustc")]) {
            match Self::at(&rustc) {
                Ok(compiler) => return Ok(compiler),
                Err(why) => tried.push(format!("{} {why}", rustc.display())),
            }
        }
        Err(Error::NoCompiler { tried: tried.join(", ") })
    }

    fn at(rustc: &Path) -> Result<Self, String> {
        let print = |argument: &[&str]| {
            let output = Command::new(rustc).args(argument).output().map_err(|_| "is not there".to_string())?;
            let text = String::from_utf8_lossy(&output.stdout).trim().to_string();
            if output.status.success() { Ok(text) } else { Err("does not run".to_string()) }
        };
        let version = print(&["--version"])?;
        let sysroot = PathBuf::from(print(&["--print", "sysroot"])?);
        if !sysroot.join("lib/rustlib/src/rust/library/core/Cargo.toml").is_file() {
            return Err(format!("({version}) has no rust-src in {}", sysroot.display()));
        }
        let cargo = sysroot.join("bin/cargo");
        let rustc = sysroot.join("bin/rustc");
        if !cargo.is_file() {
            return Err(format!("({version}) has no cargo in {}", sysroot.display()));
        }
        Ok(Self { rustc, cargo, version })
    }

    /// What `rustc --version` says.
    pub fn version(&self) -> &str {
        &self.version
    }

    /// Its cargo, in an environment that an outer cargo has not touched: variables of the outer build would give the
    /// nested one a wrong target, profile or wrapper.
    pub(crate) fn cargo(&self) -> Command {
        let mut command = Command::new(&self.cargo);
        for (name, _) in std::env::vars_os() {
            if belongs_to_a_build(&name) {
                command.env_remove(name);
            }
        }
        command.env("RUSTC_BOOTSTRAP", "1").env("RUSTC", &self.rustc);
        command
    }
}

fn belongs_to_a_build(name: &OsString) -> bool {
    let name = name.to_string_lossy();
    let kept = ["CARGO_HOME", "RUST_BACKTRACE", "RUSTUP_HOME"].contains(&&*name);
    let build = name.starts_with("CARGO") || name.starts_with("RUST");
    !kept && (build || ["TARGET", "HOST", "PROFILE", "LD_LIBRARY_PATH"].contains(&&*name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_of_the_outer_build_are_dropped() {
        let cases = [
            ("CARGO_MANIFEST_DIR", true),
            ("CARGO_HOME", false),
            ("RUSTFLAGS", true),
            ("RUSTC_WRAPPER", true),
            ("RUST_BACKTRACE", false),
            ("TARGET", true),
            ("LD_LIBRARY_PATH", true),
            ("PATH", false),
            ("TARGETS", false),
        ];
        for (name, dropped) in cases {
            assert_eq!(belongs_to_a_build(&name.into()), dropped, "{name}");
        }
    }

    #[test]
    fn an_unfit_compiler_says_why() {
        let error = Compiler::at(Path::new("/nonexistent/rustc")).unwrap_err();
        assert_eq!(error, "is not there");
    }
}
