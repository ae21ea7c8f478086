//! The flags as they are typed, each described once. What they mean together lives in `validate`.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use super::bench::BenchFlags;

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
    /// Measure speed, acceptance and memory
    #[command(after_help = BENCH_NOTES, allow_negative_numbers = true)]
    Bench(Box<BenchFlags>),
    /// Describe a model: configuration, tensors, parameters
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

const BENCH_NOTES: &str = "\
A LIST is separated by commas; every combination is measured. Rows of one case
differ in how tokens are drafted alone and are measured interleaved; `x none` is
against plain decode beside them, `worst` the least of any prompt. Ctrl-C keeps
the rows of finished cases. Fails with 1 if a row has regressed.";

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
    None,
    Dflash,
    Ddtree,
    Ngram,
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

#[derive(Debug, Clone, Args)]
pub struct GenerateFlags {
    /// Text to continue; `-` or nothing reads it from standard input, after `--` it
    /// may begin with a dash
    #[arg(value_name = "PROMPT", conflicts_with_all = ["prompt_file", "tokens"])]
    pub prompt: Option<String>,
    /// Read the prompt from a file
    #[arg(long, value_name = "FILE", conflicts_with = "tokens")]
    pub prompt_file: Option<PathBuf>,
    /// Read the prompt as token ids: a JSON array of integers
    #[arg(long, value_name = "FILE")]
    pub tokens: Option<PathBuf>,

    /// Model folder: config.json, safetensors, tokenizer [default: built in]
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub model: Option<PathBuf>,
    /// DFlash drafter folder [default: the built-in model's own]
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub draft: Option<PathBuf>,

    /// How tokens are drafted: none, dflash (a chain), ddtree (a tree), or ngram
    /// (from what the text repeats) [default: ddtree with --draft or --tree-budget,
    /// ngram for a --model without a drafter, none for the built-in model]
    #[arg(long, value_name = "MODE", hide_possible_values = true, help_heading = "Drafting")]
    pub spec: Option<Spec>,
    /// Tree nodes verified a round [default: ddtree 16, ngram 8, dflash a block]
    #[arg(long, value_name = "N", value_parser = budget, help_heading = "Drafting")]
    pub tree_budget: Option<usize>,
    /// Amplitude of the drafter's rotary embedding [default: from its config]
    #[arg(long, value_name = "X", value_parser = positive, help_heading = "Drafting")]
    pub draft_yarn_amplitude: Option<f64>,

    /// Most tokens to generate
    #[arg(short = 'n', long = "max-tokens", value_name = "N", default_value_t = 256, value_parser = count)]
    #[arg(help_heading = "Length")]
    pub max_tokens: usize,
    /// Most tokens of prompt and answer together [default: what they need]
    #[arg(long, value_name = "N", value_parser = count, help_heading = "Length")]
    pub ctx: Option<usize>,
    /// End before this text; may be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true, help_heading = "Length")]
    pub stop: Vec<String>,
    /// Generate past end-of-text tokens
    #[arg(long, help_heading = "Length")]
    pub ignore_eos: bool,

    /// Softmax temperature; 0 is greedy [default: the model's, else 0]
    #[arg(long = "temp", visible_alias = "temperature", value_name = "X", help_heading = "Sampling")]
    pub temperature: Option<f32>,
    /// Keep the K most probable tokens; 0 keeps all [default: the model's]
    #[arg(long, value_name = "K", help_heading = "Sampling")]
    pub top_k: Option<usize>,
    /// Keep the likeliest tokens that reach probability P [default: the model's]
    #[arg(long, value_name = "P", help_heading = "Sampling")]
    pub top_p: Option<f32>,
    /// Drop tokens below P times the likeliest one [default: the model's]
    #[arg(long, value_name = "P", help_heading = "Sampling")]
    pub min_p: Option<f32>,
    /// The same seed gives the same text, drafted or not
    #[arg(long, value_name = "N", default_value_t = 0, help_heading = "Sampling")]
    pub seed: u64,

