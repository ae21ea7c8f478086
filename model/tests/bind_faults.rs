//! Tensors that a configuration does not fit are refused by name, with what was found and what was expected.

#![allow(clippy::unwrap_used)]

mod common;

use common::{Model, Tensor, assert_says, fixture, tiny};
use coppice_model::checkpoint::Dtype;
use coppice_model::weight::Storage;
use coppice_model::{DraftModel, Result, Source};
use half::{bf16, f16};
use serde_json::json;

const GROUPS: &str = "v3-f32-groups-yarn-sharded";
const FP8: &str = "v3-fp8-block128";
const INT4: &str = "kimi-k25-int4-g32";

/// f32 tensor contents as another dtype.
fn convert<const N: usize>(tensor: &mut Tensor, dtype: Dtype, bytes: impl Fn(f32) -> [u8; N]) {
    let values = tensor.bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    tensor.bytes = values.flat_map(bytes).collect();
    tensor.dtype = dtype;
}

fn load_draft(model: &Model) -> Result<DraftModel> {
    DraftModel::load(&Source::Directory(model.write().path().to_owned()))
}

#[test]
fn f3_a_wrong_shape_says_where_the_expected_one_comes_from() {
    let mut model = Model::read(&fixture(GROUPS));
    let router = model.tensor("model.layers.2.mlp.gate.weight");
    router.shape = vec![16, 95];
    router.bytes.truncate(16 * 95 * 4);
    let folder = model.write();
    let message = coppice_model::TargetModel::load(&Source::Directory(folder.path().into())).unwrap_err().to_string();
    let file = folder.path().join("model.safetensors");
    let expected = format!(
        "tensor model.layers.2.mlp.gate.weight in {} has shape [16, 95], expected [16, 96] (n_routed_experts x hidden_size)",
        file.display()
    );
    assert_eq!(message, expected);
}

#[test]
fn f3_transposed_shapes_zero_sizes_and_wrong_dtypes_are_refused() {
    let refused = |name: &str, change: &dyn Fn(&mut Tensor), words: &[&str]| {
        let mut model = Model::read(&fixture(GROUPS));
        change(model.tensor(name));
        assert_says(&model.refusal(), &[&[name], words].concat());
    };
    refused(
        "model.layers.0.self_attn.kv_b_proj.weight",
        &|tensor| tensor.shape.reverse(),
        &[
            "has shape [64, 224], expected [224, 64] (num_attention_heads * (qk_nope_head_dim + v_head_dim) x kv_lora_rank)",
            "it is transposed",
        ],
    );
    refused(
        "model.layers.1.mlp.experts.3.up_proj.weight",
        &|tensor| (tensor.shape, tensor.bytes) = (vec![0, 96], vec![]),
        &["has shape [0, 96], expected [64, 96] (moe_intermediate_size x hidden_size)"],
    );
    refused(
        "model.norm.weight",
        &|tensor| tensor.shape = vec![1, 96],
        &["has shape [1, 96], expected [96] (hidden_size)"],
    );
    let as_integers = |tensor: &mut Tensor| tensor.dtype = Dtype::I32;
    refused("model.norm.weight", &as_integers, &["has dtype I32, expected F32, BF16 or F16"]);
    refused("lm_head.weight", &as_integers, &["has dtype I32, expected F32, BF16, F16 or F8_E4M3"]);
}

#[test]
fn f3_unused_tensors_are_listed() {
    let mut model = Model::read(&fixture(GROUPS));
    let extra = model.tensor("model.norm.weight").clone();
    // A multi-token-prediction layer follows the last one in DeepSeek-V3.
    for name in ["model.layers.3.enorm.weight", "model.layers.3.self_attn.q_a_proj.weight", "a.first"] {
        model.tensors.insert(name.into(), extra.clone());
    }
    let expected = ["a.first", "model.layers.3.enorm.weight", "model.layers.3.self_attn.q_a_proj.weight"];
    assert_eq!(model.load().unwrap().unused, expected);
}

#[test]
fn all_missing_tensors_are_counted_and_the_first_named() {
    let mut model = Model::read(&fixture(GROUPS));
    model.remove("model.layers.1.self_attn.q_a_layernorm.weight");
    assert!(model.refusal().ends_with(": cannot find tensor model.layers.1.self_attn.q_a_layernorm.weight"));
    model.remove("model.layers.1.mlp.gate.weight");
    for expert in 0..6 {
        model.remove(&format!("model.layers.2.mlp.experts.{expert}.down_proj.weight"));
    }
    let first = "model.layers.1.mlp.gate.weight, model.layers.1.self_attn.q_a_layernorm.weight, ";
    let message = model.refusal();
    assert_says(
        &message,
        &["cannot find 8 tensors: ", first, "experts.2.down_proj.weight and 3 more; does config.json"],
    );
}

