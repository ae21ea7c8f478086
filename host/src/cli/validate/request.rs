//! Flags of the commands that answer a prompt, and what they mean beside each other.

use std::path::PathBuf;

use coppice_model::Source;
use coppice_model::config::{DraftConfig, GenerationDefaults};

use super::{DeviceArgs, Input, ReportArgs};
use crate::cli::args::{
    ChatFlags, DeviceFlags, DraftingFlags, GenerateFlags, ModelFlags, PromptFlags, SamplingFlags, Spec, Switch,
    TreeBudget, TreeFlags,
};
use crate::draft::DflashOptions;
use crate::engine::{Drafts, Speculation};
use crate::error::{Error, Result};
use crate::sampling::Sampling;

/// Nodes of a tree that is drawn, where none are given.
const DRAWN: usize = 16;

/// Where a prompt comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PromptSource {
    /// The command line.
    Text(String),
    /// Text in a file or on standard input.
    Read(Input),
    /// A JSON array of token ids.
    Tokens(Input),
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

/// How long the answer may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// So many tokens.
    Tokens(usize),
    /// So many rounds, whatever is accepted in them.
    Rounds(usize),
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

impl From<SamplingFlags> for SamplingArgs {
    fn from(flags: SamplingFlags) -> Self {
        let SamplingFlags { temperature, top_k, top_p, min_p, seed } = flags;
        Self { temperature, top_k, top_p, min_p, seed }
    }
}

/// How to draft: the mode, and the budget if one was given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpecArgs {
    /// The mode.
    pub mode: Spec,
    /// The budget, if one was given.
    pub budget: Option<TreeBudget>,
}

impl SpecArgs {
    /// A chain is no longer than the drafter's block, and as long where no budget was given.
    pub fn resolve(self, drafter: Option<&DraftConfig>) -> Speculation {
        let nodes = match self.budget {
            Some(TreeBudget::Nodes(nodes)) => Some(nodes),
            Some(TreeBudget::Auto) | None => None,
        };
        match (self.mode, nodes) {
            (Spec::None, _) => Speculation::None,
            (Spec::Ngram, Some(budget)) => Speculation::Ngram { budget },
            (Spec::Ngram, None) => Speculation::Auto(Drafts::Ngram),
            (Spec::Dflash, nodes) => {
                let block = drafter.map_or(0, |config| config.block_size.saturating_sub(1));
                Speculation::Dflash { budget: nodes.map_or(block, |nodes| nodes.min(block)) }
            }
            (Spec::Ddtree, Some(budget)) => Speculation::Ddtree { budget },
            (Spec::Ddtree, None) => Speculation::Auto(Drafts::Ddtree),
            (Spec::Auto, _) => Speculation::Auto(Drafts::Any),
        }
    }
}

/// What is asked of which model.
#[derive(Debug, Clone)]
pub struct RequestArgs {
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
    /// Most that is generated.
    pub length: Length,
    /// Most tokens of prompt and answer.
    pub ctx: Option<usize>,
    /// Stop strings.
    pub stops: Vec<String>,
    /// End-of-text tokens do not end the text.
    pub ignore_eos: bool,
    /// Token choice.
    pub sampling: SamplingArgs,
    /// The machine.
    pub device: DeviceArgs,
    /// Flags that change nothing beside the others, and why: each a warning.
    pub idle: Vec<String>,
}

/// `generate`.
#[derive(Debug, Clone)]
pub struct GenerateArgs {
    /// What is asked.
    pub request: RequestArgs,
    /// What standard output gets.
    pub format: Format,
    /// Where the JSON object is written as well.
    pub output: Option<PathBuf>,
    /// Statistics on standard error.
    pub stats: bool,
    /// Compare with plain decode.
    pub verify_parity: bool,
}

