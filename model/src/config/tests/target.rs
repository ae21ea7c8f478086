//! Target files: what published layouts say, and what bad ones are refused for.

use super::*;
use crate::config::{AttentionConfig, GenerationDefaults, MoeConfig, Quantization, RopeConfig, YarnConfig};

#[test]
fn deepseek_v3_is_read() {
    let config = target(&target_json()).unwrap();
    let expected = ModelConfig {
        model_type: "deepseek_v3".into(),
        vocab_size: 129280,
        hidden_size: 7168,
        num_hidden_layers: 61,
        intermediate_size: 18432,
        first_k_dense_replace: 3,
        moe: Some(MoeConfig {
            n_routed_experts: 256,
            n_shared_experts: 1,
            moe_intermediate_size: 2048,
            num_experts_per_tok: 8,
            n_group: 8,
            topk_group: 4,
            norm_topk_prob: true,
            routed_scaling_factor: 2.5,
        }),
        attention: AttentionConfig {
            heads: 128,
            q_lora_rank: Some(1536),
            kv_lora_rank: 512,
            nope: 128,
            rope: 64,
            v: 128,
        },
        rms_norm_eps: 1e-6,
        rope: RopeConfig {
            theta: 1e4,
            interleave: true,
            yarn: Some(YarnConfig {
                factor: 40.0,
                beta_fast: 32.0,
                beta_slow: 1.0,
                mscale: 1.0,
                mscale_all_dim: 1.0,
                original_max_position_embeddings: 4096.0,
            }),
        },
        max_position_embeddings: 163840,
        tie_word_embeddings: false,
        bos_token_id: Some(0),
        eos_token_ids: vec![1],
        quantization: Quantization::Fp8Block([128, 128]),
        generation: GenerationDefaults { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0 },
    };
    assert_eq!(config, expected);
}

#[test]
fn a_wrapped_text_config_reads_like_a_flat_one() {
    let inner = with(target_json(), json!({"model_type": "kimi_k2"}));
    let flat = target(&inner).unwrap();
    let nested = target(&json!({"model_type": "kimi_k25", "vision_config": {}, "text_config": inner})).unwrap();
    assert_eq!(nested, ModelConfig { model_type: "kimi_k25".into(), ..flat.clone() });

    let quantization = inner["quantization_config"].clone();
    let inner = without(without(inner, "quantization_config"), "tie_word_embeddings");
    let outside = target(&json!({"model_type": "kimi_k25", "text_config": inner, "eos_token_id": 5,
        "quantization_config": quantization, "tie_word_embeddings": true}));
    let outside = outside.unwrap();
    assert_eq!(outside.quantization, flat.quantization);
    assert!(outside.tie_word_embeddings);
    assert_eq!(outside.eos_token_ids, [1, 5]);
}

#[test]
fn absent_optional_keys_get_their_defaults() {
    let mut config = target_json();
    for key in [
        "n_group",
        "topk_group",
        "norm_topk_prob",
        "n_shared_experts",
        "tie_word_embeddings",
        "hidden_act",
        "scoring_func",
        "topk_method",
        "q_lora_rank",
        "quantization_config",
        "bos_token_id",
        "rope_scaling",
    ] {
        config[key] = Value::Null;
    }
    let config = target(&config).unwrap();
    let moe = config.moe.unwrap();
    assert_eq!((moe.n_group, moe.topk_group, moe.n_shared_experts, moe.norm_topk_prob), (1, 1, 0, true));
    assert_eq!(config.attention.q_lora_rank, None);
    assert_eq!(config.bos_token_id, None);
    assert_eq!(config.quantization, Quantization::None);
    assert!(!config.tie_word_embeddings);
    let half_split = target(&with(target_json(), json!({"rope_interleave": false}))).unwrap();
    assert!(!half_split.rope.interleave);
}

#[test]
fn a_model_without_moe_layers_is_dense_throughout() {
    for changes in [json!({"n_routed_experts": null}), json!({"first_k_dense_replace": 61})] {
        let config = target(&with(target_json(), changes)).unwrap();
        assert_eq!((config.moe, config.first_k_dense_replace), (None, 61));
    }
}

#[test]
fn other_model_types_are_refused_with_the_supported_ones() {
    for found in ["llama", "deepseek_v2", "deepseek_v32"] {
        let message = target(&with(target_json(), json!({"model_type": found}))).unwrap_err().to_string();
        let expected = format!("config.json: model_type is {found:?}, expected one of deepseek_v3, kimi_k2, kimi_k25");
        assert_eq!(message, expected);
    }
    let wrapped = |inner: &str| json!({"model_type": "kimi_k25", "text_config": {"model_type": inner}});
    assert_refused(
        target,
        vec![
            (without(target_json(), "model_type"), "model_type is missing"),
            (json!({"model_type": "kimi_k25"}), "text_config is missing"),
            (wrapped("llama"), "text_config.model_type is \"llama\""),
            (wrapped("kimi_k25"), "text_config.model_type is \"kimi_k25\""),
        ],
    );
}

