//! What a run depended on besides its input: the build, the machine, the model.

use std::env;

use serde::Serialize;

use crate::backend::cpu::Isa;
use crate::backend::cuda::ptx::EMBEDDED;

/// The build, the machine and the model of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Environment {
    /// The program.
    #[serde(flatten)]
    pub build: Build,
    /// The backend.
    pub device: &'static str,
    /// The processor.
    pub cpu: CpuEnvironment,
    /// The target.
    pub model: ModelIdentity,
    /// The drafter, where one was loaded.
    pub draft: Option<ModelIdentity>,
    /// Seed of the random numbers.
    pub seed: u64,
}

/// The program and how it was called.
#[derive(Debug, Clone, Serialize)]
pub struct Build {
    /// Its version.
    pub version: &'static str,
    /// The git commit it was built from, or `unknown`.
    pub commit: &'static str,
    /// Whether the sources differed from that commit; null where that is unknown.
    pub dirty: Option<bool>,
    /// The compiler.
    pub rustc: &'static str,
    /// Optional parts that were built in.
    pub features: Vec<&'static str>,
    /// The GPU kernels that were built in.
    pub ptx: Vec<PtxIdentity>,
    /// The command.
    pub argv: Vec<String>,
}

/// Which GPU kernels a program holds.
#[derive(Debug, Clone, Serialize)]
pub struct PtxIdentity {
    /// The architecture they are for.
    pub target: String,
    /// Differs between versions.
    pub hash: &'static str,
}

/// The processor and what is used of it.
#[derive(Debug, Clone, Serialize)]
pub struct CpuEnvironment {
    /// Its name, or `unknown`.
    pub model: String,
    /// Threads used.
    pub threads: usize,
    /// Widest instruction set used.
    pub simd: String,
}

/// Which checkpoint a model is.
#[derive(Debug, Clone, Serialize)]
pub struct ModelIdentity {
    /// Its folder, or the embedded model's name.
    pub path: String,
    /// Differs between checkpoints.
    pub fingerprint: String,
}

impl Build {
    /// The running program.
    pub fn of_this_process() -> Self {
        Self {
            version: env!("CARGO_PKG_VERSION"),
            commit: env!("COPPICE_COMMIT"),
            dirty: match env!("COPPICE_DIRTY") {
                "true" => Some(true),
                "false" => Some(false),
                _ => None,
            },
            rustc: env!("COPPICE_RUSTC"),
            features: features(),
            ptx: EMBEDDED.iter().map(|ptx| PtxIdentity { target: ptx.target(), hash: ptx.hash }).collect(),
            argv: env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect(),
        }
    }
}

impl CpuEnvironment {
    /// Of this machine, of which `threads` threads are used.
    pub fn new(threads: usize) -> Self {
        Self { model: cpu_model(), threads, simd: Isa::detect().to_string() }
    }
}

fn features() -> Vec<&'static str> {
    if cfg!(feature = "embedded-model") { vec!["embedded-model"] } else { Vec::new() }
}

/// As Linux names it.
fn cpu_model() -> String {
    let info = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = info.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
    name.map_or_else(|| "unknown".to_owned(), |(_, name)| name.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_and_the_machine_are_named() {
        let build = Build::of_this_process();
        assert_eq!(build.version, env!("CARGO_PKG_VERSION"));
        assert!(build.rustc.starts_with("rustc 1."), "{}", build.rustc);
        let commit = build.commit;
        assert!(
            commit == "unknown" || (commit.len() == 40 && commit.bytes().all(|b| b.is_ascii_hexdigit())),
            "{commit}"
        );
        assert_eq!(build.dirty.is_none(), commit == "unknown");
        assert!(!build.argv.is_empty());
        let cpu = CpuEnvironment::new(3);
        assert_eq!((cpu.threads, cpu.model.is_empty()), (3, false));
    }
}
