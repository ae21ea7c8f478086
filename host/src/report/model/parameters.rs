//! How many parameters a model has. Scales of quantised weights are none.

use coppice_model::bind::{
    DraftWeights, LayerWeights, MlpWeights, MoeWeights, QueryWeights, SwigluWeights, TargetWeights,
};
use coppice_model::config::ModelConfig;
use coppice_model::weight::Weight;
use serde::Serialize;

/// Parameter counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Parameters {
    /// All, a tied lm_head once.
    pub total: u64,
    /// Those that take part in one token: all but the routed experts that are not chosen.
    pub active: u64,
}

fn matrix(weight: &Weight) -> u64 {
    weight.rows as u64 * weight.cols as u64
}

fn swiglu(weights: &SwigluWeights) -> u64 {
    matrix(&weights.gate) + matrix(&weights.up) + matrix(&weights.down)
}

/// Of a target.
pub(super) fn target_parameters(weights: &TargetWeights, config: &ModelConfig) -> Parameters {
    let tied = config.tie_word_embeddings;
    let head = if tied { 0 } else { matrix(&weights.lm_head) };
    let around = matrix(&weights.embed) + head + weights.norm.len() as u64;
    let chosen = config.moe.as_ref().map_or(0, |moe| moe.num_experts_per_tok);
    let (mut total, mut active) = (around, around);
    for layer in &weights.layers {
        let dense = layer_without_experts(layer);
        total += dense;
        active += dense;
        if let MlpWeights::Moe(MoeWeights { experts, .. }) = &layer.mlp {
            total += experts.iter().map(swiglu).sum::<u64>();
            active += experts.iter().take(chosen).map(swiglu).sum::<u64>();
        }
    }
    Parameters { total, active }
}

fn layer_without_experts(layer: &LayerWeights) -> u64 {
    let attention = &layer.attention;
    let query = match &attention.q {
        QueryWeights::Full(q) => matrix(q),
        QueryWeights::LowRank { a, norm, b } => matrix(a) + norm.len() as u64 + matrix(b),
    };
    let mlp = match &layer.mlp {
        MlpWeights::Dense(mlp) => swiglu(mlp),
        MlpWeights::Moe(moe) => matrix(&moe.router) + moe.bias.len() as u64 + moe.shared.as_ref().map_or(0, swiglu),
    };
    let vectors = layer.input_norm.len() + layer.post_norm.len() + attention.kv_a_norm.len();
    query + matrix(&attention.kv_a) + matrix(&attention.kv_b) + matrix(&attention.o) + mlp + vectors as u64
}

/// Of a drafter, which is active as a whole.
pub(super) fn draft_parameters(weights: &DraftWeights) -> Parameters {
    let layers = weights.layers.iter().map(|layer| {
        let matrices = [&layer.q, &layer.k, &layer.v, &layer.o].into_iter().map(matrix).sum::<u64>();
        let vectors = [&layer.input_norm, &layer.q_norm, &layer.k_norm, &layer.post_norm];
        matrices + swiglu(&layer.mlp) + vectors.into_iter().map(|norm| norm.len() as u64).sum::<u64>()
    });
    let total = matrix(&weights.fc) + (weights.hidden_norm.len() + weights.norm.len()) as u64 + layers.sum::<u64>();
    Parameters { total, active: total }
}
