//! `generate`: prompts in, text, ids and figures out.

use std::io::Write;
use std::process::Stdio;

use coppice_model::Source;
use coppice_model::tokenizer::Tokenizer;
use coppice_tests::binary::{ids, json, run, succeed};
use coppice_tests::generate;
use coppice_tests::model::{FIXTURES, Tensors, fixture};

const PROMPT: &str = "fn main() {";

#[test]
fn text_is_the_same_streamed_whole_and_in_json() {
    let args = [PROMPT, "-n", "48", "--seed", "3"];
    let report = json(generate!().args(args).arg("--json"));
    let text = report["text"].as_str().unwrap();
    assert!(!text.is_empty());
    assert_eq!(succeed(generate!().args(args)), text);
    assert_eq!(succeed(generate!().args(args).arg("--stream")), text);
    assert_eq!(succeed(generate!().args(args).arg("--no-stream")), text);
    let tokenizer = Tokenizer::load(&Source::EmbeddedTarget).unwrap().unwrap();
    assert_eq!(tokenizer.decode(&ids(&report, "token_ids"), true), text);
    assert_eq!(ids(&report, "prompt_token_ids"), tokenizer.encode_raw(PROMPT).unwrap().ids);
}

#[test]
fn a_prompt_is_the_same_wherever_it_comes_from() {
    let args = ["-n", "4", "--json"];
    let argument = json(generate!().arg(PROMPT).args(args));
    let folder = tempfile::tempdir().unwrap();
    let (file, tokens) = (folder.path().join("prompt.txt"), folder.path().join("tokens.json"));
    std::fs::write(&file, PROMPT).unwrap();
    std::fs::write(&tokens, argument["prompt_token_ids"].to_string()).unwrap();
    let mut others = vec![
        json(generate!().arg("--prompt-file").arg(&file).args(args)),
        json(generate!().arg("--tokens").arg(&tokens).args(args)),
    ];
    for dash in [&["-"][..], &[]] {
        let mut command = generate!();
        let input = std::fs::File::open(&file).unwrap();
        others.push(json(command.args(dash).args(args).stdin(input)));
    }
    for other in &others {
        for key in ["prompt_token_ids", "token_ids", "text"] {
            assert_eq!(other[key], argument[key]);
        }
    }
}

#[test]
fn ids_without_a_tokenizer_are_printed_as_an_array() {
    for name in FIXTURES {
        let expected = Tensors::open(&fixture(name).join("expected.safetensors"));
        let tokens = tempfile::NamedTempFile::new().unwrap();
        serde_json::to_writer(&tokens, &expected.ids("greedy_prompt")).unwrap();
        let mut command = generate!();
        command.arg("--model").arg(fixture(name)).arg("--tokens").arg(tokens.path());
        let printed = succeed(command.args(["-n", "24", "--temp", "0", "--ignore-eos"]));
        let printed: Vec<u32> = serde_json::from_str(&printed).unwrap();
        assert_eq!(printed, expected.ids("greedy"), "{name}");
    }
}

