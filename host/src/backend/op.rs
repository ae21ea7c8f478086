//! The operations of a step as values.

use std::sync::Arc;

use super::{DraftAttention, Matrix, Mla, Mlp, Moe, RequestSpec, Routes, Rows, Sequence, Tensor, Vector};

/// Which rows of a set a linear product takes; its output rows are numbered from 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Select {
    /// Every row.
    All,
    /// The last row.
    Last,
    /// So many rows after the first (draft slots that predict), as far as there are.
    AfterFirst(usize),
}

/// Where a residual stream is copied while it passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tap {
    /// `[rows, taps x hidden]`.
    pub out: Tensor,
    /// First column.
    pub column: usize,
}

/// How many nodes a round's tree has besides the root.
#[derive(Debug, Clone, PartialEq)]
pub enum Budget {
    /// So many, if there are.
    Fixed(usize),
    /// As many as promise the most tokens a second: of the nodes in order, with probabilities p_i, the N that maximises
    /// (1 + sum of the first N p_i) / cost of N nodes.
    Auto {
        /// `costs[n]`: time of a round of n nodes, in any unit; there are no more nodes than it has entries but one.
        costs: Arc<[f32]>,
        /// Accepted nodes for each that the drafter's probabilities promise.
        trust: f32,
    },
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
    /// The most probable prefixes (DDTree).
    BestFirst {
        /// Draft logits `[depths, vocab]`.
        logits: Tensor,
        /// Draft depths.
        depths: usize,
        /// How many nodes.
        budget: Budget,
    },
    /// Continuations of earlier occurrences of the latest tokens.
    Ngram {
        /// How many nodes.
        budget: Budget,
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
