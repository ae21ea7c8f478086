//! The command line itself: help, wrong usage, failures, closed pipes.

use std::io::Read;
use std::process::Stdio;

use coppice_tests::binary::{run, succeed};
use coppice_tests::model::fixture;
use coppice_tests::{coppice, generate};

#[test]
fn help_fits_80_columns_and_offers_what_there_is() {
    let commands = ["generate", "tree", "bench", "profile", "inspect", "logits", "doctor", "kernels"];
    let overview = succeed(coppice!().arg("--help"));
    let offered: Vec<&str> = overview
        .lines()
        .skip_while(|line| *line != "Commands:")
        .skip(1)
        .take_while(|line| !line.is_empty())
        // A description may go on in further lines, indented deeper.
        .filter(|line| !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(offered, [&commands[..], &["help"]].concat());
    let mut wide = Vec::new();
    for command in commands {
        let help = succeed(coppice!().args([command, "--help"]));
        assert!(help.contains(&format!("Usage: coppice {command}")), "{help}");
        wide.extend(help.lines().filter(|line| line.chars().count() > 80).map(str::to_owned));
    }
    assert!(wide.is_empty(), "{wide:#?}");
}

#[test]
fn flags_come_before_the_prompt_or_after_it_and_two_dashes_end_them() {
    let expected = succeed(generate!().args(["fn main() {", "-n3", "--temp", "0"]));
    assert_eq!(succeed(generate!().args(["-n3", "--temp=0", "fn main() {"])), expected);
    assert_eq!(succeed(generate!().args(["-n3", "--temp=0", "--", "fn main() {"])), expected);
    succeed(generate!().args(["-n3", "--", "--flag"]));
}

#[test]
fn wrong_usage_exits_2_and_names_the_flag() {
    let cases: &[(&[&str], &str)] = &[
        (&["generate", "x", "--no-such-flag"], "--no-such-flag"),
        (&["generate", "--no-such-flag"], "--no-such-flag"),
        (&["generate", "--no-such-flag", "3", "x"], "--no-such-flag"),
        (&["generate", "x", "--spec", "auto", "--tree-budget", "4"], "--tree-budget 4 fixes"),
        (&["generate", "x", "--tree-budget", "many"], "auto or an integer"),
        (&["generate", "x", "--tree-budget", "-1"], "--tree-budget"),
        (&["generate", "x", "--tree-budget", "1025"], "from 0 to 1024"),
        (&["generate", "x", "-n", "0"], "at least 1"),
        (&["generate", "x", "--threads", "0"], "--threads"),
        (&["generate", "x", "--threads", "65536"], "from 1 to 1024"),
        (&["generate", "x", "--ctx", "none"], "--ctx"),
        (&["generate", "x", "--temp", "-1"], "temp"),
        (&["generate", "x", "--temp", "nan"], "temp"),
        (&["generate", "x", "--top-p", "1.5"], "'1.5' for '--top-p <P>': expected a number from 0 to 1"),
        (&["generate", "x", "--min-p", "-0.5"], "'-0.5' for '--min-p <P>': expected a number from 0 to 1"),
        (&["generate", "x", "--top-k", "-3"], "--top-k"),
        (&["generate", "x", "--seed", "-3"], "--seed"),
        (&["generate", "x", "--stop", ""], "--stop is empty"),
        (&["generate", "x", "--chat", "--raw"], "--raw"),
        (&["generate", "x", "--system", "be brief"], "--chat"),
        (&["generate", "x", "--thinking", "on"], "--chat"),
        (&["generate", "x", "--stream", "--no-stream"], "--no-stream"),
        (&["generate", "x", "--stream", "--json"], "--json"),
        (&["generate", "x", "--prompt-file", "y"], "--prompt-file"),
        (&["generate", "x", "--tokens", "y"], "--tokens"),
        (&["generate", "x", "--spec", "magic"], "--spec"),
        (&["generate", "x", "--model", "m", "--spec", "ddtree"], "--spec ddtree needs a drafter"),
        (&["generate", "x", "--draft-yarn-amplitude", "0"], "above 0"),
        (&["generate", "x", "--device", "tpu"], "--device"),
        (&["logits"], "--tokens"),
        (&["bench", "--spec", "magic"], "--spec"),
        (&["bench", "--depth", "65"], "a multiple of 64"),
        (&["bench", "-r", "0"], "from 1 to 1000"),
        (&["bench", "--temp", "-1"], "temp"),
        (&["bench", "--max-noise", "0"], "above 0"),
        (&["bench", "--model", "m", "--spec", "ddtree"], "name one with --draft"),
        (&["explain"], "explain"),
        (&[], "Usage: coppice"),
    ];
    let mut failed = Vec::new();
    for (args, expected) in cases {
        let finished = run(coppice!().args(*args));
        if finished.code != Some(2) || !finished.stderr.contains(expected) || !finished.stdout.is_empty() {
            failed.push(format!("{args:?}, expected {expected:?}: {finished:?}"));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn failures_exit_1_and_name_the_object() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, content: &[u8]| {
        let path = folder.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let no_array = file("no-array.json", b"{\"ids\": [1]}");
    let unknown = file("unknown.json", b"[1, 2, 4096]");
    let empty = file("empty.json", b"[]");
    let two = file("two.json", b"[1, 2]");
    let latin1 = file("latin1.txt", b"caf\xe9!");
    let bare = fixture("v3-bf16-no-q-lora").display().to_string();
    let somewhere = folder.path().join("out").display().to_string();
    let nowhere = folder.path().join("no/such/folder/out").display().to_string();
    let cases: &[(&[&str], &str)] = &[
        (&["generate", "x", "--model", "/no/such/model"], "cannot read /no/such/model"),
        (&["generate", "x", "--draft", "/no/such/draft"], "cannot read /no/such/draft"),
        (&["generate", "--prompt-file", "/no/such/file"], "cannot read /no/such/file"),
        (&["generate", "--prompt-file", &latin1], "latin1.txt: byte 3 begins no UTF-8 character"),
        (&["generate", "--tokens", &no_array], "no-array.json: expected one JSON array of token ids"),
        (
            &["generate", "--tokens", &unknown],
            "token 4096 at index 2 of the prompt is not in the model's vocabulary of 4096",
        ),
        (&["generate", "--tokens", &empty], "empty.json: holds no token ids"),
        (&["generate", "x", "--ctx", "4096"], "--ctx is 4096, expected at most the model's 2048"),
        (&["generate", "x", "--chat"], "embedded:target has no chat template"),
        (&["generate", "x", "--model", &bare], "has no tokenizer"),
        (&["generate", "x", "-n", "1", "-O", &nowhere], "cannot write"),
        (&["bench", "--prompts", "/no/such/file"], "cannot read /no/such/file"),
        (&["bench", "--baseline", &two], "two.json: schema is none, expected coppice.bench.v1"),
        (&["bench", "--from", &no_array], "no-array.json: schema is none"),
        (&["bench", "--count", "1000"], "--count is 1000, but embedded:held-out.jsonl has 32 prompts"),
        (&["bench", "-p", "1000000"], "tokens, expected at least 1000000"),
        (&["bench", "-p", "2040", "-n", "16"], "take 2056 tokens together, expected at most the model's 2048"),
        (&["bench", "--model", &bare], "has no tokenizer"),
        (&["inspect", "/no/such/model"], "cannot read /no/such/model"),
        (
            &["logits", "--tokens", &two, "--hidden", "6", "--out", &somewhere],
            "--hidden 6: the model has layers 0 to 5",
        ),
        (&["logits", "--tokens", &two, "--out", &nowhere], "cannot write"),
        (&["logits", "--tokens", &empty, "--out", &somewhere], "empty.json: holds no token ids"),
    ];
    let mut failed = Vec::new();
    for (args, expected) in cases {
        let finished = run(coppice!().args(*args));
        if finished.code != Some(1) || !finished.stderr.contains(expected) {
            failed.push(format!("{args:?}, expected {expected:?}: {finished:?}"));
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}

#[test]
fn a_closed_pipe_is_not_a_failure() {
    for args in [&["inspect"][..], &["generate", "x", "-n", "64"], &["generate", "x", "-n", "2", "--json"]] {
        let mut child = coppice!().args(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        drop(child.stdout.take());
        let mut stderr = String::new();
        child.stderr.take().unwrap().read_to_string(&mut stderr).unwrap();
        assert_eq!((child.wait().unwrap().code(), stderr.as_str()), (Some(0), ""), "{args:?}");
    }
}
