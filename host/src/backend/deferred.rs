//! A backend that runs another one later: operations wait in a queue until `poll`, as on a device that works on its own.
//! Code that is right over it never needs a value before `poll` returned it.

use std::collections::VecDeque;

use coppice_model::bind::{MoeWeights, SwigluWeights};
use coppice_model::config::MoeConfig;
use coppice_model::weight::Weight;

use super::{
    Backend, CacheLayer, DraftAttention, DraftAttentionSpec, Matrix, MemoryUse, Mla, MlaSpec, Mlp, Moe, Op, Rope,
    RopeTable, Round, Routes, RowValues, Rows, Sequence, SequenceSpec, Tensor, Vector,
};
use crate::error::Result;

/// Another backend behind a queue.
#[derive(Debug)]
pub struct Deferred<B> {
    inner: B,
    queue: VecDeque<Op>,
    depth: usize,
}

impl<B: Backend> Deferred<B> {
    /// `inner` behind a queue that asks for `depth` rounds ahead, at least one.
    pub fn new(inner: B, depth: usize) -> Self {
        Self { inner, queue: VecDeque::new(), depth: depth.max(1) }
    }

    /// Runs the first `count` operations.
    fn run(&mut self, count: usize) {
        self.queue.drain(..count).for_each(|op| self.inner.submit(op));
    }
}

impl<B: Backend> Backend for Deferred<B> {
    fn name(&self) -> &'static str {
        "deferred"
    }

    fn queue_depth(&self) -> usize {
        self.depth
    }

    fn matrix(&mut self, weight: &Weight) -> Result<Matrix> {
        self.inner.matrix(weight)
    }

    fn vector(&mut self, values: &[f32]) -> Result<Vector> {
        self.inner.vector(values)
    }

    fn mlp(&mut self, weights: &SwigluWeights) -> Result<Mlp> {
        self.inner.mlp(weights)
    }

    fn moe(&mut self, config: &MoeConfig, weights: &MoeWeights) -> Result<Moe> {
        self.inner.moe(config, weights)
    }

    fn rope(&mut self, table: &RopeTable) -> Result<Rope> {
        self.inner.rope(table)
    }

    fn mla(&mut self, spec: MlaSpec, kv_b: &Weight, kv_a_norm: &[f32]) -> Result<Mla> {
        self.inner.mla(spec, kv_b, kv_a_norm)
    }

    fn draft_attention(&mut self, spec: DraftAttentionSpec, q_norm: &[f32], k_norm: &[f32]) -> Result<DraftAttention> {
        self.inner.draft_attention(spec, q_norm, k_norm)
    }

    fn tensor(&mut self, rows: usize, width: usize) -> Result<Tensor> {
        self.inner.tensor(rows, width)
    }

    fn rows(&mut self, capacity: usize) -> Result<Rows> {
        self.inner.rows(capacity)
    }

    fn routes(&mut self, capacity: usize) -> Result<Routes> {
        self.inner.routes(capacity)
    }

    fn sequence(&mut self, spec: &SequenceSpec) -> Result<Sequence> {
        self.inner.sequence(spec)
    }

    fn submit(&mut self, op: Op) {
        self.queue.push_back(op);
    }

    fn poll(&mut self, sequence: Sequence) -> Result<Vec<Round>> {
        let ends_round = |op: &Op| matches!(op, Op::Commit { sequence: ended, .. } if *ended == sequence);
        let end = self.queue.iter().position(ends_round).map_or(self.queue.len(), |at| at + 1);
        self.run(end);
        let rounds = self.inner.poll(sequence);
        if rounds.is_err() {
            // Operations after a failure are not run, so their rounds will never be reported.
            let next = self.queue.iter().position(|op| matches!(op, Op::Begin { .. })).unwrap_or(self.queue.len());
            self.run(next);
        }
        rounds
    }

    fn read_tensor(&mut self, tensor: Tensor, rows: usize) -> Result<Vec<f32>> {
        self.run(self.queue.len());
        self.inner.read_tensor(tensor, rows)
    }

    fn read_rows(&mut self, rows: Rows) -> Result<RowValues> {
        self.run(self.queue.len());
        self.inner.read_rows(rows)
    }

    fn read_cache(&mut self, sequence: Sequence, cache: CacheLayer) -> Result<Vec<f32>> {
        self.run(self.queue.len());
        self.inner.read_cache(sequence, cache)
    }

    fn memory(&self) -> MemoryUse {
        self.inner.memory()
    }
}
