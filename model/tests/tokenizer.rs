//! The tokenizer on the tiny model's files, on variants of them, and on damaged ones.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};

use coppice_model::tokenizer::{Encoded, TextStream, Tokenizer};
use serde::Deserialize;
use serde_json::{Value, json};

const BOS: u32 = 0;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn tiny_bytes(name: &str) -> Vec<u8> {
    std::fs::read(repository().join("model/tiny/target").join(name)).unwrap()
}

fn tiny_json() -> Value {
    serde_json::from_slice(&tiny_bytes("tokenizer.json")).unwrap()
}

/// A tokenizer from the files' content; the message of the error if there is one.
fn load(tokenizer: &[u8], config: Option<&[u8]>) -> Result<Tokenizer, String> {
    let config = config.map(|bytes| (Path::new("dir/tokenizer_config.json"), bytes));
    Tokenizer::from_json((Path::new("dir/tokenizer.json"), tokenizer), config).map_err(|e| e.to_string())
}

fn load_values(tokenizer: &Value, config: Option<&Value>) -> Result<Tokenizer, String> {
    let config = config.map(|value| serde_json::to_vec(value).unwrap());
    load(&serde_json::to_vec(tokenizer).unwrap(), config.as_deref())
}

fn tiny() -> Tokenizer {
    load(&tiny_bytes("tokenizer.json"), Some(&tiny_bytes("tokenizer_config.json"))).unwrap()
}

/// The tiny tokenizer as if it had been saved with a post-processor that adds BOS.
fn with_bos_template() -> Value {
    let mut json = tiny_json();
    json["post_processor"] = json!({
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<|bos|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<|bos|>": {"id": "<|bos|>", "ids": [BOS], "tokens": ["<|bos|>"]}},
    });
    json
}

/// A tokenizer in SentencePiece's style: `▁` for spaces, bytes for what the vocabulary lacks.
fn byte_fallback() -> Value {
    let mut vocab = serde_json::Map::new();
    for piece in ["<unk>", "<s>", "</s>"].map(str::to_owned).into_iter().chain((0..256).map(|b| format!("<0x{b:02X}>")))
    {
        vocab.insert(piece, vocab.len().into());
    }
    for piece in ["▁", "a", "b", "▁a"] {
        vocab.insert(piece.to_owned(), vocab.len().into());
    }
    let special = |id: u32, content: &str| {
        json!({"id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
               "normalized": false, "special": true})
    };
    json!({
        "version": "1.0", "truncation": null, "padding": null,
        "added_tokens": [special(0, "<unk>"), special(1, "<s>"), special(2, "</s>")],
        "normalizer": {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        "pre_tokenizer": null, "post_processor": null,
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "ignore_merges": false,
            "vocab": vocab, "merges": [["▁", "a"]]},
    })
}

#[derive(Deserialize)]
struct Expected {
    cases: Vec<(String, Vec<u32>)>,
}

fn expected() -> Vec<(String, Vec<u32>)> {
    let expected: Expected = serde_json::from_str(include_str!("data/tokenizer_expected.json")).unwrap();
    assert!(expected.cases.len() > 400);
    expected.cases
}

#[test]
fn ids_are_those_of_the_python_package() {
    let tokenizer = tiny();
    let wrong: Vec<_> =
        expected().into_iter().filter(|(text, ids)| tokenizer.encode_chat(text).unwrap() != *ids).collect();
    assert!(wrong.is_empty(), "{wrong:?}");
}

#[test]
fn every_text_comes_back_whole_and_streamed() {
    let tokenizer = tiny();
    for (text, ids) in expected() {
        assert_eq!(tokenizer.decode(&ids, false), text);
        let mut stream = TextStream::new();
        let mut streamed: String = ids.iter().map(|&id| stream.push(&tokenizer.token_bytes(id))).collect();
        streamed += &stream.finish();
        assert_eq!(streamed, text);
    }
}

#[test]
fn prompts_are_those_the_model_was_measured_on() {
    #[derive(Deserialize)]
    struct Prompt {
        prompt: String,
        prompt_ids: Vec<u32>,
        greedy: Vec<u32>,
        text: String,
    }
    let path = repository().join("tests/fixtures/tiny-expected/expected.json");
    let prompts: Vec<Prompt> = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let tokenizer = tiny();
    assert!(!prompts.is_empty());
    for Prompt { prompt, prompt_ids, greedy, text } in prompts {
        assert_eq!(tokenizer.encode_raw(&prompt).unwrap(), Encoded { ids: prompt_ids, text_had_bos: false });
        assert_eq!(tokenizer.decode(&greedy, false), text);
    }
}

