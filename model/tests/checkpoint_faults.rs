//! Damaged, hostile and inconsistent checkpoint files are refused with path, tensor and byte counts.

#![allow(clippy::unwrap_used)]

mod common;

use std::path::Path;

use common::{Model, Tensors, assert_says, fixture, raw_file, serialize};
use coppice_model::checkpoint::Checkpoint;
use proptest::prelude::*;
use serde_json::{Value, json};
use tempfile::TempDir;

/// The message that a folder with `file` as its model is refused with.
fn refusal(file: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.safetensors");
    std::fs::write(&path, file).unwrap();
    let message = Checkpoint::open(folder.path()).expect_err("the file should be refused").to_string();
    assert!(message.starts_with(&format!("{}: ", path.display())), "{message:?} does not name the file");
    message
}

/// The bytes of a small sound file: a of 6 f32, b of 4 bytes.
fn sound_file() -> Vec<u8> {
    let header = r#"{"__metadata__":{"format":"pt"},"a":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},
        "b":{"dtype":"U8","shape":[4],"data_offsets":[24,28]}}  "#;
    raw_file(header, &[7; 28])
}

#[test]
fn a_sound_file_opens() {
    let checkpoint = Checkpoint::from_static(Path::new("x"), Vec::leak(sound_file())).unwrap();
    assert_eq!(checkpoint.names().collect::<Vec<_>>(), ["a", "b"]);
    let a = checkpoint.get("a").unwrap();
    assert_eq!((a.shape.as_slice(), a.bytes(), a.path()), ([2, 3].as_slice(), [7; 24].as_slice(), Path::new("x")));
    assert!(checkpoint.get("c").is_none());
    assert_eq!(checkpoint.total_bytes(), 28);
}

#[test]
fn f1_a_truncated_file_is_refused_with_both_sizes() {
    let file = sound_file();
    let (header_end, size) = (file.len() - 28, file.len());
    assert_says(&refusal(&[]), &["file has 0 bytes, expected at least 8"]);
    assert_says(&refusal(&file[..7]), &["file has 7 bytes, expected at least 8"]);
    for cut in [8, header_end / 2, header_end - 1] {
        let expected = format!("file has {cut} bytes, expected at least {header_end}");
        assert_says(&refusal(&file[..cut]), &[&expected, "truncated"]);
    }
    for cut in [header_end, size - 1] {
        let expected = format!("file has {cut} bytes, expected {size} from its header");
        assert_says(&refusal(&file[..cut]), &[&expected, "truncated"]);
    }
}

#[test]
fn f1_trailing_bytes_are_refused_with_both_sizes() {
    let mut file = sound_file();
    let size = file.len();
    file.push(0);
    let expected = format!("file has {} bytes, expected {size} from its header", size + 1);
    assert_says(&refusal(&file), &[&expected, "belong to no tensor"]);
}

#[test]
fn f1_an_absurd_header_length_is_refused_and_not_allocated() {
    for length in [1u64 << 60, u64::MAX, 1 << 40, 100] {
        let mut file = length.to_le_bytes().to_vec();
        file.extend_from_slice(b"{}");
        let expected = format!("file has 10 bytes, expected at least {}", u128::from(length) + 8);
        assert_says(&refusal(&file), &[&expected]);
    }
}

