//! Faults that users of such engines report, by their id, as they would be met on the command line.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use coppice_model::Source;
use coppice_model::tokenizer::Tokenizer;
use coppice_tests::binary::{Finished, changed_model, ids, json, run, succeed, tiny_folder};
use coppice_tests::generate;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use serde_json::{Value, json};

const PROMPT: &str = "fn main() {";

/// The embedded model's greedy answer to [`PROMPT`], of `n` tokens.
fn greedy(n: usize) -> Value {
    let n = n.to_string();
    json(generate!().args([PROMPT, "--temp", "0", "--ignore-eos", "--json", "-n", &n]))
}

/// The embedded drafter with its last norm turned to zeros: all tokens are equally likely to it.
fn blind_drafter() -> tempfile::TempDir {
    let folder = changed_model(&tiny_folder("draft"), &[]);
    let path = folder.path().join("model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let zeros = vec![0; file.tensor("norm.weight").unwrap().data().len()];
    let tensors = file.tensors().into_iter().map(|(name, tensor)| {
        let data = if name == "norm.weight" { &zeros } else { tensor.data() };
        let view = TensorView::new(tensor.dtype(), tensor.shape().to_vec(), data).unwrap();
        (name, view)
    });
    let changed = safetensors::serialize(tensors, None).unwrap();
    std::fs::write(&path, changed).unwrap();
    folder
}

#[test]
fn s1_low_acceptance_is_said_once_with_its_likely_causes() {
    let drafter = blind_drafter();
    let generate = |n: &str, draft: bool| {
        let mut command = generate!();
        command.args([PROMPT, "--tree-budget", "16", "--ignore-eos", "--temp", "1", "--top-p", "1", "-n", n]);
        if draft {
            command.arg("--draft").arg(drafter.path());
        }
        run(&mut command)
    };
    let warned = generate("40", true);
    assert_eq!((warned.code, warned.stderr.matches("warning:").count()), (Some(0), 1), "{}", warned.stderr);
    let drafter = drafter.path().display().to_string();
    for cause in ["chat template", "thinking", &drafter, "embedded:target", "tokens a round"] {
        assert!(warned.stderr.contains(cause), "{cause} in {}", warned.stderr);
    }
    assert_eq!(generate("20", true).stderr, "", "too few rounds to judge");
    assert_eq!(generate("96", false).stderr, "", "the right drafter");
}

#[test]
fn s13_a_stop_string_inside_an_accepted_block_cuts_text_and_ids() {
    let whole = greedy(48);
    let text = whole["text"].as_str().unwrap();
    let tokens = ids(&whole, "token_ids");
    let tokenizer = Tokenizer::load(&Source::EmbeddedTarget).unwrap().unwrap();
    let at = |fraction: usize| (text.len() * fraction / 8..).find(|at| text.is_char_boundary(*at)).unwrap();
    let modes = [&["--spec", "none"][..], &["--spec", "dflash"], &["--spec", "ddtree", "--tree-budget", "32"]];
    for (stop, late) in [(&text[at(3)..at(4)], &text[at(6)..at(7)]), (&text[at(5)..at(6)], &text[at(7)..])] {
        let kept = &text[..text.find(stop).unwrap().min(text.find(late).unwrap())];
        let shortest = (0..=tokens.len()).find(|n| tokenizer.decode(&tokens[..*n], true).starts_with(kept)).unwrap();
        for mode in modes {
            let answer = |form: &str| {
                let mut command = generate!();
                command.args([PROMPT, "--temp=0", "--ignore-eos", "-n48", "--stop", stop, "--stop", late]);
                command.args(mode).arg(form);
                command
            };
            let report = json(&mut answer("--json"));
            assert_eq!(report["text"], kept, "{mode:?} {stop:?} {late:?}");
            assert_eq!(ids(&report, "token_ids"), &tokens[..shortest], "{mode:?} {stop:?}");
            assert_eq!(report["finish_reason"], "stop");
            for form in ["--stream", "--no-stream"] {
                assert_eq!(succeed(&mut answer(form)), kept, "{mode:?} {form} {stop:?}");
            }
        }
    }
}

#[test]
fn s13_half_a_stop_string_at_the_end_is_printed() {
    let whole = greedy(32);
    let text = whole["text"].as_str().unwrap();
    let last: String = text.chars().rev().take(2).collect::<Vec<_>>().into_iter().rev().collect();
    let stop = format!("{last}\u{1}");
    let args = [PROMPT, "--temp", "0", "--ignore-eos", "-n", "32", "--stop", &stop];
    assert_eq!(succeed(generate!().args(args)), text);
    let report = json(generate!().args(args).arg("--json"));
    assert_eq!((report["finish_reason"].as_str(), &report["token_ids"]), (Some("length"), &whole["token_ids"]));
}

#[test]
fn f4_any_eos_of_either_file_ends_the_text() {
    let tokens = ids(&greedy(24), "token_ids");
    // A token that does not come up before, so that its place is where the text must end.
    let at = (4..24).find(|at| !tokens[..*at].contains(&tokens[*at])).unwrap();
    let eos = tokens[at];
    let both = |config: Value, generation: Value| {
        [
            ("config.json", json!({"eos_token_id": config})),
            ("generation_config.json", json!({"eos_token_id": generation})),
        ]
    };
    for files in [
        both(json!(1), json!([3, eos])),
        both(json!([eos, 1]), json!(1)),
        both(Value::Null, json!(eos)),
        both(json!(eos), Value::Null),
    ] {
        let folder = changed_model(&tiny_folder("target"), &files);
        let mut command = generate!();
        command.args([PROMPT, "--temp", "0", "-n", "24", "--json", "--model"]).arg(folder.path());
        let report = json(&mut command);
        assert_eq!(report["finish_reason"], "eos", "{files:?}");
        assert_eq!(ids(&report, "token_ids"), &tokens[..at], "{files:?}");
        let report = json(command.arg("--ignore-eos"));
        assert_eq!(ids(&report, "token_ids"), tokens, "{files:?}");
    }
}

#[test]
fn f6_bos_is_never_doubled() {
    let bos = |report: &Value| ids(report, "prompt_token_ids").iter().filter(|id| **id == 0).count();
    let folder = changed_model(
        &tiny_folder("target"),
        &[("tokenizer_config.json", json!({"chat_template": "{{ bos_token }}// {{ messages[-1].content }}."}))],
    );
    let mut command = generate!();
    command.args(["a test", "-n", "1", "--chat", "--json", "--model"]).arg(folder.path());
    let report = json(&mut command);
    assert_eq!(bos(&report), 1, "{report}");
    let tokenizer = Tokenizer::load(&Source::EmbeddedTarget).unwrap().unwrap();
    assert_eq!(tokenizer.decode(&ids(&report, "prompt_token_ids"), true), "// a test.");

    let finished = run(generate!().args(["<|bos|>fn main() {", "-n", "1", "--raw", "--json"]));
    assert_eq!(bos(&serde_json::from_str(&finished.stdout).unwrap()), 1);
    assert_eq!(finished.stderr.matches("warning:").count(), 1, "{}", finished.stderr);
    assert_eq!(run(generate!().args([PROMPT, "-n", "1", "--raw"])).stderr, "");
}

#[test]
fn f7_a_prompt_longer_than_the_context_is_refused_before_weights_are_read() {
    // Weights that cannot be read show that they were not.
    let folder = changed_model(&tiny_folder("target"), &[]);
    std::fs::write(folder.path().join("model.safetensors"), b"no weights").unwrap();
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(&file, json!(vec![5; 2048]).to_string()).unwrap();
    let mut command = generate!();
    command.arg("--model").arg(folder.path()).arg("--tokens").arg(file.path());
    let finished = run(&mut command);
    assert_eq!(finished.code, Some(1), "{}", finished.stderr);
    assert!(
        finished.stderr.contains("2048 tokens") && finished.stderr.contains("context of 2048"),
        "{}",
        finished.stderr
    );
    let finished = run(generate!().args([PROMPT, "--ctx", "3", "--model"]).arg(folder.path()));
    assert_eq!(finished.code, Some(1));
    assert!(finished.stderr.contains("context of 3"), "{}", finished.stderr);
}

#[test]
fn c3_json_parses_whatever_else_is_said() {
    let drafter = blind_drafter();
    let mut command = generate!();
    command.args([
        "<|bos|>fn",
        "-n",
        "40",
        "--temp",
        "1",
        "--ignore-eos",
        "--json",
        "--stats",
        "--tree-budget",
        "16",
        "--draft",
    ]);
    let Finished { code, stdout, stderr } = run(command.arg(drafter.path()));
    assert_eq!((code, stderr.matches("warning:").count()), (Some(0), 2), "{stderr}");
    let report: Value = serde_json::from_str(&stdout).unwrap();
    assert_eq!(report["schema"], "coppice.generate.v1");
    assert!(!["NaN", "inf"].iter().any(|word| report["timings"].to_string().contains(word)), "{report}");
}

#[test]
fn c5_a_seed_repeats_its_text_and_others_differ() {
    let generate = |seed: &str| {
        let report = json(generate!().args([PROMPT, "-n", "32", "--temp", "1", "--json", "--seed", seed]));
        assert_eq!(report["env"]["seed"].to_string(), seed);
        (report["token_ids"].to_string(), report["digest"].to_string())
    };
    assert_eq!(generate("5"), generate("5"));
    let (texts, digests): (BTreeSet<String>, BTreeSet<String>) =
        ["0", "1", "2", "18446744073709551615"].into_iter().map(generate).unzip();
    assert_eq!((texts.len(), digests.len()), (4, 4));
}

#[test]
fn c7_nothing_is_asked_when_standard_input_is_no_terminal() {
    let finished = run(generate!().args(["-n", "4", "--json"]));
    assert_eq!(finished.code, Some(0), "{}", finished.stderr);
    let report: Value = serde_json::from_str(&finished.stdout).unwrap();
    assert_eq!(ids(&report, "prompt_token_ids"), [0], "an empty prompt is the beginning of a text");
}

#[cfg(target_os = "linux")]
mod interrupt {
    use super::*;

    /// Ctrl-C.
    fn interrupt(child: &Child) {
        let status = Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// Waits until Ctrl-C is caught: signal 2 is in the mask of the process.
    fn wait_for_handler(child: &Child) {
        let path = format!("/proc/{}/status", child.id());
        let caught = || {
            let status = std::fs::read_to_string(&path).unwrap_or_default();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap_or("0").trim().to_owned();
            u64::from_str_radix(&mask, 16).is_ok_and(|mask| mask & 0b10 != 0)
        };
        let start = Instant::now();
        while !caught() {
            assert!(start.elapsed() < Duration::from_secs(30), "no handler");
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn spawn(args: &[&str]) -> Child {
        let mut command = generate!();
        command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Waits for the end; what had not been read, and how long it took.
    fn finish(child: Child) -> (Finished, Duration) {
        let start = Instant::now();
        let output = child.wait_with_output().unwrap();
        (output.into(), start.elapsed())
    }

    #[test]
    fn c6_ctrl_c_keeps_the_text_and_says_how_far_it_came() {
        let args = [PROMPT, "-n", "2000", "--ignore-eos", "--temp", "0", "--spec", "none"];
        let mut child = spawn(&args);
        let mut text = vec![0; 40];
        child.stdout.as_mut().unwrap().read_exact(&mut text).unwrap();
        interrupt(&child);
        let (finished, elapsed) = finish(child);
        assert_eq!(finished.code, Some(130), "{}", finished.stderr);
        assert!(elapsed < Duration::from_secs(1), "{elapsed:?}");
        let text = String::from_utf8(text).unwrap() + &finished.stdout;
        assert!(finished.stderr.contains("ended by interrupted"), "{}", finished.stderr);
        let whole = greedy(32);
        let whole = whole["text"].as_str().unwrap();
        let common = text.len().min(whole.len());
        assert_eq!(text[..common], whole[..common]);
    }

    #[test]
    fn c6_ctrl_c_before_the_first_token_still_reports() {
        let attempt = |delay: u64| {
            let mut child = spawn(&["--json", "--ignore-eos"]);
            wait_for_handler(&child);
            child.stdin.take().unwrap().write_all("fn main() {\n".repeat(200).as_bytes()).unwrap();
            std::thread::sleep(Duration::from_millis(delay));
            interrupt(&child);
            let (finished, elapsed) = finish(child);
            assert_eq!(finished.code, Some(130), "{}", finished.stderr);
            assert!(elapsed < Duration::from_secs(1), "{elapsed:?}");
            serde_json::from_str::<Value>(&finished.stdout).ok()
        };
        // Too early, there is nothing to report; too late, there is a token.
        let mut reports = (1..40).filter_map(|step| attempt(10 * step));
        let report = reports.find(|report| report["token_ids"] == json!([])).unwrap();
        assert_eq!(report["finish_reason"], "interrupted");
        assert!(report["timings"]["ttft_ms"].is_null(), "{report}");
    }

    #[test]
    fn c6_a_second_ctrl_c_kills() {
        let child = spawn(&[]);
        wait_for_handler(&child);
        interrupt(&child);
        std::thread::sleep(Duration::from_millis(50));
        interrupt(&child);
        let (finished, _) = finish(child);
        assert_eq!(
            (finished.code, finished.stderr.as_str()),
            (Some(130), ""),
            "the first alone would have said something"
        );
    }
}
