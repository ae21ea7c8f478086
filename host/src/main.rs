//! Parse, run, exit code; nothing else.

use std::process::ExitCode;

use coppice::cli;

fn main() -> ExitCode {
    match cli::parse().and_then(cli::run) {
        Ok(outcome) => outcome.into(),
        Err(error) => cli::report(&error),
    }
}
