//! Kimi's tokenizer at its real size, against PyPI's tiktoken, and on damaged files.
#![allow(clippy::unwrap_used)]

use std::path::Path;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use coppice_model::Source;
use coppice_model::chat::{ChatRequest, ChatTemplate, Message};
use coppice_model::tokenizer::{Encoded, TextStream, Tokenizer};
use proptest::prelude::*;
use serde::Deserialize;
use serde_json::{Value, json};

const RANKS: u32 = 163_584;
const BOS: u32 = RANKS;
const IM_END: u32 = RANKS + 2;
const THINK: u32 = RANKS + 22;
const TRAINED: &str = include_str!("data/kimi_ranks.model");

#[derive(Deserialize)]
struct Expected {
    config: Value,
    cases: Vec<(String, Vec<u32>)>,
    chats: Vec<(String, Vec<u32>)>,
    /// Ids of what `chat_expected.json` expects of kimi_k2.jinja, case by case.
    templates: Vec<Option<Vec<u32>>>,
    long: Vec<Long>,
}

/// A text as units and how often each is repeated; how many ids it has, and their digest.
#[derive(Deserialize)]
struct Long(Vec<(String, usize)>, usize, String);

static EXPECTED: LazyLock<Expected> =
    LazyLock::new(|| serde_json::from_str(include_str!("data/kimi_expected.json")).unwrap());
static RANK_FILE: LazyLock<Vec<u8>> = LazyLock::new(|| rank_file(RANKS));
static KIMI: LazyLock<Tokenizer> = LazyLock::new(|| load(&RANK_FILE, Some(&EXPECTED.config)).unwrap());

/// The trained ranks, filled up with tokens that no text has, as make_kimi_expected.py does.
fn rank_file(ranks: u32) -> Vec<u8> {
    let mut file = TRAINED.to_owned();
    for rank in TRAINED.lines().count() as u32..ranks {
        let [a, b, c, d] = rank.to_be_bytes();
        file += &format!("{} {rank}\n", STANDARD.encode([0xFF, a, b, c, d]));
    }
    file.into_bytes()
}

/// A tokenizer from the files' content; the message of the error if there is one.
fn load(ranks: &[u8], config: Option<&Value>) -> Result<Tokenizer, String> {
    let config = config.map(|value| serde_json::to_vec(value).unwrap());
    let config = config.as_deref().map(|bytes| (Path::new("dir/tokenizer_config.json"), bytes));
    Tokenizer::from_tiktoken((Path::new("dir/tiktoken.model"), ranks), config).map_err(|e| e.to_string())
}

fn differences<'t>(cases: impl IntoIterator<Item = &'t (String, Vec<u32>)>) -> Vec<String> {
    let found = cases.into_iter().map(|(text, ids)| (text, ids, KIMI.encode_chat(text).unwrap()));
    found
        .filter(|(_, ids, found)| *ids != found)
        .map(|(text, ids, found)| format!("{text:?}: {found:?}, expected {ids:?}"))
        .collect()
}

#[test]
fn ids_are_those_of_tiktoken() {
    assert!(EXPECTED.cases.len() > 2000);
    let wrong = differences(&EXPECTED.cases);
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), EXPECTED.cases.len(), wrong.join("\n"));
}

#[test]
fn markup_of_turns_thoughts_and_tool_calls_becomes_its_ids() {
    let wrong = differences(&EXPECTED.chats);
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let ids: Vec<u32> = EXPECTED.chats.iter().flat_map(|(_, ids)| ids.clone()).collect();
    let names = [(BOS, "[BOS]"), (IM_END, "<|im_end|>"), (163_587, "<|im_user|>"), (163_588, "<|im_assistant|>")];
    let more = [(163_594, "<|im_system|>"), (163_601, "<|im_middle|>"), (THINK, "<think>"), (163_607, "</think>")];
    let tools = [
        (163_595, "<|tool_calls_section_begin|>"),
        (163_596, "<|tool_calls_section_end|>"),
        (163_597, "<|tool_call_begin|>"),
        (163_598, "<|tool_call_argument_begin|>"),
        (163_599, "<|tool_call_end|>"),
    ];
    for (id, name) in names.into_iter().chain(more).chain(tools) {
        assert_eq!(KIMI.token_text(id), name);
        assert!(ids.contains(&id), "{name}");
    }
}

