//! A configuration as it is shown: by the keys of config.json where they have one.

use coppice_model::config::{DraftConfig, ModelConfig, Quantization, RopeConfig};
use serde_json::{Map, Value, json};

fn object(entries: impl IntoIterator<Item = (&'static str, Value)>) -> Map<String, Value> {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}

/// Of a target.
pub(super) fn target_config(config: &ModelConfig) -> Map<String, Value> {
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

/// Of a drafter.
pub(super) fn draft_config(config: &DraftConfig) -> Map<String, Value> {
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
