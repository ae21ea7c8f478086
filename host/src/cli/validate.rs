//! Flags that make sense together: what `args` reads becomes what the commands run on.

use std::path::PathBuf;

use coppice_model::Source;
use coppice_model::config::{DraftConfig, GenerationDefaults};

use super::args::{
    Device, DeviceFlags, DoctorFlags, GenerateFlags, InspectFlags, KernelsFlags, KernelsTaskFlags, LogitsFlags, Spec,
    Switch,
};
use crate::backend::cuda::check::Size;
use crate::draft::DflashOptions;
use crate::engine::Speculation;
use crate::error::{Error, Result};
use crate::sampling::Sampling;

/// Tree budget of `ddtree` where none is given.
const DDTREE_BUDGET: usize = 16;
/// Tree budget of `ngram` where none is given.
const NGRAM_BUDGET: usize = 8;

/// Where a prompt comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptSource {
    /// The command line.
    Text(String),
    /// Standard input.
    Stdin,
    /// A text file.
    File(PathBuf),
    /// A JSON array of token ids.
    Tokens(PathBuf),
}

/// How a prompt's text becomes the model's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Template {
    /// As it is, BOS before it where the model wants one.
    Raw,
    /// As the user's turn of the chat template.
    Chat {
        /// The system's turn.
        system: Option<String>,
        /// Thinking mode, where it is not left to the template.
        thinking: Option<bool>,
    },
}

/// What standard output gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// Text as it comes.
    Stream,
    /// Text when it is complete.
    Text,
    /// One JSON object.
    Json,
}

/// The machine to run on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeviceArgs {
    /// The backend.
    pub device: Device,
    /// CPU threads.
    pub threads: usize,
}

/// Sampling flags over the model's defaults.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SamplingArgs {
    temperature: Option<f32>,
    top_k: Option<usize>,
    top_p: Option<f32>,
    min_p: Option<f32>,
    seed: u64,
}

impl SamplingArgs {
    /// Flags as typed.
    pub fn new(
        temperature: Option<f32>,
        top_k: Option<usize>,
        top_p: Option<f32>,
        min_p: Option<f32>,
        seed: u64,
    ) -> Self {
        Self { temperature, top_k, top_p, min_p, seed }
    }

    /// The flags, and what `defaults` says where they are silent.
    ///
    /// # Errors
    /// [`Error::Usage`] for a value out of range.
    pub fn over(&self, defaults: &GenerationDefaults) -> Result<Sampling> {
        let sampling = Sampling {
            temperature: self.temperature.unwrap_or(defaults.temperature),
            top_k: self.top_k.unwrap_or(defaults.top_k),
            top_p: self.top_p.unwrap_or(defaults.top_p),
            min_p: self.min_p.unwrap_or(defaults.min_p),
            seed: self.seed,
        };
        sampling.validate().map_err(Error::Usage)?;
        Ok(sampling)
    }
}

/// How to draft: the mode, and the budget if one was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecArgs {
    mode: Spec,
    budget: Option<usize>,
}

impl SpecArgs {
    /// A mode, and a budget if one was given.
    pub fn new(mode: Spec, budget: Option<usize>) -> Self {
        Self { mode, budget }
    }

    /// With the budget of the mode, or of the drafter, where none was given.
    pub fn resolve(self, drafter: Option<&DraftConfig>) -> Speculation {
        let budget = |default| self.budget.unwrap_or(default);
        match self.mode {
            Spec::None => Speculation::None,
            Spec::Ngram => Speculation::Ngram { budget: budget(NGRAM_BUDGET) },
            Spec::Dflash => {
                let block = drafter.map_or(0, |config| config.block_size.saturating_sub(1));
                Speculation::Dflash { budget: budget(block).min(block) }
            }
            Spec::Ddtree => Speculation::Ddtree { budget: budget(DDTREE_BUDGET) },
        }
    }
}

/// `generate`.
#[derive(Debug, Clone)]
pub struct GenerateArgs {
    /// The prompt.
    pub prompt: PromptSource,
    /// How it is framed.
    pub template: Template,
    /// The model.
    pub target: Source,
    /// Its drafter, if the mode uses one.
    pub draft: Option<Source>,
    /// Drafting.
    pub spec: SpecArgs,
    /// Choices about the drafter.
    pub dflash: DflashOptions,
    /// Most tokens to generate.
    pub max_tokens: usize,
    /// Most tokens of prompt and answer.
    pub ctx: Option<usize>,
    /// Stop strings.
    pub stops: Vec<String>,
    /// End-of-text tokens do not end the text.
    pub ignore_eos: bool,
    /// Token choice.
    pub sampling: SamplingArgs,
    /// What standard output gets.
    pub format: Format,
    /// Where the JSON object is written as well.
    pub output: Option<PathBuf>,
    /// Statistics on standard error.
    pub stats: bool,
    /// Compare with plain decode.
    pub verify_parity: bool,
    /// The machine.
    pub device: DeviceArgs,
}

/// `inspect`.
#[derive(Debug, Clone)]
pub struct InspectArgs {
    /// What to describe.
    pub sources: Vec<Source>,
    /// JSON instead of tables.
    pub json: bool,
    /// Where the JSON object is written as well.
    pub output: Option<PathBuf>,
}

