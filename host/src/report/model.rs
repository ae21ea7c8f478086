//! A checkpoint as `inspect` describes it: configuration, tensors by name pattern, parameters.

use coppice_model::bind::{
    DraftWeights, LayerWeights, MlpWeights, MoeWeights, QueryWeights, SwigluWeights, TargetWeights,
};
use coppice_model::checkpoint::Checkpoint;
use coppice_model::config::{DraftConfig, ModelConfig, Quantization, RopeConfig};
use coppice_model::weight::Weight;
use coppice_model::{DraftModel, TargetModel};
use serde::Serialize;
use serde_json::{Map, Value, json};

/// One checkpoint.
#[derive(Debug, Clone, Serialize)]
pub struct ModelReport {
    /// Its folder, or the embedded model's name.
    pub path: String,
    /// `target` or `drafter`.
    pub kind: &'static str,
    /// Differs between checkpoints.
    pub fingerprint: String,
    /// Of all tensors' data.
    pub bytes: u64,
    /// How many there are.
    pub parameters: Parameters,
    /// What the configuration says, by the keys of config.json where they have one.
    pub config: Map<String, Value>,
    /// Tensors that differ in nothing but numbers in their names, in the order of their roles.
    pub tensors: Vec<TensorGroup>,
    /// Tensors that the model does not use.
    pub unused: Vec<String>,
}

/// Parameter counts; scales of quantised weights are not parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Parameters {
    /// All, a tied lm_head once.
    pub total: u64,
    /// Those that take part in one token: all but the routed experts that are not chosen.
    pub active: u64,
}

/// Tensors of one role.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct TensorGroup {
    /// What they are to the model.
    pub role: Role,
    /// Their name, numbers replaced by `*`.
    pub name: String,
    /// How many.
    pub count: usize,
    /// Stored element type.
    pub dtype: String,
    /// Sizes of the axes.
    pub shape: Vec<usize>,
    /// Of all of them together.
    pub bytes: u64,
}

/// What a tensor is to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// Token embedding.
    Embedding,
    /// The drafter's projection of tapped features.
    Features,
    /// Attention projections.
    Attention,
    /// Dense MLP.
    Mlp,
    /// Choice of experts.
    Router,
    /// Shared experts.
    SharedExperts,
    /// Routed experts.
    RoutedExperts,
    /// Norm weights.
    Norm,
    /// lm_head.
    Head,
    /// Anything else that is used.
    Other,
    /// Not used.
    Unused,
}

impl Role {
    /// The name in JSON and tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::Features => "features",
            Self::Attention => "attention",
            Self::Mlp => "mlp",
            Self::Router => "router",
            Self::SharedExperts => "shared_experts",
            Self::RoutedExperts => "routed_experts",
            Self::Norm => "norm",
            Self::Head => "head",
            Self::Other => "other",
            Self::Unused => "unused",
        }
    }

    fn of(name: &str) -> Self {
        let has = |part: &str| name.split('.').any(|component| component == part);
        if name.split('.').any(|component| component.ends_with("norm")) {
            Self::Norm
        } else if has("embed_tokens") {
            Self::Embedding
        } else if has("lm_head") {
            Self::Head
        } else if has("fc") {
            Self::Features
        } else if has("self_attn") {
            Self::Attention
        } else if has("shared_experts") {
            Self::SharedExperts
        } else if has("experts") {
            Self::RoutedExperts
        } else if has("gate") {
            Self::Router
        } else if has("mlp") {
            Self::Mlp
        } else {
            Self::Other
        }
    }
}

impl ModelReport {
    /// Of a target and the checkpoint it was bound from.
    pub fn target(model: &TargetModel, checkpoint: &Checkpoint) -> Self {
        Self {
            path: model.path.display().to_string(),
            kind: "target",
            fingerprint: model.fingerprint.clone(),
            bytes: model.bytes,
            parameters: target_parameters(&model.weights, &model.config),
            config: target_config(&model.config),
            tensors: groups(checkpoint, &model.unused),
            unused: model.unused.clone(),
        }
    }

    /// Of a drafter and the checkpoint it was bound from.
    pub fn drafter(model: &DraftModel, checkpoint: &Checkpoint) -> Self {
        let total = draft_parameters(&model.weights);
        Self {
            path: model.path.display().to_string(),
            kind: "drafter",
            fingerprint: model.fingerprint.clone(),
            bytes: model.bytes,
            parameters: Parameters { total, active: total },
            config: draft_config(&model.config),
            tensors: groups(checkpoint, &model.unused),
            unused: model.unused.clone(),
        }
    }
}

