//! The round's tree: the root alone, nodes that the host made, or prefixes that the drafter's logits make probable.

use coppice_gpu::{round, top_k};
use cuda_std::Global;

use super::super::{Memory, Place, error};
use super::machine::Machine;
use crate::backend::{Budget, Proposal, Rows, Sequence, Tensor};
use crate::error::Result;

/// Ranked candidates of each depth, and what a budget is chosen by.
#[derive(Debug)]
pub(super) struct Candidates {
    size: Size,
    parts: Memory<'static, [u32; 2]>,
    part_sums: Memory<'static, [f32; 2]>,
    ids: Memory<'static, u32>,
    log_probs: Memory<'static, f32>,
    log_sums: Memory<'static, f32>,
}

/// For how much there is room.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Size {
    depths: usize,
    /// Parts of the vocabulary.
    parts: usize,
    /// Candidates a depth.
    ranks: usize,
}

impl Size {
    fn max(self, other: Self) -> Self {
        Self {
            depths: self.depths.max(other.depths),
            parts: self.parts.max(other.parts),
            ranks: self.ranks.max(other.ranks),
        }
    }
}

impl Candidates {
    fn new(place: Place<'static>, size: Size) -> Result<Self> {
        let Size { depths, parts, ranks } = size;
        Ok(Self {
            size,
            parts: place.output("candidates by part", depths * parts * ranks)?,
            part_sums: place.output("sums by part", depths * parts)?,
            ids: place.output("candidates", depths * ranks)?,
            log_probs: place.output("candidates' log-probabilities", depths * ranks)?,
            log_sums: place.output("sums by depth", depths)?,
        })
    }
}

/// A tree from the drafter's logits, in numbers.
#[derive(Debug, Clone, Copy)]
struct Draft {
    logits: Tensor,
    depths: usize,
    /// Candidates a depth that are used.
    ranks: usize,
    /// Most nodes.
    limit: usize,
    auto: bool,
}

impl Draft {
    fn of(proposal: &Proposal) -> Option<Self> {
        let (logits, depths, ranks, limit, auto) = match *proposal {
            Proposal::Chain { logits, depths, budget } => (logits, depths, 1, budget.min(depths), false),
            Proposal::BestFirst { logits, depths, budget: Budget::Fixed(budget) } => {
                (logits, depths, budget, budget, false)
            }
            Proposal::BestFirst { logits, depths, budget: Budget::Auto { ref costs, .. } } => {
                let limit = costs.len().saturating_sub(1);
                (logits, depths, limit, limit, true)
            }
            Proposal::Empty | Proposal::Ngram { .. } | Proposal::Given { .. } => return None,
        };
        // A tree of N nodes is at most N deep.
        Some(Self { logits, depths: depths.min(limit), ranks, limit, auto })
    }
}

impl Machine {
    /// Makes room for what a proposal needs, and writes what it brings from the host.
    pub fn upload_tree(&mut self, sequence: Sequence, proposal: &Proposal) -> Result<()> {
        let state = self.sequences.get_mut(sequence.0).map_err(error)?;
        match proposal {
            Proposal::Given { tokens, parents } => return state.take_tree(tokens, parents),
            Proposal::BestFirst { budget: Budget::Auto { costs, trust }, .. }
            | Proposal::Ngram { budget: Budget::Auto { costs, trust } } => state.take_costs(costs, *trust)?,
            _ => {}
        }
        let Some(draft) = Draft::of(proposal) else { return Ok(()) };
        if draft.limit > round::MAX_NODES as usize {
            let (limit, most) = (draft.limit, round::MAX_NODES);
            return Err(error(format!("a tree of {limit} nodes is asked for, expected at most {most}")));
        }
        let vocab = self.tensors.get(draft.logits.0).map_err(error)?.width;
        let parts = top_k::parts(vocab as u32) as usize;
        let wanted = Size { depths: draft.depths, parts, ranks: draft.ranks.min(vocab) };
        let size = self.candidates.as_ref().map_or(wanted, |found| found.size.max(wanted));
        if self.candidates.as_ref().is_none_or(|found| found.size != size) {
            self.rounds.forget();
            self.place.synchronize()?;
            self.candidates = None;
            self.candidates = Some(Candidates::new(self.place, size)?);
        }
        Ok(())
    }

