//! Writes a two-layer checkpoint of Kimi-K2.6's widths with random weights, 1.9 GB:
//! `cargo run --release -p coppice-tests --bin kimi-slice -- FOLDER [VOCABULARY] [SEED]`.
//!
//! `coppice inspect FOLDER`, `coppice generate --model FOLDER --tokens FOLDER/tokens.json` and
//! `coppice bench --model FOLDER --prompts FOLDER/prompts.jsonl` take it from there.

use std::path::Path;
use std::process::ExitCode;

use coppice_tests::kimi_slice::{Shape, write};

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let number = |index: usize, default: u64| args.get(index).map_or(Ok(default), |text| text.parse());
    let (Some(folder), Ok(vocab @ 64..=163_840), Ok(seed)) = (args.first(), number(1, 8192), number(2, 0)) else {
        eprintln!("usage: kimi-slice FOLDER [VOCABULARY, 64 to 163840, default 8192] [SEED, default 0]");
        return ExitCode::from(2);
    };
    match write(Path::new(folder), &Shape { vocab: vocab as usize, ..Shape::KIMI_K2_6 }, seed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: cannot write {folder}: {error}");
            ExitCode::FAILURE
        }
    }
}