/// `tree`.
#[derive(Debug, Clone)]
pub struct TreeArgs {
    /// What is asked.
    pub request: RequestArgs,
    /// The round, from 1.
    pub round: usize,
    /// What standard output gets.
    pub drawing: Drawing,
    /// Where the JSON object, or the graph if that is drawn, is written as well.
    pub output: Option<PathBuf>,
}

/// How a tree is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drawing {
    /// For people.
    Text,
    /// As one JSON object.
    Json,
    /// As a graph in Graphviz's language.
    Dot,
}

impl GenerateFlags {
    /// Checks the flags against each other. `stdin_is_terminal`: nobody has put a prompt there.
    ///
    /// # Errors
    /// [`Error::Usage`] names the flags and what to do.
    pub fn validate(self, stdin_is_terminal: bool) -> Result<GenerateArgs> {
        if self.length.stop.iter().any(String::is_empty) {
            return Err(Error::Usage("--stop is empty, expected the text to end before".to_owned()));
        }
        let ReportArgs { json, output } = ReportArgs::new(self.json, self.output);
        if json && self.stream {
            return Err(Error::Usage("--stream and -O - both write to standard output: leave one out".to_owned()));
        }
        let request = Group {
            prompt: self.prompt,
            model: self.model,
            drafting: self.drafting,
            sampling: self.sampling,
            chat: self.chat,
            device: self.device,
        };
        let request = RequestArgs {
            ctx: self.length.ctx,
            stops: self.length.stop,
            ignore_eos: self.length.ignore_eos,
            ..request.validate(Length::Tokens(self.length.max_tokens), stdin_is_terminal)?
        };
        let format = match (json, self.no_stream) {
            (true, _) => Format::Json,
            (false, true) => Format::Text,
            (false, false) => Format::Stream,
        };
        Ok(GenerateArgs { request, format, output, stats: self.stats, verify_parity: self.verify_parity })
    }
}

impl TreeFlags {
    /// As [`GenerateFlags::validate`].
    ///
    /// # Errors
    /// [`Error::Usage`]; drafting nothing is one.
    pub fn validate(self, stdin_is_terminal: bool) -> Result<TreeArgs> {
        let mode = match self.drafting.spec {
            Some(Spec::None | Spec::Auto) => {
                let message =
                    "a mode that may draft nothing has no tree to draw, expected --spec ddtree, dflash or ngram";
                return Err(Error::Usage(message.to_owned()));
            }
            None if self.model.model.is_some() && self.model.draft.is_none() => Spec::Ngram,
            None => Spec::Ddtree,
            Some(mode) => mode,
        };
        let budget = self.drafting.tree_budget.unwrap_or(TreeBudget::Nodes(DRAWN));
        let drafting = DraftingFlags { spec: Some(mode), tree_budget: Some(budget), ..self.drafting };
        let ReportArgs { json, output } = match self.dot {
            // What `-O -` asks for is printed in any case.
            true => ReportArgs { json: false, ..ReportArgs::from(self.report) },
            false => self.report.into(),
        };
        let request = Group {
            prompt: self.prompt,
            model: self.model,
            drafting,
            sampling: self.sampling,
            chat: self.chat,
            device: self.device,
        };
        let request = request.validate(Length::Rounds(self.round), stdin_is_terminal)?;
        let drawing = match (self.dot, json) {
            (true, _) => Drawing::Dot,
            (false, true) => Drawing::Json,
            (false, false) => Drawing::Text,
        };
        let request = RequestArgs { ignore_eos: self.ignore_eos, ..request };
        Ok(TreeArgs { request, round: self.round, drawing, output })
    }
}

/// The flags that commands with a prompt share.
pub(super) struct Group {
    pub(super) prompt: PromptFlags,
    pub(super) model: ModelFlags,
    pub(super) drafting: DraftingFlags,
    pub(super) sampling: SamplingFlags,
    pub(super) chat: ChatFlags,
    pub(super) device: DeviceFlags,
}

