//! `tokenizer.json`, read and run by the `tokenizers` crate.

use serde::Deserialize;
use tokenizers::Model;

use super::decoder::TokenDecoder;
use super::table::{Token, TokenTable};
use super::{Encode, Parts};

struct JsonEncoder(tokenizers::Tokenizer);

impl Encode for JsonEncoder {
    fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        let encoding = self.0.encode_fast(text, false).map_err(|e| e.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }
}

/// Reads the bytes of a tokenizer.json; the error is a message without the path.
pub(super) fn load(bytes: &[u8]) -> Result<Parts, String> {
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(bytes).map_err(|e| e.to_string())?;
    check_added_ids(&tokenizer, bytes)?;
    // Files saved while training may cut or pad every text, which a prompt must never be.
    tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
    tokenizer.with_padding(None);
    let tokens = token_table(&tokenizer)?;
    let prefix = post_processor_prefix(&tokenizer)?;
    Ok(Parts { encoder: Box::new(JsonEncoder(tokenizer)), tokens, prefix })
}

/// The crate numbers added tokens itself and passes over an id that the file states otherwise.
fn check_added_ids(tokenizer: &tokenizers::Tokenizer, bytes: &[u8]) -> Result<(), String> {
    #[derive(Deserialize)]
    struct File {
        #[serde(default)]
        added_tokens: Vec<AddedToken>,
    }
    #[derive(Deserialize)]
    struct AddedToken {
        id: u32,
        content: String,
    }
    let file: File = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    for AddedToken { id, content } in file.added_tokens {
        match tokenizer.token_to_id(&content) {
            Some(actual) if actual != id => {
                return Err(format!(
                    "added token {content:?} has id {id}, expected {actual} (its place in the vocabulary)"
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

fn token_table(tokenizer: &tokenizers::Tokenizer) -> Result<TokenTable, String> {
    let decoder = TokenDecoder::new(tokenizer.get_decoder())?;
    let mut tokens = TokenTable::default();
    for (text, id) in tokenizer.get_model().get_vocab() {
        tokens.insert(id, Token { bytes: decoder.bytes(&text)?, special: false })?;
    }
    for (id, added) in tokenizer.get_added_tokens_decoder() {
        let literal = added.special || decoder.is_byte_level();
        let bytes = if literal { added.content.into_bytes() } else { decoder.bytes(&added.content)? };
        tokens.insert(id, Token { bytes, special: added.special })?;
    }
    Ok(tokens)
}

/// The first id that the post-processor puts before a text, if it puts any.
fn post_processor_prefix(tokenizer: &tokenizers::Tokenizer) -> Result<Option<u32>, String> {
    let ids = |special| match tokenizer.encode_fast("a", special) {
        Ok(encoding) => Ok(encoding.get_ids().to_vec()),
        Err(error) => Err(error.to_string()),
    };
    let (plain, processed) = (ids(false)?, ids(true)?);
    Ok(if processed.starts_with(&plain) { None } else { processed.first().copied() })
}
