//! The flags of `bench`, and what they mean together.

use std::path::PathBuf;

use clap::{Args, ValueEnum};
use coppice_model::Source;

use crate::bench::matrix::PromptLength;
use crate::bench::report::Format;
use crate::cli::args::{
    DeviceFlags, SamplingFlags, Spec, TreeBudget, budget, count, positive, probability, temperature, whole,
};
use crate::cli::model::PREFILL_CHUNK;
use crate::cli::validate::{DeviceArgs, SamplingArgs, SpecArgs};
use crate::error::{Error, Result};

/// No machine is quiet for longer.
const MAX_REPEATS: usize = 1000;

#[derive(Debug, Clone, Args)]
pub struct BenchFlags {
    /// Prompt lengths in tokens, e.g. 128,1024 [default: whole prompts as they are]
    #[arg(short = 'p', long = "prompt-tokens", value_name = "LIST", value_delimiter = ',', value_parser = count)]
    #[arg(help_heading = "Matrix")]
    pub prompt_tokens: Vec<usize>,
    /// Tokens to generate
    #[arg(short = 'n', long = "max-tokens", value_name = "LIST", value_delimiter = ',', value_parser = count)]
    #[arg(default_value = "128", help_heading = "Matrix")]
    pub max_tokens: Vec<usize>,
    /// Context filled before the prompt, multiples of 64; its time does not count
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = depth, default_value = "0")]
    #[arg(help_heading = "Matrix")]
    pub depth: Vec<usize>,
    /// Ways of drafting: none, ngram, dflash, ddtree, auto; none is always measured
    /// [default: auto]
    #[arg(long, value_name = "LIST", value_delimiter = ',', hide_possible_values = true, help_heading = "Matrix")]
    pub spec: Vec<Spec>,
    /// Tree nodes verified a round, or auto: as many as pay [default: auto]
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = budget, help_heading = "Matrix")]
    pub tree_budget: Vec<TreeBudget>,
    /// Softmax temperatures; 0 is greedy [default: the model's, else 0]
    #[arg(long = "temp", visible_alias = "temperature", value_name = "LIST", value_delimiter = ',')]
    #[arg(value_parser = temperature, help_heading = "Matrix")]
    pub temperature: Vec<f32>,

    /// Model folder: config.json, safetensors, tokenizer [default: built in]
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub model: Option<PathBuf>,
    /// DFlash drafter folder [default: the built-in model's own]
    #[arg(long, value_name = "DIR", help_heading = "Model")]
    pub draft: Option<PathBuf>,
    /// Prompts: a JSON object a line with `text`, or `tokens` for a model without a
    /// tokenizer, and `id` [default: built-in code and prose]
    #[arg(long, value_name = "FILE", help_heading = "Model")]
    pub prompts: Option<PathBuf>,
    /// Prompts a row [default: all; 4 with -p]
    #[arg(long, value_name = "N", value_parser = count, help_heading = "Model")]
    pub count: Option<usize>,

    /// Keep the K most probable tokens; 0 keeps all [default: the model's]
    #[arg(long, value_name = "K", value_parser = whole::<usize>, help_heading = "Sampling")]
    pub top_k: Option<usize>,
    /// Keep the likeliest tokens that reach probability P [default: the model's]
    #[arg(long, value_name = "P", value_parser = probability, help_heading = "Sampling")]
    pub top_p: Option<f32>,
    /// Drop tokens below P times the likeliest one [default: the model's]
    #[arg(long, value_name = "P", value_parser = probability, help_heading = "Sampling")]
    pub min_p: Option<f32>,
    /// The same seed gives the same tokens
    #[arg(long, value_name = "N", default_value = "0", value_parser = whole::<u64>, help_heading = "Sampling")]
    pub seed: u64,

    /// Measurements of every row, interleaved
    #[arg(short = 'r', long, value_name = "N", default_value_t = 5, value_parser = repeats, help_heading = "Measuring")]
    pub repeats: usize,
    /// Generations of each row before the first measurement
    #[arg(long, value_name = "N", default_value_t = 1, help_heading = "Measuring")]
    pub warmup: usize,
    /// Warn of rows whose (max - min) / median is above so many percent
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = positive, help_heading = "Measuring")]
    pub max_noise: f64,
    /// Report a recorded run instead of measuring
    #[arg(long, value_name = "FILE", help_heading = "Measuring")]
    pub from: Option<PathBuf>,

    /// What is printed
    #[arg(short = 'o', long = "format", value_name = "FORMAT", default_value = "md", help_heading = "Output")]
    pub format: FormatFlag,
    /// Write the run to a file, whatever is printed: CSV, JSON lines or Markdown if
    /// its name ends in .csv, .jsonl or .md, else JSON
    #[arg(short = 'O', long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,
    /// Plot the run: speed, tokens a round, time a round
    #[arg(long, value_name = "FILE.svg", help_heading = "Output")]
    pub plot: Option<PathBuf>,
    /// Compare with the JSON of a recorded run; fail where a row has regressed
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub baseline: Option<PathBuf>,
    /// Loss of decode speed that is a regression
    #[arg(long, value_name = "PERCENT", default_value_t = 10.0, value_parser = positive, help_heading = "Output")]
    pub max_regression: f64,

    #[command(flatten)]
    pub device: DeviceFlags,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum FormatFlag {
    Md,
    Csv,
    Json,
    Jsonl,
}

