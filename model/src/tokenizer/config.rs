//! The keys of `tokenizer_config.json` that decide which special tokens exist and what surrounds a text.

use std::path::Path;

use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{Error, Result};

/// Keys that name one special token, as Hugging Face's `special_tokens_map` has them.
const SPECIAL_TOKENS: [&str; 7] =
    ["bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"];

/// What `tokenizer_config.json` says; everything absent if there is no such file.
#[derive(Debug, Clone, Default)]
pub(crate) struct TokenizerConfig {
    /// `add_bos_token`; `None` leaves it to the post-processor of tokenizer.json.
    pub add_bos_token: Option<bool>,
    /// Text of the special tokens by key, such as `bos_token`.
    pub special_tokens: Vec<(&'static str, String)>,
    /// `added_tokens_decoder` as it stands: ids to special tokens, which tokenizer.json has itself.
    pub added_tokens_decoder: Option<Value>,
    /// `chat_template` as it stands: a string, or a list of `{name, template}`.
    pub chat_template: Option<Value>,
}

/// A special token is written as its text or as a serialised `AddedToken`.
#[derive(Deserialize)]
#[serde(untagged)]
enum TokenText {
    Plain(String),
    Added { content: String },
}

impl TokenizerConfig {
    /// Reads the bytes of `tokenizer_config.json`; `path` is named in errors.
    pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<Self> {
        let config = |message: String| Error::Config { path: path.to_owned(), message };
        let map: Map<String, Value> = serde_json::from_slice(bytes).map_err(|e| config(e.to_string()))?;
        let set = |key: &str| map.get(key).filter(|value| !value.is_null());

        let add_bos_token = match set("add_bos_token") {
            None => None,
            Some(Value::Bool(add)) => Some(*add),
            Some(other) => return Err(config(format!("add_bos_token is {other}, expected true or false"))),
        };
        let mut special_tokens = Vec::new();
        for key in SPECIAL_TOKENS {
            let Some(value) = set(key) else { continue };
            let text = TokenText::deserialize(value).map_err(|_| {
                config(format!("{key} is {value}, expected a string or an object with a string `content`"))
            })?;
            special_tokens.push((
                key,
                match text {
                    TokenText::Plain(text) | TokenText::Added { content: text } => text,
                },
            ));
        }
        let (chat_template, added_tokens_decoder) = (set("chat_template"), set("added_tokens_decoder"));
        Ok(Self {
            add_bos_token,
            special_tokens,
            added_tokens_decoder: added_tokens_decoder.cloned(),
            chat_template: chat_template.cloned(),
        })
    }

    /// Text of the special token under `key`.
    pub(crate) fn special_token(&self, key: &str) -> Option<&str> {
        self.special_tokens.iter().find(|(name, _)| *name == key).map(|(_, text)| text.as_str())
    }
}