#[test]
fn what_the_target_cannot_honour_is_refused() {
    let cases = [
        (json!({"attention_bias": true}), "attention_bias is true, expected false"),
        (json!({"hidden_act": "gelu"}), r#"hidden_act is "gelu", expected "silu""#),
        (json!({"scoring_func": "softmax"}), r#"scoring_func is "softmax""#),
        (json!({"topk_method": "greedy"}), r#"topk_method is "greedy""#),
        (json!({"moe_layer_freq": 2}), "moe_layer_freq is 2"),
        (json!({"qk_rope_head_dim": 63}), "qk_rope_head_dim is 63, expected an even number"),
        (json!({"n_group": 7}), "n_group is 7, expected a divisor of n_routed_experts 256"),
        (json!({"topk_group": 9}), "topk_group is 9, expected a whole number from 1 to 8"),
        (json!({"topk_group": null}), "topk_group is missing"),
        (
            json!({"topk_group": 1, "num_experts_per_tok": 33}),
            "num_experts_per_tok is 33, expected a whole number from 1 to 32",
        ),
        (json!({"rms_norm_eps": 0}), "rms_norm_eps is 0, expected"),
        (json!({"rms_norm_eps": 1e-60}), "rms_norm_eps is 1.0"),
        (json!({"routed_scaling_factor": 0}), "routed_scaling_factor is 0"),
        (json!({"bos_token_id": [0, 1]}), "bos_token_id is [0,1], expected one token id"),
        (json!({"bos_token_id": 129280}), "bos_token_id is 129280, expected token ids below vocab_size 129280"),
        (json!({"eos_token_id": -1}), "eos_token_id is -1"),
        (json!({"tie_word_embeddings": "no"}), "tie_word_embeddings is \"no\", expected true or false"),
    ];
    assert_refused(target, cases.into_iter().map(|(change, words)| (with(target_json(), change), words)).collect());
}

#[test]
fn every_size_is_refused_at_zero_and_when_absurd() {
    let sizes = [
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "intermediate_size",
        "moe_intermediate_size",
        "num_attention_heads",
        "kv_lora_rank",
        "q_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "num_experts_per_tok",
        "n_routed_experts",
        "max_position_embeddings",
    ];
    let mut cases = Vec::new();
    for key in sizes {
        for value in [json!(0), json!(-1), json!(u64::MAX), json!(1u64 << 40), json!("7"), json!([7])] {
            cases.push((with(target_json(), json!({key: value})), key));
        }
    }
    for key in ["first_k_dense_replace", "n_shared_experts", "n_group", "topk_group"] {
        cases.push((with(target_json(), json!({key: u64::MAX})), key));
    }
    assert_refused(target, cases);
}

#[test]
fn every_required_key_is_named_when_missing() {
    let keys = [
        "vocab_size",
        "hidden_size",
        "num_hidden_layers",
        "intermediate_size",
        "moe_intermediate_size",
        "first_k_dense_replace",
        "num_experts_per_tok",
        "routed_scaling_factor",
        "num_attention_heads",
        "kv_lora_rank",
        "qk_nope_head_dim",
        "qk_rope_head_dim",
        "v_head_dim",
        "rms_norm_eps",
        "max_position_embeddings",
        "rope_theta",
    ];
    let messages = keys.map(|key| format!("config.json: {key} is missing, expected"));
    let cases = keys.iter().zip(&messages).map(|(key, message)| (without(target_json(), key), message.as_str()));
    assert_refused(target, cases.collect());
}

#[test]
fn f4_eos_is_the_union_of_every_place_and_form() {
    for (config, generation, expected) in [
        (json!(1), json!(null), vec![1]),
        (json!([7, 1]), json!(null), vec![1, 7]),
        (json!(null), json!(null), vec![]),
        (json!(null), json!(3), vec![3]),
        (json!(1), json!([2, 1]), vec![1, 2]),
        (json!([9, 4]), json!(6), vec![4, 6, 9]),
    ] {
        let config = with(target_json(), json!({"eos_token_id": config}));
        let generation = json!({"eos_token_id": generation, "bos_token_id": 8});
        let config = target_and_generation(&config, &generation).unwrap();
        assert_eq!(config.eos_token_ids, expected);
        assert_eq!(config.bos_token_id, Some(0));
    }
    let message = target_and_generation(&target_json(), &json!({"eos_token_id": 129280})).unwrap_err().to_string();
    assert!(message.starts_with("generation_config.json: eos_token_id is 129280"), "{message}");
}

#[test]
fn generation_config_gives_sampling_defaults_and_an_absent_bos() {
    let generation = json!({"do_sample": true, "temperature": 0.7, "top_p": 0.95, "bos_token_id": 8});
    let config = target_and_generation(&without(target_json(), "bos_token_id"), &generation).unwrap();
    assert_eq!(config.generation, GenerationDefaults { temperature: 0.7, top_k: 0, top_p: 0.95, min_p: 0.0 });
    assert_eq!(config.bos_token_id, Some(8));
}

#[test]
fn malformed_json_names_the_file() {
    for bytes in [b"".as_slice(), b"{", b"[1]", b"\xff\xfe", &[b'['; 100_000]] {
        let message = ModelConfig::parse(Path::new("dir/config.json"), bytes, None).unwrap_err().to_string();
        assert!(message.starts_with("dir/config.json: not a JSON object: "), "{message}");
    }
}
