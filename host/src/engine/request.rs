//! What a session is asked and what it answers.

use std::time::Duration;

use super::pilot::MOST_NODES;
use crate::sampling::Sampling;

/// How a round's tree is drafted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Speculation {
    /// Not at all: plain decode.
    None,
    /// Earlier occurrences of the latest tokens.
    Ngram {
        /// Most nodes besides the root.
        budget: usize,
    },
    /// The drafter's best token a slot.
    Dflash {
        /// Most nodes besides the root; a block has no more than its size less one.
        budget: usize,
    },
    /// The most probable prefixes under the drafter's marginals.
    Ddtree {
        /// Nodes besides the root.
        budget: usize,
    },
    /// As promises the most tokens a second, decided round by round from what rounds have cost and brought.
    Auto(Drafts),
}

/// What may be drafted from where the rest is decided round by round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Drafts {
    /// The drafter, if there is one and it pays; else earlier occurrences of the latest tokens, where they pay.
    Any,
    /// Earlier occurrences of the latest tokens.
    Ngram,
    /// The drafter.
    Ddtree,
}

impl Speculation {
    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Ngram { .. } | Self::Auto(Drafts::Ngram) => "ngram",
            Self::Dflash { .. } => "dflash",
            Self::Ddtree { .. } | Self::Auto(Drafts::Ddtree) => "ddtree",
            Self::Auto(Drafts::Any) => "auto",
        }
    }

    /// Nodes a tree may have besides the root.
    pub fn budget(self) -> usize {
        match self {
            Self::None => 0,
            Self::Ngram { budget } | Self::Dflash { budget } | Self::Ddtree { budget } => budget,
            Self::Auto(_) => MOST_NODES,
        }
    }

    /// Whether the budget is decided round by round.
    pub fn is_auto(self) -> bool {
        matches!(self, Self::Auto(_))
    }

    /// Whether a DFlash drafter is needed.
    pub fn needs_drafter(self) -> bool {
        matches!(self, Self::Dflash { .. } | Self::Ddtree { .. } | Self::Auto(Drafts::Ddtree))
    }
}

/// One generation.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Prompt token ids, BOS included where the model wants it; at least one.
    pub prompt: Vec<u32>,
    /// Most tokens to generate.
    pub max_new_tokens: usize,
    /// Token choice.
    pub sampling: Sampling,
    /// Drafting.
    pub speculation: Speculation,
    /// Tokens that end the text; they are generated but are not part of it.
    pub eos_ids: Vec<u32>,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// A stop string.
    Stop,
    /// An end-of-text token.
    Eos,
    /// `max_new_tokens`, or the end of the context.
    Length,
    /// The observer's wish.
    Interrupted,
}

impl Finish {
    /// The name in machine-readable output.
    pub fn name(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Eos => "eos",
            Self::Length => "length",
            Self::Interrupted => "interrupted",
        }
    }
}

/// What an observer wants after seeing new tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// More.
    Continue,
    /// A stop string was found: the generation is its first `keep` tokens.
    Stop {
        /// Tokens to keep of all generated.
        keep: usize,
    },
    /// End now, keep everything.
    Interrupt,
}

/// Looks on while a session generates.
pub trait Observer {
    /// `done` of `total` prompt tokens are context.
    fn prefill(&mut self, done: usize, total: usize) -> Verdict {
        let _ = (done, total);
        Verdict::Continue
    }

    /// A decode round has been committed; its tokens follow, if it has any.
    fn round(&mut self, record: &RoundRecord) {
        let _ = record;
    }

    /// The last `new` of the `generated` tokens (no end-of-text token among them) have just been committed.
    fn tokens(&mut self, generated: &[u32], new: usize) -> Verdict {
        let _ = (generated, new);
        Verdict::Continue
    }
}

/// An observer that only waits.
impl Observer for () {}

/// One decode round as it was committed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoundRecord {
    /// Tokens committed, the bonus token included.
    pub accepted: usize,
    /// Nodes verified besides the root.
    pub nodes: usize,
    /// The tree came from the drafter.
    pub drafted: bool,
    /// From the start of the request.
    pub at: Duration,
}

/// What a session answers.
#[derive(Debug, Clone, PartialEq)]
pub struct Generation {
    /// Generated tokens, without an end-of-text token.
    pub tokens: Vec<u32>,
    /// Why it ended.
    pub finish: Finish,
    /// Decode rounds, in order. The prefill's token is in none of them; the last may have been cut by the finish.
    pub rounds: Vec<RoundRecord>,
    /// From the start of the request to the first token.
    pub first_token: Duration,
    /// From the start of the request to the last token.
    pub total: Duration,
}