#[test]
fn f5_every_id_decodes_and_unnamed_ids_stay_visible() {
    let tokenizer = tiny();
    assert_eq!(tokenizer.vocab_size(), 4096);
    for id in 0..4096 {
        assert!(!tokenizer.token_bytes(id).is_empty(), "{id}");
        assert!(!tokenizer.token_text(id).chars().any(char::is_control), "{id}");
        assert_eq!(tokenizer.special(id), id < 4, "{id}");
    }
    for id in [4096, 163_839, u32::MAX] {
        let name = format!("<|reserved_token_{id}|>");
        assert_eq!(tokenizer.token_bytes(id), name.as_bytes());
        assert_eq!(tokenizer.token_text(id), name);
        assert_eq!(tokenizer.decode(&[id], true), name);
        assert!(!tokenizer.special(id));
    }
}

#[test]
fn f5_han_text_round_trips() {
    let tokenizer = tiny();
    for text in ["汉字", "漢字かな交じり文。", "𠀀𪛖 rare", "中文 and code: let 变量 = 1;"] {
        assert_eq!(tokenizer.decode(&tokenizer.encode_chat(text).unwrap(), true), text);
    }
}

#[test]
fn f6_raw_text_has_bos_once_whoever_adds_it() {
    let (plain, template) = (tiny_json(), with_bos_template());
    let mut sequence = tiny_json();
    let byte_level = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": false, "use_regex": true});
    sequence["post_processor"] = json!({"type": "Sequence", "processors": [byte_level, template["post_processor"]]});
    let config = |add: Value| json!({"bos_token": "<|bos|>", "add_bos_token": add});
    let cases = [
        ("config adds", &plain, Some(config(json!(true))), true),
        ("config and post-processor add", &template, Some(config(json!(true))), true),
        ("post-processor adds, no config", &template, None, true),
        ("post-processor adds within a sequence, no config", &sequence, None, true),
        ("post-processor adds, config is silent", &template, Some(config(Value::Null)), true),
        ("post-processor adds, config names no token", &template, Some(json!({"add_bos_token": true})), true),
        ("post-processor adds, config forbids", &template, Some(config(json!(false))), false),
        ("nobody adds", &plain, Some(config(Value::Null)), false),
        ("no config", &plain, None, false),
    ];
    for (case, tokenizer, config, adds) in cases {
        let tokenizer = load_values(tokenizer, config.as_ref()).unwrap();
        let body = tokenizer.encode_chat("fn main").unwrap();
        let with_bos: Vec<u32> = std::iter::once(BOS).chain(body.clone()).collect();
        let raw = |text| tokenizer.encode_raw(text).unwrap();
        let expected = if adds { &with_bos } else { &body };
        assert_eq!(raw("fn main"), Encoded { ids: expected.clone(), text_had_bos: false }, "{case}");
        assert_eq!(raw("<|bos|>fn main"), Encoded { ids: with_bos, text_had_bos: adds }, "{case}");
        assert_eq!(raw("").ids, if adds { vec![BOS] } else { vec![] }, "{case}");
    }
}

#[test]
fn f6_chat_text_gets_no_special_tokens() {
    let tokenizer =
        load_values(&with_bos_template(), Some(&json!({"add_bos_token": true, "bos_token": "<|bos|>"}))).unwrap();
    let body = tokenizer.encode_chat("x").unwrap();
    assert!(!body.contains(&BOS));
    assert_eq!(tokenizer.encode_chat("<|bos|>x").unwrap(), [&[BOS], &body[..]].concat());
}

#[test]
fn special_tokens_can_be_left_out_of_a_text() {
    let tokenizer = tiny();
    let ids = tokenizer.encode_raw("a<|eos|>b").unwrap().ids;
    assert_eq!(tokenizer.decode(&ids, false), "<|bos|>a<|eos|>b");
    assert_eq!(tokenizer.decode(&ids, true), "ab");
    assert_eq!(tokenizer.bos_id(), Some(BOS));
}

#[test]
fn token_text_shows_what_cannot_be_seen() {
    let tokenizer = tiny();
    let shown = |text: &str| -> String {
        tokenizer.encode_chat(text).unwrap().iter().map(|&id| tokenizer.token_text(id)).collect()
    };
    assert_eq!(shown("\n\r\t\0\\ ’"), "\\n\\r\\t\\u{0}\\\\ ’");
    assert_eq!(shown("𠀀"), "\\xF0\\xA0\\x80\\x80");
}

