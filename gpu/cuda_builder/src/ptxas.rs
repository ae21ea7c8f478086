//! Runs NVIDIA's assembler over PTX and reads its report. It comes from PyPI (`nvidia-cuda-nvcc`, `nvidia/cu13/bin/ptxas`).
use crate::{Error, NvvmArch};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What a kernel needs on one architecture.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The kernel.
    pub kernel: String,
    /// Registers a thread.
    pub registers: u32,
    /// Bytes spilled, stores and loads.
    pub spills: [u32; 2],
    /// Stack frame, bytes.
    pub stack: u32,
    /// Static shared memory, bytes.
    pub shared: u32,
}

impl Usage {
    /// What no kernel may do on this architecture: spill registers, need more shared memory than a block can have.
    pub fn complaints(&self, arch: NvvmArch) -> Vec<String> {
        let mut found = Vec::new();
        let kernel = format!("kernel {} for {}", self.kernel, arch.target_cpu());
        let [stores, loads] = self.spills;
        if stores + loads > 0 {
            found.push(format!(
                "{kernel} spills registers ({stores} B stored, {loads} B loaded), expected none: hold less at a time, or \
                 lower blocks_per_sm"
            ));
        }
        if self.shared > arch.shared_bytes() {
            found.push(format!(
                "{kernel} has {} B of static shared memory, expected at most {}",
                self.shared,
                arch.shared_bytes()
            ));
        }
        found
    }
}

/// `CUDA_BUILDER_PTXAS`, else a ptxas on the path.
pub fn find() -> Option<PathBuf> {
    let named = std::env::var_os("CUDA_BUILDER_PTXAS").filter(|path| !path.is_empty()).map(PathBuf::from);
    let on_the_path = || {
        let folders = std::env::var_os("PATH")?;
        std::env::split_paths(&folders).map(|folder| folder.join("ptxas")).find(|path| path.is_file())
    };
    named.or_else(on_the_path)
}

/// Assembles the PTX file and says what each kernel needs.
///
/// # Errors
/// ptxas cannot be started or refuses the file.
pub fn assemble(ptxas: &Path, ptx: &Path, arch: NvvmArch) -> Result<Vec<Usage>, Error> {
    let mut command = Command::new(ptxas);
    command.args(["-v", "-O3", "--output-file", "/dev/null", "--gpu-name"]).arg(arch.target_cpu()).arg(ptx);
    let output = command.output().map_err(|e| Error::io("start", ptxas, e))?;
    let log = String::from_utf8_lossy(&output.stderr).into_owned() + &String::from_utf8_lossy(&output.stdout);
    if !output.status.success() {
        return Err(Error::Ptxas { arch: arch.target_cpu(), log });
    }
    Ok(parse(&log))
}

fn parse(log: &str) -> Vec<Usage> {
    let mut usages: Vec<Usage> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap_or_default().into();
            usages.push(Usage { kernel, ..Usage::default() });
        }
        let Some(usage) = usages.last_mut() else { continue };
        let number = |unit: &str| {
            let before = line.split(unit).next().filter(|before| before.len() < line.len())?;
            before.rsplit([' ', ',']).find(|word| !word.is_empty())?.parse().ok()
        };
        if let (Some(stores), Some(loads)) = (number(" bytes spill stores"), number(" bytes spill loads")) {
            usage.spills = [stores, loads];
            usage.stack = number(" bytes stack frame").unwrap_or(0);
        }
        if let Some(registers) = number(" registers") {
            usage.registers = registers;
            usage.shared = number(" bytes smem").unwrap_or(0);
        }
    }
    usages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_report_is_read() {
        let log = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'rms_norm' for 'sm_90'
ptxas info    : Function properties for rms_norm
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes stack frame, 1024 bytes smem
ptxas info    : Compiling entry function 'gather' for 'sm_90'
ptxas info    : Function properties for gather
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 18 registers, used 0 barriers
";
        let first = Usage { kernel: "rms_norm".into(), registers: 40, spills: [4, 8], stack: 16, shared: 1024 };
        let second = Usage { kernel: "gather".into(), registers: 18, ..Usage::default() };
        assert_eq!(parse(log), [first, second]);
    }

    #[test]
    fn spills_and_too_much_shared_memory_are_named() {
        let usage = Usage { kernel: "wide".into(), registers: 255, spills: [8, 16], stack: 16, shared: 101_380 };
        let found = usage.complaints(NvvmArch::Compute120);
        assert!(found[0].starts_with("kernel wide for sm_120 spills registers (8 B stored, 16 B loaded)"), "{found:?}");
        assert_eq!(found[1], "kernel wide for sm_120 has 101380 B of static shared memory, expected at most 101376");
        let fits = Usage { spills: [0, 0], ..usage };
        assert!(fits.complaints(NvvmArch::Compute90).is_empty());
    }
}
