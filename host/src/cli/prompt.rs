//! The prompt: from where the flags say to token ids.

use std::fs;
use std::io::{self, Read};
use std::path::Path;

use coppice_model::Source;
use coppice_model::chat::{ChatRequest, Message};
use coppice_model::tokenizer::Tokenizer;

use super::validate::{Input, PromptSource, Template};
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
    let text = match prompt {
        PromptSource::Tokens(input) => return read_tokens(input),
        PromptSource::Text(text) => Ok(text.clone()),
        PromptSource::Read(input) => read(input).and_then(|bytes| utf8(bytes, name(input))),
    };
    let tokenizer = tokenizer.ok_or_else(|| {
        let model = source.path().display();
        Error::Request(format!(
            "{model} has no tokenizer (tokenizer.json or tiktoken.model): give the prompt as token ids with --tokens"
        ))
    })?;
    let text = text?;
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

fn read(input: &Input) -> Result<Vec<u8>> {
    let bytes = match input {
        Input::File(path) => fs::read(path),
        Input::Stdin => {
            let mut bytes = Vec::new();
            io::stdin().read_to_end(&mut bytes).map(|_| bytes)
        }
    };
    bytes.map_err(|source| Error::File { action: "read", path: name(input).to_owned(), source })
}

/// What errors call an input.
fn name(input: &Input) -> &Path {
    match input {
        Input::File(path) => path,
        Input::Stdin => Path::new("standard input"),
    }
}

fn utf8(bytes: Vec<u8>, path: &Path) -> Result<String> {
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        Error::Content { path: path.to_owned(), message: format!("byte {at} begins no UTF-8 character, expected text") }
    })
}

/// Reads one JSON array of token ids, at least one.
///
/// # Errors
/// The input cannot be read, or is anything else.
pub fn read_tokens(input: &Input) -> Result<Vec<u32>> {
    let refused = |message| Error::Content { path: name(input).to_owned(), message };
    let ids: Vec<u32> = serde_json::from_slice(&read(input)?)
        .map_err(|error| refused(format!("expected one JSON array of token ids, found otherwise: {error}")))?;
    if ids.is_empty() {
        return Err(refused("holds no token ids, expected at least one".to_owned()));
    }
    Ok(ids)
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
        let input = Input::File(path.clone());
        let cases =
            [("[1, -2]", "-2"), ("[1, 2", "EOF"), ("{}", "map"), ("[1.5]", "1.5"), ("[4294967296]", "4294967296")];
        let mut failed = Vec::new();
        for (content, expected) in cases {
            fs::write(&path, content).unwrap();
            let message = read_tokens(&input).unwrap_err().to_string();
            if !(message.contains(expected) && message.contains("tokens.json: expected one JSON array of token ids")) {
                failed.push(format!("{content}: {message}"));
            }
        }
        fs::write(&path, " [3, 1]\n").unwrap();
        assert_eq!(read_tokens(&input).unwrap(), [3, 1]);
        fs::write(&path, "[]").unwrap();
        let message = read_tokens(&input).unwrap_err().to_string();
        assert!(message.ends_with("tokens.json: holds no token ids, expected at least one"), "{message}");
        fs::remove_dir_all(&folder).unwrap();
        assert!(failed.is_empty(), "{failed:#?}");
    }
}
