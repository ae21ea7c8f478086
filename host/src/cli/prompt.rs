//! The prompt: from where the flags say to token ids.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use coppice_model::Source;
use coppice_model::chat::{ChatRequest, Message};
use coppice_model::tokenizer::Tokenizer;

use super::validate::{PromptSource, Template};
use super::{messages, model};
use crate::error::{Error, Result};

/// Token ids of a prompt for the model in `source`.
///
/// # Errors
/// The prompt cannot be read or is not UTF-8; the model has no tokenizer, or no chat template where one is asked for.
pub fn ids(
    prompt: &PromptSource,
    template: &Template,
    source: &Source,
    tokenizer: Option<&Tokenizer>,
) -> Result<Vec<u32>> {
    if let PromptSource::Tokens(path) = prompt {
        return read_tokens(path);
    }
    let tokenizer = tokenizer.ok_or_else(|| {
        let model = source.path().display();
        Error::Request(format!(
            "{model} has no tokenizer (tokenizer.json or tiktoken.model): give the prompt as token ids with --tokens"
        ))
    })?;
    let text = text(prompt)?;
    match template {
        Template::Raw => {
            let encoded = tokenizer.encode_raw(&text)?;
            if encoded.text_had_bos {
                messages::warning(&"the prompt begins with the beginning-of-text token; it was not added again");
            }
            Ok(encoded.ids)
        }
        Template::Chat { system, thinking } => {
            let template = model::chat_template(source)?.ok_or_else(|| {
                let model = source.path().display();
                Error::Request(format!("{model} has no chat template, which --chat needs: leave out --chat"))
            })?;
            let system = system.iter().map(|text| message("system", text));
            let messages: Vec<Message> = system.chain([message("user", &text)]).collect();
            let request = ChatRequest { messages: &messages, tools: None, thinking: *thinking };
            Ok(tokenizer.encode_chat(&template.render(&request)?)?)
        }
    }
}

fn message(role: &str, content: &str) -> Message {
    Message { role: role.to_owned(), content: content.to_owned() }
}

fn text(prompt: &PromptSource) -> Result<String> {
    match prompt {
        PromptSource::Text(text) => Ok(text.clone()),
        PromptSource::Stdin => {
            let mut bytes = Vec::new();
            let path = Path::new("standard input");
            io::stdin().read_to_end(&mut bytes).map_err(|source| unreadable(path, source))?;
            utf8(bytes, path)
        }
        PromptSource::File(path) | PromptSource::Tokens(path) => {
            utf8(fs::read(path).map_err(|source| unreadable(path, source))?, path)
        }
    }
}

fn unreadable(path: &Path, source: io::Error) -> Error {
    Error::File { action: "read", path: path.to_owned(), source }
}

fn utf8(bytes: Vec<u8>, path: &Path) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::Content { path: path.to_owned(), message: format!("byte {at} begins no UTF-8 character, expected text") }
    })
}

/// Reads a file that is one JSON array of token ids.
///
/// # Errors
/// The file cannot be read, or is anything else.
pub fn read_tokens(path: &Path) -> Result<Vec<u32>> {
    let bytes = fs::read(path).map_err(|source| unreadable(path, source))?;
    serde_json::from_slice(&bytes).map_err(|error| Error::Content {
        path: path.to_owned(),
        message: format!("expected one JSON array of token ids, found otherwise: {error}"),
    })
}

/// Fails unless the model knows every token.
///
/// # Errors
/// [`Error::Request`] with the first token it does not know.
pub fn check(ids: &[u32], vocab: usize) -> Result<()> {
    match ids.iter().enumerate().find(|(_, id)| **id as usize >= vocab) {
        Some((at, id)) => Err(Error::Request(format!(
            "token {id} at index {at} of the prompt is not in the model's vocabulary of {vocab}"
        ))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_array_of_ids_is_refused_with_its_place() {
        let folder = std::env::temp_dir().join(format!("coppice-prompt-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("tokens.json");
        let cases =
            [("[1, -2]", "-2"), ("[1, 2", "EOF"), ("{}", "map"), ("[1.5]", "1.5"), ("[4294967296]", "4294967296")];
        let mut failed = Vec::new();
        for (content, expected) in cases {
            fs::write(&path, content).unwrap();
            let message = read_tokens(&path).unwrap_err().to_string();
            if !(message.contains(expected) && message.contains("tokens.json: expected one JSON array of token ids")) {
                failed.push(format!("{content}: {message}"));
            }
        }
        fs::write(&path, " [3, 1]\n").unwrap();
        assert_eq!(read_tokens(&path).unwrap(), [3, 1]);
        fs::remove_dir_all(&folder).unwrap();
        assert!(failed.is_empty(), "{failed:#?}");
    }
}
