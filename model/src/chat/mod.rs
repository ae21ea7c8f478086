//! Messages to the text a model was trained to continue, by the chat template of its checkpoint. Tokenising that text is
//! not done here.

mod environment;
mod json;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use minijinja::Environment;
use minijinja::value::{Serde, Value};
use serde::{Deserialize, Serialize};

use crate::tokenizer::config::TokenizerConfig;
use crate::{Error, Result};

/// A model's chat template, rendered as Hugging Face's `apply_chat_template` renders it.
#[derive(Debug)]
pub struct ChatTemplate {
    path: PathBuf,
    environment: Environment<'static>,
    special_tokens: Vec<(&'static str, String)>,
}

/// One turn of a conversation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// `system`, `user`, `assistant`, or another role that the template knows.
    pub role: String,
    /// What was said.
    pub content: String,
}

/// A conversation for the model to continue.
#[derive(Debug, Clone, Copy, Default)]
pub struct ChatRequest<'a> {
    /// The turns so far, a system prompt first if there is one.
    pub messages: &'a [Message],
    /// JSON schemas of the functions the model may call; `None` is not the same as none to choose from.
    pub tools: Option<&'a [serde_json::Value]>,
    /// Given to the template as `thinking` and `enable_thinking`; `None` leaves both undefined, for the template to choose.
    pub thinking: Option<bool>,
}

/// The template used where the checkpoint does not name several.
const DEFAULT: &str = "default";
/// The template preferred, if there is one by this name, when tools are given.
const TOOL_USE: &str = "tool_use";

impl ChatTemplate {
    /// The chat template from the path and bytes of `chat_template.jinja` or, where the model has no such file, from
    /// `chat_template` in `tokenizer_config.json`; `None` if neither has one. Special tokens come from the latter file.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`] with the line if a template is malformed, or if several are named and none is `default`;
    /// [`Error::Config`] if tokenizer_config.json is malformed.
    pub fn from_files(template: Option<(&Path, &[u8])>, config: Option<(&Path, &[u8])>) -> Result<Option<Self>> {
        let parsed = match config {
            Some((path, bytes)) => TokenizerConfig::parse(path, bytes)?,
            None => TokenizerConfig::default(),
        };
        let (path, sources) = match (template, config, parsed.chat_template) {
            (Some((path, bytes)), _, _) => {
                let source = str::from_utf8(bytes).map_err(|e| refused(path, format!("not UTF-8 text: {e}")))?;
                (path, vec![(DEFAULT.to_owned(), source.to_owned())])
            }
            (None, Some((path, _)), Some(value)) => (path, named_templates(value).map_err(|m| refused(path, m))?),
            _ => return Ok(None),
        };
        if !sources.iter().any(|(name, _)| name == DEFAULT) {
            let names: Vec<&str> = sources.iter().map(|(name, _)| name.as_str()).collect();
            return Err(refused(path, format!("templates are named {names:?}, expected one named {DEFAULT:?}")));
        }
        let mut environment = environment::hugging_face().map_err(|e| refused(path, describe(&e)))?;
        for (name, source) in sources {
            environment
                .add_template_owned(name, environment::hugging_face_source(&source))
                .map_err(|e| refused(path, describe(&e)))?;
        }
        Ok(Some(Self { path: path.to_owned(), environment, special_tokens: parsed.special_tokens }))
    }

    /// The text that the model continues with the assistant's answer; special tokens are in it, BOS included where the
    /// template writes one.
    ///
    /// # Errors
    /// [`Error::ChatTemplate`] with the line if the template refuses the conversation or fails on it.
    pub fn render(&self, request: &ChatRequest) -> Result<String> {
        let tool_template = request.tools.and_then(|_| self.environment.get_template(TOOL_USE).ok());
        let template = match tool_template {
            Some(template) => Ok(template),
            None => self.environment.get_template(DEFAULT),
        };
        let mut context: BTreeMap<&str, Value> =
            self.special_tokens.iter().map(|(key, text)| (*key, Value::from(text.as_str()))).collect();
        context.insert("messages", Value::from(Serde(request.messages)));
        context.insert("tools", Value::from(Serde(request.tools)));
        context.insert("documents", Value::from(()));
        context.insert("add_generation_prompt", Value::from(true));
        if let Some(thinking) = request.thinking {
            context.insert("thinking", Value::from(thinking));
            context.insert("enable_thinking", Value::from(thinking));
        }
        template.and_then(|t| t.render(context)).map_err(|e| refused(&self.path, describe(&e)))
    }
}

fn refused(path: &Path, message: String) -> Error {
    Error::ChatTemplate { path: path.to_owned(), message }
}

/// Names and sources of `chat_template` in tokenizer_config.json.
fn named_templates(value: serde_json::Value) -> std::result::Result<Vec<(String, String)>, String> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Templates {
        One(String),
        Named(Vec<Named>),
    }
    #[derive(Deserialize)]
    struct Named {
        name: String,
        template: String,
    }
    match serde_json::from_value(value) {
        Ok(Templates::One(source)) => Ok(vec![(DEFAULT.to_owned(), source)]),
        Ok(Templates::Named(list)) => Ok(list.into_iter().map(|t| (t.name, t.template)).collect()),
        Err(_) => Err("chat_template is of another type, expected a string or a list of {name, template}".to_owned()),
    }
}

/// Where in the template and why.
fn describe(error: &minijinja::Error) -> String {
    let place = match (error.line(), error.name()) {
        (Some(line), None | Some(DEFAULT)) => format!("line {line}: "),
        (Some(line), Some(name)) => format!("line {line} of {name:?}: "),
        (None, _) => String::new(),
    };
    match error.detail() {
        Some(detail) if error.kind() == minijinja::ErrorKind::InvalidOperation => format!("{place}{detail}"),
        Some(detail) => format!("{place}{}: {detail}", error.kind()),
        None => format!("{place}{}", error.kind()),
    }
}
