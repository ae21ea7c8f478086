//! The tensors of a checkpoint by their role in the forward pass. Finding them by name lives in [`TargetWeights::bind`]
//! and [`DraftWeights::bind`].

mod binder;
mod draft;
mod target;
mod unused;

use crate::weight::Weight;

pub use unused::{LayerTensors, UnusedTensors};

/// Weights found in a checkpoint.
#[derive(Debug, Clone)]
pub struct Binding<W> {
    /// The weights.
    pub weights: W,
    /// Tensors of the checkpoint that none of them uses, ascending.
    pub unused: Vec<String>,
}

/// The target's weights.
#[derive(Debug, Clone)]
pub struct TargetWeights {
    /// Token embedding `[vocab, hidden]`.
    pub embed: Weight,
    /// Decoder layers.
    pub layers: Vec<LayerWeights>,
    /// Final norm `[hidden]`.
    pub norm: Vec<f32>,
    /// `[vocab, hidden]`; the embedding itself when tied.
    pub lm_head: Weight,
}

/// One decoder layer of the target.
#[derive(Debug, Clone)]
pub struct LayerWeights {
    /// `input_layernorm` `[hidden]`.
    pub input_norm: Vec<f32>,
    /// Attention.
    pub attention: AttentionWeights,
    /// `post_attention_layernorm` `[hidden]`.
    pub post_norm: Vec<f32>,
    /// Dense MLP or experts.
    pub mlp: MlpWeights,
}

/// Multi-head latent attention.
#[derive(Debug, Clone)]
pub struct AttentionWeights {
    /// Query projection.
    pub q: QueryWeights,
    /// `kv_a_proj_with_mqa` `[kv_lora + rope, hidden]`.
    pub kv_a: Weight,
    /// `kv_a_layernorm` `[kv_lora]`.
    pub kv_a_norm: Vec<f32>,
    /// `kv_b_proj` `[heads x (nope + v), kv_lora]`; a head's k_nope rows, then its v rows.
    pub kv_b: Weight,
    /// `o_proj` `[hidden, heads x v]`.
    pub o: Weight,
}

/// `[heads x (nope + rope), ...]`; a head's nope rows, then its rope rows.
#[derive(Debug, Clone)]
pub enum QueryWeights {
    /// `q_proj` `[.., hidden]`.
    Full(Weight),
    /// `q_a_proj`, `q_a_layernorm`, `q_b_proj`.
    LowRank {
        /// `[q_lora, hidden]`.
        a: Weight,
        /// `[q_lora]`.
        norm: Vec<f32>,
        /// `[heads x (nope + rope), q_lora]`.
        b: Weight,
    },
}

/// What follows attention in a layer.
#[derive(Debug, Clone)]
pub enum MlpWeights {
    /// One SwiGLU MLP.
    Dense(SwigluWeights),
    /// Router, routed experts, shared experts.
    Moe(MoeWeights),
}

/// `down(silu(gate x) * up x)`.
#[derive(Debug, Clone)]
pub struct SwigluWeights {
    /// `[inter, hidden]`.
    pub gate: Weight,
    /// `[inter, hidden]`.
    pub up: Weight,
    /// `[hidden, inter]`.
    pub down: Weight,
}

/// A mixture-of-experts layer.
#[derive(Debug, Clone)]
pub struct MoeWeights {
    /// Router `[experts, hidden]`, f32 whatever it was stored in.
    pub router: Weight,
    /// `e_score_correction_bias` `[experts]`.
    pub bias: Vec<f32>,
    /// Routed experts, by id.
    pub experts: Vec<SwigluWeights>,
    /// Shared experts as one MLP.
    pub shared: Option<SwigluWeights>,
}

/// A DFlash drafter's weights; embedding and lm_head are the target's.
#[derive(Debug, Clone)]
pub struct DraftWeights {
    /// `[hidden, taps x hidden]`.
    pub fc: Weight,
    /// `[hidden]`.
    pub hidden_norm: Vec<f32>,
    /// Decoder layers.
    pub layers: Vec<DraftLayerWeights>,
    /// Final norm `[hidden]`.
    pub norm: Vec<f32>,
}

/// One decoder layer of the drafter (Qwen3 style).
#[derive(Debug, Clone)]
pub struct DraftLayerWeights {
    /// `[hidden]`.
    pub input_norm: Vec<f32>,
    /// `[heads x head_dim, hidden]`.
    pub q: Weight,
    /// `[kv_heads x head_dim, hidden]`.
    pub k: Weight,
    /// `[kv_heads x head_dim, hidden]`.
    pub v: Weight,
    /// `[head_dim]`.
    pub q_norm: Vec<f32>,
    /// `[head_dim]`.
    pub k_norm: Vec<f32>,
    /// `[hidden, heads x head_dim]`.
    pub o: Weight,
    /// `[hidden]`.
    pub post_norm: Vec<f32>,
    /// SwiGLU MLP.
    pub mlp: SwigluWeights,
}
