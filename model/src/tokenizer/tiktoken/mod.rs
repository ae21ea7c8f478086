//! `tiktoken.model` and its special tokens, tokenised as Kimi's published `TikTokenTokenizer` does. The rank file, the cuts
//! of a text and the merging of bytes have a file each.

mod merge;
mod ranks;
mod special;
mod split;
mod window;

use serde_json::Value;

use super::table::TokenTable;
use super::{Encode, Parts};
use merge::merge;
use ranks::Ranks;
use special::{AddedToken, Piece, SpecialTokens};
use split::Splitter;
use window::windows;

/// How many ids after the ranks are special, named or not.
const SPECIAL_IDS: u32 = 256;

/// Which file is wrong, and how.
pub(super) enum Refused {
    /// tiktoken.model.
    Ranks(String),
    /// tokenizer_config.json.
    Config(String),
}

/// Text to ids in the order of the published code: named special tokens are taken out of the text, what lies between is cut
/// into [`windows`], reserved names are taken out of those, and the rest is split by [`Splitter`] and [`merge`]d.
struct TiktokenEncoder {
    named: SpecialTokens,
    reserved: SpecialTokens,
    splitter: Splitter,
    ranks: Ranks,
}

impl Encode for TiktokenEncoder {
    fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        let mut ids = Vec::new();
        for piece in self.named.split(text) {
            match piece {
                Piece::Special(id) => ids.push(id),
                Piece::Text(text) => windows(text).for_each(|window| self.encode_window(window, &mut ids)),
            }
        }
        Ok(ids)
    }
}

impl TiktokenEncoder {
    fn encode_window(&self, window: &str, ids: &mut Vec<u32>) {
        for piece in self.reserved.split(window) {
            match piece {
                Piece::Special(id) => ids.push(id),
                Piece::Text(text) => {
                    self.splitter.split(text).for_each(|word| merge(&self.ranks, word.as_bytes(), ids));
                }
            }
        }
    }
}

/// Reads the bytes of a tiktoken.model and the `added_tokens_decoder` of tokenizer_config.json, which names some of the ids
/// after the ranks; the others are called `<|reserved_token_N|>` and are no markup, so that they stay visible.
pub(super) fn load(bytes: &[u8], added_tokens_decoder: Option<&Value>) -> Result<Parts, Refused> {
    let ranks = Ranks::parse(bytes).map_err(Refused::Ranks)?;
    let first = ranks.count();
    let added = AddedToken::parse_all(added_tokens_decoder).map_err(Refused::Config)?;
    for AddedToken { id, content, .. } in &added {
        if *id < first {
            let line = ranks::line_of(bytes, *id);
            return Err(Refused::Ranks(format!(
                "line {line} has rank {id}, the id of {content:?} in tokenizer_config.json, expected every rank below it"
            )));
        }
        if *id >= first + SPECIAL_IDS {
            return Err(Refused::Config(format!(
                "added_tokens_decoder gives {content:?} id {id}, expected {first} to {} (after the {first} ranks of \
                 tiktoken.model)",
                first + SPECIAL_IDS - 1
            )));
        }
    }
    let reserved: Vec<AddedToken> = (first..first + SPECIAL_IDS)
        .filter(|id| added.iter().all(|token| token.id != *id))
        .map(AddedToken::reserved)
        .collect();
    let tokens = token_table(&ranks, added.iter().chain(&reserved)).map_err(Refused::Ranks)?;
    let encoder = TiktokenEncoder {
        named: SpecialTokens::new(&added).map_err(Refused::Config)?,
        reserved: SpecialTokens::new(&reserved).map_err(Refused::Config)?,
        splitter: Splitter::new().map_err(Refused::Ranks)?,
        ranks,
    };
    Ok(Parts { encoder: Box::new(encoder), tokens, prefix: None })
}

fn token_table<'a>(ranks: &Ranks, special: impl Iterator<Item = &'a AddedToken>) -> Result<TokenTable, String> {
    let mut table = TokenTable::with_capacity((ranks.count() + SPECIAL_IDS) as usize);
    for (token, rank) in ranks.iter() {
        table.insert(rank, token, false)?;
    }
    for AddedToken { id, content, special } in special {
        table.insert(*id, content.as_bytes(), *special)?;
    }
    Ok(table)
}