#[test]
fn every_mode_budget_and_backend_prints_the_same_text() {
    let mut failed = Vec::new();
    for sampling in [&["--temp", "0"][..], &["--temp", "0.8", "--seed", "11"]] {
        let base = || {
            let mut command = generate!();
            command.args([PROMPT, "-n", "40"]).args(sampling);
            command
        };
        let plain = succeed(base().args(["--spec", "none"]));
        let variants: [&[&str]; 8] = [
            &["--tree-budget", "16"],
            &["--spec", "ngram"],
            &["--spec", "dflash"],
            &["--spec", "dflash", "--tree-budget", "2"],
            &["--spec", "ddtree", "--tree-budget", "0"],
            &["--spec", "ddtree", "--tree-budget", "33"],
            &["--device", "deferred", "--spec", "ddtree"],
            &["--threads", "2", "--spec", "ddtree"],
        ];
        for variant in variants {
            let text = succeed(base().args(variant));
            if text != plain {
                failed.push(format!("{sampling:?} {variant:?}: {text:?}, expected {plain:?}"));
            }
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn the_report_says_what_was_drafted_and_accepted() {
    let report = json(generate!().args([PROMPT, "--tree-budget", "16", "-n", "64", "--ignore-eos", "--json"]));
    assert_eq!(report["schema"], "coppice.generate.v1");
    assert_eq!(report["finish_reason"], "length");
    let spec = &report["spec"];
    assert_eq!((spec["mode"].as_str(), spec["budget"].as_u64()), (Some("ddtree"), Some(16)));
    let lengths: Vec<u64> = serde_json::from_value(spec["accept_lengths"].clone()).unwrap();
    assert_eq!(spec["rounds"].as_u64(), Some(lengths.len() as u64));
    // The prefill's token is in no round, and the last round may go past the end.
    assert!(lengths.iter().sum::<u64>() >= 63 && lengths[..lengths.len() - 1].iter().sum::<u64>() < 63, "{lengths:?}");
    let tau = lengths.iter().sum::<u64>() as f64 / lengths.len() as f64;
    assert!((spec["tau"].as_f64().unwrap() - tau).abs() < 1e-9);
    let [uncond, cond] = ["accept_rate_uncond", "accept_rate_cond"].map(|key| spec[key].as_array().unwrap());
    assert_eq!((uncond.len(), cond.len()), (7, 7), "one a depth of the drafter's block");
    let first = lengths.iter().filter(|length| **length > 1).count() as f64 / lengths.len() as f64;
    assert!((uncond[0].as_f64().unwrap() - first).abs() < 1e-9);
    for key in ["load_ms", "ttft_ms", "tpot_ms", "prefill_tok_s", "decode_tok_s"] {
        assert!(report["timings"][key].as_f64().is_some_and(|value| value > 0.0), "{key}: {report}");
    }
    for key in ["version", "commit", "rustc", "features", "argv", "device", "cpu", "model", "draft", "seed"] {
        assert!(!report["env"][key].is_null(), "{key}: {report}");
    }
}

#[test]
fn a_mode_without_the_drafter_reports_none() {
    for mode in ["none", "ngram"] {
        let report = json(generate!().args([PROMPT, "-n", "8", "--json", "--spec", mode]));
        assert_eq!(report["spec"]["mode"], mode);
        assert!(report["env"]["draft"].is_null(), "{report}");
    }
}

#[test]
fn the_context_ends_the_text() {
    let report = json(generate!().args([PROMPT, "--ctx", "12", "--json", "--ignore-eos"]));
    let [prompt, generated] = ["prompt_token_ids", "token_ids"].map(|key| ids(&report, key).len());
    assert_eq!(prompt + generated, 12);
    assert_eq!(report["finish_reason"], "length");
}

#[test]
fn one_token_has_no_time_a_token() {
    let report = json(generate!().args([PROMPT, "-n", "1", "--json"]));
    assert_eq!(ids(&report, "token_ids").len(), 1);
    assert!(report["timings"]["ttft_ms"].is_number());
    for value in [&report["timings"]["tpot_ms"], &report["timings"]["decode_tok_s"], &report["spec"]["tau"]] {
        assert!(value.is_null(), "{report}");
    }
}

#[test]
fn parity_is_verified_on_standard_error() {
    let args = [PROMPT, "--spec", "ddtree", "-n", "32", "--ignore-eos"];
    let finished = run(generate!().args(args).arg("--verify-parity"));
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    assert_eq!(finished.stdout, succeed(generate!().args(args)));
    assert_eq!(finished.stderr, "parity: identical, 32 tokens, --spec ddtree against none\n");
}

#[test]
fn statistics_leave_standard_output_alone() {
    let args = [PROMPT, "--spec", "ddtree", "-n", "16"];
    let finished = run(generate!().args(args).arg("--stats"));
    assert_eq!(finished.stdout, succeed(generate!().args(args)));
    for expected in ["embedded:target", "ddtree by embedded:draft", "tok/s", "tokens a round", "threads"] {
        assert!(finished.stderr.contains(expected), "{expected} in {}", finished.stderr);
    }
    assert_eq!(run(generate!().args(args)).stderr, "");
}

#[test]
fn the_object_is_written_to_a_file_beside_the_text() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let text = succeed(generate!().args([PROMPT, "-n", "8", "-O"]).arg(file.path()));
    let report: serde_json::Value = serde_json::from_slice(&std::fs::read(file.path()).unwrap()).unwrap();
    assert_eq!(report["text"], text);
}

#[test]
fn sampling_flags_override_the_models_defaults() {
    let generate = |args: &[&str]| ids(&json(generate!().args([PROMPT, "-n", "24", "--json"]).args(args)), "token_ids");
    let greedy = generate(&["--temp", "0"]);
    assert_eq!(generate(&["--top-k", "1"]), greedy);
    assert_eq!(generate(&["--top-p", "0"]), greedy);
    assert_eq!(generate(&["--min-p", "1"]), greedy);
    let default = generate(&[]);
    assert_ne!(default, greedy, "the embedded model samples unless told otherwise");
    assert_eq!(
        generate(&["--temp", "0.7", "--top-p", "0.95"]),
        default,
        "generation_config.json of the embedded model"
    );
}

#[test]
fn a_prompt_of_odd_text_survives() {
    let prompt = "// 漢字 🦀 \u{0}é\r\n\t";
    let mut child =
        generate!().args(["-n", "8", "--json"]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(prompt.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let tokenizer = Tokenizer::load(&Source::EmbeddedTarget).unwrap().unwrap();
    assert_eq!(tokenizer.decode(&ids(&report, "prompt_token_ids"), true), prompt);
}
