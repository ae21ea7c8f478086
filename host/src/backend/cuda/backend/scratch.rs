//! Memory that operations use and leave behind: as large as the widest of them needs for the most rows.

use coppice_gpu::attention::Plan;
use coppice_gpu::moe::router;
use cuda_std::Bf16;

use super::super::{Memory, Place};
use super::linear::ROWS;
use crate::error::Result;

/// What a row needs, the most of all layers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Needs {
    /// Width of gate and up together, of a dense MLP or the shared expert.
    pub gate_up: usize,
    /// Outputs of a product, of a slice of the rows.
    pub outputs: usize,
    /// Router: parts x experts.
    pub scores: usize,
    /// Experts of a layer.
    pub experts: usize,
    /// Experts a row.
    pub chosen: usize,
    /// Experts a row x their width.
    pub inner: usize,
    /// Experts a row x hidden.
    pub outer: usize,
    /// Hidden width of a layer with a shared expert.
    pub shared: usize,
    /// Heads x (latent + rope).
    pub query: usize,
    /// Heads x latent.
    pub attended: usize,
    /// The drafter's heads x their width.
    pub draft_query: usize,
    /// The drafter's heads.
    pub draft_heads: usize,
}

impl Needs {
    /// The larger of both, need by need.
    pub fn max(self, other: Self) -> Self {
        Self {
            gate_up: self.gate_up.max(other.gate_up),
            outputs: self.outputs.max(other.outputs),
            scores: self.scores.max(other.scores),
            experts: self.experts.max(other.experts),
            chosen: self.chosen.max(other.chosen),
            inner: self.inner.max(other.inner),
            outer: self.outer.max(other.outer),
            shared: self.shared.max(other.shared),
            query: self.query.max(other.query),
            attended: self.attended.max(other.attended),
            draft_query: self.draft_query.max(other.draft_query),
            draft_heads: self.draft_heads.max(other.draft_heads),
        }
    }

    /// Of a router over `experts` experts.
    pub fn router(hidden: usize, experts: usize) -> Self {
        Self { scores: router::parts(hidden as u32) as usize * experts, experts, ..Self::default() }
    }
}

/// What verify attention needs: the most of its plans for any number of rows.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct AttentionNeeds {
    /// Vectors of 16 bytes.
    pub values: usize,
    pub log_sums: usize,
    pub arrivals: usize,
}

impl AttentionNeeds {
    /// The larger of both, need by need.
    pub fn with(self, plan: &Plan) -> Self {
        Self {
            values: self.values.max(plan.values),
            log_sums: self.log_sums.max(plan.log_sums),
            arrivals: self.arrivals.max(plan.arrivals),
        }
    }
}

/// The memory.
#[derive(Debug)]
pub(super) struct Scratch {
    /// Rows it is for, and what a row needs.
    pub size: (usize, Needs),
    /// Splits of the context that the drafter's attention may use.
    pub splits: u32,
    pub gate_up: Memory<'static, Bf16>,
    pub activated: Memory<'static, Bf16>,
    /// Where the two halves of a product meet: empty between launches.
    pub exchange: Memory<'static, u32>,
    pub scores: Memory<'static, f32>,
    pub active: Memory<'static, [u32; 4]>,
    pub active_count: Memory<'static, u32>,
    pub choices: Memory<'static, u32>,
    pub inner: Memory<'static, Bf16>,
    pub outer: Memory<'static, f32>,
    pub shared: Memory<'static, f32>,
    pub query: Memory<'static, Bf16>,
    pub attended: Memory<'static, Bf16>,
    pub partial: Memory<'static, [u32; 4]>,
    pub log_sums: Memory<'static, f32>,
    pub arrivals: Memory<'static, u32>,
    pub draft_query: Memory<'static, Bf16>,
    pub draft_partial: Memory<'static, f32>,
    pub draft_log_sums: Memory<'static, f32>,
}

impl Scratch {
    pub fn new(
        place: Place<'static>,
        (rows, needs): (usize, Needs),
        splits: u32,
        attention: AttentionNeeds,
    ) -> Result<Self> {
        let parts = splits as usize * rows;
        Ok(Self {
            size: (rows, needs),
            splits,
            gate_up: place.output("gate and up", rows * needs.gate_up)?,
            activated: place.output("activated", rows * needs.gate_up / 2)?,
            // Poison is what the kernels take for empty.
            exchange: place.output("exchange", rows.min(ROWS) * needs.outputs)?,
            scores: place.output("router scores", rows * needs.scores)?,
            active: place.output("active experts", needs.experts)?,
            active_count: place.output("count of active experts", 1)?,
            choices: place.output("choices by expert", rows * needs.chosen)?,
            inner: place.output("experts' inner", rows * needs.inner)?,
            outer: place.output("experts' outputs", rows * needs.outer)?,
            shared: place.output("shared expert's output", rows * needs.shared)?,
            query: place.output("latent queries", rows * needs.query)?,
            attended: place.output("attended latents", rows * needs.attended)?,
            partial: place.output("partial attention", attention.values)?,
            log_sums: place.output("sums of partial attention", attention.log_sums)?,
            arrivals: place.zeroed("arrivals", attention.arrivals)?,
            draft_query: place.output("drafter's queries", rows * needs.draft_query)?,
            draft_partial: place.output("drafter's partial attention", parts * needs.draft_query)?,
            draft_log_sums: place.output("sums of the drafter's partial attention", parts * needs.draft_heads)?,
        })
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        let bf16 = [&self.gate_up, &self.activated, &self.inner, &self.query, &self.attended, &self.draft_query];
        let own = [&self.scores, &self.outer, &self.shared, &self.log_sums];
        let f32 = own.into_iter().chain([&self.draft_partial, &self.draft_log_sums]);
        bf16.iter().map(|memory| memory.bytes()).sum::<usize>()
            + f32.map(|memory| memory.bytes()).sum::<usize>()
            + [&self.active_count, &self.choices, &self.arrivals, &self.exchange]
                .iter()
                .map(|memory| memory.bytes())
                .sum::<usize>()
            + self.active.bytes()
            + self.partial.bytes()
    }
}
