//! Special tokens: their names and ids, and where a text has them. What lies between them is tokenised elsewhere.

use aho_corasick::{AhoCorasick, MatchKind};
use serde::Deserialize;
use serde_json::{Map, Value};

/// A token beside the ranks.
pub(super) struct AddedToken {
    pub id: u32,
    pub content: String,
    /// Markup and not text. Thoughts and tool calls are fenced by tokens that are not.
    pub special: bool,
}

impl AddedToken {
    /// The token of an id that the configuration does not name.
    pub(super) fn reserved(id: u32) -> Self {
        Self { id, content: format!("<|reserved_token_{id}|>"), special: false }
    }

    /// Reads `added_tokens_decoder` of tokenizer_config.json: ids, as strings, to names.
    pub(super) fn parse_all(decoder: Option<&Value>) -> Result<Vec<Self>, String> {
        let Some(decoder) = decoder else { return Ok(Vec::new()) };
        let map = Map::deserialize(decoder)
            .map_err(|_| format!("added_tokens_decoder is {decoder}, expected an object of ids and tokens"))?;
        let mut tokens: Vec<Self> = Vec::with_capacity(map.len());
        for (key, value) in map {
            let token = Self::parse(&key, value).map_err(|message| format!("added_tokens_decoder.{key} {message}"))?;
            if let Some(first) = tokens.iter().find(|first| first.content == token.content || first.id == token.id) {
                return Err(format!(
                    "added_tokens_decoder gives {:?} id {} and {:?} id {}, expected one name an id",
                    first.content, first.id, token.content, token.id
                ));
            }
            tokens.push(token);
        }
        Ok(tokens)
    }

    fn parse(key: &str, value: Value) -> Result<Self, String> {
        #[derive(Deserialize)]
        struct Entry {
            content: String,
            #[serde(default)]
            special: bool,
            /// These three would change the text around the token; no tiktoken model sets them.
            #[serde(default)]
            lstrip: bool,
            #[serde(default)]
            rstrip: bool,
            #[serde(default)]
            single_word: bool,
        }
        let id = key.parse().map_err(|_| "is not named by an id")?;
        let entry = Entry::deserialize(value).map_err(|e| format!("is malformed: {e}"))?;
        if entry.content.is_empty() {
            return Err("has an empty content, expected the name of a token".to_owned());
        }
        if entry.lstrip || entry.rstrip || entry.single_word {
            return Err("sets lstrip, rstrip or single_word, expected none of them beside tiktoken.model".to_owned());
        }
        Ok(Self { id, content: entry.content, special: entry.special })
    }
}

/// A part of a text.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Piece<'t> {
    /// Text between special tokens; not empty.
    Text(&'t str),
    /// The id of a special token.
    Special(u32),
}

/// Finds names of special tokens; the longest where several begin.
pub(super) struct SpecialTokens {
    names: AhoCorasick,
    ids: Vec<u32>,
}

impl SpecialTokens {
    pub(super) fn new(tokens: &[AddedToken]) -> Result<Self, String> {
        let names = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .build(tokens.iter().map(|token| &token.content))
            .map_err(|e| format!("names of special tokens: {e}"))?;
        Ok(Self { names, ids: tokens.iter().map(|token| token.id).collect() })
    }

    /// The parts of `text`, in order.
    pub(super) fn split<'t>(&self, text: &'t str) -> impl Iterator<Item = Piece<'t>> {
        let mut at = 0;
        let specials = self.names.find_iter(text).map(|found| (found.range(), Some(self.ids[found.pattern()])));
        specials
            .chain([(text.len()..text.len(), None)])
            .flat_map(move |(range, id)| {
                let before = &text[at..range.start];
                at = range.end;
                [(!before.is_empty()).then_some(Piece::Text(before)), id.map(Piece::Special)]
            })
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_found_wherever_they_stand_and_the_longest_of_several() {
        let named = |id: u32, content: &str| AddedToken { id, content: content.to_owned(), special: true };
        let tokens = SpecialTokens::new(&[named(7, "<a>"), named(8, "<a><b>"), named(9, "漢")]).unwrap();
        let shown = |text: &str| -> String {
            let pieces = tokens.split(text).map(|piece| match piece {
                Piece::Text(text) => format!("{text:?} "),
                Piece::Special(id) => format!("{id} "),
            });
            pieces.collect()
        };
        assert_eq!(shown("<a>x<a><b><a><a"), "7 \"x\" 8 7 \"<a\" ");
        assert_eq!(shown("字漢漢字"), "\"字\" 9 9 \"字\" ");
        assert_eq!(shown("text"), "\"text\" ");
        assert_eq!(shown(""), "");
        let none = SpecialTokens::new(&[]).unwrap();
        assert_eq!(none.split("<a>").collect::<Vec<_>>(), [Piece::Text("<a>")]);
    }
}
