//! Hyperparameters of target and drafter, as `config.json` and `generation_config.json` state them.
//!
//! [`ModelConfig::parse`] and [`DraftConfig::parse`] read the files; nothing here computes with weights.

mod draft;
mod generation;
mod limits;
mod quantization;
mod rope;
mod section;
mod target;
#[cfg(test)]
mod tests;

/// Hyperparameters of a DeepSeek-V3-architecture model (deepseek_v3, kimi_k2, kimi_k25).
#[derive(Debug, Clone, PartialEq)]
pub struct ModelConfig {
    /// `model_type` of the outer file: `deepseek_v3`, `kimi_k2` or `kimi_k25`.
    pub model_type: String,
    /// Rows of the embedding and of lm_head.
    pub vocab_size: usize,
    /// Width of the residual stream.
    pub hidden_size: usize,
    /// Decoder layers.
    pub num_hidden_layers: usize,
    /// Inner width of the dense MLP layers.
    pub intermediate_size: usize,
    /// Layers below this one are dense, the others MoE; all of them where `moe` is `None`.
    pub first_k_dense_replace: usize,
    /// MoE shape; `None` when every layer is dense.
    pub moe: Option<MoeConfig>,
    /// Attention shape.
    pub attention: AttentionConfig,
    /// eps of the layer norms. `q_a_layernorm` and `kv_a_layernorm` use [`LATENT_NORM_EPS`] whatever this says.
    pub rms_norm_eps: f32,
    /// Rotary embedding.
    pub rope: RopeConfig,
    /// Longest context the model was trained for, in tokens.
    pub max_position_embeddings: usize,
    /// lm_head shares the embedding's matrix.
    pub tie_word_embeddings: bool,
    /// First token of every text.
    pub bos_token_id: Option<u32>,
    /// Tokens that end the text: union of config and generation_config, ascending.
    pub eos_token_ids: Vec<u32>,
    /// How linear weights are stored.
    pub quantization: Quantization,
    /// Sampling defaults of generation_config.
    pub generation: GenerationDefaults,
}

/// eps of `q_a_layernorm` and `kv_a_layernorm` (Hugging Face and the published modelling code).
pub const LATENT_NORM_EPS: f32 = 1e-6;

/// Multi-head latent attention (DeepSeek-V2, section 2.1).
#[derive(Debug, Clone, PartialEq)]
pub struct AttentionConfig {
    /// Query heads.
    pub heads: usize,
    /// Rank of the query's low-rank projection; `None`: one `q_proj`.
    pub q_lora_rank: Option<usize>,
    /// Width of the cached latent.
    pub kv_lora_rank: usize,
    /// Per-head width without position.
    pub nope: usize,
    /// Per-head width with rotary position, shared by all heads on the key side.
    pub rope: usize,
    /// Per-head width of values.
    pub v: usize,
}

/// Mixture of experts with the `noaux_tc` router (DeepSeek-V3, section 2.1.2).
#[derive(Debug, Clone, PartialEq)]
pub struct MoeConfig {
    /// Routed experts.
    pub n_routed_experts: usize,
    /// Shared experts, stored as one MLP of `n_shared_experts * moe_intermediate_size`; 0: none.
    pub n_shared_experts: usize,
    /// Inner width of one expert.
    pub moe_intermediate_size: usize,
    /// Experts chosen a token.
    pub num_experts_per_tok: usize,
    /// Groups the experts are divided into.
    pub n_group: usize,
    /// Groups kept a token.
    pub topk_group: usize,
    /// Divide the chosen weights by their sum.
    pub norm_topk_prob: bool,
    /// Factor on the chosen weights.
    pub routed_scaling_factor: f32,
}

/// Rotary position embedding.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeConfig {
    /// Base of the frequencies.
    pub theta: f64,
    /// Adjacent pairs rotate together (true, DeepSeek) or the halves do (false, NeoX).
    pub interleave: bool,
    /// YaRN scaling; `None` for plain RoPE and for factors <= 1.
    pub yarn: Option<YarnConfig>,
}

/// YaRN (Peng et al. 2023) as the DeepSeek configuration spells it.
#[derive(Debug, Clone, PartialEq)]
pub struct YarnConfig {
    /// Context extension.
    pub factor: f64,
    /// Rotations above which a dimension is not interpolated.
    pub beta_fast: f64,
    /// Rotations below which a dimension is fully interpolated.
    pub beta_slow: f64,
    /// Amplitude coefficient of cos and sin. Where Hugging Face does not use the file's own (`attention_factor` is stated,
    /// or not both coefficients are), the value that yields its amplitude.
    pub mscale: f64,
    /// Amplitude coefficient of the softmax scale.
    pub mscale_all_dim: f64,
    /// Context before extension.
    pub original_max_position_embeddings: f64,
}

/// How the linear weights of a checkpoint are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Quantization {
    /// f32, bf16 or f16.
    None,
    /// fp8-e4m3 with an f32 inverse scale a block of `[rows, columns]`.
    Fp8Block([usize; 2]),
    /// compressed-tensors `pack-quantized`: symmetric int4 with a bf16 scale a group of columns.
    Int4Group(usize),
}

/// Sampling defaults of `generation_config.json`; greedy where it is silent.
#[derive(Debug, Clone, PartialEq)]
pub struct GenerationDefaults {
    /// Softmax temperature; 0 is greedy.
    pub temperature: f32,
    /// Keep the k most probable tokens; 0: all.
    pub top_k: usize,
    /// Keep the smallest set of tokens whose probability reaches p; 1: all.
    pub top_p: f32,
    /// Drop tokens below this share of the best one's probability; 0: none.
    pub min_p: f32,
}

impl Default for GenerationDefaults {
    /// Greedy.
    fn default() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0 }
    }
}

/// Hyperparameters of a DFlash drafter.
#[derive(Debug, Clone, PartialEq)]
pub struct DraftConfig {
    /// Must equal the target's.
    pub hidden_size: usize,
    /// Must equal the target's.
    pub vocab_size: usize,
    /// Inner width of the MLP.
    pub intermediate_size: usize,
    /// Decoder layers; `layer_windows[i]` is the sliding window of layer i, `None` for full attention.
    pub layer_windows: Vec<Option<usize>>,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// eps of every norm.
    pub rms_norm_eps: f32,
    /// Rotary embedding, always half-split.
    pub rope: RopeConfig,
    /// Slots of a block, the root included.
    pub block_size: usize,
    /// Token of the slots that are to be predicted.
    pub mask_token_id: u32,
    /// Target layers whose outputs form a token's context feature.
    pub target_layer_ids: Vec<usize>,
}
