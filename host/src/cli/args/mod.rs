//! The flags as they are typed, each described once. What they mean together lives in `validate`.

mod profile;
mod request;
mod values;

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::bench::BenchFlags;

pub use profile::{By, ProfileFlags};
pub use request::{ChatFlags, DraftingFlags, GenerateFlags, ModelFlags, PromptFlags, SamplingFlags, TreeFlags};
pub use values::TreeBudget;
pub use values::{budget, count, positive, probability, temperature, whole};
use values::{gpu, runs, threads};

/// Generate text with MLA + MoE language models (DeepSeek-V3, Kimi-K2) by DFlash drafting and DDTree verification.
#[derive(Debug, Parser)]
#[command(name = "coppice", bin_name = "coppice", version, max_term_width = 80, args_override_self = true)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Flags,
}

#[derive(Debug, Subcommand)]
pub enum Flags {
    /// Generate text from a prompt
    #[command(after_help = GENERATE_NOTES, allow_negative_numbers = true)]
    Generate(Box<GenerateFlags>),
    /// Draw a round's draft tree: tokens, probabilities, the accepted path
    #[command(after_help = TREE_NOTES, allow_negative_numbers = true)]
    Tree(Box<TreeFlags>),
    /// Measure speed, acceptance and memory
    #[command(after_help = BENCH_NOTES, allow_negative_numbers = true)]
    Bench(Box<BenchFlags>),
    /// Show where a generation's time goes: every idle gap and its cause
    #[command(after_help = PROFILE_NOTES, allow_negative_numbers = true)]
    Profile(Box<ProfileFlags>),
    /// Describe a model: configuration, tensors, parameters, memory
    Inspect(InspectFlags),
    /// Write logits and hidden states of given tokens to a file
    #[command(after_help = LOGITS_NOTES)]
    Logits(LogitsFlags),
    /// Examine the machine: CPU, memory, NVIDIA driver, GPUs, and what to do
    Doctor(DoctorFlags),
    /// List, check or measure the GPU kernels
    Kernels(KernelsFlags),
}

const GENERATE_NOTES: &str = "\
Standard output carries the text alone, everything else goes to standard error.
The process exits with 0 when it is done, 1 when it failed, 2 for wrong usage,
and 130 when Ctrl-C ended it.";

const TREE_NOTES: &str = "\
Draft and path probabilities are the drafter's, of a token at its depth and of
the whole path to it; the target's is that of a token after the path before it.
All are at temperature 1. What the text repeats (ngram) has no probability.";

const BENCH_NOTES: &str = "\
A LIST is separated by commas; every combination is measured. Rows of one case
differ in how tokens are drafted alone and are measured interleaved; `x none` is
against plain decode beside them, `worst` the least of any prompt. Ctrl-C keeps
the rows of finished cases. Fails with 1 if a row has regressed.";
const PROFILE_NOTES: &str = "\
The generation is repeated, profiled and not, to say what profiling costs; its
text is not printed. The report is of the profiled run of median speed.";

const LOGITS_NOTES: &str = "\
The file gets `logits` [tokens, vocab] and, for each layer L that --hidden
names, `hidden.L` [tokens, hidden]: the residual stream after it. All f32.";

