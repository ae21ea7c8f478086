//! Rebuilds or checks the committed PTX of a kernel crate.
//!
//! `build-ptx CRATE_DIR [--check] [--ptxas PROGRAM]`: without `--check` it writes `CRATE_DIR/ptx`; with it, it writes nothing
//! but compares what is there with the sources, with what the present compiler makes of them if it is the manifest's, and
//! has ptxas assemble it. ptxas is `--ptxas`, then `CUDA_BUILDER_PTXAS`, then the one on the path. What is missing for a part
//! of the check is said, and the rest is done.
use cuda_builder::{Compiler, CudaBuilder, Error, Manifest, NvvmArch, Ptx, manifest, ptxas};
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
    let outcome = if options.check { check(&options) } else { build(&options) };
    match outcome {
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
        Some(Self { crate_dir: crate_dir?, check, ptxas: ptxas.or_else(ptxas::find) })
    }

    fn ptx_dir(&self) -> PathBuf {
        self.crate_dir.join("ptx")
    }
}

fn compile(crate_dir: &Path, compiler: &Compiler) -> Result<Vec<(NvvmArch, Ptx)>, Error> {
    NvvmArch::ALL
        .into_iter()
        .map(|arch| Ok((arch, CudaBuilder::new(crate_dir).arch(arch).build_with(compiler)?)))
        .collect()
}

/// Writes the PTX. False when ptxas is there and finds something.
fn build(options: &Options) -> Result<bool, Error> {
    let compiler = Compiler::find()?;
    let built = compile(&options.crate_dir, &compiler)?;
    let fresh = Manifest::new(&options.crate_dir, &IGNORED, compiler.version(), &built)?;
    let ptx_dir = options.ptx_dir();
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
    options.ptxas.as_ref().map_or(Ok(true), |ptxas| assemble(ptxas, &ptx_dir))
}

/// False when the committed PTX is not what it should be.
fn check(options: &Options) -> Result<bool, Error> {
    let ptx_dir = options.ptx_dir();
    let committed = Manifest::read(&ptx_dir)?;
    let mut good = true;
    let stale = committed.changed_sources(&options.crate_dir)?;
    if !stale.is_empty() {
        println!(
            "the committed PTX is out of date, run `cargo run -p cuda_builder -- gpu`; changed: {}",
            stale.join(", ")
        );
        good = false;
    }
    for file in committed.changed_ptx(&ptx_dir)? {
        println!("{} is not the file that the manifest speaks of", ptx_dir.join(file).display());
        good = false;
    }
    match Compiler::find() {
        Ok(compiler) if compiler.version() == committed.compiler => {
            let built = compile(&options.crate_dir, &compiler)?;
            let fresh = Manifest::new(&options.crate_dir, &IGNORED, compiler.version(), &built)?;
            good &= committed == fresh;
            let verdict = if committed == fresh { "it is what" } else { "it is NOT what" };
            println!("the committed PTX was built again: {verdict} {} makes of the sources", compiler.version());
        }
        Ok(compiler) => println!(
            "the committed PTX was not built again: it is by {}, and here is {}",
            committed.compiler,
            compiler.version()
        ),
        Err(error) => println!("the committed PTX was not built again: {error}"),
    }
    match &options.ptxas {
        Some(ptxas) => good &= assemble(ptxas, &ptx_dir)?,
        None => println!(
            "the committed PTX was not assembled: no ptxas on the path or in CUDA_BUILDER_PTXAS; `pip install \
             nvidia-cuda-nvcc` brings one (nvidia/cu13/bin/ptxas)"
        ),
    }
    Ok(good)
}

/// Prints what each kernel needs. False when one spills or needs too much.
fn assemble(ptxas: &Path, ptx_dir: &Path) -> Result<bool, Error> {
    let mut complaints = Vec::new();
    println!("{:<28} {:>7} {:>9} {:>6} {:>7} {:>14}", "kernel", "arch", "registers", "stack", "shared", "spills st/ld");
    for arch in NvvmArch::ALL {
        for usage in ptxas::assemble(ptxas, &ptx_dir.join(manifest::file_name(arch)), arch)? {
            let [stores, loads] = usage.spills;
            println!(
                "{:<28} {:>7} {:>9} {:>6} {:>7} {:>14}",
                usage.kernel,
                arch.target_cpu(),
                usage.registers,
                usage.stack,
                usage.shared,
                format!("{stores}/{loads}")
            );
            complaints.extend(usage.complaints(arch));
        }
    }
    println!(
        "shared: static; the simulator refuses launches with more dynamic shared memory than {} B, unless told otherwise",
        NvvmArch::Compute120.shared_bytes()
    );
    for complaint in &complaints {
        println!("{complaint}");
    }
    Ok(complaints.is_empty())
}
