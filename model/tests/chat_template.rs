//! Chat templates: the text Hugging Face renders, and what is said about templates that cannot be used.
#![allow(clippy::unwrap_used)]

use std::path::Path;

use coppice_model::chat::{ChatRequest, ChatTemplate, Message};
use serde::Deserialize;
use serde_json::{Map, Value, json};

#[derive(Deserialize)]
struct Expected {
    special_tokens: Map<String, Value>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    template: String,
    messages: Vec<Message>,
    tools: Option<Vec<Value>>,
    thinking: Option<bool>,
    expected: Option<String>,
    error: Option<String>,
}

fn expected() -> Expected {
    serde_json::from_str(include_str!("data/chat_expected.json")).unwrap()
}

fn source(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/chat_templates");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

/// From a template file and the value of tokenizer_config.json; the message of the error if there is one.
fn load(template: Option<&str>, config: Option<&Value>) -> Result<Option<ChatTemplate>, String> {
    let config = config.map(|value| serde_json::to_vec(value).unwrap());
    let template = template.map(|source| (Path::new("dir/chat_template.jinja"), source.as_bytes()));
    let config = config.as_deref().map(|bytes| (Path::new("dir/tokenizer_config.json"), bytes));
    ChatTemplate::from_files(template, config).map_err(|e| e.to_string())
}

fn user(content: &str) -> Message {
    Message { role: "user".to_owned(), content: content.to_owned() }
}

fn render(template: &ChatTemplate, content: &str) -> Result<String, String> {
    let messages = [user(content)];
    template.render(&ChatRequest { messages: &messages, ..ChatRequest::default() }).map_err(|e| e.to_string())
}

/// Every case of the fixture that does not come out as `prepare`d templates should make it.
fn differences(prepare: impl Fn(&str, &Value) -> ChatTemplate) -> Vec<String> {
    let Expected { special_tokens, cases } = expected();
    assert!(cases.len() > 100);
    let config = Value::Object(special_tokens);
    let mut wrong = Vec::new();
    for case in cases {
        let template = prepare(&source(&case.template), &config);
        let request = ChatRequest { messages: &case.messages, tools: case.tools.as_deref(), thinking: case.thinking };
        let rendered = template.render(&request).map_err(|e| e.to_string());
        let right = match (&rendered, &case.expected, &case.error) {
            (Ok(text), Some(expected), None) => text == expected,
            (Err(message), None, Some(error)) => message.ends_with(error.as_str()),
            _ => false,
        };
        if !right {
            let wanted = case.expected.or(case.error);
            wrong.push(format!("{} {:?}\nexpected {wanted:?}\nfound    {rendered:?}", case.template, case.messages));
        }
    }
    wrong
}

#[test]
fn text_is_what_hugging_face_renders() {
    let wrong = differences(|source, config| load(Some(source), Some(config)).unwrap().unwrap());
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn templates_with_windows_line_breaks_in_the_config_render_alike() {
    let wrong = differences(|source, config| {
        let mut config = config.clone();
        config["chat_template"] = source.replace('\n', "\r\n").into();
        load(None, Some(&config)).unwrap().unwrap()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[test]
fn a_template_file_comes_before_the_config() {
    let config = json!({"chat_template": "config", "eos_token": {"content": "</s>"}});
    let both = load(Some("file{{ eos_token }}"), Some(&config)).unwrap().unwrap();
    assert_eq!(render(&both, "").unwrap(), "file</s>");
    let config_only = load(None, Some(&config)).unwrap().unwrap();
    assert_eq!(render(&config_only, "").unwrap(), "config");
    assert!(load(None, Some(&json!({"chat_template": null}))).unwrap().is_none());
    assert!(load(None, None).unwrap().is_none());
}

#[test]
fn of_named_templates_tools_choose_tool_use() {
    let config = json!({"chat_template": [
        {"name": "rag", "template": "rag"}, {"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"},
    ]});
    let template = load(None, Some(&config)).unwrap().unwrap();
    assert_eq!(render(&template, "").unwrap(), "plain");
    let with_tools = ChatRequest { tools: Some(&[]), ..ChatRequest::default() };
    assert_eq!(template.render(&with_tools).unwrap(), "tools");
}

#[test]
fn templates_that_cannot_be_used_are_told_with_their_line() {
    let named = |name: &str| json!({"chat_template": [{"name": name, "template": ""}]});
    let cases = [
        (Some("ok\n{% if x %}"), None, "chat template dir/chat_template.jinja: line 2: syntax error: "),
        (
            Some("a\nb\n{{ nope | no_such_filter }}"),
            None,
            "chat template dir/chat_template.jinja: line 3: unknown filter",
        ),
        (
            None,
            Some(json!({"chat_template": "\n{% endif %}"})),
            "chat template dir/tokenizer_config.json: line 2: syntax",
        ),
        (None, Some(json!({"chat_template": 7})), "chat_template is of another type, expected a string or a list"),
        (None, Some(named("rag")), "templates are named [\"rag\"], expected one named \"default\""),
    ];
    let mut wrong = Vec::new();
    for (template, config, expected) in cases {
        match load(template, config.as_ref()).and_then(|t| render(&t.unwrap(), "")) {
            Err(message) if message.contains(expected) => {}
            other => wrong.push(format!("expected `{expected}`, found {other:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let not_text = ChatTemplate::from_files(Some((Path::new("t.jinja"), &[0xFF])), None).unwrap_err().to_string();
    assert!(not_text.starts_with("chat template t.jinja: not UTF-8 text"), "{not_text}");
}

#[test]
fn a_conversation_that_fails_is_told_with_the_line() {
    let cases = [
        ("\n\n{{ raise_exception('only tea') }}", "line 3: only tea"),
        ("{{ messages[0].content }}\n{{ messages[0].absent.field }}", "line 2: undefined value"),
        ("{% macro m() %}\n{{ 'a' + 1 }}{% endmacro %}\n\n{{ m() }}", "line 2: "),
        ("{{ 'x'.no_such_method() }}", "line 1: unknown method: string has no method named no_such_method"),
        ("{{ absent | tojson }}", "line 1: tojson: the value is undefined"),
        ("{{ 1 | tojson(separators=[',']) }}", "line 1: tojson: separators has 1 parts, expected 2"),
    ];
    let mut wrong = Vec::new();
    for (source, expected) in cases {
        match render(&load(Some(source), None).unwrap().unwrap(), "hi") {
            Err(message) if message.contains(&format!("chat_template.jinja: {expected}")) => {}
            other => wrong.push(format!("expected `{expected}`, found {other:?}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