// The values carry no help of their own: with it, `--help` would turn to the long layout, three screens of it.

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Device {
    Auto,
    Cpu,
    // The CPU behind a queue, as a GPU would be: a test of the step.
    #[value(hide = true)]
    Deferred,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Spec {
    Auto,
    None,
    Dflash,
    Ddtree,
    Ngram,
}

/// How a latent cache holds its elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum CacheType {
    /// Two bytes each.
    Bf16,
    /// A byte each, and a factor a row.
    E4m3,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Switch {
    On,
    Off,
}

/// Flags of every command that computes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Machine")]
pub struct DeviceFlags {
    /// Where the model runs
    #[arg(long, value_name = "NAME", default_value = "auto")]
    pub device: Device,
    /// CPU threads [default: all cores]
    #[arg(long, value_name = "N", value_parser = threads)]
    pub threads: Option<usize>,
}

/// Flags of every command whose result is a report.
#[derive(Debug, Clone, Args)]
pub struct ReportFlags {
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
    /// Write the JSON object to a file, whatever is printed; `-` is --json
    #[arg(short = 'O', long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct InspectFlags {
    /// Folder of a model or of a DFlash drafter [default: built in]
    #[arg(value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Tokens of context that memory is stated for [default: the model's longest]
    #[arg(long, value_name = "N", value_parser = count)]
    pub ctx: Option<usize>,
    #[command(flatten)]
    pub report: ReportFlags,
}

#[derive(Debug, Clone, Args)]
pub struct DoctorFlags {
    #[command(flatten)]
    pub report: ReportFlags,
}

#[derive(Debug, Clone, Args)]
pub struct KernelsFlags {
    #[command(subcommand)]
    pub task: Option<KernelsTaskFlags>,
    /// The GPU, by number
    #[arg(long, value_name = "NAME", default_value = "cuda:0", value_parser = gpu, global = true)]
    pub device: u32,
    /// Print one JSON object instead of a table
    #[arg(long, global = true)]
    pub json: bool,
    /// Write the JSON object to a file, whatever is printed; `-` is --json
    #[arg(short = 'O', long, value_name = "FILE", global = true)]
    pub output: Option<PathBuf>,
}

#[derive(Debug, Clone, Subcommand)]
pub enum KernelsTaskFlags {
    /// Names, launch bounds, and on a GPU registers and memory (the default)
    List,
    /// Run every kernel on a GPU and compare with its reference on the CPU
    Check {
        /// Seed of the first run's inputs
        #[arg(long, value_name = "N", default_value = "0", value_parser = whole::<u32>)]
        seed: u32,
        /// Runs, each with the next seed
        #[arg(long, value_name = "N", default_value = "1", value_parser = runs)]
        seeds: u32,
        /// Small shapes only: quick under compute-sanitizer
        #[arg(long)]
        small: bool,
    },
    /// Measure what the GPU can do, and what kernels reach of it
    Bench,
    /// Measure verify attention, every result checked: time, share of what the GPU can do
    Attention {
        /// Heads, a list
        #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "8,16,64,128",
            value_parser = clap::value_parser!(u32).range(1..=128))]
        heads: Vec<u32>,
        /// Rows of the tree with its root, a list
        #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "1,8,16,32,64,128",
            value_parser = clap::value_parser!(u32).range(1..=256))]
        tree_rows: Vec<u32>,
        /// Cached tokens before the tree, a list
        #[arg(long = "context", value_name = "LIST", value_delimiter = ',', default_value = "1024,4096,16384,65536,131072",
            value_parser = clap::value_parser!(u32).range(0..=1 << 20))]
        contexts: Vec<u32>,
        /// How the cache holds its elements
        #[arg(long, value_name = "TYPE", default_value = "bf16")]
        cache: CacheType,
        /// Random inputs to check with, each with the next seed
        #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=16))]
        seeds: u32,
        /// Launches more a size, whose results must be the same to the bit
        #[arg(long, value_name = "N", default_value = "2")]
        repeats: u32,
        /// Comma-separated values instead of a table
        #[arg(long, conflicts_with = "json")]
        csv: bool,
    },
}

#[derive(Debug, Clone, Args)]
pub struct LogitsFlags {
    /// Model folder [default: built in]
    #[arg(value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Token ids: a JSON array of integers; `-` reads standard input
    #[arg(long, value_name = "FILE")]
    pub tokens: PathBuf,
    /// The safetensors file to write; `-` is standard output
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Layers whose output to write as well, e.g. 0,2
    #[arg(long, value_name = "LAYERS", value_delimiter = ',', value_parser = whole::<usize>)]
    pub hidden: Vec<usize>,
    #[command(flatten)]
    pub device: DeviceFlags,
}
