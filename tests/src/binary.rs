//! Running the program as a user does.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use serde_json::Value;

/// The program's binary, built by this package from the same `main.rs` so that `cargo test` always has it up to date: the
/// binary of another package is not built for a package's tests.
#[macro_export]
macro_rules! coppice {
    () => {
        $crate::binary::command(env!("CARGO_BIN_EXE_coppice-under-test"))
    };
}

/// `coppice generate` on one thread: tests run side by side.
#[macro_export]
macro_rules! generate {
    () => {{
        let mut command = $crate::coppice!();
        command.args(["generate", "--threads", "1"]);
        command
    }};
}

/// A command of the binary at `path` with nothing on standard input.
pub fn command(path: &str) -> Command {
    let mut command = Command::new(path);
    command.stdin(Stdio::null());
    command
}

/// What a finished command left behind.
#[derive(Debug)]
pub struct Finished {
    /// Its exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl From<Output> for Finished {
    fn from(output: Output) -> Self {
        let text = |bytes| String::from_utf8(bytes).expect("output is UTF-8");
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

/// Runs a command to its end.
pub fn run(command: &mut Command) -> Finished {
    command.output().expect("the program starts").into()
}

/// Runs a command that must succeed; its standard output.
pub fn succeed(command: &mut Command) -> String {
    let finished = run(command);
    assert_eq!(finished.code, Some(0), "{command:?}: {}", finished.stderr);
    finished.stdout
}

/// Runs a command that must succeed and print one line of JSON.
pub fn json(command: &mut Command) -> Value {
    let stdout = succeed(command);
    assert_eq!(stdout.matches('\n').count(), 1, "{command:?}: {stdout}");
    serde_json::from_str(&stdout).unwrap_or_else(|error| panic!("{command:?}: {error} in {stdout}"))
}

/// The token ids under `key`.
pub fn ids(object: &Value, key: &str) -> Vec<u32> {
    serde_json::from_value(object[key].clone()).unwrap_or_else(|error| panic!("{key}: {error} in {object}"))
}

/// The files of the embedded model or drafter: `target` or `draft`.
pub fn tiny_folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../model/tiny").join(name)
}

/// A folder with the files of `from` but for `changed`: JSON files whose top-level keys are replaced, or removed by null.
pub fn changed_model(from: &Path, changed: &[(&str, Value)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder for a model");
    for entry in std::fs::read_dir(from).expect("the model's folder") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a file").to_owned();
        std::fs::copy(&path, folder.path().join(name)).expect("a copy of a file");
    }
    for (name, keys) in changed {
        let path = folder.path().join(name);
        let text = std::fs::read_to_string(&path).unwrap_or_else(|_| "{}".to_owned());
        let mut object: serde_json::Map<String, Value> = serde_json::from_str(&text).expect("a JSON object");
        for (key, value) in keys.as_object().expect("keys to change") {
            match value {
                Value::Null => object.remove(key),
                value => object.insert(key.clone(), value.clone()),
            };
        }
        std::fs::write(&path, serde_json::to_vec(&object).expect("JSON")).expect("a changed file");
    }
    folder
}
