//! Published layouts load: every fixture and the embedded models bind, share their files' memory, and leave only what the
//! text model does not have.

#![allow(clippy::unwrap_used)]

mod common;

use common::fixture;
use coppice_model::bind::{MlpWeights, QueryWeights};
use coppice_model::weight::{Storage, Weight};
use coppice_model::{Source, TargetModel};

fn load(name: &str) -> TargetModel {
    TargetModel::load(&Source::Directory(fixture(name))).unwrap()
}

fn storage_name(weight: &Weight) -> &'static str {
    match weight.storage {
        Storage::F32(_) => "f32",
        Storage::Bf16(_) => "bf16",
        Storage::F16(_) => "f16",
        Storage::Fp8Block { .. } => "fp8",
        Storage::Int4Group { .. } => "int4",
    }
}

#[test]
fn every_fixture_binds_in_its_stored_types() {
    // Name, dense layers, kv_a and expert storage, experts.
    for (name, dense, attention, expert, experts) in [
        ("v3-f32-groups-yarn-sharded", 1, "f32", "f32", 16),
        ("v3-bf16-no-q-lora", 0, "bf16", "bf16", 8),
        ("v3-fp8-block128", 1, "fp8", "fp8", 8),
        ("kimi-k25-int4-g32", 1, "bf16", "int4", 8),
    ] {
        let model = load(name);
        assert_eq!(model.weights.layers.len(), model.config.num_hidden_layers, "{name}");
        for (i, layer) in model.weights.layers.iter().enumerate() {
            assert_eq!(storage_name(&layer.attention.kv_a), attention, "{name}");
            assert_eq!(layer.input_norm.len(), model.config.hidden_size, "{name}");
            match &layer.mlp {
                MlpWeights::Dense(mlp) => {
                    assert!(i < dense, "{name}: layer {i} is dense");
                    assert_eq!(mlp.down.cols, model.config.intermediate_size, "{name}");
                }
                MlpWeights::Moe(moe) => {
                    assert!(i >= dense, "{name}: layer {i} is MoE");
                    assert_eq!(
                        (moe.experts.len(), moe.bias.len(), moe.router.rows),
                        (experts, experts, experts),
                        "{name}"
                    );
                    assert_eq!(storage_name(&moe.router), "f32", "{name}");
                    assert!(moe.experts.iter().all(|mlp| storage_name(&mlp.up) == expert), "{name}");
                    assert!(moe.shared.is_some(), "{name}");
                }
            }
        }
        assert_ne!(model.weights.embed.name, model.weights.lm_head.name, "{name}");
    }
}

#[test]
fn only_the_vision_part_of_a_checkpoint_is_unused() {
    assert_eq!(
        load("kimi-k25-int4-g32").unused,
        ["mm_projector.proj.0.weight", "vision_tower.patch_embed.proj.weight"]
    );
    for name in ["v3-f32-groups-yarn-sharded", "v3-bf16-no-q-lora", "v3-fp8-block128"] {
        assert!(load(name).unused.is_empty(), "{name}");
    }
}

#[test]
fn the_query_projection_follows_q_lora_rank() {
    let has_full = |name| matches!(load(name).weights.layers[0].attention.q, QueryWeights::Full(_));
    assert!(has_full("v3-bf16-no-q-lora"));
    assert!(!has_full("v3-fp8-block128"));
}

#[test]
fn fp8_weights_expand_with_the_scale_of_their_block() {
    let model = load("v3-fp8-block128");
    let MlpWeights::Dense(mlp) = &model.weights.layers[0].mlp else { panic!("layer 0 is dense") };
    let Storage::Fp8Block { values, scale_inv, block } = &mlp.gate.storage else { panic!("stored as fp8") };
    assert_eq!((*block, scale_inv.len(), mlp.gate.rows, mlp.gate.cols), ([128, 128], 6, 288, 160));
    let mut row = vec![0.0; 160];
    mlp.gate.expand_row(287, &mut row);
    for (col, value) in row.into_iter().enumerate() {
        let expected = coppice_model::weight::e4m3_to_f32(values[287 * 160 + col]) * scale_inv[4 + col / 128];
        assert_eq!(value, expected, "column {col}");
    }
}

#[test]
fn fingerprints_tell_checkpoints_apart_and_stay_the_same() {
    let names = ["v3-f32-groups-yarn-sharded", "v3-bf16-no-q-lora", "v3-fp8-block128", "kimi-k25-int4-g32"];
    let mut prints: Vec<String> = names.map(|name| load(name).fingerprint).to_vec();
    assert!(prints.iter().all(|print| print.len() == 16));
    assert_eq!(prints[3], load(names[3]).fingerprint);
    prints.sort();
    prints.dedup();
    assert_eq!(prints.len(), names.len());
}

#[cfg(feature = "embedded-model")]
mod embedded {
    use super::*;
    use common::tiny;
    use coppice_model::DraftModel;

    #[test]
    fn the_embedded_models_equal_those_in_the_folder() {
        let embedded = TargetModel::load(&Source::EmbeddedTarget).unwrap();
        let on_disk = TargetModel::load(&Source::Directory(tiny("target"))).unwrap();
        assert_eq!(embedded.config, on_disk.config);
        assert_eq!(embedded.fingerprint, on_disk.fingerprint);
        assert_eq!(embedded.bytes, on_disk.bytes);
        assert!(embedded.unused.is_empty());

        let draft = DraftModel::load(&Source::EmbeddedDraft).unwrap();
        let on_disk = DraftModel::load(&Source::Directory(tiny("draft"))).unwrap();
        assert_eq!((&draft.config, &draft.fingerprint), (&on_disk.config, &on_disk.fingerprint));
        assert!(draft.unused.is_empty());
        assert_eq!((draft.weights.fc.rows, draft.weights.fc.cols, draft.weights.layers.len()), (256, 768, 3));
        draft.config.check_against(&embedded.config).unwrap();
    }

    #[test]
    fn embedded_weights_are_used_in_place() {
        let (_, file) = Source::EmbeddedTarget.read("model.safetensors").unwrap().unwrap();
        let file = file.as_ptr_range();
        let embedded = TargetModel::load(&Source::EmbeddedTarget).unwrap();
        let MlpWeights::Moe(moe) = &embedded.weights.layers[1].mlp else { panic!("layer 1 is MoE") };
        let Storage::Int4Group { packed, scale, .. } = &moe.experts[3].down.storage else { panic!("stored as int4") };
        assert!(file.contains(&packed.as_ptr().cast()));
        assert!(file.contains(&scale.as_ptr().cast()));
    }
}
