//! Text to token ids and back. What the tokens mean to the model, and where generated text goes, is not known here.

mod decoder;
mod json;
mod stream;
mod table;
mod tiktoken;

pub(crate) mod config;

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};

pub use stream::TextStream;

use crate::{Error, Result, Source};
use config::TokenizerConfig;
use table::TokenTable;

/// Text to ids, without special tokens around it; the markup of special tokens within the text is recognised.
trait Encode: Send + Sync {
    fn encode(&self, text: &str) -> std::result::Result<Vec<u32>, String>;
}

/// What a tokenizer file of any format is read into.
struct Parts {
    encoder: Box<dyn Encode>,
    tokens: TokenTable,
    /// The token that the file itself asks for before every text.
    prefix: Option<u32>,
}

/// The tokenizer of a model.
///
/// Decoding is concatenation of the [bytes of each token](Self::token_bytes): a text decoded whole, or token by token through
/// a [`TextStream`], is the same.
pub struct Tokenizer {
    path: PathBuf,
    encoder: Box<dyn Encode>,
    tokens: TokenTable,
    bos: Option<u32>,
    add_bos: bool,
}

/// A text as ids.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// The ids, BOS included where the model wants one.
    pub ids: Vec<u32>,
    /// The text began with the BOS token that would have been added; it was not added a second time.
    pub text_had_bos: bool,
}

impl Tokenizer {
    /// The tokenizer of a model: its `tokenizer.json` or, where there is none, its `tiktoken.model`, with what
    /// `tokenizer_config.json` says; `None` if it has neither.
    ///
    /// # Errors
    /// Those of [`Source::read`], [`from_json`](Self::from_json) and [`from_tiktoken`](Self::from_tiktoken).
    pub fn load(source: &Source) -> Result<Option<Self>> {
        let config = source.read("tokenizer_config.json")?;
        let config = config.as_ref().map(|(path, bytes)| (path.as_path(), bytes.as_ref()));
        if let Some((path, bytes)) = source.read("tokenizer.json")? {
            return Self::from_json((&path, &bytes), config).map(Some);
        }
        if let Some((path, bytes)) = source.read("tiktoken.model")? {
            return Self::from_tiktoken((&path, &bytes), config).map(Some);
        }
        Ok(None)
    }

    /// A tokenizer from the path and bytes of `tokenizer.json` and, where the model has one, of `tokenizer_config.json`.
    ///
    /// `add_bos_token` of the config decides whether BOS is added to raw text; where it is silent, the post-processor of
    /// tokenizer.json does.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if tokenizer.json is malformed or its decoder has no bytes a token; [`Error::Config`] if
    /// tokenizer_config.json is malformed, or its BOS token is missing or not in the vocabulary.
    pub fn from_json(tokenizer: (&Path, &[u8]), config: Option<(&Path, &[u8])>) -> Result<Self> {
        let parts = json::load(tokenizer.1).map_err(|message| refused(tokenizer.0, message))?;
        let config = config.map(|(path, bytes)| Ok((path, TokenizerConfig::parse(path, bytes)?))).transpose()?;
        Self::new(tokenizer.0, parts, config)
    }

    /// A tokenizer from the path and bytes of Kimi's `tiktoken.model` and, where the model has one, of
    /// `tokenizer_config.json`.
    ///
    /// The ids are those of the published `TikTokenTokenizer` under Hugging Face: the 256 ids after the ranks are special
    /// tokens, named by `added_tokens_decoder` or else `<|reserved_token_N|>`; their names are recognised in raw text as
    /// in a chat template's output, and BOS is not added unless `add_bos_token` says so. Of a text over 400,000
    /// characters, or 25,000 consecutive characters that are all whitespace or all not, ids are those of its parts, cut as
    /// the published code cuts.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] with the line if tiktoken.model is malformed, has a rank or token twice, lacks a rank or one of
    /// the 256 bytes, or goes beyond the first id that the config names; [`Error::Config`] if tokenizer_config.json is
    /// malformed, names an id beyond the special ones, or has a BOS token that is missing or not in the vocabulary.
    pub fn from_tiktoken(tokenizer: (&Path, &[u8]), config: Option<(&Path, &[u8])>) -> Result<Self> {
        let config = config.map(|(path, bytes)| Ok((path, TokenizerConfig::parse(path, bytes)?))).transpose()?;
        let added_tokens = config.as_ref().and_then(|(_, config)| config.added_tokens_decoder.as_ref());
        let parts = tiktoken::load(tokenizer.1, added_tokens).map_err(|error| match (error, &config) {
            (tiktoken::Refused::Config(message), Some((path, _))) => config_refused(path, message),
            (tiktoken::Refused::Config(message) | tiktoken::Refused::Ranks(message), _) => {
                refused(tokenizer.0, message)
            }
        })?;
        Self::new(tokenizer.0, parts, config)
    }

