//! The checkpoints that measurements at Kimi-K2.6's widths are made on.

use coppice_tests::binary::{ids, json};
use coppice_tests::kimi_slice::{Shape, write};
use coppice_tests::{coppice, generate};

/// Every width a small one, no two alike where that can be.
const SMALL: Shape = Shape {
    hidden: 96,
    heads: 4,
    q_lora: 48,
    kv_lora: 64,
    nope: 32,
    rope: 16,
    v: 24,
    dense: 160,
    expert: 64,
    experts: 8,
    top_k: 3,
    vocab: 320,
};

#[test]
fn a_slice_loads_whole_and_generates_the_same_drafted_or_not() {
    let folder = tempfile::tempdir().unwrap();
    write(folder.path(), &SMALL, 1).unwrap();
    let report = json(coppice!().arg("inspect").arg(folder.path()).arg("--json"));
    assert!(report.to_string().contains("int4"), "{report}");
    let generated = |flags: &[&str]| {
        let mut command = generate!();
        command.args(["--json", "-n", "24", "--ignore-eos", "--temp", "1", "--model"]).arg(folder.path());
        ids(&json(command.arg("--tokens").arg(folder.path().join("tokens.json")).args(flags)), "token_ids")
    };
    let plain = generated(&["--spec", "none"]);
    assert_eq!(plain.len(), 24);
    assert!(plain.iter().any(|id| *id != plain[0]), "{plain:?}");
    assert_eq!(generated(&["--spec", "ngram"]), plain);
}

#[test]
fn a_seed_names_the_weights() {
    let written = |seed| {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), &SMALL, seed).unwrap();
        std::fs::read(folder.path().join("model.safetensors")).unwrap()
    };
    assert_eq!(written(1), written(1));
    assert_ne!(written(1), written(2));
}
