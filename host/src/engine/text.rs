//! Generated tokens as text, while they arrive: decoding, stop strings, the writer. Which tokens come is not decided here.

use std::io::{self, Write};

use coppice_model::tokenizer::{TextStream, Tokenizer};

use super::request::{Observer, Verdict};
use super::stop::StopMatcher;

/// An [`Observer`] that writes text as soon as it is certain, and stops at a stop string or when the writer fails.
///
/// Special tokens have no text. A character appears with its last byte; bytes that form none become U+FFFD.
pub struct TextObserver<'a> {
    tokenizer: &'a Tokenizer,
    stream: TextStream,
    stops: StopMatcher,
    /// Everything written: the text up to what is held back.
    text: String,
    /// Length in bytes of the decoded text, stop strings included, after each token.
    decoded: Vec<usize>,
    out: Box<dyn Write + 'a>,
    failure: Option<io::Error>,
}

/// What a [`TextObserver`] wrote.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WrittenText {
    /// The text.
    pub text: String,
    /// Where a stop string ended it: how many of the generated tokens it needs.
    pub stopped: Option<usize>,
}

impl<'a> TextObserver<'a> {
    /// Writes to `out`, flushed after every round.
    pub fn new(tokenizer: &'a Tokenizer, stops: &[String], out: impl Write + 'a) -> Self {
        Self {
            tokenizer,
            stream: TextStream::new(),
            stops: StopMatcher::new(stops),
            text: String::new(),
            decoded: Vec::new(),
            out: Box::new(out),
            failure: None,
        }
    }

    /// Writes what is still held back and returns the whole text. A stop string may be found only now: one that was
    /// waiting for a longer one which began before it.
    ///
    /// # Errors
    /// The writer's first failure, now or earlier.
    pub fn finish(mut self) -> io::Result<WrittenText> {
        if !self.stops.matched() {
            let tail = std::mem::take(&mut self.stream).finish();
            let text = self.stops.push(&tail) + &self.stops.finish();
            self.write(&text);
        }
        let stopped = self.stops.matched().then(|| self.kept_tokens());
        match self.failure {
            Some(error) => Err(error),
            None => Ok(WrittenText { text: self.text, stopped }),
        }
    }

    /// The shortest prefix of the tokens whose text contains the text kept.
    fn kept_tokens(&self) -> usize {
        if self.text.is_empty() {
            return 0;
        }
        let before = self.decoded.iter().take_while(|length| **length < self.text.len()).count();
        (before + 1).min(self.decoded.len())
    }

    fn write(&mut self, text: &str) {
        self.text.push_str(text);
        if self.failure.is_none()
            && !text.is_empty()
            && let Err(error) = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush())
        {
            self.failure = Some(error);
        }
    }
}

impl Observer for TextObserver<'_> {
    fn tokens(&mut self, generated: &[u32], new: usize) -> Verdict {
        let mut piece = String::new();
        let mut length = self.decoded.last().copied().unwrap_or(0);
        for id in &generated[generated.len() - new..] {
            if !self.tokenizer.special(*id) {
                let text = self.stream.push(&self.tokenizer.token_bytes(*id));
                length += text.len();
                piece.push_str(&text);
            }
            self.decoded.push(length);
        }
        let text = self.stops.push(&piece);
        self.write(&text);
        if self.stops.matched() {
            Verdict::Stop { keep: self.kept_tokens() }
        } else if self.failure.is_some() {
            Verdict::Interrupt
        } else {
            Verdict::Continue
        }
    }
}