#[test]
fn f1_tensors_that_do_not_tile_the_data_are_refused() {
    let tensor =
        |shape: Value, start: u64, end: u64| json!({"dtype": "U8", "shape": shape, "data_offsets": [start, end]});
    let f32s = |shape: Value| json!({"dtype": "F32", "shape": shape, "data_offsets": [0, 16]});
    let huge = 1u64 << 60;
    let cases = [
        (
            json!({"a": tensor(json!([10]), 0, 10), "b": tensor(json!([8]), 8, 16)}),
            "tensors overlap: b has data_offsets [8, 16], a has [0, 10]",
        ),
        (json!({"a": tensor(json!([8]), 0, 8), "b": tensor(json!([8]), 0, 8)}), "tensors overlap: b"),
        (
            json!({"a": tensor(json!([4]), 0, 4), "b": tensor(json!([8]), 8, 16)}),
            "data bytes 4 to 8 belong to no tensor, expected tensor b to start at 4",
        ),
        (json!({"a": tensor(json!([15]), 1, 16)}), "data bytes 0 to 1 belong to no tensor"),
        (json!({"a": tensor(json!([16]), 16, 0)}), "tensor a has data_offsets [16, 0], expected a span of 16 bytes"),
        (json!({"a": f32s(json!([5]))}), "tensor a has data_offsets [0, 16], expected a span of 20 bytes for F32 [5]"),
        (
            json!({"a": f32s(json!([4294967296u64, 4294967296u64]))}),
            "[4294967296, 4294967296], whose size in F32 overflows",
        ),
        (
            json!({"a": f32s(json!([huge, 8]))}),
            "tensor a has shape [1152921504606846976, 8], whose size in F32 overflows",
        ),
        (json!({"a": {"dtype": "F4", "shape": [3], "data_offsets": [0, 2]}}), "not a whole number of bytes"),
        (json!({"a": tensor(json!([huge]), 0, huge)}), "bytes, expected 1152921504606"),
        (json!({"a": {"dtype": "F33", "shape": [4], "data_offsets": [0, 16]}}), "tensor a: unknown variant `F33`"),
        (json!({"a": tensor(json!([-1]), 0, 16)}), "tensor a: invalid value: integer `-1`"),
        (json!({"a": {"dtype": "U8", "shape": [16]}}), "tensor a: missing field `data_offsets`"),
        (json!([1, 2]), "is not a safetensors header"),
    ];
    for (header, words) in cases {
        assert_says(&refusal(&raw_file(&header.to_string(), &[0; 16])), &[words]);
    }
    assert_says(&refusal(&raw_file("{\"a\": ", b"")), &["header of 6 bytes is not a safetensors header"]);
    assert_says(&refusal(&raw_file("\u{1}\u{2}", b"")), &["is not a safetensors header"]);
}

#[test]
fn f1_a_tensor_listed_twice_in_a_header_is_refused() {
    let entry = r#""a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}"#;
    assert_says(&refusal(&raw_file(&format!("{{{entry},{entry}}}"), &[0; 4])), &["tensor a is listed twice"]);
}

#[test]
fn a_folder_without_a_checkpoint_lists_what_was_looked_for() {
    let folder = tempfile::tempdir().unwrap();
    let message = Checkpoint::open(folder.path()).unwrap_err().to_string();
    assert_says(&message, &[folder.path().to_str().unwrap(), "model.safetensors.index.json", "and model.safetensors"]);
    std::fs::create_dir(folder.path().join("model.safetensors")).unwrap();
    assert_says(&Checkpoint::open(folder.path()).unwrap_err().to_string(), &["model.safetensors: not a regular file"]);
}

/// A folder with shards of the given tensors, one byte each, and the index as given.
fn sharded(shards: &[(&str, &[&str])], index: Value) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (file, names) in shards {
        let tensor = common::Tensor { dtype: safetensors::Dtype::U8, shape: vec![1], bytes: vec![0] };
        let tensors: Tensors = names.iter().map(|name| (name.to_string(), tensor.clone())).collect();
        std::fs::write(folder.path().join(file), serialize(&tensors)).unwrap();
    }
    let index = json!({"metadata": {"total_size": 1}, "weight_map": index});
    std::fs::write(folder.path().join("model.safetensors.index.json"), index.to_string()).unwrap();
    folder
}

const ONE: &str = "model-00001-of-00002.safetensors";
const TWO: &str = "model-00002-of-00002.safetensors";