fn groups(checkpoint: &Checkpoint, unused: &[String]) -> Vec<TensorGroup> {
    let mut groups: Vec<TensorGroup> = checkpoint
        .names()
        .filter_map(|name| {
            let tensor = checkpoint.get(name)?;
            let is_unused = unused.binary_search_by(|unused| unused.as_str().cmp(name)).is_ok();
            Some(TensorGroup {
                role: if is_unused { Role::Unused } else { Role::of(name) },
                name: pattern(name),
                count: 1,
                dtype: format!("{:?}", tensor.dtype),
                shape: tensor.shape.clone(),
                bytes: tensor.bytes().len() as u64,
            })
        })
        .collect();
    let key = |group: &TensorGroup| (group.role, group.name.clone(), group.dtype.clone(), group.shape.clone());
    groups.sort_by_cached_key(key);
    groups.dedup_by(|next, group| {
        let same = key(next) == key(group);
        if same {
            group.count += 1;
            group.bytes += next.bytes;
        }
        same
    });
    groups
}

fn pattern(name: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    name.split('.').map(|part| if is_number(part) { "*" } else { part }).collect::<Vec<_>>().join(".")
}

fn matrix(weight: &Weight) -> u64 {
    weight.rows as u64 * weight.cols as u64
}

fn swiglu(weights: &SwigluWeights) -> u64 {
    matrix(&weights.gate) + matrix(&weights.up) + matrix(&weights.down)
}