impl Group {
    pub(super) fn validate(self, length: Length, stdin_is_terminal: bool) -> Result<RequestArgs> {
        let prompt = self.prompt.validate(stdin_is_terminal)?;
        let DraftingFlags { spec, tree_budget: budget, draft_yarn_amplitude: yarn_amplitude } = self.drafting;
        let drafter_given = self.model.draft.is_some();
        let (target, draft) = match (self.model.model, self.model.draft) {
            (None, None) => (Source::EmbeddedTarget, Some(Source::EmbeddedDraft)),
            (None, Some(draft)) => (Source::EmbeddedTarget, Some(Source::Directory(draft))),
            (Some(model), draft) => (Source::Directory(model), draft.map(Source::Directory)),
        };
        let mode = match (spec, budget, &draft) {
            (Some(Spec::Auto), Some(TreeBudget::Nodes(nodes)), _) => {
                return Err(Error::Usage(format!(
                    "--tree-budget {nodes} fixes what --spec auto decides: leave it out, or name the mode"
                )));
            }
            (Some(mode), ..) => mode,
            // A budget of one's own is for the best mode there is.
            (None, Some(TreeBudget::Nodes(_)), Some(_)) => Spec::Ddtree,
            (None, Some(TreeBudget::Nodes(_)), None) => Spec::Ngram,
            (None, ..) => Spec::Auto,
        };
        let draft = match mode {
            Spec::None | Spec::Ngram => None,
            Spec::Dflash if draft.is_none() => return Err(drafter_missing("dflash")),
            Spec::Ddtree if draft.is_none() => return Err(drafter_missing("ddtree")),
            Spec::Auto | Spec::Dflash | Spec::Ddtree => draft,
        };
        let why = match mode {
            Spec::None => "nothing is drafted (--spec none)",
            Spec::Auto => "there is no drafter (--draft)",
            _ => "the text drafts itself (--spec ngram)",
        };
        let idle = [
            ("--draft", drafter_given && draft.is_none()),
            ("--draft-yarn-amplitude", yarn_amplitude.is_some() && draft.is_none()),
            ("--tree-budget", budget.is_some() && mode == Spec::None),
        ];
        let idle = idle.iter().filter(|(_, idle)| *idle).map(|(flag, _)| format!("{flag} changes nothing: {why}"));
        Ok(RequestArgs {
            prompt,
            template: self.chat.validate(),
            target,
            draft,
            spec: SpecArgs { mode, budget },
            dflash: DflashOptions { yarn_amplitude },
            length,
            ctx: None,
            stops: Vec::new(),
            ignore_eos: false,
            sampling: self.sampling.into(),
            device: self.device.validate(),
            idle: idle.collect(),
        })
    }
}

impl PromptFlags {
    fn validate(self, stdin_is_terminal: bool) -> Result<PromptSource> {
        match (self.prompt, self.prompt_file, self.tokens) {
            (Some(dash), _, _) if dash == "-" => Ok(PromptSource::Read(Input::Stdin)),
            (Some(text), _, _) => Ok(PromptSource::Text(text)),
            (None, Some(path), _) => Ok(PromptSource::Read(Input::new(path))),
            (None, None, Some(path)) => Ok(PromptSource::Tokens(Input::new(path))),
            (None, None, None) if !stdin_is_terminal => Ok(PromptSource::Read(Input::Stdin)),
            (None, None, None) => {
                let message = "there is no prompt: give one as an argument, on standard input, or with --prompt-file";
                Err(Error::Usage(message.to_owned()))
            }
        }
    }
}

impl ChatFlags {
    fn validate(self) -> Template {
        match self.chat {
            true => Template::Chat { system: self.system, thinking: self.thinking.map(|mode| mode == Switch::On) },
            false => Template::Raw,
        }
    }
}

fn drafter_missing(mode: &str) -> Error {
    Error::Usage(format!("--spec {mode} needs a drafter for this --model: name one with --draft"))
}