#[test]
fn a_configuration_of_absurdly_many_experts_is_refused_at_once() {
    let mut model = Model::read(&fixture(GROUPS));
    model.config["num_hidden_layers"] = json!(1024);
    model.config["n_routed_experts"] = json!(16384);
    assert_says(&model.refusal(), &["tensors, expected at least 50282496 for the routed experts of config.json"]);
}

#[test]
fn m4_an_fp8_tensor_without_its_scale_is_refused_with_both_names() {
    let name = "model.layers.1.mlp.experts.2.down_proj.weight";
    let mut model = Model::read(&fixture(FP8));
    model.remove(&format!("{name}_scale_inv"));
    let scale = format!("is F8_E4M3, but {name}_scale_inv is missing: both are needed");
    assert_says(&model.refusal(), &[&format!("tensor {name} in "), &scale]);
}

#[test]
fn m4_fp8_scales_of_another_shape_or_dtype_are_refused() {
    let name = "model.layers.0.mlp.gate_proj.weight_scale_inv";
    let mut model = Model::read(&fixture(FP8));
    model.tensor(name).shape = vec![2, 3];
    let expected = "has shape [2, 3], expected [3, 2] ((intermediate_size / 128) x (hidden_size / 128), rounded up)";
    assert_says(&model.refusal(), &[name, expected]);

    let mut model = Model::read(&fixture(FP8));
    convert(model.tensor(name), Dtype::BF16, |value| bf16::from_f32(value).to_le_bytes());
    assert_says(&model.refusal(), &[name, "has dtype BF16, expected F32"]);
}

#[test]
fn m4_scales_and_quantization_config_must_agree_with_the_stored_type() {
    let mut model = Model::read(&fixture(FP8));
    model.config["quantization_config"] = json!(null);
    assert_says(&model.refusal(), &["is F8_E4M3, but config.json has no fp8 quantization_config"]);

    let name = "model.layers.0.self_attn.o_proj.weight";
    let mut model = Model::read(&fixture(FP8));
    let tensor = model.tensor(name);
    (tensor.dtype, tensor.bytes) = (Dtype::BF16, tensor.bytes.iter().flat_map(|&byte| [byte, 0]).collect());
    let expected = format!("has dtype BF16, expected F8_E4M3 beside its scale {name}_scale_inv");
    assert_says(&model.refusal(), &[&expected]);
}

#[test]
fn m6_a_tied_lm_head_may_be_absent_and_an_untied_one_may_not() {
    let mut model = Model::read(&fixture(GROUPS));
    model.remove("lm_head.weight");
    let message = model.refusal();
    assert!(
        message.ends_with(": cannot find tensor lm_head.weight (config says tie_word_embeddings = false)"),
        "{message}"
    );

    model.config["tie_word_embeddings"] = json!(true);
    let weights = model.load().unwrap().weights;
    assert_eq!(weights.lm_head.name, "model.embed_tokens.weight");
    let (Storage::F32(embed), Storage::F32(lm_head)) = (&weights.embed.storage, &weights.lm_head.storage) else {
        panic!("stored as f32")
    };
    assert_eq!(embed.as_ptr(), lm_head.as_ptr());
}

#[test]
fn int4_parts_that_disagree_are_refused() {
    let name = "language_model.model.layers.1.mlp.experts.2.gate_proj.weight";
    let refused = |change: &dyn Fn(&mut Model), words: &[&str]| {
        let mut model = Model::read(&fixture(INT4));
        change(&mut model);
        assert_says(&model.refusal(), words);
    };
    let shape_of = |rows: i64, cols: i64| [rows.to_le_bytes(), cols.to_le_bytes()].concat();
    refused(
        &|model| model.tensor(&format!("{name}_shape")).bytes = shape_of(64, 128),
        &[&format!("{name}_shape"), "holds [64, 128], expected [64, 96] (moe_intermediate_size x hidden_size)"],
    );
    refused(
        &|model| model.tensor(&format!("{name}_shape")).bytes = shape_of(-64, 96),
        &["holds [-64, 96], expected [64, 96]"],
    );
    for part in ["scale", "shape"] {
        let absent = format!("is packed int4, but {name}_{part} is missing");
        refused(&|model| drop(model.remove(&format!("{name}_{part}"))), &[&format!("tensor {name}_packed"), &absent]);
    }
    refused(
        &|model| model.tensor(&format!("{name}_scale")).shape = vec![3, 64],
        &["has shape [3, 64], expected [64, 3] (moe_intermediate_size x hidden_size / 32): it is transposed"],
    );
    refused(
        &|model| model.tensor(&format!("{name}_packed")).shape = vec![32, 24],
        &["has shape [32, 24], expected [64, 12] (moe_intermediate_size x hidden_size / 8)"],
    );
    refused(
        &|model| model.config["text_config"]["quantization_config"] = json!(null),
        &["_packed", "is packed int4, but config.json has no pack-quantized quantization_config"],
    );
}

