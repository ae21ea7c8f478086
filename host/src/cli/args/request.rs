//! The flags of commands that answer a prompt: `generate` and `tree`; those of `profile` are in `profile`.

use std::path::PathBuf;

use clap::Args;

use super::values::{TreeBudget, budget, count, positive, probability, temperature, whole};
use super::{DeviceFlags, ReportFlags, Spec, Switch};

#[derive(Debug, Clone, Args)]
pub struct PromptFlags {
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
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Model")]
pub struct ModelFlags {
    /// Model folder: config.json, safetensors, tokenizer [default: built in]
    #[arg(long, value_name = "DIR")]
    pub model: Option<PathBuf>,
    /// DFlash drafter folder [default: the built-in model's own]
    #[arg(long, value_name = "DIR")]
    pub draft: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Drafting")]
pub struct DraftingFlags {
    /// How tokens are drafted: none, dflash (a chain), ddtree (a tree), ngram (from
    /// what the text repeats), or auto (what pays, found out on the way; the default)
    #[arg(long, value_name = "MODE", hide_possible_values = true)]
    pub spec: Option<Spec>,
    /// Tree nodes verified a round, or auto: as many as pay, decided each round (the
    /// default; for dflash it is a block)
    #[arg(long, value_name = "N|auto", value_parser = budget)]
    pub tree_budget: Option<TreeBudget>,
    /// Amplitude of the drafter's rotary embedding [default: from its config]
    #[arg(long, value_name = "X", value_parser = positive)]
    pub draft_yarn_amplitude: Option<f64>,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Sampling")]
pub struct SamplingFlags {
    /// Softmax temperature; 0 is greedy [default: the model's, else 0]
    #[arg(long = "temp", visible_alias = "temperature", value_name = "X", value_parser = temperature)]
    pub temperature: Option<f32>,
    /// Keep the K most probable tokens; 0 keeps all [default: the model's]
    #[arg(long, value_name = "K", value_parser = whole::<usize>)]
    pub top_k: Option<usize>,
    /// Keep the likeliest tokens that reach probability P [default: the model's]
    #[arg(long, value_name = "P", value_parser = probability)]
    pub top_p: Option<f32>,
    /// Drop tokens below P times the likeliest one [default: the model's]
    #[arg(long, value_name = "P", value_parser = probability)]
    pub min_p: Option<f32>,
    /// The same seed gives the same text, drafted or not
    #[arg(long, value_name = "N", default_value = "0", value_parser = whole::<u64>)]
    pub seed: u64,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Chat")]
pub struct ChatFlags {
    /// Put the prompt through the model's chat template
    #[arg(long, conflicts_with_all = ["raw", "tokens"])]
    pub chat: bool,
    /// System message; needs --chat
    #[arg(long, value_name = "TEXT", requires = "chat")]
    pub system: Option<String>,
    /// Thinking mode; needs --chat [default: the template's]
    #[arg(long, value_name = "MODE", requires = "chat")]
    pub thinking: Option<Switch>,
    /// No chat template, which is the default
    #[arg(long)]
    pub raw: bool,
}

#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Length")]
pub struct LengthFlags {
    /// Most tokens to generate
    #[arg(short = 'n', long = "max-tokens", value_name = "N", default_value_t = 256, value_parser = count)]
    pub max_tokens: usize,
    /// Most tokens of prompt and answer together [default: what they need]
    #[arg(long, value_name = "N", value_parser = count)]
    pub ctx: Option<usize>,
    /// End before this text; may be repeated
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    pub stop: Vec<String>,
    /// Generate past end-of-text tokens
    #[arg(long)]
    pub ignore_eos: bool,
}

#[derive(Debug, Clone, Args)]
pub struct GenerateFlags {
    #[command(flatten)]
    pub prompt: PromptFlags,
    #[command(flatten)]
    pub model: ModelFlags,
    #[command(flatten)]
    pub drafting: DraftingFlags,
    #[command(flatten)]
    pub length: LengthFlags,
    #[command(flatten)]
    pub sampling: SamplingFlags,
    #[command(flatten)]
    pub chat: ChatFlags,

    /// Print text as it is generated, which is the default
    #[arg(long, conflicts_with_all = ["no_stream", "json"], help_heading = "Output")]
    pub stream: bool,
    /// Print text when it is complete
    #[arg(long, help_heading = "Output")]
    pub no_stream: bool,
    /// Print one JSON object instead of text
    #[arg(long, help_heading = "Output")]
    pub json: bool,
    /// Write the JSON object to a file, whatever is printed; `-` is --json
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
pub struct TreeFlags {
    #[command(flatten)]
    pub prompt: PromptFlags,
    /// Which round to draw, the first being 1
    #[arg(long, value_name = "K", default_value_t = 1, value_parser = count)]
    pub round: usize,
    /// Generate past end-of-text tokens
    #[arg(long)]
    pub ignore_eos: bool,
    /// Print the tree in Graphviz's language; with -O, write that to the file
    #[arg(long, conflicts_with = "json")]
    pub dot: bool,
    #[command(flatten)]
    pub report: ReportFlags,
    #[command(flatten)]
    pub model: ModelFlags,
    #[command(flatten)]
    pub drafting: DraftingFlags,
    #[command(flatten)]
    pub sampling: SamplingFlags,
    #[command(flatten)]
    pub chat: ChatFlags,
    #[command(flatten)]
    pub device: DeviceFlags,
}
