//! The command line: one file a subcommand. What the flags are lives in [`args`], what they may be in [`validate`].

mod answer;
mod args;
mod bench;
mod doctor;
mod generate;
mod inspect;
mod interrupt;
mod kernels;
mod logits;
mod messages;
mod model;
mod output;
mod parity;
mod plan;
mod profile;
mod progress;
mod prompt;
mod tree;
mod validate;

use std::io::{self, ErrorKind, IsTerminal};
use std::process::ExitCode;

use clap::Parser;

use crate::error::{Error, Result};
use args::{Cli, Flags};
use bench::BenchArgs;
use validate::{DoctorArgs, GenerateArgs, InspectArgs, KernelsArgs, LogitsArgs, ProfileArgs, TreeArgs};

/// How a command ended that did not fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It did what was asked.
    Done,
    /// Ctrl-C ended it early; its partial result was written.
    Interrupted,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Done => Self::SUCCESS,
            Outcome::Interrupted => Self::from(interrupt::EXIT_CODE),
        }
    }
}

/// A command whose flags have been checked.
#[derive(Debug)]
pub enum Command {
    /// Generate text.
    Generate(Box<GenerateArgs>),
    /// Draw a round's draft tree.
    Tree(Box<TreeArgs>),
    /// Measure.
    Bench(Box<BenchArgs>),
    /// Show where a generation's time goes.
    Profile(ProfileArgs),
    /// Describe a model.
    Inspect(InspectArgs),
    /// Write logits and hidden states.
    Logits(LogitsArgs),
    /// Examine the machine.
    Doctor(DoctorArgs),
    /// List, check or measure the GPU kernels.
    Kernels(KernelsArgs),
}

/// The command that the program was started with. Help, version, and flags that are malformed in themselves end the
/// process here.
///
/// # Errors
/// [`Error::Usage`] for flags that do not go together.
pub fn parse() -> Result<Command> {
    Ok(match Cli::parse().command {
        Flags::Generate(flags) => Command::Generate(Box::new(flags.validate(io::stdin().is_terminal())?)),
        Flags::Tree(flags) => Command::Tree(Box::new(flags.validate(io::stdin().is_terminal())?)),
        Flags::Bench(flags) => Command::Bench(Box::new(flags.validate()?)),
        Flags::Profile(flags) => Command::Profile(flags.validate(io::stdin().is_terminal())?),
        Flags::Inspect(flags) => Command::Inspect(flags.validate()),
        Flags::Logits(flags) => Command::Logits(flags.validate(io::stdout().is_terminal())?),
        Flags::Doctor(flags) => Command::Doctor(flags.validate()),
        Flags::Kernels(flags) => Command::Kernels(flags.validate()),
    })
}

/// Runs a command.
///
/// # Errors
/// Whatever kept it from its result.
pub fn run(command: Command) -> Result<Outcome> {
    match command {
        Command::Generate(args) => generate::run(&args),
        Command::Tree(args) => tree::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Profile(args) => profile::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Logits(args) => logits::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Kernels(args) => kernels::run(&args),
    }
}

/// Prints an error and says what the process exits with: 2 for a usage error, 0 if a reader of the output has seen
/// enough and closed it, else 1.
pub fn report(error: &Error) -> ExitCode {
    match error {
        Error::Output(source) if source.kind() == ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Error::Usage(message) => {
            messages::error(&format_args!("{message}\n\nFor more information, try '--help'."));
            ExitCode::from(2)
        }
        _ => {
            messages::error(error);
            ExitCode::FAILURE
        }
    }
}
