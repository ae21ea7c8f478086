//! Stop strings in text that arrives piece by piece. Tokens and where the text goes live in `text`.

/// Cuts a text before the first position at which any stop string begins.
///
/// The earliest beginning wins, so stop strings that begin at the same place cut alike, and the result is that of a
/// search in the whole text however it was split. Text is held back only from the first position at which a stop string
/// may still be completed.
#[derive(Debug, Clone)]
pub struct StopMatcher {
    stops: Vec<String>,
    /// Text that may turn out to begin a stop string.
    held: String,
    matched: bool,
}

/// What a position in the text is.
enum Position {
    /// No stop string begins here.
    Text,
    /// One would, if the right text followed.
    Undecided,
    /// One does.
    Stop,
}

impl StopMatcher {
    /// A matcher of `stops`; empty ones match nothing.
    pub fn new(stops: &[String]) -> Self {
        let stops = stops.iter().filter(|stop| !stop.is_empty()).cloned().collect();
        Self { stops, held: String::new(), matched: false }
    }

    /// Whether a stop string has been found; nothing is text after that.
    pub fn matched(&self) -> bool {
        self.matched
    }

    /// Takes the next piece of the text and returns what of it, and of pieces before, is certainly text.
    pub fn push(&mut self, piece: &str) -> String {
        self.held.push_str(piece);
        self.release(false)
    }

    /// Ends the text and returns what was still held back: the beginning of a stop string that never came to its end.
    pub fn finish(&mut self) -> String {
        self.release(true)
    }

    fn release(&mut self, ended: bool) -> String {
        if self.matched {
            self.held.clear();
            return String::new();
        }
        for (at, _) in self.held.char_indices() {
            match self.position(&self.held[at..]) {
                Position::Stop => {
                    self.matched = true;
                    self.held.truncate(at);
                    return std::mem::take(&mut self.held);
                }
                Position::Undecided if !ended => {
                    let held = self.held.split_off(at);
                    return std::mem::replace(&mut self.held, held);
                }
                Position::Undecided | Position::Text => {}
            }
        }
        std::mem::take(&mut self.held)
    }

    fn position(&self, rest: &str) -> Position {
        if self.stops.iter().any(|stop| rest.starts_with(stop.as_str())) {
            Position::Stop
        } else if self.stops.iter().any(|stop| stop.starts_with(rest)) {
            Position::Undecided
        } else {
            Position::Text
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn stops(list: &[&str]) -> Vec<String> {
        list.iter().map(|stop| (*stop).to_owned()).collect()
    }

    /// Where the whole text is to be cut.
    fn reference(text: &str, stops: &[String]) -> Option<usize> {
        stops.iter().filter_map(|stop| text.find(stop.as_str())).min()
    }

    /// What each piece released, what `finish` released, and whether a stop was found.
    fn run(pieces: &[&str], stops: &[String]) -> (Vec<String>, String, bool) {
        let mut matcher = StopMatcher::new(stops);
        let pushed = pieces.iter().map(|piece| matcher.push(piece)).collect();
        let rest = matcher.finish();
        (pushed, rest, matcher.matched())
    }

    #[test]
    fn s13_the_earliest_stop_wins_in_whatever_order_they_are_given() {
        let cases: &[(&[&str], &[&str], &str, bool)] = &[
            (&["bc", "a"], &["xabc"], "x", true),
            (&["a", "bc"], &["xabc"], "x", true),
            (&["bc"], &["xab", "cd"], "xa", true),
            (&["abcd", "bc"], &["abc", "d"], "", true),
            (&["abcd", "bc"], &["abc", "x"], "a", true),
            (&["abcd", "bc"], &["abc"], "a", true),
            (&["ab", "abc"], &["xabc"], "x", true),
            (&["aab"], &["aaa", "ab"], "aa", true),
            (&["end"], &["the en"], "the en", false),
            (&["\n\n"], &["a\n", "b\n", "\nc"], "a\nb", true),
            (&["🦀"], &["a🦀b"], "a", true),
            (&["é!"], &["é", "?"], "é?", false),
            (&[], &["a", "b"], "ab", false),
            (&["", "b"], &["ab"], "a", true),
        ];
        let mut failed = Vec::new();
        for (stop, pieces, want, found) in cases {
            let (pushed, rest, matched) = run(pieces, &stops(stop));
            let got = pushed.concat() + &rest;
            if (got.as_str(), matched) != (*want, *found) {
                failed.push(format!("{stop:?} on {pieces:?}: {got:?} {matched}, expected {want:?} {found}"));
            }
        }
        assert!(failed.is_empty(), "{failed:#?}");
    }

    #[test]
    fn only_what_may_become_a_stop_string_is_held_back() {
        let (pushed, rest, _) = run(&["ab", "</", "d", " </st", "op", "!"], &stops(&["</stop>"]));
        assert_eq!(pushed, ["ab", "", "</d", " ", "", "</stop!"]);
        assert_eq!(rest, "");
    }

    #[test]
    fn nothing_is_text_after_a_stop() {
        let mut matcher = StopMatcher::new(&stops(&["."]));
        assert_eq!(matcher.push("a.b"), "a");
        assert_eq!(matcher.push("c"), "");
        assert_eq!(matcher.finish(), "");
    }

    proptest! {
        #[test]
        fn any_split_gives_the_result_of_a_search_in_the_whole_text(
            pieces in vec("[abé🦀]{0,4}", 0..8),
            stop in vec("[abé🦀]{1,4}", 0..4),
        ) {
            let whole = pieces.concat();
            let pieces: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let (pushed, rest, matched) = run(&pieces, &stop);
            let cut = reference(&whole, &stop);
            let text = pushed.concat() + &rest;
            prop_assert_eq!(text.as_str(), &whole[..cut.unwrap_or(whole.len())]);
            prop_assert_eq!(matched, cut.is_some());
        }

        #[test]
        fn what_is_held_back_is_no_longer_than_it_must_be(text in "[ab]{0,12}", stop in vec("[ab]{2,4}", 1..4)) {
            let mut matcher = StopMatcher::new(&stop);
            let shown = matcher.push(&text);
            if !matcher.matched() {
                let could_begin = |at: usize| stop.iter().any(|s| {
                    let rest = &text[at..];
                    s.starts_with(rest) || rest.starts_with(s.as_str())
                });
                let first = (0..text.len()).find(|at| could_begin(*at)).unwrap_or(text.len());
                prop_assert_eq!(shown.len(), first);
            }
        }
    }
}
