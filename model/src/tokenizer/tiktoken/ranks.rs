//! The rank file `tiktoken.model`: a line a token, its bytes in base64 and its rank, which is its id. Special tokens are not
//! in it.

use std::collections::HashMap;
use std::mem;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Rank of every ordinary token by its bytes. All 256 single bytes are tokens, so every text has ids.
pub(super) struct Ranks(HashMap<Box<[u8]>, u32>);

impl Ranks {
    /// Reads the bytes of a rank file, lines in any order.
    ///
    /// Ranks must be 0 to one less than the number of tokens, since the ids of special tokens follow. Stricter than
    /// tiktoken's reader in base64, which may not have foreign characters, and in repeated tokens.
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, String> {
        let text = str::from_utf8(bytes).map_err(|e| {
            let line = 1 + bytes[..e.valid_up_to()].iter().filter(|&&byte| byte == b'\n').count();
            format!("line {line} is not text, expected a base64 token and its rank")
        })?;
        let count = lines(text).count();
        let mut seen = vec![false; count];
        let mut ranks = HashMap::with_capacity(count);
        for (line, content) in lines(text) {
            let (token, rank) = parse_line(content).map_err(|message| format!("line {line} {message}"))?;
            let seen = seen.get_mut(rank as usize).ok_or_else(|| {
                format!("line {line} has rank {rank}, expected below {count}, the number of tokens in the file")
            })?;
            if mem::replace(seen, true) {
                return Err(format!("line {line} has rank {rank} again, first given on line {}", line_of(bytes, rank)));
            }
            if let Some(first) = ranks.insert(token, rank) {
                let first_line = line_of(bytes, first);
                return Err(format!("line {line} has the token of line {first_line} again, expected one rank a token"));
            }
        }
        // As many lines as ranks and none twice: there are no gaps.
        if let Some(byte) = (0..=u8::MAX).find(|&byte| !ranks.contains_key([byte].as_slice())) {
            return Err(format!("no line has the token of the single byte 0x{byte:02X}, expected all 256 bytes"));
        }
        Ok(Self(ranks))
    }

    /// How many tokens there are; one past the highest rank.
    pub(super) fn count(&self) -> u32 {
        self.0.len() as u32
    }

    /// Tokens and their ranks, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], u32)> {
        self.0.iter().map(|(token, &rank)| (token.as_ref(), rank))
    }

    /// The rank of the token that is `bytes`, if there is one.
    pub(super) fn get(&self, bytes: &[u8]) -> Option<u32> {
        self.0.get(bytes).copied()
    }

    /// Single bytes, then `tokens`, in order; repeated ones are left out.
    #[cfg(test)]
    pub(super) fn of_bytes_and(tokens: Vec<Vec<u8>>) -> Self {
        let mut ranks = HashMap::new();
        for token in (0..=u8::MAX).map(|byte| vec![byte]).chain(tokens) {
            let rank = ranks.len() as u32;
            ranks.entry(token.into_boxed_slice()).or_insert(rank);
        }
        Self(ranks)
    }
}

/// Lines with something on them, and their numbers from 1.
fn lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    (1..).zip(text.lines()).filter(|(_, line)| !line.is_empty())
}

/// The message continues "line N ".
fn parse_line(line: &str) -> Result<(Box<[u8]>, u32), String> {
    let mut fields = line.split_ascii_whitespace();
    let (Some(token), Some(rank), None) = (fields.next(), fields.next(), fields.next()) else {
        return Err(format!("is {line:?}, expected a base64 token and its rank"));
    };
    let bytes = STANDARD.decode(token).map_err(|e| format!("has token {token:?}, which is not base64: {e}"))?;
    let rank = rank.parse().map_err(|e| format!("has rank {rank:?}, expected a number: {e}"))?;
    Ok((bytes.into_boxed_slice(), rank))
}

/// The first line that has `rank`; for messages, so 0 if none does.
pub(super) fn line_of(bytes: &[u8], rank: u32) -> usize {
    let text = str::from_utf8(bytes).unwrap_or_default();
    lines(text).find(|(_, line)| parse_line(line).is_ok_and(|(_, found)| found == rank)).map_or(0, |(line, _)| line)
}