#[test]
fn byte_fallback_tokenizers_decode_to_exact_bytes() {
    let config =
        json!({"bos_token": {"__type": "AddedToken", "content": "<s>", "normalized": true}, "add_bos_token": true});
    let tokenizer = load_values(&byte_fallback(), Some(&config)).unwrap();
    assert_eq!(tokenizer.bos_id(), Some(1));
    for text in ["a b", " a", "a\n  b", "漢🦀", "</s>a"] {
        let ids = tokenizer.encode_raw(text).unwrap().ids;
        assert_eq!(ids[0], 1);
        assert_eq!(tokenizer.decode(&ids[1..], false), text);
    }
    let newline = tokenizer.encode_chat("\n").unwrap();
    assert_eq!(tokenizer.token_bytes(newline[0]), b"\n".as_slice());
}

#[test]
fn truncation_and_padding_saved_in_the_file_do_not_touch_prompts() {
    let mut json = tiny_json();
    json["truncation"] = json!({"max_length": 4, "strategy": "LongestFirst", "stride": 0, "direction": "Right"});
    json["padding"] = json!({"strategy": {"Fixed": 64}, "direction": "Right", "pad_to_multiple_of": null, "pad_id": 3,
                             "pad_type_id": 0, "pad_token": "<|pad|>"});
    let text = "let one = two + three;";
    let ids = load_values(&json, None).unwrap().encode_chat(text).unwrap();
    assert_eq!(ids, tiny().encode_chat(text).unwrap());
    assert!(ids.len() > 4 && ids.len() < 64);
}

#[test]
fn damaged_files_are_told_apart() {
    let good = tiny_json();
    let edited = |pointer: &str, value: Value| {
        let mut json = good.clone();
        *json.pointer_mut(pointer).unwrap() = value;
        serde_json::to_vec(&json).unwrap()
    };
    let bytes = tiny_bytes("tokenizer.json");
    let config = |value: Value| Some(serde_json::to_vec(&value).unwrap());
    let cases = [
        (bytes[..bytes.len() / 2].to_vec(), None, "tokenizer dir/tokenizer.json: EOF while parsing"),
        (b"".to_vec(), None, "tokenizer dir/tokenizer.json: EOF while parsing"),
        (b"[]".to_vec(), None, "tokenizer dir/tokenizer.json: "),
        (br#"{"decoder": {"type": "ByteLevel", "#.to_vec(), None, "tokenizer dir/tokenizer.json: EOF while parsing"),
        (edited("/decoder", Value::Null), None, "tokenizer dir/tokenizer.json: decoder is null"),
        (
            edited(
                "/decoder",
                json!({"type": "CTC", "pad_token": "<pad>", "word_delimiter_token": "|", "cleanup": true}),
            ),
            None,
            "decoder CTC is not supported",
        ),
        (edited("/added_tokens/1/id", json!(7)), None, "added token \"<|eos|>\" has id 7, expected 1"),
        (
            edited("/model/vocab/a", json!(4_000_000_000_u32)),
            None,
            "token \"a\" has id 4000000000, expected below 16777216",
        ),
        (bytes.clone(), Some(b"{\"bos_token\": ".to_vec()), "dir/tokenizer_config.json: EOF while parsing"),
        (
            bytes.clone(),
            config(json!({"bos_token": "<s>"})),
            "dir/tokenizer_config.json: bos_token is \"<s>\", expected a token of the vocabulary in dir/tokenizer.json",
        ),
        (bytes.clone(), config(json!({"bos_token": 0})), "bos_token is 0, expected a string"),
        (bytes.clone(), config(json!({"add_bos_token": true})), "add_bos_token is true but bos_token is absent"),
        (bytes.clone(), config(json!({"add_bos_token": "yes"})), "add_bos_token is \"yes\", expected true or false"),
    ];
    let mut wrong = Vec::new();
    for (tokenizer, config, expected) in cases {
        match load(&tokenizer, config.as_deref()) {
            Err(message) if message.contains(expected) => {}
            other => wrong.push(format!("expected `{expected}`, found {other:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_file_cut_off_anywhere_is_an_error() {
    let bytes = serde_json::to_vec(&byte_fallback()).unwrap();
    assert!(load(&bytes, None).is_ok());
    for length in 0..bytes.len() {
        assert!(load(&bytes[..length], None).is_err(), "cut at {length}");
    }
}
