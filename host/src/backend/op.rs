//! Handles to device-resident state, and the operations of a step as values.
//!
//! Handles are plain indices: only the backend that made one can use it.

use std::sync::Arc;

use crate::sampling::Sampling;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub struct $name(pub(crate) usize);
    )*};
}

handles! {
    /// A weight matrix `[outputs, inputs]`.
    Matrix;
    /// An f32 vector.
    Vector;
    /// A SwiGLU MLP.
    Mlp;
    /// A mixture-of-experts layer: router, routed and shared experts.
    Moe;
    /// Rotary frequencies.
    Rope;
    /// One layer's latent attention.
    Mla;
    /// One layer's drafter attention.
    DraftAttention;
    /// Activations `[capacity, width]` f32.
    Tensor;
    /// A row set: a count and, per row, token id, position and parent. The count lives on the device; an operation over
    /// a row set works on that many rows.
    Rows;
    /// Expert choices of a row set.
    Routes;
    /// A sequence: committed tokens, root, caches, sampling state.
    Sequence;
}

/// Angle of pair i at position p is `p * inv_freq[i]`; cos and sin are multiplied by `amplitude`.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// One frequency a pair.
    pub inv_freq: Vec<f32>,
    /// Factor on cos and sin (YaRN).
    pub amplitude: f32,
    /// Pairs are adjacent elements (true) or an element and its twin in the other half (false).
    pub interleave: bool,
}

/// Shape of multi-head latent attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MlaSpec {
    /// Query heads.
    pub heads: usize,
    /// Per-head width without position.
    pub nope: usize,
    /// Per-head width with rotary position.
    pub rope: usize,
    /// Per-head width of values.
    pub v: usize,
    /// Width of the latent.
    pub kv_lora: usize,
    /// eps of the latent's norm.
    pub norm_eps: f32,
    /// Factor on the scores.
    pub softmax_scale: f32,
    /// Rotary frequencies, `rope / 2` of them.
    pub table: Rope,
}

/// Shape of drafter attention.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct DraftAttentionSpec {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// eps of the per-head norms.
    pub norm_eps: f32,
    /// A query at position p sees context keys at positions > p - window.
    pub window: Option<usize>,
    /// Rotary frequencies, `head_dim / 2` of them.
    pub table: Rope,
}

/// What a sequence must have room for.
#[derive(Debug, Clone)]
pub struct SequenceSpec {
    /// Most committed tokens.
    pub context: usize,
    /// Most rows in one forward.
    pub max_rows: usize,
    /// The target's layers.
    pub target: Vec<Mla>,
    /// The drafter's layers; empty without one.
    pub draft: Vec<DraftAttention>,
}

/// How a request ends and how its tokens are chosen.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestSpec {
    /// Token choice.
    pub sampling: Sampling,
    /// New tokens after which the device stops by itself.
    pub max_new_tokens: usize,
    /// Tokens after which the device stops by itself.
    pub stop_ids: Arc<[u32]>,
}

/// Which rows of a set a linear product takes; its output rows are numbered from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Select {
    /// Every row.
    All,
    /// The last row.
    Last,
    /// Every row but the first (draft slots that predict).
    AfterFirst,
}

/// Where a residual stream is copied while it passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tap {
    /// `[rows, taps x hidden]`.
    pub out: Tensor,
    /// First column.
    pub column: usize,
}

/// Where a round's tree comes from. Row 0 is always the sequence's root.
#[derive(Debug, Clone, PartialEq)]
pub enum Proposal {
    /// The root alone: plain decode.
    Empty,
    /// The best token of each draft slot, one below the other (DFlash), at most `budget` nodes.
    Chain {
        /// Draft logits `[depths, vocab]`.
        logits: Tensor,
        /// Draft depths.
        depths: usize,
        /// Most nodes.
        budget: usize,
    },
    /// The `budget` most probable prefixes (DDTree).
    BestFirst {
        /// Draft logits `[depths, vocab]`.
        logits: Tensor,
        /// Draft depths.
        depths: usize,
        /// Most nodes.
        budget: usize,
    },
    /// Continuations of earlier occurrences of the latest tokens.
    Ngram {
        /// Most nodes.
        budget: usize,
    },
    /// Nodes the host made (tests and tools): `parents[i]` is the row of node i's parent, row 0 the root, node i row i + 1.
    Given {
        /// Token of each node.
        tokens: Arc<[u32]>,
        /// Parent row of each node.
        parents: Arc<[u32]>,
    },
}

/// Which rows a [`Op::Walk`] accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Accept {
    /// Every row: a chunk of the prompt. With logits (of the last row) the token after it becomes the root.
    Prompt {
        /// `[1, vocab]`.
        logits: Option<Tensor>,
    },
    /// The path the target chooses. The first token that no child holds becomes the root.
    Path {
        /// `[rows, vocab]`.
        logits: Tensor,
    },
}

