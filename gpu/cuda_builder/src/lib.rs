//! Compiles a kernel crate to PTX with rustc's own NVPTX backend, under rust-cuda's builder API.
//! What kernels call lives in `cuda_std`; loading PTX is the host's matter.
//!
//! ```no_run
//! use cuda_builder::{CudaBuilder, NvvmArch};
//! # fn main() -> Result<(), cuda_builder::Error> {
//! let ptx = CudaBuilder::new("gpu").arch(NvvmArch::Compute120).copy_to("kernels.ptx").build()?;
//! println!("{} kernels", ptx.kernels.len());
//! # Ok(())
//! # }
//! ```
//!
//! The steps: find a compiler ([`Compiler`]), compile the crate as a `staticlib` whose assembly is the PTX, turn launch-bound
//! comments into directives, and check the result ([`ptx`]). A [`Manifest`] beside committed PTX says from which sources
//! it was made, so that nobody needs the compiler who has not changed a kernel.
mod compiler;
mod embed;
mod error;
pub mod manifest;
pub mod ptx;
pub mod ptxas;

pub use compiler::Compiler;
pub use embed::{Embedded, Origin, embed};
pub use error::Error;
pub use manifest::Manifest;
pub use ptx::Ptx;

use std::path::{Path, PathBuf};
use std::process::Command;

/// A GPU architecture to compile for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum NvvmArch {
    /// `sm_90`: H100, H200.
    Compute90,
    /// `sm_120`: RTX PRO 6000 Blackwell, RTX 5090.
    Compute120,
}

impl NvvmArch {
    /// Every architecture that PTX is committed for.
    pub const ALL: [Self; 2] = [Self::Compute90, Self::Compute120];

    /// Compute capability, ten times the major number plus the minor.
    pub fn capability(self) -> u32 {
        match self {
            Self::Compute90 => 90,
            Self::Compute120 => 120,
        }
    }

    /// Most shared memory of a block, bytes.
    pub fn shared_bytes(self) -> u32 {
        match self {
            Self::Compute90 => 232_448,
            Self::Compute120 => 101_376,
        }
    }

    /// The compiler's name, `sm_90`.
    pub fn target_cpu(self) -> String {
        format!("sm_{}", self.capability())
    }
}

/// PTX 8.7: the first that knows `sm_120`. LLVM's default for `sm_90` is older and lacks fp8 products.
const PTX_FEATURE: &str = "-Ctarget-feature=+ptx87";

/// Builds the PTX of one kernel crate.
#[derive(Clone, Debug)]
pub struct CudaBuilder {
    crate_dir: PathBuf,
    arch: NvvmArch,
    copy_to: Option<PathBuf>,
    target_dir: Option<PathBuf>,
}

impl CudaBuilder {
    /// A builder for the crate in `crate_dir`, for `sm_120` unless told otherwise.
    pub fn new(crate_dir: impl AsRef<Path>) -> Self {
        let crate_dir = crate_dir.as_ref().to_path_buf();
        Self { crate_dir, arch: NvvmArch::Compute120, copy_to: None, target_dir: None }
    }

    /// Compiles for `arch`; the code sees it as `cfg(coppice_sm = "120")`.
    pub fn arch(mut self, arch: NvvmArch) -> Self {
        self.arch = arch;
        self
    }

    /// Also writes the PTX to `path`.
    pub fn copy_to(mut self, path: impl AsRef<Path>) -> Self {
        self.copy_to = Some(path.as_ref().to_path_buf());
        self
    }

    /// Where the nested build keeps its files (`target-gpu` beside the crate's folder unless told). It must not be the
    /// target folder of a build that is waiting for this one.
    pub fn target_dir(mut self, path: impl AsRef<Path>) -> Self {
        self.target_dir = Some(path.as_ref().to_path_buf());
        self
    }

    /// Finds the compiler, compiles, applies launch bounds and checks the PTX.
    ///
    /// # Errors
    /// No capable compiler, a compile error, or PTX that breaks a rule of [`ptx`].
    pub fn build(&self) -> Result<Ptx, Error> {
        self.build_with(&Compiler::find()?)
    }

    /// As [`build`](Self::build), with a compiler found before.
    ///
    /// # Errors
    /// As [`build`](Self::build).
    pub fn build_with(&self, compiler: &Compiler) -> Result<Ptx, Error> {
        let crate_dir = canonical(&self.crate_dir)?;
        let target_dir = match &self.target_dir {
            Some(path) => path.clone(),
            None => crate_dir.parent().unwrap_or(&crate_dir).join("target-gpu"),
        };
        std::fs::create_dir_all(&target_dir).map_err(|e| Error::io("create", &target_dir, e))?;
        let assembly = canonical(&target_dir)?.join(format!("kernels.{}.ptx", self.arch.target_cpu()));
        let mut command = compiler.cargo();
        command.arg("rustc").arg("--manifest-path").arg(crate_dir.join("Cargo.toml"));
        command.args(["--profile", "gpu", "--lib", "--crate-type", "staticlib", "-Zbuild-std=core", "--locked"]);
        command.args(["--target", "nvptx64-nvidia-cuda", "--target-dir"]).arg(&target_dir).arg("--");
        command.arg(format!("--emit=asm={}", assembly.display()));
        command.arg(format!("-Ctarget-cpu={}", self.arch.target_cpu())).arg(PTX_FEATURE);
        command.arg("--cfg").arg(format!("coppice_sm=\"{}\"", self.arch.capability()));
        run(&mut command, &crate_dir)?;
        let text = std::fs::read_to_string(&assembly).map_err(|e| Error::io("read", &assembly, e))?;
        let ptx = Ptx::finish(&text, self.arch)?;
        if let Some(path) = &self.copy_to {
            std::fs::write(path, &ptx.text).map_err(|e| Error::io("write", path, e))?;
        }
        Ok(ptx)
    }
}

fn canonical(path: &Path) -> Result<PathBuf, Error> {
    path.canonicalize().map_err(|e| Error::io("find", path, e))
}

fn run(command: &mut Command, crate_dir: &Path) -> Result<(), Error> {
    let program = PathBuf::from(command.get_program());
    let output = command.output().map_err(|e| Error::io("start", &program, e))?;
    if output.status.success() {
        return Ok(());
    }
    let log = String::from_utf8_lossy(&output.stderr);
    let log: Vec<&str> = log.lines().filter(|line| !line.trim_start().starts_with("Compiling ")).collect();
    Err(Error::Compile { crate_dir: crate_dir.into(), log: log.join("\n") })
}