#[test]
fn a_rendered_template_becomes_the_ids_of_the_reference() {
    #[derive(Deserialize)]
    struct Case {
        template: String,
        messages: Vec<Message>,
        tools: Option<Vec<Value>>,
        thinking: Option<bool>,
    }
    let rendered: Value = serde_json::from_str(include_str!("data/chat_expected.json")).unwrap();
    let cases: Vec<Case> = Deserialize::deserialize(&rendered["cases"]).unwrap();
    let source = include_bytes!("data/chat_templates/kimi_k2.jinja");
    let template = ChatTemplate::from_files(Some((Path::new("kimi_k2.jinja"), source)), None).unwrap().unwrap();
    let cases: Vec<Case> = cases.into_iter().filter(|case| case.template == "kimi_k2.jinja").collect();
    assert_eq!(cases.len(), EXPECTED.templates.len());
    assert!(EXPECTED.templates.iter().flatten().count() >= 20);
    for (Case { messages, tools, thinking, .. }, expected) in cases.iter().zip(&EXPECTED.templates) {
        let request = ChatRequest { messages, tools: tools.as_deref(), thinking: *thinking };
        let ids = template.render(&request).ok().map(|text| KIMI.encode_chat(&text).unwrap());
        assert_eq!(ids, *expected, "{messages:?}");
    }
}

#[test]
fn long_texts_are_cut_as_the_published_code_cuts_them_and_in_little_time() {
    let start = Instant::now();
    for Long(parts, length, digest) in &EXPECTED.long {
        let text: String = parts.iter().map(|(unit, times)| unit.repeat(*times)).collect();
        let ids = KIMI.encode_chat(&text).unwrap();
        let found = ids
            .iter()
            .fold(0xCBF2_9CE4_8422_2325_u64, |state, &id| (state ^ u64::from(id)).wrapping_mul(0x0100_0000_01B3));
        assert_eq!((ids.len(), format!("{found:016x}")), (*length, digest.clone()), "{parts:?}");
        assert!(KIMI.decode(&ids, false) == text, "{parts:?}");
    }
    // Quadratic merging would take minutes.
    assert!(start.elapsed() < Duration::from_secs(20), "{:?}", start.elapsed());
}

#[test]
fn f5_every_text_comes_back_whole_and_streamed() {
    for (text, ids) in EXPECTED.cases.iter().chain(&EXPECTED.chats) {
        assert_eq!(KIMI.decode(ids, false), *text);
        let mut stream = TextStream::new();
        let mut streamed: String = ids.iter().map(|&id| stream.push(&KIMI.token_bytes(id))).collect();
        streamed += &stream.finish();
        assert_eq!(streamed, *text);
    }
}

#[test]
fn f5_every_id_decodes_and_unnamed_ids_stay_visible() {
    assert_eq!(KIMI.vocab_size(), 163_840);
    for id in 0..163_840 {
        assert!(!KIMI.token_bytes(id).is_empty(), "{id}");
        assert!(!KIMI.token_text(id).chars().any(char::is_control), "{id}");
        assert!(!KIMI.decode(&[id], false).is_empty(), "{id}");
    }
    for id in [163_589, 163_600, 163_837, 163_840, u32::MAX] {
        let name = format!("<|reserved_token_{id}|>");
        assert_eq!((KIMI.token_text(id), KIMI.decode(&[id], true)), (name.clone(), name));
    }
    // Thoughts and tool calls are text; turns are not.
    let ids = KIMI.encode_chat("[BOS]<think>hm</think><|tool_call_begin|>f<|im_end|>[PAD]").unwrap();
    assert_eq!(KIMI.decode(&ids, true), "<think>hm</think><|tool_call_begin|>f");
    assert!(KIMI.special(IM_END) && !KIMI.special(THINK) && !KIMI.special(163_600));
}

