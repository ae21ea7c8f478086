//! Whole configuration files: builders that the themes beside share, and what random files do.

mod draft;
mod target;

use std::path::Path;

use proptest::prelude::*;
use serde_json::{Value, json};

use super::{DraftConfig, ModelConfig};
use crate::error::Result;

fn target_json() -> Value {
    let text = r#"{
        "model_type": "deepseek_v3", "vocab_size": 129280, "hidden_size": 7168, "num_hidden_layers": 61,
        "intermediate_size": 18432, "moe_intermediate_size": 2048, "first_k_dense_replace": 3, "hidden_act": "silu",
        "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8, "topk_group": 4,
        "norm_topk_prob": true, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid", "topk_method": "noaux_tc",
        "num_attention_heads": 128, "num_key_value_heads": 128, "q_lora_rank": 1536, "kv_lora_rank": 512,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "rms_norm_eps": 1e-6,
        "max_position_embeddings": 163840, "attention_bias": false, "moe_layer_freq": 1, "ep_size": 1,
        "num_nextn_predict_layers": 1, "tie_word_embeddings": false, "bos_token_id": 0, "eos_token_id": 1,
        "rope_theta": 10000, "rope_scaling": {"type": "yarn", "factor": 40, "beta_fast": 32, "beta_slow": 1,
            "mscale": 1.0, "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096},
        "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
            "weight_block_size": [128, 128]}
    }"#;
    serde_json::from_str(text).unwrap()
}

fn draft_json() -> Value {
    json!({
        "model_type": "qwen3", "architectures": ["DFlashDraftModel"], "vocab_size": 163840, "hidden_size": 7168,
        "num_hidden_layers": 6, "intermediate_size": 18432, "num_attention_heads": 64, "num_key_value_heads": 8,
        "head_dim": 128, "rms_norm_eps": 1e-6, "max_position_embeddings": 262144, "hidden_act": "silu",
        "attention_bias": false, "rope_theta": 50000.0, "rope_scaling": {"type": "yarn", "factor": 64.0,
            "beta_fast": 32.0, "beta_slow": 1.0, "original_max_position_embeddings": 4096},
        "layer_types": ["full_attention", "full_attention", "sliding_attention", "full_attention", "full_attention",
            "sliding_attention"],
        "sliding_window": 2048, "block_size": 8, "num_target_layers": 61,
        "dflash_config": {"mask_token_id": 163838, "target_layer_ids": [1, 12, 24, 35, 47, 58]},
    })
}

fn with(mut value: Value, changes: Value) -> Value {
    for (key, change) in changes.as_object().unwrap() {
        value[key] = change.clone();
    }
    value
}

fn without(mut value: Value, key: &str) -> Value {
    value.as_object_mut().unwrap().shift_remove(key).unwrap();
    value
}

fn target(config: &Value) -> Result<ModelConfig> {
    ModelConfig::parse(Path::new("config.json"), config.to_string().as_bytes(), None)
}

fn target_and_generation(config: &Value, generation: &Value) -> Result<ModelConfig> {
    let generation = generation.to_string();
    let generation = Some((Path::new("generation_config.json"), generation.as_bytes()));
    ModelConfig::parse(Path::new("config.json"), config.to_string().as_bytes(), generation)
}

fn draft(config: &Value) -> Result<DraftConfig> {
    DraftConfig::parse(Path::new("draft/config.json"), config.to_string().as_bytes())
}

/// Asserts that every case is refused with its words, reporting all that are not.
fn assert_refused<T: std::fmt::Debug>(parse: impl Fn(&Value) -> Result<T>, cases: Vec<(Value, &str)>) {
    let mut failures = Vec::new();
    for (value, words) in cases {
        match parse(&value) {
            Err(error) if error.to_string().contains(words) => {}
            other => failures.push(format!("expected {words:?}, got {other:?}")),
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Any JSON scalar, small array or small object.
fn any_value() -> impl Strategy<Value = Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        (0u64..300).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        ".{0,8}".prop_map(Value::from),
    ];
    scalar.prop_recursive(2, 8, 3, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..3).prop_map(Value::from),
            prop::collection::vec(("[a-z_]{1,8}", inner), 0..3)
                .prop_map(|entries| Value::Object(entries.into_iter().collect())),
        ]
    })
}

/// Replaces the `n`-th value of the file, nested ones included.
fn replace_nth(value: &mut Value, n: &mut usize, new: &Value) {
    if let Value::Object(object) = value {
        for child in object.values_mut() {
            if *n == 0 {
                *child = new.clone();
                *n = usize::MAX;
                return;
            }
            *n = n.wrapping_sub(1);
            replace_nth(child, n, new);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn no_change_of_values_panics_or_yields_unusable_sizes(
        changes in prop::collection::vec((0usize..60, any_value()), 1..4)
    ) {
        let (mut target_file, mut draft_file) = (target_json(), draft_json());
        for (mut n, value) in changes {
            replace_nth(&mut target_file, &mut n.clone(), &value);
            replace_nth(&mut draft_file, &mut n, &value);
        }
        if let Ok(config) = target(&target_file) {
            let attention = &config.attention;
            prop_assert!(attention.rope % 2 == 0 && attention.heads > 0 && config.hidden_size > 0);
            if let Some(moe) = &config.moe {
                prop_assert!(moe.n_routed_experts % moe.n_group == 0);
                prop_assert!(moe.num_experts_per_tok <= moe.n_routed_experts / moe.n_group * moe.topk_group);
            }
        }
        if let Ok(config) = draft(&draft_file) {
            prop_assert!(config.heads % config.kv_heads == 0 && !config.target_layer_ids.is_empty());
            prop_assert!((config.mask_token_id as usize) < config.vocab_size);
        }
    }

    #[test]
    fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), cut in 0usize..2000) {
        let whole = target_json().to_string();
        let _ = ModelConfig::parse(Path::new("config.json"), &bytes, Some((Path::new("g"), &bytes)));
        let _ = ModelConfig::parse(Path::new("config.json"), &whole.as_bytes()[..cut.min(whole.len())], None);
        let _ = DraftConfig::parse(Path::new("config.json"), &bytes);
    }
}
