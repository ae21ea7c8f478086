//! Token id to bytes.

use std::borrow::Cow;

/// One entry of the vocabulary.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Token {
    /// What the token adds to a text; not always whole characters.
    pub bytes: Vec<u8>,
    /// Markup (beginning of text, end of turn, ...) and not text.
    pub special: bool,
}

/// The vocabulary by id; ids that no token has are gaps.
#[derive(Debug, Clone, Default)]
pub(super) struct TokenTable(Vec<Option<Token>>);

impl TokenTable {
    /// Ids from here on are refused, so that a damaged file cannot ask for gigabytes of gaps.
    const MAX_ID: u32 = 1 << 24;

    /// Sets the token of `id`, replacing what was there.
    pub(super) fn insert(&mut self, id: u32, token: Token) -> Result<(), String> {
        if id >= Self::MAX_ID {
            let text = String::from_utf8_lossy(&token.bytes);
            return Err(format!("token {text:?} has id {id}, expected below {}", Self::MAX_ID));
        }
        let index = id as usize;
        if index >= self.0.len() {
            self.0.resize(index + 1, None);
        }
        self.0[index] = Some(token);
        Ok(())
    }

    /// One past the highest id.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, id: u32) -> Option<&Token> {
        self.0.get(id as usize)?.as_ref()
    }

    /// Bytes of `id`; a gap or an id past the end reads `<|reserved_token_N|>`.
    pub(super) fn bytes(&self, id: u32) -> Cow<'_, [u8]> {
        match self.get(id) {
            Some(token) => Cow::Borrowed(&token.bytes),
            None => Cow::Owned(format!("<|reserved_token_{id}|>").into_bytes()),
        }
    }

    /// Whether `id` is a special token; gaps are not, so that they stay visible.
    pub(super) fn special(&self, id: u32) -> bool {
        self.get(id).is_some_and(|token| token.special)
    }

    /// Lowest id whose bytes are `text`, special tokens first.
    pub(super) fn find(&self, text: &str) -> Option<u32> {
        let matches = |special: bool| {
            self.0
                .iter()
                .position(|token| token.as_ref().is_some_and(|t| t.special == special && t.bytes == text.as_bytes()))
        };
        matches(true).or_else(|| matches(false)).and_then(|index| u32::try_from(index).ok())
    }
}
