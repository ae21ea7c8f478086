//! What rounds are made of: the time of each stage, the bytes they read, the experts they wake. Off, it costs nothing; on,
//! its own time falls between the stages, so what is timed as a whole should be timed without it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::Op;

/// A part of a round, in the order they come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stage {
    /// The drafter's block.
    Draft,
    /// The tree.
    Tree,
    /// The target's forward.
    Verify,
    /// The choice of tokens.
    Walk,
    /// Caches made those of the accepted tokens, the drafter's context included.
    Commit,
}

impl Stage {
    /// All, in order.
    pub const ALL: [Self; 5] = [Self::Draft, Self::Tree, Self::Verify, Self::Walk, Self::Commit];

    /// The name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Draft => "draft",
            Self::Tree => "tree",
            Self::Verify => "verify",
            Self::Walk => "walk",
            Self::Commit => "commit",
        }
    }
}

/// What an operation reads and wakes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Reads {
    /// Bytes of weights and caches, each counted once however many rows use it; activations are not counted.
    pub bytes: u64,
    /// A mixture-of-experts layer, by the order in which they were made, and the distinct experts that its rows chose.
    pub experts: Option<(usize, usize)>,
}

/// Sums over decode rounds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Work {
    /// Rounds.
    pub rounds: usize,
    /// Time by [`Stage`].
    pub stages: [Duration; Stage::ALL.len()],
    /// See [`Reads::bytes`].
    pub bytes: u64,
    /// Distinct experts, by mixture-of-experts layer.
    pub experts: Vec<usize>,
}

/// Takes note of operations while it is on.
#[derive(Debug, Default)]
pub struct Meter {
    on: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Of the round under way; `None` during a prompt.
    stage: Option<Stage>,
    work: Work,
}

impl Meter {
    /// Whether operations are taken note of.
    pub fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// Begins with nothing noted.
    pub fn start(&self) {
        *self.state() = State::default();
        self.on.store(true, Ordering::Relaxed);
    }

    /// Ends; what was noted since the start.
    pub fn stop(&self) -> Work {
        self.on.store(false, Ordering::Relaxed);
        std::mem::take(&mut self.state().work)
    }

    /// The stage that `op` belongs to, `op` coming after all that were entered before; `None` of a prompt.
    pub fn enter(&self, op: &Op) -> Option<Stage> {
        let mut state = self.state();
        state.stage = match op {
            Op::Begin { .. } | Op::PromptRows { .. } => None,
            Op::BlockRows { .. } => Some(Stage::Draft),
            Op::TreeRows { .. } => Some(Stage::Tree),
            Op::Walk { .. } => state.stage.and(Some(Stage::Walk)),
            Op::Commit { .. } => state.stage.and(Some(Stage::Commit)),
            _ if state.stage == Some(Stage::Tree) => Some(Stage::Verify),
            _ => state.stage,
        };
        state.stage
    }

    /// An operation of `stage` has run.
    pub fn note(&self, stage: Stage, time: Duration, reads: Reads, ends_round: bool) {
        let State { work, .. } = &mut *self.state();
        work.stages[stage as usize] += time;
        work.bytes += reads.bytes;
        if let Some((layer, experts)) = reads.experts {
            if work.experts.len() <= layer {
                work.experts.resize(layer + 1, 0);
            }
            work.experts[layer] += experts;
        }
        work.rounds += usize::from(ends_round);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
