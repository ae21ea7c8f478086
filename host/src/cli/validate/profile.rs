//! Flags of `profile`, and what they mean beside each other.

use std::path::PathBuf;

use super::request::{Group, Length, RequestArgs};
use super::{Input, ReportArgs};
use crate::cli::args::{By, ProfileFlags};
use crate::error::{Error, Result};
use crate::profile::Options;

/// What `profile` looks at.
#[derive(Debug, Clone)]
pub enum ProfileArgs {
    /// A generation.
    Generation(Box<ProfiledArgs>),
    /// A GPU, from outside.
    Watch,
}

/// What standard output gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProfileFormat {
    /// Tables, and what is drawn.
    Text {
        /// The whole generation is drawn.
        waterfall: bool,
        /// Each round is drawn.
        by_round: bool,
    },
    /// One JSON object.
    Json,
    /// A line a gap.
    Csv,
}

/// A generation to be profiled.
#[derive(Debug, Clone)]
pub struct ProfiledArgs {
    /// What is asked.
    pub request: RequestArgs,
    /// How gaps are looked at.
    pub options: Options,
    /// Nothing is generated unprofiled.
    pub once: bool,
    /// What standard output gets.
    pub format: ProfileFormat,
    /// Where the JSON object is written as well.
    pub output: Option<PathBuf>,
    /// Where the trace is written.
    pub trace: Option<PathBuf>,
    /// Where the page is written.
    pub html: Option<PathBuf>,
}

impl ProfileFlags {
    /// As [`super::super::args::GenerateFlags::validate`].
    ///
    /// # Errors
    /// [`Error::Usage`].
    pub fn validate(self, stdin_is_terminal: bool) -> Result<ProfileArgs> {
        if self.watch {
            return Ok(ProfileArgs::Watch);
        }
        if self.length.stop.iter().any(String::is_empty) {
            return Err(Error::Usage("--stop is empty, expected the text to end before".to_owned()));
        }
        for (flag, path) in [("--trace", &self.trace), ("--html", &self.html)] {
            if path.as_ref().is_some_and(|path| Input::new(path.clone()) == Input::Stdin) {
                return Err(Error::Usage(format!("{flag} - would mix with the report: name a file")));
            }
        }
        let ReportArgs { json, output } = ReportArgs::new(self.json, self.output);
        let by_round = self.by == Some(By::Round);
        let format = match (json, self.csv) {
            (true, true) => return Err(Error::Usage("--csv and -O - both write to standard output".to_owned())),
            (true, false) => ProfileFormat::Json,
            (false, true) => ProfileFormat::Csv,
            (false, false) => ProfileFormat::Text { waterfall: self.waterfall, by_round },
        };
        let group = Group {
            prompt: self.prompt,
            model: self.model,
            drafting: self.drafting,
            sampling: self.sampling,
            chat: self.chat,
            device: self.device,
        };
        let request = RequestArgs {
            ctx: self.length.ctx,
            stops: self.length.stop,
            ignore_eos: self.length.ignore_eos,
            ..group.validate(Length::Tokens(self.length.max_tokens), stdin_is_terminal)?
        };
        let options = Options { threshold_ns: self.threshold_us, longest: self.longest };
        Ok(ProfileArgs::Generation(Box::new(ProfiledArgs {
            request,
            options,
            once: self.once,
            format,
            output,
            trace: self.trace,
            html: self.html,
        })))
    }
}
