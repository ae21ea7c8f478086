//! Handles to device-resident state, and the shapes of what they name.
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