/// `doctor`.
#[derive(Debug, Clone)]
pub struct DoctorArgs {
    /// JSON instead of text.
    pub json: bool,
    /// Where the JSON object is written as well.
    pub output: Option<PathBuf>,
}

/// `kernels`.
#[derive(Debug, Clone)]
pub struct KernelsArgs {
    /// What to do.
    pub task: KernelsTask,
    /// Number of the GPU.
    pub device: u32,
    /// JSON instead of tables.
    pub json: bool,
    /// Where the JSON object is written as well.
    pub output: Option<PathBuf>,
}

/// What `kernels` does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    pub tokens: PathBuf,
    /// The file to write.
    pub out: PathBuf,
    /// Layers whose output is written, ascending.
    pub hidden: Vec<usize>,
    /// The machine.
    pub device: DeviceArgs,
}

impl GenerateFlags {
    /// Checks the flags against each other. `stdin_is_terminal`: nobody has put a prompt there.
    ///
    /// # Errors
    /// [`Error::Usage`] names the flags and what to do.
    pub fn validate(self, stdin_is_terminal: bool) -> Result<GenerateArgs> {
        let prompt = match (self.prompt, self.prompt_file, self.tokens) {
            (Some(dash), _, _) if dash == "-" => PromptSource::Stdin,
            (Some(text), _, _) => PromptSource::Text(text),
            (None, Some(path), _) => PromptSource::File(path),
            (None, None, Some(path)) => PromptSource::Tokens(path),
            (None, None, None) if !stdin_is_terminal => PromptSource::Stdin,
            (None, None, None) => {
                let message = "there is no prompt: give one as an argument, on standard input, or with --prompt-file";
                return Err(Error::Usage(message.to_owned()));
            }
        };
        if self.stop.iter().any(String::is_empty) {
            return Err(Error::Usage("--stop is empty, expected the text to end before".to_owned()));
        }
        let (target, draft) = match (self.model, self.draft) {
            (None, None) => (Source::EmbeddedTarget, Some(Source::EmbeddedDraft)),
            (None, Some(draft)) => (Source::EmbeddedTarget, Some(Source::Directory(draft))),
            (Some(model), draft) => (Source::Directory(model), draft.map(Source::Directory)),
        };
        let (mode, draft) = match (self.spec, draft) {
            // So small a model is bound by arithmetic on a CPU: a drafted round takes longer than its tokens one by one.
            (None, Some(Source::EmbeddedDraft)) if self.tree_budget.is_none() => (Spec::None, None),
            (None, Some(draft)) => (Spec::Ddtree, Some(draft)),
            (None, None) => (Spec::Ngram, None),
            (Some(mode @ (Spec::Dflash | Spec::Ddtree)), Some(draft)) => (mode, Some(draft)),
            (Some(Spec::Dflash), None) => return Err(drafter_missing("dflash")),
            (Some(Spec::Ddtree), None) => return Err(drafter_missing("ddtree")),
            (Some(mode @ (Spec::None | Spec::Ngram)), _) => (mode, None),
        };
        let format = match (self.json, self.no_stream) {
            (true, _) => Format::Json,
            (false, true) => Format::Text,
            (false, false) => Format::Stream,
        };
        Ok(GenerateArgs {
            prompt,
            template: if self.chat {
                Template::Chat { system: self.system, thinking: self.thinking.map(|mode| mode == Switch::On) }
            } else {
                Template::Raw
            },
            target,
            draft,
            spec: SpecArgs { mode, budget: self.tree_budget },
            dflash: DflashOptions { yarn_amplitude: self.draft_yarn_amplitude },
            max_tokens: self.max_tokens,
            ctx: self.ctx,
            stops: self.stop,
            ignore_eos: self.ignore_eos,
            sampling: SamplingArgs {
                temperature: self.temperature,
                top_k: self.top_k,
                top_p: self.top_p,
                min_p: self.min_p,
                seed: self.seed,
            },
            format,
            output: self.output,
            stats: self.stats,
            verify_parity: self.verify_parity,
            device: self.device.validate(),
        })
    }
}

fn drafter_missing(mode: &str) -> Error {
    Error::Usage(format!("--spec {mode} needs a drafter for this --model: name one with --draft"))
}

impl InspectFlags {
    /// The built-in model and its drafter where no folder is named.
    pub fn validate(self) -> InspectArgs {
        let sources = match self.model {
            Some(folder) => vec![Source::Directory(folder)],
            None => vec![Source::EmbeddedTarget, Source::EmbeddedDraft],
        };
        InspectArgs { sources, json: self.json, output: self.output }
    }
}

impl DoctorFlags {
    /// Nothing to check.
    pub fn validate(self) -> DoctorArgs {
        DoctorArgs { json: self.json, output: self.output }
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
        };
        KernelsArgs { task, device: self.device, json: self.json, output: self.output }
    }
}

