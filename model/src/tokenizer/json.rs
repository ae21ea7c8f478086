//! `tokenizer.json`, read and run by the `tokenizers` crate.

use serde::Deserialize;
use serde_json::Value;
use tokenizers::{Model, PostProcessorWrapper};

use super::decoder::TokenDecoder;
use super::table::TokenTable;
use super::{Encode, Parts};

struct JsonEncoder(tokenizers::Tokenizer);

impl Encode for JsonEncoder {
    fn encode(&self, text: &str) -> Result<Vec<u32>, String> {
        let encoding = self.0.encode_fast(text, false).map_err(|e| e.to_string())?;
        Ok(encoding.get_ids().to_vec())
    }
}

/// The parts of the file that are read here and not by the crate.
#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<AddedToken>,
    /// Read to know that it is JSON: the crate panics where it is not.
    #[serde(default, rename = "decoder")]
    _decoder: Value,
    #[serde(default)]
    post_processor: Value,
}

#[derive(Deserialize)]
struct AddedToken {
    id: u32,
    content: String,
}

/// Reads the bytes of a tokenizer.json; the error is a message without the path.
pub(super) fn load(bytes: &[u8]) -> Result<Parts, String> {
    let file: File = serde_json::from_slice(bytes).map_err(|e| e.to_string())?;
    let mut tokenizer = tokenizers::Tokenizer::from_bytes(bytes).map_err(|e| e.to_string())?;
    // Files saved while training may cut or pad every text, which a prompt must never be.
    tokenizer.with_truncation(None).map_err(|e| e.to_string())?;
    tokenizer.with_padding(None);
    tokenizer.with_post_processor(None::<PostProcessorWrapper>);
    check_added_ids(&tokenizer, file.added_tokens)?;
    let tokens = token_table(&tokenizer)?;
    let prefix = post_processor_prefix(&file.post_processor);
    Ok(Parts { encoder: Box::new(JsonEncoder(tokenizer)), tokens, prefix })
}

/// The crate numbers added tokens itself and passes over an id that the file states otherwise.
fn check_added_ids(tokenizer: &tokenizers::Tokenizer, added: Vec<AddedToken>) -> Result<(), String> {
    for AddedToken { id, content } in added {
        if let Some(actual) = tokenizer.token_to_id(&content).filter(|&actual| actual != id) {
            return Err(format!(
                "added token {content:?} has id {id}, expected {actual} (its place in the vocabulary)"
            ));
        }
    }
    Ok(())
}

fn token_table(tokenizer: &tokenizers::Tokenizer) -> Result<TokenTable, String> {
    let decoder = TokenDecoder::new(tokenizer.get_decoder())?;
    let mut tokens = TokenTable::default();
    for (text, id) in tokenizer.get_model().get_vocab() {
        tokens.insert(id, &decoder.bytes(&text)?, false)?;
    }
    for (id, added) in tokenizer.get_added_tokens_decoder() {
        let literal = added.special || decoder.is_byte_level();
        let bytes = if literal { added.content.into_bytes() } else { decoder.bytes(&added.content)? };
        tokens.insert(id, &bytes, added.special)?;
    }
    Ok(tokens)
}

/// The token that a `post_processor` puts before a text, if it puts any.
fn post_processor_prefix(processor: &Value) -> Option<u32> {
    let id = match processor["type"].as_str()? {
        "TemplateProcessing" => {
            let token = processor["single"][0]["SpecialToken"]["id"].as_str()?;
            &processor["special_tokens"][token]["ids"][0]
        }
        "BertProcessing" | "RobertaProcessing" => &processor["cls"][1],
        "Sequence" => return processor["processors"].as_array()?.iter().find_map(post_processor_prefix),
        _ => return None,
    };
    id.as_u64().and_then(|id| u32::try_from(id).ok())
}
