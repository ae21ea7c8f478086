//! `bench`: what it prints parses, what it measures repeats, what it finds slower it says.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use coppice_tests::binary::{json, run, succeed};
use coppice_tests::coppice;
use serde_json::Value;

/// A short run: two prompts, plain decode and one way of drafting.
fn bench() -> Command {
    let mut command = coppice!();
    command.args(["bench", "--threads", "1", "--count", "2", "-r", "2"]);
    command.args(["--spec", "ngram", "--temp", "0.8", "--max-noise", "1000"]);
    command
}

/// 8 tokens each.
fn short() -> Command {
    let mut command = bench();
    command.args(["-n", "8"]);
    command
}

/// The JSON of such a run, in a file.
fn recorded(folder: &Path) -> PathBuf {
    let path = folder.join("run.json");
    succeed(short().arg("-O").arg(&path));
    path
}

fn read(path: &Path) -> Value {
    serde_json::from_str(&fs::read_to_string(path).unwrap()).unwrap()
}

/// `run` with every figure of decode speed that `change` maps otherwise.
fn with_speeds(run: &Value, folder: &Path, change: fn(f64) -> f64) -> PathBuf {
    let mut run = run.clone();
    for row in run["rows"].as_array_mut().unwrap() {
        let speed = &mut row["decode_tok_s"];
        for key in ["median", "min", "max"] {
            speed[key] = change(speed[key].as_f64().unwrap()).into();
        }
    }
    let path = folder.join("changed.json");
    fs::write(&path, run.to_string()).unwrap();
    path
}

#[test]
fn c3_every_format_parses_with_standard_error_discarded() {
    let output = |format: &str| {
        // So tight a gate that warnings are certain.
        let mut command = short();
        command.args(["-o", format, "--max-noise", "0.000001"]).stderr(Stdio::null());
        succeed(&mut command)
    };
    let report: Value = serde_json::from_str(&output("json")).unwrap();
    assert_eq!(report["schema"], "coppice.bench.v1");
    assert_eq!(report["rows"].as_array().unwrap().len(), 2);
    assert!(report["peak_memory_bytes"].as_u64() > Some(1 << 20), "{report}");
    assert_eq!(report["env"]["cpu"]["threads"], 1);
    assert!(report["read_ceiling_gb_s"].as_f64() > Some(0.1), "{report}");
    for row in report["rows"].as_array().unwrap() {
        let number = |value: &Value| value.as_f64().unwrap_or_else(|| panic!("{row}"));
        let (stages, experts) = (row["stage_ms"].as_object().unwrap(), row["experts_a_round"].as_array().unwrap());
        assert!(number(&stages["verify"]) > 0.0 && stages.len() == 5, "{row}");
        // Each round reads what plain decode reads: 4 of 16 experts of 5 layers, at least.
        assert!(number(&row["bytes_a_round"]) > 1e6 && number(&row["read_gb_s"]) > 0.0, "{row}");
        assert!(experts.len() == 5 && experts.iter().all(|mean| (4.0..=16.0).contains(&number(mean))), "{row}");
    }
    let plain = report["rows"][0]["experts_a_round"].as_array().unwrap();
    assert!(plain.iter().all(|mean| *mean == 4.0), "{plain:?}");
    let specs: Vec<Value> = output("jsonl")
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap()["row"]["spec"].clone())
        .collect();
    assert_eq!(specs, ["none", "ngram"]);
    let csv = output("csv");
    assert_eq!(csv.lines().count(), 3);
    assert!(csv.starts_with("prompt,max_tokens,depth,"), "{csv}");
    let md = output("md");
    assert_eq!(md.lines().filter(|line| line.starts_with('|')).count(), 4, "{md}");
}

#[test]
fn c5_the_same_seed_gives_the_same_digests_drafted_or_not() {
    let digests = |seed: &str| -> Vec<String> {
        let report = json(short().args(["-o", "json", "--seed", seed]));
        let rows = report["rows"].as_array().unwrap().iter();
        rows.map(|row| {
            assert_eq!((&row["repeats_agree"], &row["agrees_with_plain"]), (&true.into(), &true.into()), "{row}");
            row["digest"].as_str().unwrap().to_owned()
        })
        .collect()
    };
    let one = digests("1");
    assert_eq!(one[0], one[1]);
    assert_eq!(digests("1"), one);
    assert_ne!(digests("2"), one);
}

#[test]
fn a_planted_slowdown_of_a_fifth_fails_and_names_the_row() {
    let folder = tempfile::tempdir().unwrap();
    let run_path = recorded(folder.path());
    let baseline = with_speeds(&read(&run_path), folder.path(), |speed| speed / 0.8);
    let against = |allowed: &[&str]| {
        run(coppice!().args(["bench", "--from"]).arg(&run_path).arg("--baseline").arg(&baseline).args(allowed))
    };
    let finished = against(&[]);
    assert_eq!(finished.code, Some(1), "{finished:?}");
    let row = "--spec ngram --tree-budget auto -p whole -n 8 --depth 0 --temp 0.8";
    for text in ["2 of 2 rows are more than 10% slower than in", row, "ratio 0.800"] {
        assert!(finished.stderr.contains(text), "{text}: {}", finished.stderr);
    }
    assert!(finished.stdout.contains("0.800"), "{}", finished.stdout);
    assert_eq!(against(&["--max-regression", "25"]).code, Some(0));
}