    /// `rows` := the round's tree.
    pub fn tree_rows(&mut self, sequence: Sequence, rows: Rows, proposal: &Proposal) -> Result<()> {
        match proposal {
            Proposal::Empty => self.block_rows(sequence, rows, 1, 0),
            Proposal::Given { tokens, .. } => {
                let n = tokens.len() as u32;
                let words = self.set_rows(sequence, rows, tokens.len() + 1)?;
                let state = self.sequences.get(sequence.0).map_err(error)?;
                let [tokens, parents] = state.given.each_ref().map(|memory| memory.ptr());
                let arguments = (state.state_ptr(), tokens, parents, words, n + 1, n);
                // SAFETY: the tree was uploaded, and the set has room for it.
                unsafe { self.place.queue(&round::given_rows::KERNEL, round::given_shape(n), arguments, true) }
            }
            Proposal::Ngram { budget } => {
                let (limit, auto) = match budget {
                    Budget::Fixed(limit) => (*limit, false),
                    Budget::Auto { costs, .. } => (costs.len().saturating_sub(1), true),
                };
                let words = self.set_rows(sequence, rows, limit + 1)?;
                let state = self.sequences.get(sequence.0).map_err(error)?;
                let (history, memory, costs) = (state.history.ptr(), state.ngram.ptr_mut(), state.costs.ptr());
                let l = limit as u32;
                let arguments = (state.state_ptr(), history, memory, costs, words, l + 1, l, auto.into());
                // SAFETY: the set has room for the nodes, the costs were uploaded.
                unsafe { self.place.queue(&round::ngram_rows::KERNEL, round::ngram_shape(l), arguments, true) }
            }
            Proposal::Chain { .. } | Proposal::BestFirst { .. } => match Draft::of(proposal) {
                Some(draft) if draft.limit > 0 => self.drafted_rows(sequence, rows, draft),
                _ => self.block_rows(sequence, rows, 1, 0),
            },
        }
    }

    fn drafted_rows(&mut self, sequence: Sequence, rows: Rows, draft: Draft) -> Result<()> {
        let Draft { logits, depths, limit, auto, .. } = draft;
        let vocab = self.tensors.get(logits.0).map_err(error)?.width;
        let ranks = draft.ranks.min(vocab);
        let logits = self.full("logits", logits, depths, vocab)?.full.ptr();
        let words = self.set_rows(sequence, rows, limit + 1)?;
        let (place, state) = (self.place, self.sequences.get(sequence.0).map_err(error)?);
        let Some(found) = &self.candidates else { return Err(error("a tree's candidates have no room".to_owned())) };
        let [d, k, l, v] = [depths, ranks, limit, vocab].map(|n| n as u32);
        // SAFETY: the logits hold the depths, and there is room for the candidates and for the rows.
        unsafe {
            let arguments = (logits, found.parts.ptr_mut(), found.part_sums.ptr_mut(), v, v, k);
            place.queue(&top_k::top_k_parts::KERNEL, top_k::parts_shape(d, v), arguments, true)?;
            let (ids, log_probs, log_sums) = (&found.ids, &found.log_probs, found.log_sums.ptr_mut());
            let parts: (Global<[u32; 2]>, Global<[f32; 2]>) = (found.parts.ptr(), found.part_sums.ptr());
            let arguments = (parts.0, parts.1, ids.ptr_mut(), log_probs.ptr_mut(), log_sums, top_k::parts(v), k);
            place.queue(&top_k::top_k_merge::KERNEL, top_k::merge_shape(d), arguments, true)?;
            let arguments = (
                state.state_ptr(),
                ids.ptr(),
                log_probs.ptr(),
                state.costs.ptr(),
                state.trust.ptr(),
                words,
                l + 1,
                d,
                k,
                k,
                l,
                auto.into(),
            );
            place.queue(&round::tree_rows::KERNEL, round::tree_shape(l), arguments, true)
        }
    }
}