    /// Put the prompt through the model's chat template
    #[arg(long, conflicts_with_all = ["raw", "tokens"], help_heading = "Chat")]
    pub chat: bool,
    /// System message; needs --chat
    #[arg(long, value_name = "TEXT", requires = "chat", help_heading = "Chat")]
    pub system: Option<String>,
    /// Thinking mode; needs --chat [default: the template's]
    #[arg(long, value_name = "MODE", requires = "chat", help_heading = "Chat")]
    pub thinking: Option<Switch>,
    /// No chat template, which is the default
    #[arg(long, help_heading = "Chat")]
    pub raw: bool,

    /// Print text as it is generated, which is the default
    #[arg(long, conflicts_with_all = ["no_stream", "json"], help_heading = "Output")]
    pub stream: bool,
    /// Print text when it is complete
    #[arg(long, help_heading = "Output")]
    pub no_stream: bool,
    /// Print one JSON object instead of text
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Write the JSON object to a file, whatever is printed
    #[arg(short = 'O', long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,
    /// Say on standard error how it went: speed, acceptance, memory
    #[arg(long, help_heading = "Output")]
    pub stats: bool,
    /// Generate again without drafting and fail if a token differs
    #[arg(long, help_heading = "Output")]
    pub verify_parity: bool,

    #[command(flatten)]
    pub device: DeviceFlags,
}

#[derive(Debug, Clone, Args)]
pub struct InspectFlags {
    /// Folder of a model or of a DFlash drafter [default: built in]
    #[arg(value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Print one JSON object instead of tables
    #[arg(long)]
    pub json: bool,
    /// Write the JSON object to a file, whatever is printed
    #[arg(short = 'O', long, value_name = "FILE")]
    pub output: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
pub struct DoctorFlags {
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
    /// Write the JSON object to a file, whatever is printed
    #[arg(short = 'O', long, value_name = "FILE")]
    pub output: Option<PathBuf>,
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
    /// Write the JSON object to a file, whatever is printed
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
        #[arg(long, value_name = "N", default_value_t = 0)]
        seed: u32,
        /// Runs, each with the next seed
        #[arg(long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=1000))]
        seeds: u32,
        /// Small shapes only: quick under compute-sanitizer
        #[arg(long)]
        small: bool,
    },
    /// Measure what the GPU can do, and what kernels reach of it
    Bench,
}

#[derive(Debug, Clone, Args)]
pub struct LogitsFlags {
    /// Model folder [default: built in]
    #[arg(value_name = "MODEL")]
    pub model: Option<PathBuf>,
    /// Token ids: a JSON array of integers
    #[arg(long, value_name = "FILE")]
    pub tokens: PathBuf,
    /// The safetensors file to write
    #[arg(long, value_name = "FILE")]
    pub out: PathBuf,
    /// Layers whose output to write as well, e.g. 0,2
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    pub hidden: Vec<usize>,
    #[command(flatten)]
    pub device: DeviceFlags,
}

/// Most nodes of a tree: far beyond what pays, and a bound on what a round allocates.
const MAX_BUDGET: usize = 1024;

/// More than any machine's cores, and no more than it takes to notice a mistyped number.
const MAX_THREADS: usize = 1024;

fn threads(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(value @ 1..=MAX_THREADS) => Ok(value),
        _ => Err(format!("expected an integer from 1 to {MAX_THREADS}")),
    }
}

pub(super) fn count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err("expected an integer of at least 1".to_owned()),
        Ok(value) => Ok(value),
    }
}

pub(super) fn budget(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(value) if value <= MAX_BUDGET => Ok(value),
        _ if text == "auto" => Err(format!("auto is not available yet, give a number from 0 to {MAX_BUDGET}")),
        _ => Err(format!("expected an integer from 0 to {MAX_BUDGET}")),
    }
}

/// `cuda` or `cuda:N`.
fn gpu(text: &str) -> Result<u32, String> {
    let index = match text.strip_prefix("cuda") {
        Some("") => Some(0),
        Some(rest) => rest.strip_prefix(':').and_then(|index| index.parse().ok()),
        None => None,
    };
    index.ok_or_else(|| "expected cuda or cuda:N".to_owned())
}

pub(super) fn positive(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(value) if f64::is_finite(value) && value > 0.0 => Ok(value),
        _ => Err("expected a finite number above 0".to_owned()),
    }
}
