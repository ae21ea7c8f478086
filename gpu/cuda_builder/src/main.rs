//! Rebuilds or checks the committed PTX of a kernel crate.
//!
//! `build-ptx CRATE_DIR [--check] [--ptxas PROGRAM]`: without `--check` it writes `CRATE_DIR/ptx`; with it, it compares
//! what the present compiler makes with what is there. `--ptxas` assembles each file and prints a table; spills fail.
use cuda_builder::{Compiler, CudaBuilder, Error, Manifest, NvvmArch, manifest, ptxas};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// What a GPU build of the kernel crate does not read.
const IGNORED: [&str; 9] = [
    "cuda_builder",
    "cuda_std/examples",
    "cuda_std/src/launch.rs",
    "cuda_std/src/simulate",
    "cuda_std/tests",
    "src/moe/experts_tests.rs",
    "src/moe/testing.rs",
    "src/testing.rs",
    "tests",
];

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(options) = Options::parse(&arguments) else {
        eprintln!("usage: build-ptx CRATE_DIR [--check] [--ptxas PROGRAM]");
        return ExitCode::from(2);
    };
    match run(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("error: {error}");
            ExitCode::FAILURE
        }
    }
}

struct Options {
    crate_dir: PathBuf,
    check: bool,
    ptxas: Option<PathBuf>,
}

impl Options {
    fn parse(arguments: &[String]) -> Option<Self> {
        let (mut crate_dir, mut check, mut ptxas) = (None, false, None);
        let mut arguments = arguments.iter();
        while let Some(argument) = arguments.next() {
            match argument.as_str() {
                "--check" => check = true,
                "--ptxas" => ptxas = Some(PathBuf::from(arguments.next()?)),
                flag if flag.starts_with('-') => return None,
                path if crate_dir.is_none() => crate_dir = Some(PathBuf::from(path)),
                _ => return None,
            }
        }
        Some(Self { crate_dir: crate_dir?, check, ptxas })
    }
}

/// False when something is out of date or spills.
fn run(options: &Options) -> Result<bool, Error> {
    let compiler = Compiler::find()?;
    let ptx_dir = options.crate_dir.join("ptx");
    let mut built = Vec::new();
    for arch in NvvmArch::ALL {
        built.push((arch, CudaBuilder::new(&options.crate_dir).arch(arch).build_with(&compiler)?));
    }
    let fresh = Manifest::new(&options.crate_dir, &IGNORED, compiler.version(), &built)?;
    let mut good = true;
    if options.check {
        good = compare(&Manifest::read(&ptx_dir)?, &fresh);
    } else {
        std::fs::create_dir_all(&ptx_dir).map_err(|source| Error::Io {
            action: "create",
            path: ptx_dir.clone(),
            source,
        })?;
        for (arch, ptx) in &built {
            let path = ptx_dir.join(manifest::file_name(*arch));
            std::fs::write(&path, &ptx.text).map_err(|source| Error::Io { action: "write", path, source })?;
        }
        fresh.write(&ptx_dir)?;
    }
    if let Some(ptxas) = &options.ptxas {
        good &= print_usage(ptxas, &ptx_dir)?;
    }
    Ok(good)
}

fn compare(committed: &Manifest, fresh: &Manifest) -> bool {
    if committed.sources != fresh.sources {
        println!("the committed PTX is out of date: run `cargo run -p cuda_builder -- gpu`");
        return false;
    }
    if committed.compiler != fresh.compiler {
        println!("built by {}, not by {}: the PTX is not compared", committed.compiler, fresh.compiler);
        return true;
    }
    let differs = committed.ptx != fresh.ptx;
    println!(
        "{}",
        if differs { "the committed PTX is not what its compiler makes" } else { "the committed PTX is current" }
    );
    !differs
}

fn print_usage(ptxas: &Path, ptx_dir: &Path) -> Result<bool, Error> {
    let mut good = true;
    println!("{:<28} {:>7} {:>9} {:>6} {:>7} {:>14}", "kernel", "arch", "registers", "stack", "shared", "spills st/ld");
    for arch in NvvmArch::ALL {
        for usage in ptxas::assemble(ptxas, &ptx_dir.join(manifest::file_name(arch)), arch)? {
            let [stores, loads] = usage.spills;
            good &= stores + loads == 0;
            println!(
                "{:<28} {:>7} {:>9} {:>6} {:>7} {:>14}",
                usage.kernel,
                arch.target_cpu(),
                usage.registers,
                usage.stack,
                usage.shared,
                format!("{stores}/{loads}")
            );
        }
    }
    Ok(good)
}
