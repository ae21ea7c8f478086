//! What a backend tells the host: finished rounds, and state read back.

/// A finished round, as reported by `poll`.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Round {
    /// Tokens committed: the accepted nodes' and the new root; empty for a prompt chunk without logits, and for a round
    /// after the sequence was done.
    pub tokens: Vec<u32>,
    /// Prompt tokens made context.
    pub prompt_tokens: usize,
    /// Nodes verified besides the root.
    pub nodes: usize,
    /// Nodes that the drafter's probabilities promised would be accepted, the sum of theirs; 0 where it gave none.
    pub promised: f32,
    /// The sequence was done before this round began: it computed nothing.
    pub idle: bool,
}

/// A row set read back.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RowValues {
    /// Token of each row.
    pub ids: Vec<u32>,
    /// Absolute position of each row.
    pub positions: Vec<usize>,
    /// Parent row; -1: the context.
    pub parents: Vec<i32>,
}

/// One layer's cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CacheLayer {
    /// Of the target.
    Target(usize),
    /// Of the drafter.
    Draft(usize),
}

/// Bytes by purpose.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct MemoryUse {
    /// Weights, in their stored type.
    pub weights: usize,
    /// Key-value caches.
    pub cache: usize,
    /// Activations and row sets.
    pub buffers: usize,
}
