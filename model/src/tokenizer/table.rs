//! Token id to bytes.

use std::borrow::Cow;

/// The vocabulary by id; ids that no token has are gaps. Vocabularies are large and tokens short, so all bytes lie together.
#[derive(Debug, Clone, Default)]
pub(super) struct TokenTable {
    entries: Vec<Option<Entry>>,
    bytes: Vec<u8>,
}

/// One token: where its bytes lie in those of the table.
#[derive(Debug, Clone, Copy)]
struct Entry {
    start: u32,
    length: u32,
    special: bool,
}

impl TokenTable {
    /// Ids from here on are refused, so that a damaged file cannot ask for gigabytes of gaps.
    const MAX_ID: u32 = 1 << 24;

    /// A table that has room for the ids below `ids`.
    pub(super) fn with_capacity(ids: usize) -> Self {
        Self { entries: Vec::with_capacity(ids), bytes: Vec::new() }
    }

    /// Sets what the token of `id` adds to a text, which need not be whole characters, and whether it is markup (beginning
    /// of text, end of turn, ...) and not text; replaces what was there.
    pub(super) fn insert(&mut self, id: u32, token: &[u8], special: bool) -> Result<(), String> {
        if id >= Self::MAX_ID {
            let text = String::from_utf8_lossy(token);
            return Err(format!("token {text:?} has id {id}, expected below {}", Self::MAX_ID));
        }
        let (Ok(start), Ok(length)) = (u32::try_from(self.bytes.len()), u32::try_from(token.len())) else {
            return Err(format!("token {id} does not fit into 4 GiB with the tokens before it"));
        };
        let index = id as usize;
        if index >= self.entries.len() {
            self.entries.resize(index + 1, None);
        }
        self.entries[index] = Some(Entry { start, length, special });
        self.bytes.extend_from_slice(token);
        Ok(())
    }

    /// One past the highest id.
    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    fn get(&self, id: u32) -> Option<Entry> {
        *self.entries.get(id as usize)?
    }

    fn slice(&self, Entry { start, length, .. }: Entry) -> &[u8] {
        &self.bytes[start as usize..][..length as usize]
    }

    /// Bytes of `id`; a gap or an id past the end reads `<|reserved_token_N|>`.
    pub(super) fn bytes(&self, id: u32) -> Cow<'_, [u8]> {
        match self.get(id) {
            Some(entry) => Cow::Borrowed(self.slice(entry)),
            None => Cow::Owned(format!("<|reserved_token_{id}|>").into_bytes()),
        }
    }

    /// Whether `id` is a special token; gaps are not, so that they stay visible.
    pub(super) fn special(&self, id: u32) -> bool {
        self.get(id).is_some_and(|entry| entry.special)
    }

    /// Lowest id whose bytes are `text`, special tokens first.
    pub(super) fn find(&self, text: &str) -> Option<u32> {
        let matches = |special: bool| {
            let found = |entry: &Entry| entry.special == special && self.slice(*entry) == text.as_bytes();
            self.entries.iter().position(|entry| entry.as_ref().is_some_and(found))
        };
        matches(true).or_else(|| matches(false)).and_then(|index| u32::try_from(index).ok())
    }
}
