//! The flags of `profile`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::request::LengthFlags;
use super::values::{count, microseconds};
use super::{ChatFlags, DeviceFlags, DraftingFlags, ModelFlags, PromptFlags, SamplingFlags};

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum By {
    Round,
}

#[derive(Debug, Clone, Args)]
pub struct ProfileFlags {
    #[command(flatten)]
    pub prompt: PromptFlags,

    /// Draw when the device was busy
    #[arg(long)]
    pub waterfall: bool,
    /// Draw a row a round
    #[arg(long, value_name = "PART")]
    pub by: Option<By>,
    /// Gaps listed, the longest first
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = count)]
    pub longest: usize,
    /// Microseconds of a gap below which its cause is not looked for
    #[arg(long, value_name = "X", default_value = "1", value_parser = microseconds)]
    pub threshold_us: u64,
    /// Do not generate again unprofiled to compare the speed
    #[arg(long)]
    pub once: bool,

    /// Write a trace for Perfetto or Chrome to a file
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub trace: Option<PathBuf>,
    /// Write a page for a browser to a file: timeline, gaps, stages
    #[arg(long, value_name = "FILE", help_heading = "Output")]
    pub html: Option<PathBuf>,
    /// Print all gaps as comma-separated values instead of the report
    #[arg(long, conflicts_with_all = ["json", "waterfall", "by"], help_heading = "Output")]
    pub csv: bool,
    /// Print one JSON object instead of text
    #[arg(long, conflicts_with_all = ["waterfall", "by"], help_heading = "Output")]
    pub json: bool,
    /// Write the JSON object to a file, whatever is printed; `-` is --json
    #[arg(short = 'O', long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,

    /// Watch a whole GPU from outside instead of generating
    #[arg(long, help_heading = "Watching", conflicts_with_all = [
        "prompt", "prompt_file", "tokens", "waterfall", "by", "once", "trace", "html", "csv", "json", "output",
    ])]
    pub watch: bool,

    #[command(flatten)]
    pub model: ModelFlags,
    #[command(flatten)]
    pub drafting: DraftingFlags,
    #[command(flatten)]
    pub length: LengthFlags,
    #[command(flatten)]
    pub sampling: SamplingFlags,
    #[command(flatten)]
    pub chat: ChatFlags,
    #[command(flatten)]
    pub device: DeviceFlags,
}