fn target_parameters(weights: &TargetWeights, config: &ModelConfig) -> Parameters {
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

fn draft_parameters(weights: &DraftWeights) -> u64 {
    let layers = weights.layers.iter().map(|layer| {
        let matrices = [&layer.q, &layer.k, &layer.v, &layer.o].into_iter().map(matrix).sum::<u64>();
        let vectors = [&layer.input_norm, &layer.q_norm, &layer.k_norm, &layer.post_norm];
        matrices + swiglu(&layer.mlp) + vectors.into_iter().map(|norm| norm.len() as u64).sum::<u64>()
    });
    matrix(&weights.fc) + (weights.hidden_norm.len() + weights.norm.len()) as u64 + layers.sum::<u64>()
}

fn object(entries: impl IntoIterator<Item = (&'static str, Value)>) -> Map<String, Value> {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

fn target_config(config: &ModelConfig) -> Map<String, Value> {
    let attention = &config.attention;
    let mut map = object([
        ("model_type", json!(config.model_type)),
        ("vocab_size", json!(config.vocab_size)),
        ("hidden_size", json!(config.hidden_size)),
        ("num_hidden_layers", json!(config.num_hidden_layers)),
        ("first_k_dense_replace", json!(config.first_k_dense_replace)),
        ("intermediate_size", json!(config.intermediate_size)),
    ]);
    if let Some(moe) = &config.moe {
        map.extend(object([
            ("n_routed_experts", json!(moe.n_routed_experts)),
            ("n_shared_experts", json!(moe.n_shared_experts)),
            ("num_experts_per_tok", json!(moe.num_experts_per_tok)),
            ("moe_intermediate_size", json!(moe.moe_intermediate_size)),
            ("n_group", json!(moe.n_group)),
            ("topk_group", json!(moe.topk_group)),
            ("norm_topk_prob", json!(moe.norm_topk_prob)),
            ("routed_scaling_factor", single(moe.routed_scaling_factor)),
        ]));
    }
    map.extend(object([
        ("num_attention_heads", json!(attention.heads)),
        ("q_lora_rank", json!(attention.q_lora_rank)),
        ("kv_lora_rank", json!(attention.kv_lora_rank)),
        ("qk_nope_head_dim", json!(attention.nope)),
        ("qk_rope_head_dim", json!(attention.rope)),
        ("v_head_dim", json!(attention.v)),
        ("rms_norm_eps", single(config.rms_norm_eps)),
        ("rope", rope(&config.rope)),
        ("max_position_embeddings", json!(config.max_position_embeddings)),
        ("tie_word_embeddings", json!(config.tie_word_embeddings)),
        ("bos_token_id", json!(config.bos_token_id)),
        ("eos_token_id", json!(config.eos_token_ids)),
        (
            "quantization",
            match config.quantization {
                Quantization::None => Value::Null,
                Quantization::Fp8Block([rows, cols]) => json!(format!("fp8 e4m3, blocks of {rows} x {cols}")),
                Quantization::Int4Group(group) => json!(format!("int4, groups of {group}")),
            },
        ),
        ("temperature", single(config.generation.temperature)),
        ("top_k", json!(config.generation.top_k)),
        ("top_p", single(config.generation.top_p)),
        ("min_p", single(config.generation.min_p)),
    ]));
    map
}

fn draft_config(config: &DraftConfig) -> Map<String, Value> {
    object([
        ("vocab_size", json!(config.vocab_size)),
        ("hidden_size", json!(config.hidden_size)),
        ("num_hidden_layers", json!(config.layer_windows.len())),
        ("sliding_windows", json!(config.layer_windows)),
        ("intermediate_size", json!(config.intermediate_size)),
        ("num_attention_heads", json!(config.heads)),
        ("num_key_value_heads", json!(config.kv_heads)),
        ("head_dim", json!(config.head_dim)),
        ("rms_norm_eps", single(config.rms_norm_eps)),
        ("rope", rope(&config.rope)),
        ("block_size", json!(config.block_size)),
        ("mask_token_id", json!(config.mask_token_id)),
        ("target_layer_ids", json!(config.target_layer_ids)),
    ])
}

/// A single-precision number as it was written: `json!` would show the digits of its double.
fn single(value: f32) -> Value {
    json!(value.to_string().parse::<f64>().ok())
}

fn rope(config: &RopeConfig) -> Value {
    let mut map = object([("theta", json!(config.theta)), ("interleave", json!(config.interleave))]);
    if let Some(yarn) = &config.yarn {
        map.extend(object([
            ("yarn_factor", json!(yarn.factor)),
            ("beta_fast", json!(yarn.beta_fast)),
            ("beta_slow", json!(yarn.beta_slow)),
            ("mscale", json!(yarn.mscale)),
            ("mscale_all_dim", json!(yarn.mscale_all_dim)),
            ("original_max_position_embeddings", json!(yarn.original_max_position_embeddings)),
        ]));
    }
    Value::Object(map)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_published_name_has_its_role() {
        let cases = [
            ("model.embed_tokens.weight", Role::Embedding),
            ("language_model.lm_head.weight", Role::Head),
            ("model.norm.weight", Role::Norm),
            ("model.layers.3.input_layernorm.weight", Role::Norm),
            ("model.layers.3.self_attn.kv_a_layernorm.weight", Role::Norm),
            ("layers.0.self_attn.q_norm.weight", Role::Norm),
            ("model.layers.3.self_attn.kv_a_proj_with_mqa.weight", Role::Attention),
            ("model.layers.0.mlp.gate_proj.weight", Role::Mlp),
            ("model.layers.3.mlp.gate.weight", Role::Router),
            ("model.layers.3.mlp.gate.e_score_correction_bias", Role::Router),
            ("model.layers.3.mlp.experts.17.up_proj.weight_packed", Role::RoutedExperts),
            ("model.layers.3.mlp.shared_experts.up_proj.weight", Role::SharedExperts),
            ("fc.weight", Role::Features),
            ("hidden_norm.weight", Role::Norm),
            ("vision_tower.patch.weight", Role::Other),
        ];
        let wrong: Vec<_> = cases.iter().filter(|(name, role)| Role::of(name) != *role).collect();
        assert!(wrong.is_empty(), "{wrong:?}");
    }

    #[test]
    fn names_that_differ_in_numbers_share_a_pattern() {
        assert_eq!(
            pattern("model.layers.12.mlp.experts.7.up_proj.weight"),
            "model.layers.*.mlp.experts.*.up_proj.weight"
        );
        assert_eq!(pattern("fc.weight"), "fc.weight");
    }

    #[cfg(feature = "embedded-model")]
    #[test]
    fn the_embedded_models_parameters_are_counted_once_each() {
        let source = coppice_model::Source::EmbeddedTarget;
        let model = TargetModel::load(&source).unwrap();
        let report = ModelReport::target(&model, &source.checkpoint().unwrap());
        // 5 MoE layers of 16 experts, 4 of them chosen, of 3 matrices 160 x 256.
        let idle = 5 * 12 * 3 * 160 * 256;
        assert_eq!(report.parameters.total - report.parameters.active, idle);
        let stored: u64 = report.tensors.iter().map(|group| group.bytes).sum();
        assert_eq!(stored, report.bytes);
        assert!(report.unused.is_empty());
    }
}