impl LogitsFlags {
    /// Layers ascending, each once.
    pub fn validate(mut self) -> LogitsArgs {
        self.hidden.sort_unstable();
        self.hidden.dedup();
        LogitsArgs {
            target: self.model.map_or(Source::EmbeddedTarget, Source::Directory),
            tokens: self.tokens,
            out: self.out,
            hidden: self.hidden,
            device: self.device.validate(),
        }
    }
}

impl DeviceFlags {
    /// All cores where no number is given.
    pub fn validate(self) -> DeviceArgs {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        DeviceArgs { device: self.device, threads: self.threads.unwrap_or_else(cores) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::{Cli, Flags};
    use clap::Parser;

    fn generate(args: &[&str], stdin_is_terminal: bool) -> Result<GenerateArgs> {
        match Cli::try_parse_from([&["coppice", "generate"], args].concat()).unwrap().command {
            Flags::Generate(flags) => flags.validate(stdin_is_terminal),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn the_flags_are_consistent() {
        use clap::CommandFactory;
        Cli::command().debug_assert();
    }

    #[test]
    fn c7_a_prompt_comes_from_standard_input_unless_someone_sits_there() {
        let source = |args: &[&str], terminal| generate(args, terminal).map(|args| args.prompt);
        let text = |text: &str| PromptSource::Text(text.to_owned());
        assert_eq!(source(&["x"], true).unwrap(), text("x"));
        assert_eq!(source(&["--", "-x"], true).unwrap(), text("-x"));
        assert_eq!(source(&[""], true).unwrap(), text(""));
        assert_eq!(source(&["-"], true).unwrap(), PromptSource::Stdin);
        assert_eq!(source(&[], false).unwrap(), PromptSource::Stdin);
        assert_eq!(source(&["--tokens", "t"], false).unwrap(), PromptSource::Tokens("t".into()));
        assert_eq!(source(&["--prompt-file", "f"], true).unwrap(), PromptSource::File("f".into()));
        assert!(matches!(source(&[], true), Err(Error::Usage(message)) if message.starts_with("there is no prompt")));
    }

    #[test]
    fn modes_and_drafters_default_to_what_there_is() {
        let (embedded, folder) = (Some(Source::EmbeddedDraft), Some(Source::Directory("d".into())));
        let ddtree = |budget| Speculation::Ddtree { budget };
        let ngram = |budget| Speculation::Ngram { budget };
        let cases: [(&[&str], Option<Source>, Speculation); 11] = [
            (&[], None, Speculation::None),
            (&["--spec", "ddtree"], embedded.clone(), ddtree(16)),
            (&["--tree-budget", "0"], embedded.clone(), ddtree(0)),
            (&["--draft", "d"], folder.clone(), ddtree(16)),
            (&["--model", "m"], None, ngram(8)),
            (&["--model", "m", "--tree-budget", "3"], None, ngram(3)),
            (&["--model", "m", "--draft", "d"], folder.clone(), ddtree(16)),
            (&["--model", "m", "--draft", "d", "--spec", "ngram"], None, ngram(8)),
            (&["--spec", "none", "--tree-budget", "9"], None, Speculation::None),
            (&["--spec", "dflash"], embedded.clone(), Speculation::Dflash { budget: 0 }),
            (&["--spec", "ddtree", "--tree-budget", "64"], embedded, ddtree(64)),
        ];
        let mut failed = Vec::new();
        for (args, draft, speculation) in cases {
            let got = generate(&[args, &["x"]].concat(), true).unwrap();
            if (&got.draft, got.spec.resolve(None)) != (&draft, speculation) {
                failed.push(format!("{args:?}: {:?}, {:?}", got.draft, got.spec.resolve(None)));
            }
        }
        assert!(failed.is_empty(), "{failed:#?}");
    }

    #[test]
    fn a_chain_is_no_longer_than_the_drafters_block() {
        let spec = |budget| SpecArgs { mode: Spec::Dflash, budget };
        let drafter =
            DraftConfig::load(&Source::Directory(concat!(env!("CARGO_MANIFEST_DIR"), "/../model/tiny/draft").into()));
        let drafter = drafter.unwrap();
        for (given, budget) in [(None, 7), (Some(3), 3), (Some(100), 7)] {
            assert_eq!(spec(given).resolve(Some(&drafter)), Speculation::Dflash { budget });
        }
    }

    #[test]
    fn sampling_flags_go_over_the_models_defaults() {
        let defaults = GenerationDefaults { temperature: 0.6, top_k: 50, top_p: 0.9, min_p: 0.0 };
        let sampling = |args: &[&str]| generate(&[args, &["x"]].concat(), true).unwrap().sampling.over(&defaults);
        let base = Sampling { temperature: 0.6, top_k: 50, top_p: 0.9, min_p: 0.0, seed: 0 };
        assert_eq!(sampling(&[]).unwrap(), base);
        assert_eq!(sampling(&["--temp", "0", "--seed", "4"]).unwrap(), Sampling { temperature: 0.0, seed: 4, ..base });
        assert_eq!(sampling(&["--temperature", "1.5", "--top-k", "0"]).unwrap().top_k, 0);
        assert!(matches!(sampling(&["--top-p", "2"]), Err(Error::Usage(message)) if message.contains("--top-p is 2")));
    }
}