#[test]
fn f2_index_and_shards_that_disagree_are_refused_each_in_its_own_words() {
    type Shards<'a> = &'a [(&'a str, &'a [&'a str])];
    let cases: [(&str, Shards, Value, &[&str]); 7] = [
        (
            "an absent shard",
            &[(ONE, &["a"])],
            json!({"a": ONE, "b": TWO, "c": TWO}),
            &[&format!("{TWO}: absent, but model.safetensors.index.json maps 2 tensors to it")],
        ),
        (
            "several absent shards",
            &[],
            json!({"a": ONE, "b": TWO}),
            &[&format!("{ONE}: absent"), "2 of 2 shards are absent"],
        ),
        (
            "an index of other shards",
            &[("model-00001-of-00001.safetensors", &["a", "b"])],
            json!({"a": ONE, "b": TWO}),
            &["absent", "stale, model-00001-of-00001.safetensors is here and not in it"],
        ),
        (
            "a tensor that its shard lacks and another has",
            &[(ONE, &["a", "b"]), (TWO, &["c"])],
            json!({"a": ONE, "b": TWO, "c": TWO}),
            &[&format!("{TWO}: has no tensor b, which"), &format!("{ONE} has it")],
        ),
        (
            "a tensor that no shard has",
            &[(ONE, &["a"]), (TWO, &["c"])],
            json!({"a": ONE, "b": TWO, "c": TWO}),
            &[&format!("{TWO}: has no tensor b, which"), "no shard has it"],
        ),
        (
            "a tensor in two shards",
            &[(ONE, &["a", "b"]), (TWO, &["b"])],
            json!({"a": ONE, "b": TWO}),
            &[&format!("{TWO}: tensor b is also in {ONE}, expected it in one shard")],
        ),
        (
            "a stale index",
            &[(ONE, &["a", "x"]), (TWO, &["b"])],
            json!({"a": ONE, "b": TWO}),
            &[&format!("model.safetensors.index.json: stale: it does not list tensor x, which {ONE} holds")],
        ),
    ];
    for (what, shards, index, words) in cases {
        let folder = sharded(shards, index);
        let Err(error) = Checkpoint::open(folder.path()) else { panic!("{what} was accepted") };
        assert_says(&error.to_string(), words);
    }
}

#[test]
fn f2_an_index_cannot_name_files_elsewhere_or_a_tensor_twice() {
    for shard in ["../model.safetensors", "/etc/passwd", "", ".."] {
        let message = Checkpoint::open(sharded(&[], json!({"a": shard})).path()).unwrap_err().to_string();
        assert_says(&message, &["tensor a is mapped to", "expected the name of a file beside it"]);
    }
    let write = |index: &str| {
        let folder = sharded(&[(ONE, &["a"])], json!({}));
        std::fs::write(folder.path().join("model.safetensors.index.json"), index).unwrap();
        Checkpoint::open(folder.path()).unwrap_err().to_string()
    };
    assert_says(&write(&format!(r#"{{"weight_map": {{"a": "{ONE}", "a": "{TWO}"}}}}"#)), &["tensor a is listed twice"]);
    assert_says(&write(r#"{"weight_map": {}}"#), &["weight_map is empty"]);
    assert_says(&write("{}"), &["not an index of safetensors shards"]);
    assert_says(&write(r#"{"weight_map": {"a": 1}}"#), &["tensor a: invalid type: integer `1`"]);
}

#[test]
fn shards_and_a_single_file_of_the_same_tensors_hold_the_same() {
    let folder = fixture("v3-f32-groups-yarn-sharded");
    let whole = Model::read(&folder).write();
    let (shards, single) = (Checkpoint::open(&folder).unwrap(), Checkpoint::open(whole.path()).unwrap());
    assert!(shards.names().eq(single.names()));
    assert!(shards.names().all(|name| shards.get(name).unwrap().bytes() == single.get(name).unwrap().bytes()));
    assert_eq!(shards.total_bytes(), single.total_bytes());
}

#[test]
fn a_changed_weight_changes_the_fingerprint() {
    let mut model = Model::read(&fixture("kimi-k25-int4-g32"));
    let before = Checkpoint::open(model.write().path()).unwrap().fingerprint();
    model.tensor("language_model.lm_head.weight").bytes.iter_mut().for_each(|byte| *byte ^= 1);
    assert_ne!(Checkpoint::open(model.write().path()).unwrap().fingerprint(), before);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn f1_no_file_panics(
        edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
        cut in any::<prop::sample::Index>(),
        noise in prop::collection::vec(any::<u8>(), 0..64),
    ) {
        let mut file = sound_file();
        for (at, byte) in edits {
            let at = at.index(file.len());
            file[at] = byte;
        }
        file.truncate(cut.index(file.len() * 2));
        for file in [file, noise] {
            if let Ok(checkpoint) = Checkpoint::from_static(Path::new("x"), Vec::leak(file)) {
                for name in checkpoint.names() {
                    let info = checkpoint.get(name).unwrap();
                    let bits = info.shape.iter().product::<usize>() * info.dtype.bitsize();
                    prop_assert_eq!(info.bytes().len() * 8, bits);
                }
            }
        }
    }
}