#[test]
fn a_measured_run_is_compared_too() {
    let folder = tempfile::tempdir().unwrap();
    let recorded = read(&recorded(folder.path()));
    let slow = with_speeds(&recorded, folder.path(), |_| 1e-3);
    let report = json(short().args(["-o", "json", "--baseline"]).arg(&slow));
    assert_eq!(report["comparison"]["rows"].as_array().unwrap().len(), 2, "{report}");
    assert_eq!(report["comparison"]["rows"][1]["same_tokens"], true);
    let fast = with_speeds(&recorded, folder.path(), |_| 1e12);
    assert_eq!(run(short().arg("--baseline").arg(&fast)).code, Some(1));
    let other = run(short().args(["--depth", "64", "--baseline"]).arg(&slow));
    assert_eq!(other.code, Some(1), "{other:?}");
    assert!(other.stderr.contains("recorded with another matrix"), "{}", other.stderr);
}

#[test]
fn noise_above_the_gate_is_said() {
    let folder = tempfile::tempdir().unwrap();
    let mut report = read(&recorded(folder.path()));
    report["settings"]["max_noise"] = 5.0.into();
    report["rows"][0]["noise"] = 0.25.into();
    report["rows"][1]["noise"] = 0.01.into();
    let path = folder.path().join("noisy.json");
    fs::write(&path, report.to_string()).unwrap();
    let finished = run(coppice!().args(["bench", "--from"]).arg(&path));
    let warnings: Vec<_> = finished.stderr.lines().filter(|line| line.starts_with("warning: ")).collect();
    assert_eq!((finished.code, warnings.len()), (Some(0), 1), "{finished:?}");
    assert!(warnings[0].contains("--spec none") && warnings[0].contains("25% apart"), "{warnings:?}");
}

#[test]
fn lengths_depths_and_files_of_ones_own_are_measured_as_asked() {
    let folder = tempfile::tempdir().unwrap();
    let report = json(bench().args(["-o", "json", "-p", "40", "-n", "4,6", "--depth", "64"]));
    let rows = report["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 4);
    for (row, tokens) in rows.iter().zip([8, 8, 12, 12]) {
        assert_eq!((&row["prompt_tokens"], &row["tokens"]), (&80.into(), &tokens.into()), "{row}");
    }
    let file = folder.path().join("prompts.jsonl");
    fs::write(&file, "{\"id\": \"a\", \"text\": \"fn a() {\"}\n{\"tokens\": [0, 7, 8]}\n").unwrap();
    let report = json(short().args(["-o", "json", "--prompts"]).arg(&file));
    let prompts = report["rows"][0]["prompts"].as_array().unwrap();
    assert_eq!((&prompts[0]["id"], &prompts[1]["id"]), (&"a".into(), &"line 2".into()));
    fs::write(&file, "{\"id\": \"a\"}\n").unwrap();
    let finished = run(short().arg("--prompts").arg(&file));
    assert_eq!(finished.code, Some(1));
    assert!(finished.stderr.contains("prompts.jsonl: line 1: expected one of"), "{}", finished.stderr);
}

#[test]
fn files_get_the_format_of_their_name_and_plots_are_svg() {
    let folder = tempfile::tempdir().unwrap();
    let run_path = recorded(folder.path());
    let (csv, svg) = (folder.path().join("run.csv"), folder.path().join("run.svg"));
    succeed(coppice!().args(["bench", "--from"]).arg(&run_path).arg("-O").arg(&csv).arg("--plot").arg(&svg));
    assert!(fs::read_to_string(&csv).unwrap().starts_with("prompt,"));
    assert!(fs::read_to_string(&svg).unwrap().starts_with("<svg"));
}

#[cfg(unix)]
#[test]
fn c6_ctrl_c_leaves_the_rows_of_finished_cases() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.json");
    // The second case would take half a minute.
    let mut command = bench();
    command.args(["-n", "2,1900", "-r", "3", "-o", "json", "-O"]).arg(&path).stdout(Stdio::piped());
    let child = command.stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(8));
    let pid = child.id().to_string();
    succeed(Command::new("kill").args(["-INT", &pid]));
    let interrupted = Instant::now();
    let finished = child.wait_with_output().unwrap();
    assert!(interrupted.elapsed() < Duration::from_secs(2), "{:?}", interrupted.elapsed());
    assert_eq!(finished.status.code(), Some(130));
    let report: Value = serde_json::from_slice(&finished.stdout).unwrap();
    assert_eq!(report, read(&path));
    assert_eq!(report["interrupted"], true);
    let rows = report["rows"].as_array().unwrap();
    assert!(rows.iter().all(|row| row["case"]["max_tokens"] == 2), "{report}");
    assert_eq!(rows.len(), 2, "{report}");
}
