//! Drafter files: both layouts, what bad ones are refused for, and drafters for another target.

use super::*;

#[test]
fn a_drafter_is_read() {
    let config = draft(&draft_json()).unwrap();
    assert_eq!(config.layer_windows, [None, None, Some(2048), None, None, Some(2048)]);
    assert_eq!(config.target_layer_ids, [1, 12, 24, 35, 47, 58]);
    assert_eq!((config.block_size, config.mask_token_id), (8, 163838));
    assert_eq!((config.heads, config.kv_heads, config.head_dim), (64, 8, 128));
    assert!(!config.rope.interleave);
    assert_eq!(config.rope.yarn.unwrap().factor, 64.0);
}

#[test]
fn s4_both_layouts_of_the_drafter_read_alike() {
    let nested = with(
        without(draft_json(), "block_size"),
        json!({"dflash_config":
        {"block_size": 8, "mask_token_id": 163838, "target_layer_ids": [1, 12, 24, 35, 47, 58]}}),
    );
    let top = with(
        without(draft_json(), "dflash_config"),
        json!({"mask_token_id": 163838, "target_layer_ids": [1, 12, 24, 35, 47, 58]}),
    );
    assert_eq!(draft(&nested).unwrap(), draft(&draft_json()).unwrap());
    assert_eq!(draft(&top).unwrap(), draft(&draft_json()).unwrap());
    let disagreeing = with(draft_json(), json!({"mask_token_id": 5}));
    assert_refused(draft, vec![(disagreeing, "mask_token_id is 5, expected the same as dflash_config.mask_token_id")]);
}

#[test]
fn s2_target_layer_ids_are_never_guessed() {
    let ids = |ids: Value| with(draft_json(), json!({"dflash_config": {"mask_token_id": 1, "target_layer_ids": ids}}));
    assert_refused(
        draft,
        vec![
            (ids(Value::Null), "draft/config.json: target_layer_ids is missing, expected a list of target layers"),
            (
                without(with(draft_json(), json!({"mask_token_id": 163838})), "dflash_config"),
                "target_layer_ids is missing",
            ),
            (ids(json!([])), "target_layer_ids is [], expected"),
            (ids(json!(5)), "target_layer_ids is 5, expected"),
            (ids(json!([1, -1])), "target_layer_ids is [1,-1], expected"),
            (
                ids(json!([1, 61])),
                "dflash_config.target_layer_ids is [1,61], expected a list of target layers below 61 (num_target_layers)",
            ),
        ],
    );
}

#[test]
fn s4_a_mask_id_outside_the_vocabulary_is_refused() {
    let mask =
        |mask: Value| with(draft_json(), json!({"dflash_config": {"mask_token_id": mask, "target_layer_ids": [1]}}));
    assert_refused(
        draft,
        vec![
            (mask(json!(163840)), "mask_token_id is 163840, expected token ids below vocab_size 163840"),
            (mask(json!(-1)), "mask_token_id is -1"),
            (mask(json!(null)), "mask_token_id is missing"),
        ],
    );
}

#[test]
fn what_the_drafter_cannot_honour_is_refused() {
    let cases = [
        (json!({"attention_bias": true}), "attention_bias is true"),
        (json!({"hidden_act": "relu"}), "hidden_act is \"relu\""),
        (json!({"num_key_value_heads": 7}), "num_key_value_heads is 7, expected a divisor of num_attention_heads 64"),
        (json!({"num_key_value_heads": 128}), "num_key_value_heads is 128, expected a whole number from 1 to 64"),
        (json!({"head_dim": 127}), "head_dim is 127, expected an even number"),
        (json!({"block_size": 1}), "block_size is 1"),
        (json!({"block_size": null}), "block_size is missing"),
        (json!({"layer_types": ["full_attention"]}), "expected an entry for each of num_hidden_layers 6"),
        (json!({"layer_types": vec!["linear_attention"; 6]}), "layer_types is [\"linear_attention\""),
        (json!({"sliding_window": null}), "sliding_window is missing"),
        (json!({"sliding_window": 0}), "sliding_window is 0"),
        (json!({"rope_scaling": {"type": "ntk", "factor": 2}}), "rope_scaling.type is \"ntk\""),
    ];
    assert_refused(draft, cases.into_iter().map(|(change, words)| (with(draft_json(), change), words)).collect());
}

#[test]
fn sliding_windows_follow_qwen3_where_layer_types_are_absent() {
    let windows = |changes: Value| draft(&with(without(draft_json(), "layer_types"), changes)).unwrap().layer_windows;
    assert_eq!(windows(json!({"use_sliding_window": false})), [None; 6]);
    let expected = [None, None, None, None, Some(2048), Some(2048)];
    assert_eq!(windows(json!({"use_sliding_window": true, "max_window_layers": 4})), expected);
}

#[test]
fn s5_a_drafter_for_another_target_is_refused_with_both_sizes() {
    let target = target(&with(target_json(), json!({"vocab_size": 163840}))).unwrap();
    let drafter = draft(&draft_json()).unwrap();
    drafter.check_against(&target).unwrap();
    let cases = [
        (DraftConfig { vocab_size: 151936, ..drafter.clone() }, "vocab_size is 151936, expected the target's 163840"),
        (DraftConfig { hidden_size: 4096, ..drafter.clone() }, "hidden_size is 4096, expected the target's 7168"),
        (
            DraftConfig { target_layer_ids: vec![1, 61], ..drafter.clone() },
            "target_layer_ids has 61, expected ids below the target's 61 layers",
        ),
    ];
    for (drafter, words) in cases {
        let message = drafter.check_against(&target).unwrap_err().to_string();
        assert!(message.contains(words), "{message}");
    }
}
