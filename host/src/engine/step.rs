//! The decode step, written once for every backend and every way of drafting: propose, verify, walk, commit.

use std::sync::Arc;

use super::request::Speculation;
use crate::backend::{Accept, Backend, Op, Proposal, Rows, Sequence, Tensor};
use crate::draft::Dflash;
use crate::layers::{Emit, Forward, Target};

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
    /// Submits a chunk of the prompt. The last one chooses the first token, which becomes the root.
    pub fn prompt(&self, backend: &mut dyn Backend, chunk: &[u32], emit: Emit) {
        let Self { sequence, rows, .. } = *self;
        backend.submit(Op::PromptRows { sequence, rows, ids: Arc::from(chunk) });
        let logits = (emit == Emit::Last).then_some(self.logits);
        self.verify(backend, emit, Accept::Prompt { logits });
    }

    /// Submits one round of decoding.
    pub fn round(&self, backend: &mut dyn Backend, speculation: Speculation) {
        let proposal = self.propose(backend, speculation);
        self.tree(backend, proposal);
    }

    /// Submits a round over a given tree.
    pub fn tree(&self, backend: &mut dyn Backend, proposal: Proposal) {
        let Self { sequence, rows, logits, .. } = *self;
        backend.submit(Op::TreeRows { sequence, rows, proposal });
        self.verify(backend, Emit::All, Accept::Path { logits });
    }

    fn propose(&self, backend: &mut dyn Backend, speculation: Speculation) -> Proposal {
        match (speculation, &self.drafter) {
            (Speculation::Ngram { budget }, _) => Proposal::Ngram { budget },
            (Speculation::Dflash { budget }, Some(drafter)) => {
                drafter.propose(backend, self.sequence, &self.target);
                Proposal::Chain { logits: drafter.logits(), depths: drafter.depths(), budget }
            }
            (Speculation::Ddtree { budget }, Some(drafter)) => {
                drafter.propose(backend, self.sequence, &self.target);
                Proposal::BestFirst { logits: drafter.logits(), depths: drafter.depths(), budget }
            }
            (Speculation::None, _) | (Speculation::Dflash { .. } | Speculation::Ddtree { .. }, None) => Proposal::Empty,
        }
    }

    /// Target forward over the rows, then walk, commit, and the drafter's context.
    fn verify(&self, backend: &mut dyn Backend, emit: Emit, accept: Accept) {
        let Self { sequence, rows, accepted, logits, .. } = *self;
        let drafter = self.drafter.as_ref();
        let taps = drafter.map_or(&[][..], Dflash::taps);
        self.target.forward(backend, &Forward { sequence, rows, emit, logits, taps });
        backend.submit(Op::Walk { sequence, rows, accept });
        backend.submit(Op::Commit { sequence, rows, features: drafter.map(Dflash::features), accepted });
        if let Some(drafter) = drafter {
            drafter.extend(backend, sequence, accepted);
        }
    }
}
