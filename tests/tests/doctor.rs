//! `doctor` and `kernels`: the one program starts with a driver and without, and says which it is.

use std::process::Command;

use coppice_tests::binary::{json, run, succeed};
use coppice_tests::coppice;

#[test]
fn the_program_does_not_need_the_drivers_library() {
    let libraries = succeed(Command::new("ldd").arg(env!("CARGO_BIN_EXE_coppice-under-test")));
    assert!(libraries.contains("libc.so"), "{libraries}");
    assert!(!libraries.contains("libcuda"), "{libraries}");
}

#[test]
fn doctor_says_what_there_is_and_what_to_do() {
    let report = json(coppice!().args(["doctor", "--json"]));
    assert_eq!(report["schema"], "coppice.doctor.v1");
    assert!(report["memory"]["total_bytes"].as_u64() > report["memory"]["available_bytes"].as_u64(), "{report}");
    assert!(report["cpu"]["threads"].as_u64() >= Some(1), "{report}");
    let targets: Vec<_> = report["kernels"].as_array().unwrap().iter().map(|ptx| ptx["target"].as_str()).collect();
    assert_eq!(targets, [Some("sm_90"), Some("sm_120")]);
    let text = succeed(coppice!().arg("doctor"));
    match report["driver"]["state"].as_str().unwrap() {
        "absent" => {
            assert!(text.contains("no NVIDIA driver: ") && text.contains("everything runs on the CPU"), "{text}");
            assert!(report["driver"]["reason"].as_str().unwrap().contains("libcuda.so.1"), "{report}");
            assert_eq!(report["counters"], "unknown");
        }
        "failing" => assert!(text.contains("the NVIDIA driver does not start: "), "{text}"),
        state => {
            assert_eq!(state, "ready");
            assert!(text.contains("CUDA "), "{text}");
        }
    }
}

#[test]
fn kernels_are_listed_with_and_without_a_device() {
    let report = json(coppice!().args(["kernels", "list", "--json"]));
    assert_eq!(report["schema"], "coppice.kernels-list.v1");
    let kernels = report["kernels"].as_array().unwrap();
    let norm = kernels.iter().find(|row| row["kernel"] == "rms_norm").unwrap();
    assert_eq!(norm["threads"], 256);
    assert_eq!(norm["registers"].is_null(), report["device"].is_null(), "{report}");
    assert!(succeed(coppice!().arg("kernels")).contains("verify_attention_512_64"));
}

#[test]
fn checking_and_measuring_need_a_device() {
    let report = json(coppice!().args(["doctor", "--json"]));
    if report["devices"].as_array().is_some_and(|devices| !devices.is_empty()) {
        return;
    }
    for task in ["check", "bench"] {
        let finished = run(coppice!().args(["kernels", task]));
        assert_eq!((finished.code, finished.stdout.as_str()), (Some(1), ""), "{task}");
        let explained = ["coppice doctor", "there is no GPU 0"].iter().any(|text| finished.stderr.contains(text));
        assert!(explained && finished.stderr.starts_with("error: cuda backend: "), "{}", finished.stderr);
    }
    for flags in [["--device", "cpu"], ["--device", "cuda:x"]] {
        assert_eq!(run(coppice!().args(["kernels", "check"]).args(flags)).code, Some(2), "{flags:?}");
    }
}
