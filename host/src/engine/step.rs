//! The decode step, written once for every backend and every way of drafting: propose, verify, walk, commit.

use std::sync::Arc;

use super::pilot::{Draft, RoundPlan};
use crate::backend::{Accept, Backend, Budget, Op, Proposal, Rows, Sequence, Tensor};
use crate::draft::Dflash;
use crate::layers::{Emit, Forward, Target};
use crate::stage;

/// A loaded model with the row sets and logits of its rounds.
#[derive(Debug)]
pub(super) struct Step {
    pub target: Target,
    pub drafter: Option<Dflash>,
    pub sequence: Sequence,
    /// The rows of the round's forward.
    pub rows: Rows,
    /// Those that were accepted.
    pub accepted: Rows,
    /// `[rows, vocab]`.
    pub logits: Tensor,
}

impl Step {
    /// Submits a chunk of the prompt. The last one chooses the first token, which becomes the root. The drafter's context
    /// `follow`s, or the drafter is of no use to the request.
    pub fn prompt(&self, backend: &mut dyn Backend, chunk: &[u32], emit: Emit, follow: bool) {
        let Self { sequence, rows, .. } = *self;
        backend.submit(Op::PromptRows { sequence, rows, ids: Arc::from(chunk) });
        let logits = (emit == Emit::Last).then_some(self.logits);
        self.verify(backend, emit, Accept::Prompt { logits }, follow);
    }

    /// Submits one round of decoding.
    pub fn round(&self, backend: &mut dyn Backend, plan: RoundPlan) {
        let RoundPlan { draft, follow } = plan;
        let proposal = self.propose(backend, draft);
        self.tree(backend, proposal, follow);
    }

    /// Submits a round over a given tree.
    pub fn tree(&self, backend: &mut dyn Backend, proposal: Proposal, follow: bool) {
        let Self { sequence, rows, logits, .. } = *self;
        {
            let _stage = stage!("tree");
            backend.submit(Op::TreeRows { sequence, rows, proposal });
        }
        self.verify(backend, Emit::All, Accept::Path { logits }, follow);
    }

    fn propose(&self, backend: &mut dyn Backend, draft: Draft) -> Proposal {
        let drafter = |backend: &mut dyn Backend, most: usize| {
            self.drafter.as_ref().map(|drafter| {
                let depths = drafter.depths().min(most);
                let _stage = stage!("draft");
                drafter.propose(backend, self.sequence, &self.target, depths);
                (drafter.logits(), depths)
            })
        };
        match draft {
            Draft::Nothing => Proposal::Empty,
            Draft::Ngram(budget) => Proposal::Ngram { budget },
            Draft::Chain(budget) => match drafter(backend, budget) {
                Some((logits, depths)) => Proposal::Chain { logits, depths, budget },
                None => Proposal::Empty,
            },
            Draft::BestFirst(budget) => {
                let most = match &budget {
                    Budget::Fixed(budget) => *budget,
                    Budget::Auto { costs, .. } => costs.len().saturating_sub(1),
                };
                match drafter(backend, most) {
                    Some((logits, depths)) => Proposal::BestFirst { logits, depths, budget },
                    None => Proposal::Empty,
                }
            }
        }
    }

    /// Target forward over the rows, then walk, commit, and the drafter's context if it is to follow.
    fn verify(&self, backend: &mut dyn Backend, emit: Emit, accept: Accept, follow: bool) {
        let Self { sequence, rows, accepted, logits, .. } = *self;
        let drafter = self.drafter.as_ref().filter(|_| follow);
        let taps = drafter.map_or(&[][..], Dflash::taps);
        {
            let _stage = stage!("verify");
            self.target.forward(backend, &Forward { sequence, rows, emit, logits, taps });
        }
        {
            let _stage = stage!("walk");
            backend.submit(Op::Walk { sequence, rows, accept });
        }
        {
            let _stage = stage!("commit");
            backend.submit(Op::Commit { sequence, rows, features: drafter.map(Dflash::features), accepted });
        }
        if let Some(drafter) = drafter {
            let _stage = stage!("extend");
            drafter.extend(backend, sequence, accepted);
        }
    }
}
