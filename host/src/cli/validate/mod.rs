//! Flags that make sense together: what `args` reads becomes what the commands run on. Here: the commands without a prompt.

mod profile;
mod request;
#[cfg(test)]
mod tests;

use std::path::{Path, PathBuf};

use coppice_gpu::attention::Kind;
use coppice_model::Source;

use super::args::{
    CacheType, Device, DeviceFlags, DoctorFlags, InspectFlags, KernelsFlags, KernelsTaskFlags, LogitsFlags, ReportFlags,
};
use crate::backend::cuda::bench::attention::Sizes;
use crate::backend::cuda::check::Size;
use crate::error::{Error, Result};

pub use profile::{ProfileArgs, ProfileFormat, ProfiledArgs};
pub use request::{
    Drawing, Format, GenerateArgs, Length, PromptSource, RequestArgs, SamplingArgs, SpecArgs, Template, TreeArgs,
};

/// The machine to run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceArgs {
    /// The backend.
    pub device: Device,
    /// CPU threads.
    pub threads: usize,
}

/// Where a report goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReportArgs {
    /// Standard output gets JSON instead of text.
    pub json: bool,
    /// Where the JSON object is written as well.
    pub output: Option<PathBuf>,
}

/// A file to read, or what `-` stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Standard input.
    Stdin,
    /// A file.
    File(PathBuf),
}

/// A file to write, or what `-` stands for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Output {
    /// Standard output.
    Stdout,
    /// A file.
    File(PathBuf),
}

/// `inspect`.
#[derive(Debug, Clone)]
pub struct InspectArgs {
    /// What to describe.
    pub sources: Vec<Source>,
    /// Tokens of context that memory is stated for, where it is not the model's longest.
    pub ctx: Option<usize>,
    /// Where the description goes.
    pub report: ReportArgs,
}

/// `doctor`.
#[derive(Debug, Clone)]
pub struct DoctorArgs {
    /// Where the findings go.
    pub report: ReportArgs,
}

/// `kernels`.
#[derive(Debug, Clone)]
pub struct KernelsArgs {
    /// What to do.
    pub task: KernelsTask,
    /// Number of the GPU.
    pub device: u32,
    /// Where the findings go.
    pub report: ReportArgs,
}

/// What `kernels` does.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelsTask {
    /// Names them.
    List,
    /// Compares them with their references.
    Check {
        /// At which shapes.
        size: Size,
        /// On which inputs.
        seeds: Seeds,
    },
    /// Measures them.
    Bench,
    /// Measures verify attention over many sizes.
    Attention {
        /// Which.
        sizes: Sizes,
        /// Comma-separated values instead of a table.
        csv: bool,
    },
}

/// Seeds that follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seeds {
    /// The first.
    pub first: u64,
    /// Their number.
    pub count: u32,
}

/// `logits`.
#[derive(Debug, Clone)]
pub struct LogitsArgs {
    /// The model.
    pub target: Source,
    /// A JSON array of token ids.
    pub tokens: Input,
    /// The file to write.
    pub out: Output,
    /// Layers whose output is written, ascending.
    pub hidden: Vec<usize>,
    /// The machine.
    pub device: DeviceArgs,
}

impl Input {
    fn new(path: PathBuf) -> Self {
        if is_dash(&path) { Self::Stdin } else { Self::File(path) }
    }
}

fn is_dash(path: &Path) -> bool {
    path == Path::new("-")
}

impl ReportArgs {
    /// Writing the JSON object to `-` is printing it.
    fn new(json: bool, output: Option<PathBuf>) -> Self {
        let printed = output.as_deref().is_some_and(is_dash);
        Self { json: json || printed, output: output.filter(|_| !printed) }
    }
}

impl From<ReportFlags> for ReportArgs {
    fn from(flags: ReportFlags) -> Self {
        Self::new(flags.json, flags.output)
    }
}

impl InspectFlags {
    /// The built-in model and its drafter where no folder is named.
    pub fn validate(self) -> InspectArgs {
        let sources = match self.model {
            Some(folder) => vec![Source::Directory(folder)],
            None => vec![Source::EmbeddedTarget, Source::EmbeddedDraft],
        };
        InspectArgs { sources, ctx: self.ctx, report: self.report.into() }
    }
}

impl DoctorFlags {
    /// Nothing to check.
    pub fn validate(self) -> DoctorArgs {
        DoctorArgs { report: self.report.into() }
    }
}

fn kind(cache: CacheType) -> Kind {
    match cache {
        CacheType::Bf16 => Kind::Bf16,
        CacheType::E4m3 => Kind::E4m3,
    }
}

impl KernelsFlags {
    /// Lists where nothing else is asked for.
    pub fn validate(self) -> KernelsArgs {
        let task = match self.task {
            None | Some(KernelsTaskFlags::List) => KernelsTask::List,
            Some(KernelsTaskFlags::Check { seed, seeds, small }) => KernelsTask::Check {
                size: if small { Size::Small } else { Size::Full },
                seeds: Seeds { first: seed.into(), count: seeds },
            },
            Some(KernelsTaskFlags::Bench) => KernelsTask::Bench,
            Some(KernelsTaskFlags::Attention { heads, tree_rows, contexts, cache, seeds, repeats, csv }) => {
                KernelsTask::Attention {
                    sizes: Sizes { heads, tree_rows, contexts, cache: kind(cache), seeds: seeds.into(), repeats },
                    csv,
                }
            }
        };
        KernelsArgs { task, device: self.device, report: ReportArgs::new(self.json, self.output) }
    }
}

impl LogitsFlags {
    /// Layers ascending, each once. `stdout_is_terminal`: no place for a binary file.
    ///
    /// # Errors
    /// [`Error::Usage`] if the file would go to a terminal.
    pub fn validate(mut self, stdout_is_terminal: bool) -> Result<LogitsArgs> {
        self.hidden.sort_unstable();
        self.hidden.dedup();
        let out = if is_dash(&self.out) { Output::Stdout } else { Output::File(self.out) };
        if out == Output::Stdout && stdout_is_terminal {
            let message = "--out - would write a binary file to the terminal: redirect standard output";
            return Err(Error::Usage(message.to_owned()));
        }
        Ok(LogitsArgs {
            target: self.model.map_or(Source::EmbeddedTarget, Source::Directory),
            tokens: Input::new(self.tokens),
            out,
            hidden: self.hidden,
            device: self.device.validate(),
        })
    }
}

impl DeviceFlags {
    /// All cores where no number is given.
    pub fn validate(self) -> DeviceArgs {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        DeviceArgs { device: self.device, threads: self.threads.unwrap_or_else(cores) }
    }
}