    fn new(path: &Path, parts: Parts, config: Option<(&Path, TokenizerConfig)>) -> Result<Self> {
        let Parts { encoder, tokens, prefix } = parts;
        let (bos, add_bos) = match config {
            None => (prefix, prefix.is_some()),
            Some((config_path, config)) => {
                bos_of(&config, &tokens, prefix, path).map_err(|message| config_refused(config_path, message))?
            }
        };
        Ok(Self { path: path.to_owned(), encoder, tokens, bos, add_bos })
    }

    /// Ids of text that no chat template has touched, begun with BOS, once, where the model wants it.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the vocabulary cannot express the text.
    pub fn encode_raw(&self, text: &str) -> Result<Encoded> {
        let mut ids = self.encode_chat(text)?;
        let mut text_had_bos = false;
        if let Some(bos) = self.bos.filter(|_| self.add_bos) {
            text_had_bos = ids.first() == Some(&bos);
            if !text_had_bos {
                ids.insert(0, bos);
            }
        }
        Ok(Encoded { ids, text_had_bos })
    }

    /// Ids of a chat template's output, which already has every special token it should have.
    ///
    /// # Errors
    /// [`Error::Tokenizer`] if the vocabulary cannot express the text.
    pub fn encode_chat(&self, text: &str) -> Result<Vec<u32>> {
        self.encoder.encode(text).map_err(|message| refused(&self.path, message))
    }

    /// One past the highest id that has a token. The model's own vocabulary may be padded beyond it.
    pub fn vocab_size(&self) -> usize {
        self.tokens.len()
    }

    /// What is wrong with this tokenizer for a model of `vocab_size` tokens, as a message, if it has ids beyond them.
    pub fn beyond(&self, vocab_size: usize) -> Option<String> {
        let ids = self.vocab_size();
        (ids > vocab_size).then(|| {
            format!(
                "tokenizer {} has ids up to {}, the model's vocabulary ends at {} (vocab_size {vocab_size}): does the \
                 tokenizer belong to this model?",
                self.path.display(),
                ids - 1,
                vocab_size.saturating_sub(1)
            )
        })
    }

    /// The exact bytes of a token; an id without one reads `<|reserved_token_N|>`.
    pub fn token_bytes(&self, id: u32) -> Cow<'_, [u8]> {
        self.tokens.bytes(id)
    }

    /// A token made visible on one line: control characters and bytes that are not characters are escaped as in Rust.
    pub fn token_text(&self, id: u32) -> String {
        let mut text = String::new();
        for chunk in self.token_bytes(id).utf8_chunks() {
            for character in chunk.valid().chars() {
                if character.is_control() || character == '\\' {
                    text.extend(character.escape_default());
                } else {
                    text.push(character);
                }
            }
            text.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02X}")));
        }
        text
    }

    /// Whether a token is markup and not text. Ids without a token are not special.
    pub fn special(&self, id: u32) -> bool {
        self.tokens.special(id)
    }

    /// The beginning-of-text token, whether or not it is added to raw text.
    pub fn bos_id(&self) -> Option<u32> {
        self.bos
    }

    /// The text of `ids`; bytes that do not form characters become U+FFFD.
    pub fn decode(&self, ids: &[u32], skip_special: bool) -> String {
        let mut bytes = Vec::new();
        for &id in ids {
            if !(skip_special && self.special(id)) {
                bytes.extend_from_slice(&self.token_bytes(id));
            }
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }
}

impl fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Tokenizer({}, {} tokens)", self.path.display(), self.vocab_size())
    }
}

fn refused(path: &Path, message: String) -> Error {
    Error::Tokenizer { path: path.to_owned(), message }
}

fn config_refused(path: &Path, message: String) -> Error {
    Error::Config { path: path.to_owned(), message }
}

/// The BOS token, and whether raw text begins with it.
fn bos_of(
    config: &TokenizerConfig,
    tokens: &TokenTable,
    prefix: Option<u32>,
    tokenizer: &Path,
) -> std::result::Result<(Option<u32>, bool), String> {
    let bos = match config.special_token("bos_token") {
        None => prefix,
        Some(text) => Some(tokens.find(text).ok_or_else(|| {
            format!("bos_token is {text:?}, expected a token of the vocabulary in {}", tokenizer.display())
        })?),
    };
    let add = config.add_bos_token.unwrap_or(prefix.is_some());
    if add && bos.is_none() {
        return Err("add_bos_token is true but bos_token is absent, expected the text of the token to add".to_owned());
    }
    Ok((bos, add))
}
