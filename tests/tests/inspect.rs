//! `inspect` and `logits`: what a checkpoint holds, and what it computes.

use coppice_tests::binary::{changed_model, json, succeed, tiny_folder};
use coppice_tests::coppice;
use coppice_tests::model::{FIXTURES, Tensors, fixture, relative_error};
use serde_json::json;

#[test]
fn the_embedded_model_and_its_drafter_are_described() {
    let text = succeed(coppice!().arg("inspect"));
    for expected in
        ["target embedded:target", "drafter embedded:draft", "routed_experts", "int4, groups of 32", "block_size"]
    {
        assert!(text.contains(expected), "{expected} in {text}");
    }
    let report = json(coppice!().args(["inspect", "--json"]));
    assert_eq!(report["schema"], "coppice.inspect.v1");
    let kinds: Vec<_> = report["models"].as_array().unwrap().iter().map(|model| model["kind"].as_str()).collect();
    assert_eq!(kinds, [Some("target"), Some("drafter")]);
    assert!(report["env"]["version"].is_string(), "{report}");
}

#[test]
fn a_folder_is_described_as_the_same_files_in_the_program() {
    let embedded = json(coppice!().args(["inspect", "--json"]));
    for (index, name) in ["target", "draft"].into_iter().enumerate() {
        let folder = json(coppice!().args(["inspect", "--json"]).arg(tiny_folder(name)));
        for key in ["kind", "fingerprint", "parameters", "config", "tensors"] {
            assert_eq!(folder["models"][0][key], embedded["models"][index][key], "{name} {key}");
        }
    }
}

#[test]
fn every_published_layout_is_described_in_full() {
    for name in FIXTURES {
        let output = tempfile::NamedTempFile::new().unwrap();
        let text = succeed(coppice!().arg("inspect").arg(fixture(name)).arg("-O").arg(output.path()));
        let report: serde_json::Value = serde_json::from_slice(&std::fs::read(output.path()).unwrap()).unwrap();
        let model = &report["models"][0];
        let groups = model["tensors"].as_array().unwrap();
        let bytes: u64 = groups.iter().map(|group| group["bytes"].as_u64().unwrap()).sum();
        assert_eq!(Some(bytes), model["bytes"].as_u64(), "{name}");
        let [total, active] = ["total", "active"].map(|key| model["parameters"][key].as_u64().unwrap());
        assert!(0 < active && active < total, "{name}: {active} of {total}");
        let unused = model["unused"].as_array().unwrap();
        let listed: u64 =
            groups.iter().filter(|group| group["role"] == "unused").map(|group| group["count"].as_u64().unwrap()).sum();
        assert_eq!(listed, unused.len() as u64, "{name}");
        let ending = if unused.is_empty() { "no tensor is unused\n".to_owned() } else { "unused".to_owned() };
        assert!(text.contains(&ending), "{name}: {text}");
    }
}

#[test]
fn tensors_of_layers_that_the_configuration_leaves_out_are_unused() {
    let folder = changed_model(&tiny_folder("target"), &[("config.json", json!({"num_hidden_layers": 5}))]);
    let report = json(coppice!().args(["inspect", "--json"]).arg(folder.path()));
    let unused = report["models"][0]["unused"].as_array().unwrap();
    assert!(!unused.is_empty());
    assert!(unused.iter().all(|name| name.as_str().unwrap().starts_with("model.layers.5.")), "{unused:?}");
}

#[test]
fn logits_writes_what_transformers_computes() {
    let name = "kimi-k25-int4-g32";
    let expected = Tensors::open(&fixture(name).join("expected.safetensors"));
    let folder = tempfile::tempdir().unwrap();
    let (tokens, out) = (folder.path().join("tokens.json"), folder.path().join("out.safetensors"));
    std::fs::write(&tokens, serde_json::to_vec(&expected.ids("input_ids")).unwrap()).unwrap();
    for device in ["cpu", "deferred"] {
        let mut command = coppice!();
        command.arg("logits").arg(fixture(name)).arg("--tokens").arg(&tokens).arg("--out").arg(&out);
        assert_eq!(succeed(command.args(["--hidden", "2,0", "--device", device])), "");
        let written = Tensors::open(&out);
        let mut names = written.names();
        names.sort();
        assert_eq!(names, ["hidden.0", "hidden.2", "logits"]);
        for tensor in names {
            let error = relative_error(&written.f32(&tensor), &expected.f32(&tensor));
            assert!(error <= 2e-5, "{device} {tensor}: {error:e}");
        }
    }
}
