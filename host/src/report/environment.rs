//! What a run depended on besides its input: the build, the machine, the model.

use std::env;

use serde::Serialize;

/// The build, the machine and the model of a run.
#[derive(Debug, Clone, Serialize)]
pub struct Environment {
    /// This program's version.
    pub version: &'static str,
    /// The git commit it was built from, or `unknown`.
    pub commit: &'static str,
    /// Whether the sources differed from that commit; null where that is unknown.
    pub dirty: Option<bool>,
    /// The compiler.
    pub rustc: &'static str,
    /// Optional parts that were built in.
    pub features: Vec<&'static str>,
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
    /// The command.
    pub argv: Vec<String>,
}

/// The processor and what is used of it.
#[derive(Debug, Clone, Serialize)]
pub struct CpuEnvironment {
    /// Its name, or `unknown`.
    pub model: String,
    /// Threads used.
    pub threads: usize,
    /// Widest instruction set used.
    pub simd: &'static str,
}

/// Which checkpoint a model is.
#[derive(Debug, Clone, Serialize)]
pub struct ModelIdentity {
    /// Its folder, or the embedded model's name.
    pub path: String,
    /// Differs between checkpoints.
    pub fingerprint: String,
}

impl Environment {
    /// Of this process.
    pub fn new(
        device: &'static str,
        threads: usize,
        model: ModelIdentity,
        draft: Option<ModelIdentity>,
        seed: u64,
    ) -> Self {
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
            device,
            cpu: CpuEnvironment { model: cpu_model(), threads, simd: simd() },
            model,
            draft,
            seed,
            argv: env::args_os().map(|arg| arg.to_string_lossy().into_owned()).collect(),
        }
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

fn simd() -> &'static str {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            return "avx512";
        }
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
            return "avx2";
        }
    }
    "baseline"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_build_is_named() {
        let model = ModelIdentity { path: "m".into(), fingerprint: "0".into() };
        let environment = Environment::new("cpu", 2, model, None, 7);
        assert_eq!(environment.version, env!("CARGO_PKG_VERSION"));
        assert!(environment.rustc.starts_with("rustc 1."), "{}", environment.rustc);
        let commit = environment.commit;
        assert!(commit == "unknown" || (commit.len() == 40 && commit.bytes().all(|b| b.is_ascii_hexdigit())), "{commit}");
        assert_eq!(environment.dirty.is_none(), commit == "unknown");
        assert!(!environment.argv.is_empty());
        assert!(!environment.cpu.model.is_empty());
    }
}
