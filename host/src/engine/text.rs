//! Generated tokens as text, while they arrive: decoding, stop strings, the writer. Which tokens come is not decided here.

use std::io::{self, Write};

use coppice_model::tokenizer::{TextStream, Tokenizer};

use super::request::{Observer, Verdict};
use super::stop::StopMatcher;
use crate::stage;

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
        let _stage = stage!("print");
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
        let decoding = stage!("detokenise");
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
        drop(decoding);
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

#[cfg(test)]
#[cfg(feature = "embedded-model")]
mod tests {
    use super::*;
    use coppice_model::Source;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn tokenizer() -> Tokenizer {
        Tokenizer::load(&Source::EmbeddedTarget).unwrap().unwrap()
    }

    /// Feeds rounds of tokens until a stop; what was written after each round, the end, and the tokens to keep.
    fn run(tokenizer: &Tokenizer, rounds: &[Vec<u32>], stops: &[String]) -> (Vec<String>, WrittenText, Option<usize>) {
        let mut out = Vec::new();
        let mut observer = TextObserver::new(tokenizer, stops, &mut out);
        let (mut generated, mut seen, mut kept) = (Vec::new(), Vec::new(), None);
        for round in rounds {
            generated.extend(round);
            let verdict = observer.tokens(&generated, round.len());
            seen.push(observer.text.clone());
            if let Verdict::Stop { keep } = verdict {
                kept = Some(keep);
                break;
            }
        }
        let written = observer.finish().unwrap();
        assert_eq!(out, written.text.as_bytes());
        (seen, written, kept)
    }

    fn owned(stops: &[&str]) -> Vec<String> {
        stops.iter().map(|stop| (*stop).to_owned()).collect()
    }

    #[test]
    fn s13_a_stop_string_across_rounds_trims_the_tokens_to_the_text() {
        let tokenizer = tokenizer();
        let ids = tokenizer.encode_chat("let x = vec![1, 2]; // end of it").unwrap();
        let stops = owned(&["end of", "]; //"]);
        let singly: Vec<Vec<u32>> = ids.iter().map(|id| vec![*id]).collect();
        for rounds in [vec![ids.clone()], singly] {
            let (_, written, kept) = run(&tokenizer, &rounds, &stops);
            assert_eq!(written.text, "let x = vec![1, 2");
            let keep = written.stopped.unwrap();
            assert_eq!(kept, Some(keep));
            assert!(tokenizer.decode(&ids[..keep], true).starts_with(&written.text));
            assert!(!tokenizer.decode(&ids[..keep - 1], true).starts_with(&written.text));
        }
    }

    #[test]
    fn s13_a_stop_string_at_the_very_beginning_keeps_no_token() {
        let tokenizer = tokenizer();
        let ids = tokenizer.encode_chat("fn main() {}").unwrap();
        let (_, written, kept) = run(&tokenizer, &[ids], &owned(&["fn"]));
        assert_eq!((written.text.as_str(), written.stopped, kept), ("", Some(0), Some(0)));
    }

    #[test]
    fn a_character_is_written_with_its_last_token() {
        let tokenizer = tokenizer();
        let ids = tokenizer.encode_chat("🦀").unwrap();
        assert!(ids.len() > 1, "the vocabulary has no whole crab");
        let rounds: Vec<Vec<u32>> = ids.iter().map(|id| vec![*id]).collect();
        let (seen, written, _) = run(&tokenizer, &rounds, &[]);
        assert!(seen[..seen.len() - 1].iter().all(String::is_empty), "{seen:?}");
        assert_eq!(written.text, "🦀");
        let (_, cut, _) = run(&tokenizer, &rounds[..rounds.len() - 1], &[]);
        assert_eq!(cut.text, "\u{FFFD}");
    }

    #[test]
    fn special_tokens_have_no_text() {
        let tokenizer = tokenizer();
        let bos = tokenizer.bos_id().unwrap();
        let mut ids = tokenizer.encode_chat("ab").unwrap();
        ids.insert(1.min(ids.len()), bos);
        let (_, written, _) = run(&tokenizer, &[ids], &[]);
        assert_eq!(written.text, "ab");
    }

    #[test]
    fn a_writer_that_fails_ends_the_generation_with_its_error() {
        struct Full;
        impl Write for Full {
            fn write(&mut self, _: &[u8]) -> io::Result<usize> {
                Err(io::ErrorKind::StorageFull.into())
            }
            fn flush(&mut self) -> io::Result<()> {
                Ok(())
            }
        }
        let tokenizer = tokenizer();
        let ids = tokenizer.encode_chat("text").unwrap();
        let mut observer = TextObserver::new(&tokenizer, &[], Full);
        assert_eq!(observer.tokens(&ids, ids.len()), Verdict::Interrupt);
        assert_eq!(observer.finish().unwrap_err().kind(), io::ErrorKind::StorageFull);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn s13_rounds_of_any_size_give_the_text_and_tokens_of_one(
            ids in vec(4u32..4096, 1..24),
            cuts in vec(1usize..5, 24),
            stop in vec("[ -~]{1,2}|\\PC", 0..4),
        ) {
            thread_local!(static TOKENIZER: Tokenizer = tokenizer());
            TOKENIZER.with(|tokenizer| {
                let (mut rest, mut rounds) = (&ids[..], Vec::new());
                for cut in &cuts {
                    let (round, after) = rest.split_at((*cut).min(rest.len()));
                    rounds.push(round.to_vec());
                    rest = after;
                }
                rounds.retain(|round| !round.is_empty());
                let (_, split, _) = run(tokenizer, &rounds, &stop);
                let (_, whole, _) = run(tokenizer, std::slice::from_ref(&ids), &stop);
                prop_assert_eq!(&split, &whole);
                let decoded = tokenizer.decode(&ids, true);
                let cut = stop.iter().filter_map(|stop| decoded.find(stop.as_str())).min();
                prop_assert_eq!(&whole.text, &decoded[..cut.unwrap_or(decoded.len())]);
                prop_assert_eq!(whole.stopped.is_some(), cut.is_some());
                Ok(())
            })?;
        }
    }
}
