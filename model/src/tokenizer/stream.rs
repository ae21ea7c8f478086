//! Bytes of tokens to text, piece by piece, without ever showing half a character. Knows UTF-8, not tokens.

use std::mem;

/// Decodes a stream of bytes as UTF-8.
///
/// What [`push`](Self::push) and [`finish`](Self::finish) return, put together, is [`String::from_utf8_lossy`] of all bytes
/// pushed, wherever the pushes split them: invalid bytes become U+FFFD. A character is returned by the push that completes it.
#[derive(Debug, Clone, Default)]
pub struct TextStream {
    /// The start of a character whose other bytes have not come yet; at most three bytes.
    partial: Vec<u8>,
}

impl TextStream {
    /// An empty stream.
    pub fn new() -> Self {
        Self::default()
    }

    /// The text that `bytes` completes; empty while a character is under way.
    pub fn push(&mut self, bytes: &[u8]) -> String {
        self.partial.extend_from_slice(bytes);
        let bytes = mem::take(&mut self.partial);
        let mut text = String::with_capacity(bytes.len());
        let mut chunks = bytes.utf8_chunks().peekable();
        while let Some(chunk) = chunks.next() {
            text.push_str(chunk.valid());
            let invalid = chunk.invalid();
            let may_continue = str::from_utf8(invalid).is_err_and(|e| e.error_len().is_none());
            if may_continue && chunks.peek().is_none() {
                self.partial = invalid.to_vec();
            } else if !invalid.is_empty() {
                text.push(char::REPLACEMENT_CHARACTER);
            }
        }
        text
    }

    /// Ends the stream: U+FFFD if a character was left incomplete, else nothing.
    pub fn finish(self) -> String {
        if self.partial.is_empty() { String::new() } else { char::REPLACEMENT_CHARACTER.to_string() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::collection::vec;
    use proptest::prelude::*;

    /// Bytes before the tail that could still become a character.
    fn without_partial_tail(bytes: &[u8]) -> &[u8] {
        let chunk = bytes.utf8_chunks().last();
        let tail = chunk.map_or(0, |c| c.invalid().len());
        // A maximal invalid prefix is a partial character exactly when some continuation would complete it.
        let completable = |tail: &[u8]| {
            (1..=3).any(|missing| {
                [0x80, 0x90, 0xA0, 0xBF].iter().any(|&byte| {
                    let mut whole = tail.to_vec();
                    whole.extend(std::iter::repeat_n(byte, missing));
                    str::from_utf8(&whole).is_ok_and(|s| s.chars().count() == 1)
                })
            })
        };
        let split = bytes.len() - tail;
        if tail > 0 && completable(&bytes[split..]) { &bytes[..split] } else { bytes }
    }

    fn check(chunks: &[Vec<u8>]) -> Result<(), TestCaseError> {
        let mut stream = TextStream::new();
        let (mut seen, mut shown) = (Vec::new(), String::new());
        for chunk in chunks {
            seen.extend_from_slice(chunk);
            shown += &stream.push(chunk);
            prop_assert_eq!(&*shown, &*String::from_utf8_lossy(without_partial_tail(&seen)), "after {:x?}", seen);
        }
        shown += &stream.finish();
        prop_assert_eq!(&*shown, &*String::from_utf8_lossy(&seen));
        Ok(())
    }

    /// Random bytes rarely form characters, so leads, continuations and the bytes around the gaps of UTF-8 are favoured.
    fn byte() -> impl Strategy<Value = u8> {
        prop_oneof![
            any::<u8>(),
            0x80..=0xBFu8,
            prop::sample::select(vec![0xC0, 0xC2, 0xDF, 0xE0, 0xE4, 0xED, 0xEF, 0xF0, 0xF4, 0xF5]),
        ]
    }

    proptest! {
        #[test]
        fn any_bytes_in_any_split_read_as_the_whole(chunks in vec(vec(byte(), 0..6), 0..12)) {
            check(&chunks)?;
        }

        #[test]
        fn any_text_in_any_split_reads_as_the_whole(text in any::<String>(), cut in 1..5usize) {
            let chunks: Vec<Vec<u8>> = text.as_bytes().chunks(cut).map(<[u8]>::to_vec).collect();
            check(&chunks)?;
        }
    }

    #[test]
    fn a_character_appears_with_its_last_byte_and_not_before() {
        let mut stream = TextStream::new();
        let bytes = "!🦀.".as_bytes();
        let shown: Vec<String> = bytes.iter().map(|&b| stream.push(&[b])).collect();
        assert_eq!(shown, ["!", "", "", "", "🦀", "."]);
        assert_eq!(stream.finish(), "");
    }

    #[test]
    fn a_character_cut_off_by_another_is_replaced_at_once() {
        let mut stream = TextStream::new();
        assert_eq!(stream.push(&[0xF0, 0x9F]), "");
        assert_eq!(stream.push(b"a"), "\u{FFFD}a");
        assert_eq!(stream.push(&[0xE4, 0xB8]), "");
        assert_eq!(stream.finish(), "\u{FFFD}");
    }
}