/// An operation of the step. Shapes are per row of the named row set; a set of no rows makes any operation a no-op.
#[derive(Debug, Clone)]
pub enum Op {
    /// Empties the sequence for a new request.
    Begin {
        /// The sequence.
        sequence: Sequence,
        /// Sampling and limits.
        request: RequestSpec,
    },
    /// `rows` := the given tokens as a chain after the context.
    PromptRows {
        /// The sequence.
        sequence: Sequence,
        /// Set to be written.
        rows: Rows,
        /// Tokens of the chunk.
        ids: Arc<[u32]>,
    },
    /// `rows` := the root, then mask tokens, at consecutive positions; none if the sequence is done.
    BlockRows {
        /// The sequence.
        sequence: Sequence,
        /// Set to be written.
        rows: Rows,
        /// Slots of the block, the root included.
        block: usize,
        /// Token of the other slots.
        mask_token: u32,
    },
    /// `rows` := the round's tree; none if the sequence is done.
    TreeRows {
        /// The sequence.
        sequence: Sequence,
        /// Set to be written.
        rows: Rows,
        /// Its source.
        proposal: Proposal,
    },
    /// `out` := rows of the embedding table.
    Embed {
        /// Row set.
        rows: Rows,
        /// `[vocab, hidden]`.
        table: Matrix,
        /// `[hidden]`.
        out: Tensor,
    },
    /// `x += delta`, then `tap := x`, then `out := x / rms(x) * weight`. `out` may not be `x`.
    AddNorm {
        /// Row set.
        rows: Rows,
        /// Residual stream, or what is to be normed.
        x: Tensor,
        /// Branch output to add.
        delta: Option<Tensor>,
        /// Copy of the sum.
        tap: Option<Tap>,
        /// Norm weight.
        weight: Vector,
        /// Added to the mean square.
        eps: f32,
        /// Normed rows.
        out: Tensor,
    },
    /// `out := x W^T` for the selected rows.
    Linear {
        /// Row set.
        rows: Rows,
        /// Which of them.
        select: Select,
        /// `[inputs]`.
        x: Tensor,
        /// `[outputs, inputs]`.
        weight: Matrix,
        /// `[outputs]`.
        out: Tensor,
    },
    /// `out := down(silu(gate x) * up x)`.
    Mlp {
        /// Row set.
        rows: Rows,
        /// Weights.
        mlp: Mlp,
        /// `[hidden]`.
        x: Tensor,
        /// `[hidden]`.
        out: Tensor,
    },
    /// Chooses each row's experts (`noaux_tc`).
    Route {
        /// Row set.
        rows: Rows,
        /// Router.
        moe: Moe,
        /// `[hidden]`.
        x: Tensor,
        /// Choices.
        routes: Routes,
    },
    /// `out := sum of the chosen experts' outputs x weights + shared experts`.
    Experts {
        /// Row set.
        rows: Rows,
        /// Experts.
        moe: Moe,
        /// `[hidden]`.
        x: Tensor,
        /// Choices.
        routes: Routes,
        /// `[hidden]`.
        out: Tensor,
    },
    /// Norms the latent, rotates k_pe, and writes both to the cache slots after the context.
    MlaAppend {
        /// Row set.
        rows: Rows,
        /// The sequence.
        sequence: Sequence,
        /// Target layer.
        layer: usize,
        /// Its attention.
        mla: Mla,
        /// `[kv_lora + rope]`.
        kv_a: Tensor,
    },
    /// Each row attends to the context, its ancestors and itself.
    MlaAttention {
        /// Row set.
        rows: Rows,
        /// The sequence.
        sequence: Sequence,
        /// Target layer.
        layer: usize,
        /// Its attention.
        mla: Mla,
        /// `[heads x (nope + rope)]`, not yet rotated.
        q: Tensor,
        /// `[heads x v]`.
        out: Tensor,
    },
    /// Norms and rotates context keys and writes them and the values to the drafter's cache at the rows' positions.
    DraftAppend {
        /// Row set.
        rows: Rows,
        /// The sequence.
        sequence: Sequence,
        /// Drafter layer.
        layer: usize,
        /// Its attention.
        attention: DraftAttention,
        /// `[kv_heads x head_dim]`.
        k: Tensor,
        /// `[kv_heads x head_dim]`.
        v: Tensor,
    },
    /// Each block slot attends to the whole context and the whole block.
    DraftAttention {
        /// Row set.
        rows: Rows,
        /// The sequence.
        sequence: Sequence,
        /// Drafter layer.
        layer: usize,
        /// Its attention.
        attention: DraftAttention,
        /// `[heads x head_dim]`, neither normed nor rotated.
        q: Tensor,
        /// `[kv_heads x head_dim]`, neither normed nor rotated.
        k: Tensor,
        /// `[kv_heads x head_dim]`.
        v: Tensor,
        /// `[heads x head_dim]`.
        out: Tensor,
    },
    /// Decides which rows are accepted and which token follows them.
    Walk {
        /// The sequence.
        sequence: Sequence,
        /// Row set.
        rows: Rows,
        /// The rule.
        accept: Accept,
    },
    /// Ends the round: moves the accepted rows of every cache, and of `features`, to the front; makes them context;
    /// writes them to `accepted`; reports the round to `poll`.
    Commit {
        /// The sequence.
        sequence: Sequence,
        /// The round's rows.
        rows: Rows,
        /// Tapped features `[taps x hidden]`, compacted in place.
        features: Option<Tensor>,
        /// Set to be written: the accepted rows, at their positions.
        accepted: Rows,
    },
}

/// A finished round, as reported by `poll`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Round {
    /// Tokens committed: the accepted nodes' and the new root; empty for a prompt chunk without logits, and for a round
    /// after the sequence was done.
    pub tokens: Vec<u32>,
    /// Prompt tokens made context.
    pub prompt_tokens: usize,
    /// Nodes verified besides the root.
    pub nodes: usize,
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
