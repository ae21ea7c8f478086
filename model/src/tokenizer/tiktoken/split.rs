//! Kimi's split of a text into words, by regular expression. How a word becomes ids is not known here.

use std::iter;

use regex_automata::meta::Regex;
use regex_automata::{Anchored, Input};

/// The published pattern, an alternative a line; the first that matches wins. Its `\s+(?!\S)|\s+` is the last line here:
/// [`Splitter::split`] does what the look-ahead would.
const ALTERNATIVES: [&str; 7] = [
    r"[\p{Han}]+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}",
    r" ?[^\s\p{L}\p{N}]+[\r\n]*",
    r"\s*[\r\n]+",
    r"\s+",
];
/// The place of `\s+` in them.
const WHITESPACE: usize = ALTERNATIVES.len() - 1;

/// The compiled pattern.
pub(super) struct Splitter(Regex);

impl Splitter {
    pub(super) fn new() -> Result<Self, String> {
        Regex::new_many(&ALTERNATIVES).map(Self).map_err(|e| format!("split pattern: {e}"))
    }

    /// The words of `text`, which together are the text; in time linear in its length.
    pub(super) fn split<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let mut start = 0;
        iter::from_fn(move || {
            // Every character begins some alternative, so there is a match at the start of whatever is left.
            let found = self.0.search_half(&Input::new(text).range(start..).anchored(Anchored::Yes))?;
            let mut end = found.offset();
            if found.pattern().as_usize() == WHITESPACE && end < text.len() {
                // `\s+(?!\S)` leaves the last space to the word that follows, unless it is the only one.
                let last = text[start..end].char_indices().next_back().map_or(0, |(at, _)| at);
                end = if last > 0 { start + last } else { end };
            }
            let word = &text[start..end];
            start = end;
            Some(word)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_character_is_lost() {
        let splitter = Splitter::new().unwrap();
        let mut buffer = [0; 4];
        for character in '\0'..=char::MAX {
            let text = &*character.encode_utf8(&mut buffer);
            assert_eq!(splitter.split(text).next(), Some(text), "{character:?}");
        }
        assert_eq!(splitter.split("").next(), None);
    }

    #[test]
    fn words_are_those_of_the_pattern() {
        let cases = [
            ("汉字abc汉", "汉字|abc|汉"),
            ("HelloWORLDit'S'LL", "Hello|WORLDit'S|'LL"),
            ("I'll DON'T we've\u{301}", "I'll| DON'T| we've|\u{301}"),
            ("1234567a", "123|456|7|a"),
            ("a  b   \n\n  c ", "a| | b|   \n\n| | c| "),
            (" \u{3000}\u{a0}x\t\ty", " \u{3000}|\u{a0}x|\t|\ty"),
            ("x != y;\r\n\r\n}", "x| !=| y|;\r\n\r\n|}"),
            ("ǅungla ʰa 々字 Ⅷ", "ǅungla| ʰa| |々字| |Ⅷ"),
        ];
        let splitter = Splitter::new().unwrap();
        for (text, expected) in cases {
            assert_eq!(splitter.split(text).collect::<Vec<_>>().join("|"), expected);
        }
    }
}
