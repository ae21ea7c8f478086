//! What can go wrong when PTX is built.
use std::path::{Path, PathBuf};

/// An error of the PTX build.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No compiler with the sources of `core` was found.
    #[error(
        "no GPU-capable rustc: {tried}; install one by `rustup component add rust-src` (with a toolchain whose LLVM knows \
         the architecture), or Debian's `rustc-web cargo-web rust-web-src`, or name one in CUDA_BUILDER_RUSTC"
    )]
    NoCompiler {
        /// What was looked at, and why it will not do.
        tried: String,
    },
    /// The crate does not compile.
    #[error("kernel crate {} does not compile for the GPU:\n{log}", crate_dir.display())]
    Compile {
        /// The crate's folder.
        crate_dir: PathBuf,
        /// What the compiler said.
        log: String,
    },
    /// The PTX breaks a rule.
    #[error("kernel {kernel} in the PTX for {arch} {what}")]
    Ptx {
        /// The kernel, or what stands for it.
        kernel: String,
        /// `sm_90` or the like.
        arch: String,
        /// Found, expected, what to do.
        what: String,
    },
    /// A manifest cannot be read.
    #[error("manifest {} is not readable: {source}", path.display())]
    Manifest {
        /// The file.
        path: PathBuf,
        /// Why.
        source: serde_json::Error,
    },
    /// ptxas refuses the PTX.
    #[error("ptxas refuses the PTX for {arch}:\n{log}")]
    Ptxas {
        /// `sm_90` or the like.
        arch: String,
        /// What ptxas said.
        log: String,
    },
    /// A file or program cannot be used.
    #[error("cannot {action} {}: {source}", path.display())]
    Io {
        /// Read, write, start, find.
        action: &'static str,
        /// What.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
}

impl Error {
    pub(crate) fn io(action: &'static str, path: &Path, source: std::io::Error) -> Self {
        Self::Io { action, path: path.into(), source }
    }
}