#[test]
fn f5_a_folder_with_only_tiktoken_model_has_a_tokenizer() {
    let folder = tempfile::tempdir().unwrap();
    let source = Source::Directory(folder.path().to_owned());
    let write = |name: &str, bytes: &[u8]| std::fs::write(folder.path().join(name), bytes).unwrap();
    assert!(Tokenizer::load(&source).unwrap().is_none());

    write("tiktoken.model", &RANK_FILE);
    let bare = Tokenizer::load(&source).unwrap().unwrap();
    assert_eq!((bare.vocab_size(), bare.bos_id()), (163_840, None));
    assert_eq!(bare.token_text(BOS), "<|reserved_token_163584|>");
    for text in ["汉字", "漢字かな交じり文。", "𠀀𪛖 rare", "中文 and code: let 变量 = 1;", "[BOS]"]
    {
        assert_eq!(bare.decode(&bare.encode_chat(text).unwrap(), true), text);
    }

    write("tokenizer_config.json", &serde_json::to_vec(&EXPECTED.config).unwrap());
    let named = Tokenizer::load(&source).unwrap().unwrap();
    assert_eq!(named.bos_id(), Some(BOS));
    assert_eq!(named.encode_chat("[BOS]汉字").unwrap(), KIMI.encode_chat("[BOS]汉字").unwrap());

    write("tokenizer_config.json", b"{}");
    let tiny = Path::new(env!("CARGO_MANIFEST_DIR")).join("tiny/target/tokenizer.json");
    write("tokenizer.json", &std::fs::read(tiny).unwrap());
    assert_eq!(Tokenizer::load(&source).unwrap().unwrap().vocab_size(), 4096);

    write("tokenizer.json", b"{");
    let message = Tokenizer::load(&source).unwrap_err().to_string();
    assert!(message.contains("tokenizer.json: EOF"), "{message}");
}

#[test]
fn f6_bos_is_added_to_raw_text_only_if_the_config_says_so_and_once() {
    let body = KIMI.encode_chat("hello").unwrap();
    let with_bos = [&[BOS], &body[..]].concat();
    assert_eq!(KIMI.encode_raw("hello").unwrap(), Encoded { ids: body, text_had_bos: false });
    assert_eq!(KIMI.encode_raw("[BOS]hello").unwrap(), Encoded { ids: with_bos.clone(), text_had_bos: false });
    let mut config = EXPECTED.config.clone();
    config["add_bos_token"] = json!(true);
    let adding = load(&RANK_FILE, Some(&config)).unwrap();
    assert_eq!(adding.encode_raw("hello").unwrap(), Encoded { ids: with_bos.clone(), text_had_bos: false });
    assert_eq!(adding.encode_raw("[BOS]hello").unwrap(), Encoded { ids: with_bos, text_had_bos: true });
}

#[test]
fn the_real_size_loads_in_little_time() {
    let file = &*RANK_FILE;
    let start = Instant::now();
    assert!(load(file, Some(&EXPECTED.config)).is_ok());
    let elapsed = start.elapsed();
    // About 50 ms where nothing else runs; a lookup that is linear in the ranks would take minutes.
    assert!(elapsed < Duration::from_secs(5), "{elapsed:?}");
}

#[test]
fn lines_may_come_in_any_order_and_end_in_any_way() {
    let reversed: Vec<&str> = TRAINED.lines().rev().collect();
    for file in [reversed.join("\n"), TRAINED.replace('\n', "\r\n"), TRAINED.replace('\n', "\n\n")] {
        let tokenizer = load(file.as_bytes(), None).unwrap();
        assert_eq!(tokenizer.vocab_size(), 4000 + 256);
        assert_eq!(tokenizer.encode_chat("let x").unwrap(), KIMI.encode_chat("let x").unwrap());
    }
}