#[test]
fn int4_columns_must_be_whole_groups() {
    let mut model = Model::read(&fixture(INT4));
    model.config["text_config"]["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"] = json!(40);
    let words = ["_packed", "is packed int4 of 96 columns (hidden_size), expected a multiple of the group size 40"];
    assert_says(&model.refusal(), &words);
}

#[test]
fn routers_biases_and_norms_become_f32_from_any_float() {
    let original = Model::read(&fixture(GROUPS)).load().unwrap();
    let mut model = Model::read(&fixture(GROUPS));
    let bias = "model.layers.1.mlp.gate.e_score_correction_bias";
    convert(model.tensor(bias), Dtype::BF16, |value| bf16::from_f32(value).to_le_bytes());
    convert(model.tensor("model.layers.1.mlp.gate.weight"), Dtype::F16, |value| f16::from_f32(value).to_le_bytes());
    convert(model.tensor("model.norm.weight"), Dtype::F16, |value| f16::from_f32(value).to_le_bytes());
    let narrowed = model.load().unwrap();
    let moe = |model: &coppice_model::TargetModel| match &model.weights.layers[1].mlp {
        coppice_model::bind::MlpWeights::Moe(moe) => moe.clone(),
        coppice_model::bind::MlpWeights::Dense(_) => panic!("layer 1 is MoE"),
    };
    let (original_moe, narrowed_moe) = (moe(&original), moe(&narrowed));
    let expected: Vec<f32> = original_moe.bias.iter().map(|&value| bf16::from_f32(value).to_f32()).collect();
    assert_eq!(narrowed_moe.bias, expected);
    let (Storage::F32(router), Storage::F32(narrow)) = (&original_moe.router.storage, &narrowed_moe.router.storage)
    else {
        panic!("routers are f32")
    };
    assert!(router.iter().zip(narrow.iter()).all(|(&value, &narrow)| f16::from_f32(value).to_f32() == narrow));
    let expected: Vec<f32> = original.weights.norm.iter().map(|&value| f16::from_f32(value).to_f32()).collect();
    assert_eq!(narrowed.weights.norm, expected);
}

#[test]
fn target_tensors_bind_with_and_without_the_language_model_prefix() {
    let mut model = Model::read(&fixture(GROUPS));
    model.rename(|name| format!("language_model.{name}"));
    assert!(model.load().unwrap().unused.is_empty());
    let mut model = Model::read(&fixture(INT4));
    model.rename(|name| name.trim_start_matches("language_model.").to_owned());
    model.load().unwrap();
    model.remove("model.norm.weight");
    assert!(model.refusal().ends_with("cannot find tensor model.norm.weight"));
}

#[test]
fn drafter_tensors_bind_with_and_without_the_model_prefix() {
    let mut model = Model::read(&tiny("draft"));
    let plain = load_draft(&model).unwrap();
    model.rename(|name| format!("model.{name}"));
    let prefixed = load_draft(&model).unwrap();
    assert!(prefixed.unused.is_empty());
    assert_eq!(prefixed.weights.layers[2].k_norm, plain.weights.layers[2].k_norm);
    model.remove("model.fc.weight");
    assert!(load_draft(&model).unwrap_err().to_string().ends_with("cannot find tensor model.fc.weight"));
}

#[test]
fn s4_an_f16_drafter_binds_as_f16() {
    let mut model = Model::read(&tiny("draft"));
    for tensor in model.tensors.values_mut() {
        tensor.dtype = Dtype::F16;
    }
    let draft = load_draft(&model).unwrap();
    assert!(matches!(draft.weights.fc.storage, Storage::F16(_)));
}

#[test]
fn s2_a_drafter_with_another_number_of_taps_is_refused() {
    let mut model = Model::read(&tiny("draft"));
    model.config["dflash_config"]["target_layer_ids"] = json!([1, 3]);
    let expected = "has shape [256, 768], expected [256, 512] (hidden_size x len(target_layer_ids) * hidden_size)";
    assert_says(&load_draft(&model).unwrap_err().to_string(), &["tensor fc.weight in ", expected]);
}