/// `bench`.
#[derive(Debug, Clone)]
pub struct BenchArgs {
    /// Where the rows come from.
    pub work: Work,
    /// What standard output gets.
    pub format: Format,
    /// Where the run is written as well.
    pub output: Option<PathBuf>,
    /// Where the plot is written.
    pub plot: Option<PathBuf>,
    /// The run to compare with.
    pub baseline: Option<PathBuf>,
    /// Percent.
    pub max_regression: f64,
}

/// Where rows come from.
#[derive(Debug, Clone)]
pub enum Work {
    /// A recorded run.
    Read(PathBuf),
    /// Measuring.
    Measure(Box<MeasureArgs>),
}

/// What to measure.
#[derive(Debug, Clone)]
pub struct MeasureArgs {
    /// The model.
    pub target: Source,
    /// Its drafter, if an arm uses one.
    pub draft: Option<Source>,
    /// The bundled texts where no file is named.
    pub prompts: Option<PathBuf>,
    /// Prompts a row.
    pub count: Option<usize>,
    /// Prompt lengths.
    pub lengths: Vec<PromptLength>,
    /// Tokens to generate.
    pub max_tokens: Vec<usize>,
    /// Context before the prompt.
    pub depths: Vec<usize>,
    /// Ways of drafting besides plain decode.
    pub specs: Vec<SpecArgs>,
    /// Temperatures; the model's own where there are none.
    pub temperatures: Vec<f32>,
    /// Token choice besides the temperature.
    pub sampling: SamplingArgs,
    /// Measurements of every row.
    pub repeats: usize,
    /// Generations before the first.
    pub warmup: usize,
    /// Percent.
    pub max_noise: f64,
    /// The machine.
    pub device: DeviceArgs,
}

impl BenchFlags {
    /// # Errors
    /// [`Error::Usage`] for a mode without its drafter.
    pub fn validate(self) -> Result<BenchArgs> {
        let format = match self.format {
            FormatFlag::Md => Format::Markdown,
            FormatFlag::Csv => Format::Csv,
            FormatFlag::Json => Format::Json,
            FormatFlag::Jsonl => Format::JsonLines,
        };
        let (output, plot, baseline) = (self.output.clone(), self.plot.clone(), self.baseline.clone());
        let max_regression = self.max_regression;
        let work = match self.from.clone() {
            Some(path) => Work::Read(path),
            None => Work::Measure(Box::new(self.measure()?)),
        };
        Ok(BenchArgs { work, format, output, plot, baseline, max_regression })
    }

    fn measure(self) -> Result<MeasureArgs> {
        let (target, draft) = match (self.model, self.draft) {
            (None, None) => (Source::EmbeddedTarget, Some(Source::EmbeddedDraft)),
            (None, Some(draft)) => (Source::EmbeddedTarget, Some(Source::Directory(draft))),
            (Some(model), draft) => (Source::Directory(model), draft.map(Source::Directory)),
        };
        let modes = match (self.spec.is_empty(), &draft) {
            (false, _) => self.spec,
            // A budget of one's own is for the best mode there is.
            (true, Some(_)) if !self.tree_budget.is_empty() => vec![Spec::Ddtree],
            (true, None) if !self.tree_budget.is_empty() => vec![Spec::Ngram],
            (true, _) => vec![Spec::Auto],
        };
        let needs_drafter = |mode: &Spec| matches!(mode, Spec::Dflash | Spec::Ddtree);
        if draft.is_none() && modes.iter().any(needs_drafter) {
            let message = "--spec dflash and ddtree need a drafter for this --model: name one with --draft";
            return Err(Error::Usage(message.to_owned()));
        }
        let budgets: Vec<Option<TreeBudget>> = match self.tree_budget.as_slice() {
            [] => vec![None],
            budgets => budgets.iter().copied().map(Some).collect(),
        };
        // What `auto` decides no budget fixes.
        let specs = modes.iter().flat_map(|mode| {
            let budget = |budget: &Option<TreeBudget>| if *mode == Spec::Auto { None } else { *budget };
            budgets.iter().map(move |given| SpecArgs { mode: *mode, budget: budget(given) })
        });
        let (top_k, top_p, min_p, seed) = (self.top_k, self.top_p, self.min_p, self.seed);
        let sampling = SamplingFlags { temperature: None, top_k, top_p, min_p, seed };
        Ok(MeasureArgs {
            target,
            draft: draft.filter(|_| modes.iter().any(|mode| needs_drafter(mode) || *mode == Spec::Auto)),
            prompts: self.prompts,
            count: self.count,
            lengths: match self.prompt_tokens.as_slice() {
                [] => vec![PromptLength::Whole],
                lengths => lengths.iter().copied().map(PromptLength::Tokens).collect(),
            },
            max_tokens: self.max_tokens,
            depths: self.depth,
            specs: specs.collect(),
            temperatures: self.temperature,
            sampling: sampling.into(),
            repeats: self.repeats,
            warmup: self.warmup,
            max_noise: self.max_noise,
            device: self.device.validate(),
        })
    }
}

fn depth(text: &str) -> std::result::Result<usize, String> {
    match text.parse::<usize>() {
        Ok(depth) if depth.is_multiple_of(PREFILL_CHUNK) => Ok(depth),
        _ => Err(format!("expected a multiple of {PREFILL_CHUNK}, the tokens that a prefill pass takes")),
    }
}

fn repeats(text: &str) -> std::result::Result<usize, String> {
    match text.parse() {
        Ok(repeats @ 1..=MAX_REPEATS) => Ok(repeats),
        _ => Err(format!("expected an integer from 1 to {MAX_REPEATS}")),
    }
}
