//! The queue of operations, and rounds that are launched again and again: recorded once, then replayed by one call.

use super::super::{Graph, Place, error};
use super::machine::Machine;
use super::tensors::Known;
use crate::backend::{Budget, Op, Proposal};
use crate::error::Result;

/// Recordings kept.
const KEPT: usize = 32;

/// Operations that wait for their round to be complete, and what was launched before.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    waiting: Vec<Op>,
    recorded: Vec<Recorded>,
}

/// Operations that were launched, from what the host knew before to what it knows afterwards.
#[derive(Debug)]
struct Recorded {
    ops: Vec<Op>,
    before: Known,
    after: Known,
    /// Their launches; made when they come a second time.
    graph: Option<Graph<'static>>,
}

impl Rounds {
    /// Drops recordings, whose launches hold addresses that are about to change.
    pub fn forget(&mut self) {
        self.recorded.clear();
    }

    /// Drops what was not launched.
    pub fn abandon(&mut self) {
        self.waiting.clear();
    }

    pub fn push(&mut self, op: Op) {
        self.waiting.push(op);
    }
}

impl Machine {
    /// Launches what waits.
    ///
    /// # Errors
    /// An operation does not fit what it names, or the place failed.
    pub fn flush(&mut self) -> Result<()> {
        let ops = std::mem::take(&mut self.rounds.waiting);
        if ops.is_empty() {
            return Ok(());
        }
        self.scratch()?;
        for op in &ops {
            self.upload(op)?;
        }
        let Place::Device(device) = self.place else { return self.launch_all(&ops) };
        let before = self.known.clone();
        let found = self.rounds.recorded.iter().position(|recorded| {
            recorded.before == before && recorded.ops.len() == ops.len() && {
                recorded.ops.iter().zip(&ops).all(|(a, b)| launches_alike(a, b))
            }
        });
        let Some(found) = found else {
            self.launch_all(&ops)?;
            if self.rounds.recorded.len() == KEPT {
                self.rounds.recorded.remove(0);
            }
            self.rounds.recorded.push(Recorded { ops, before, after: self.known.clone(), graph: None });
            return Ok(());
        };
        if self.rounds.recorded[found].graph.is_none() {
            let graph = device.record(|| self.launch_all(&ops))?;
            self.rounds.recorded[found].graph = Some(graph);
        }
        let Recorded { graph, after, .. } = &self.rounds.recorded[found];
        self.known.clone_from(after);
        graph.as_ref().map_or_else(|| Err(error("a recorded round has no launches".to_owned())), Graph::replay)
    }

    fn launch_all(&mut self, ops: &[Op]) -> Result<()> {
        ops.iter().try_for_each(|op| self.launch(op))
    }
}

/// Whether two operations are the same launches; what differs lies in memory that is written before.
fn launches_alike(a: &Op, b: &Op) -> bool {
    match (a, b) {
        (
            Op::PromptRows { sequence, rows, ids },
            Op::PromptRows { sequence: other_sequence, rows: other_rows, ids: other_ids },
        ) => (sequence, rows, ids.len()) == (other_sequence, other_rows, other_ids.len()),
        (
            Op::TreeRows { sequence, rows, proposal },
            Op::TreeRows { sequence: other_sequence, rows: other_rows, proposal: other },
        ) => (sequence, rows) == (other_sequence, other_rows) && proposals_alike(proposal, other),
        _ => a == b,
    }
}

/// Whether two proposals are the same launches.
fn proposals_alike(a: &Proposal, b: &Proposal) -> bool {
    match (a, b) {
        (Proposal::Given { tokens, .. }, Proposal::Given { tokens: other, .. }) => tokens.len() == other.len(),
        (
            Proposal::BestFirst { logits, depths, budget: Budget::Auto { costs, .. } },
            Proposal::BestFirst {
                logits: other_logits,
                depths: other_depths,
                budget: Budget::Auto { costs: other, .. },
            },
        ) => (logits, depths, costs.len()) == (other_logits, other_depths, other.len()),
        (
            Proposal::Ngram { budget: Budget::Auto { costs, .. } },
            Proposal::Ngram { budget: Budget::Auto { costs: other, .. } },
        ) => costs.len() == other.len(),
        _ => a == b,
    }
}