#[test]
fn damaged_files_are_told_apart() {
    let line = |number: usize| TRAINED.lines().nth(number - 1).unwrap();
    let edited = |number: usize, content: &str| {
        let mut lines: Vec<&str> = TRAINED.lines().collect();
        lines[number - 1] = content;
        lines.join("\n").into_bytes()
    };
    let token = |number: usize| line(number).split(' ').next().unwrap();
    let good = TRAINED.as_bytes().to_vec();
    let added =
        |id: &str, value: Value| Some(json!({"added_tokens_decoder": {"4000": {"content": "[BOS]"}, id: value}}));
    let named = |content: &str| json!({"content": content});
    let cases = [
        (edited(7, "!! 6"), None, "tokenizer dir/tiktoken.model: line 7 has token \"!!\", which is not base64: "),
        (edited(7, "JQ= 6"), None, "line 7 has token \"JQ=\", which is not base64: "),
        (edited(7, "JQ=="), None, "line 7 is \"JQ==\", expected a base64 token and its rank"),
        (edited(7, "JQ== 6 6"), None, "line 7 is \"JQ== 6 6\", expected a base64 token and its rank"),
        (edited(7, "JQ== six"), None, "line 7 has rank \"six\", expected a number: invalid digit"),
        (edited(7, "JQ== -6"), None, "line 7 has rank \"-6\", expected a number"),
        (edited(7, "JQ== 4294967296"), None, "line 7 has rank \"4294967296\", expected a number: number too large"),
        (
            edited(7, &format!("{} 4000000000", token(7))),
            None,
            "line 7 has rank 4000000000, expected below 4000, the number of tokens in the file",
        ),
        (
            edited(300, &format!("{} 4000", token(300))),
            None,
            "line 300 has rank 4000, expected below 4000, the number of tokens in the file",
        ),
        (edited(300, &format!("{} 12", token(300))), None, "line 300 has rank 12 again, first given on line 13"),
        (
            edited(300, &format!("{} 299", token(280))),
            None,
            "line 300 has the token of line 280 again, expected one rank a token",
        ),
        (
            edited(1, &format!("{} 0", STANDARD.encode(b"\xFF\xFF"))),
            None,
            "no line has the token of the single byte 0x21, expected all 256 bytes",
        ),
        (b"".to_vec(), None, "no line has the token of the single byte 0x00, expected all 256 bytes"),
        ([b"IQ== 0\nIg== 1\n", &b"\xFF\xFE"[..]].concat(), None, "line 3 is not text, expected a base64 token and"),
        (
            good.clone(),
            added("3996", named("<|im_end|>")),
            "tiktoken.model: line 3997 has rank 3996, the id of \"<|im_end|>\" in tokenizer_config.json, expected every \
             rank below it",
        ),
        (
            good.clone(),
            added("4256", named("[PAD]")),
            "dir/tokenizer_config.json: added_tokens_decoder gives \"[PAD]\" id 4256, expected 4000 to 4255 (after the \
             4000 ranks of tiktoken.model)",
        ),
        (good.clone(), added("x", named("[PAD]")), "added_tokens_decoder.x is not named by an id"),
        (good.clone(), added("4001", json!("[PAD]")), "added_tokens_decoder.4001 is malformed: invalid type"),
        (good.clone(), added("4001", json!({})), "added_tokens_decoder.4001 is malformed: missing field `content`"),
        (good.clone(), added("4001", named("")), "added_tokens_decoder.4001 has an empty content"),
        (
            good.clone(),
            added("4001", json!({"content": "[PAD]", "lstrip": true})),
            "added_tokens_decoder.4001 sets lstrip, rstrip or single_word",
        ),
        (
            good.clone(),
            added("4001", named("[BOS]")),
            "added_tokens_decoder gives \"[BOS]\" id 4000 and \"[BOS]\" id 4001, expected one name an id",
        ),
        (good.clone(), Some(json!({"added_tokens_decoder": [1]})), "added_tokens_decoder is [1], expected an object"),
        (
            good.clone(),
            Some(json!({"bos_token": "[BOS]"})),
            "bos_token is \"[BOS]\", expected a token of the vocabulary in dir/tiktoken.model",
        ),
    ];
    let mut wrong = Vec::new();
    for (ranks, config, expected) in cases {
        match load(&ranks, config.as_ref()) {
            Err(message) if message.contains(expected) => {}
            other => wrong.push(format!("expected `{expected}`, found {other:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_file_cut_off_anywhere_is_an_error() {
    let bytes = TRAINED.lines().take(300).collect::<Vec<_>>().join("\n").into_bytes();
    let config = json!({"added_tokens_decoder": {"300": {"content": "[BOS]"}, "555": {"content": "[PAD]"}}});
    assert!(load(&bytes, Some(&config)).is_ok());
    for length in 0..bytes.len() {
        assert!(load(&bytes[..length], Some(&config)).is_err(), "cut at {length}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_damaged_file_never_panics(edits in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4)) {
        let mut bytes = TRAINED.lines().take(300).collect::<Vec<_>>().join("\n").into_bytes();
        for (at, byte) in edits {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        if let Ok(tokenizer) = load(&bytes, None) {
            let text = "fn main() 汉字 <|reserved_token_300|>";
            prop_assert_eq!(tokenizer.decode(&tokenizer.encode_chat(text).unwrap(), false), text);
        }
    }

    #[test]
    fn any_text_round_trips(text in any::<String>(), other in "[ \t\r\na-zA-Z'0-9漢字é\u{301}]{0,60}") {
        for text in [text, other] {
            prop_assert_eq!(KIMI.decode(&KIMI.encode_chat(&text).unwrap(), false), text);
        }
    }
}
