//! The Jinja environment that Hugging Face renders chat templates in, on minijinja.

use std::borrow::Cow;

use jiff::ZonedDateTime;
use jiff::fmt::strtime;
use minijinja::syntax::SyntaxConfig;
use minijinja::value::{Value, ValueKind};
use minijinja::{AutoEscape, Environment, Error, ErrorKind};
use minijinja_contrib::pycompat;

use super::json;

/// An environment with transformers' block trimming, filters and functions, and Python's methods on values.
pub(super) fn hugging_face() -> Result<Environment<'static>, Error> {
    let mut environment = Environment::new();
    environment.set_syntax(SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build()?);
    environment.set_auto_escape_callback(|_| AutoEscape::None);
    environment.set_unknown_method_callback(pycompat::unknown_method_callback);
    environment.add_filter("tojson", json::tojson);
    environment.add_test("sequence", is_sequence);
    environment.add_function("raise_exception", raise_exception);
    environment.add_function("strftime_now", strftime_now);
    Ok(environment)
}

/// The template as minijinja reads it: one kind of line break, as Jinja's lexer makes it, and transformers' own
/// `{% generation %}` tag, which marks the assistant's words and changes no text, as an `if` that always holds.
pub(super) fn hugging_face_source(source: &str) -> String {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut out = String::with_capacity(source.len());
    let mut rest = source.as_str();
    while let Some(start) = rest.find("{%") {
        let (text, tag) = rest.split_at(start);
        let (tag, after) = tag.find("%}").map_or((tag, ""), |end| tag.split_at(end));
        let word = tag["{%".len()..].trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        out.push_str(text);
        out.push_str(&match word {
            "generation" => Cow::Owned(tag.replace(word, "if true")),
            "endgeneration" => Cow::Owned(tag.replace(word, "endif")),
            _ => Cow::Borrowed(tag),
        });
        rest = after;
    }
    out + rest
}

/// What Python can measure and index, strings and dictionaries included.
fn is_sequence(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Undefined | ValueKind::String | ValueKind::Seq | ValueKind::Map)
}

fn raise_exception(message: &str) -> Result<Value, Error> {
    Err(Error::new(ErrorKind::InvalidOperation, message.to_owned()))
}

/// The local time in `format`, as `datetime.strftime` writes it.
fn strftime_now(format: &str) -> Result<String, Error> {
    strtime::format(format, &ZonedDateTime::now())
        .map_err(|e| Error::new(ErrorKind::InvalidOperation, format!("strftime_now({format:?}): {e}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_tags_and_foreign_line_breaks_are_rewritten() {
        let cases = [
            ("a\r\nb\rc\n", "a\nb\nc\n"),
            ("{%- generation -%}x{% endgeneration %}", "{%- if true -%}x{% endif %}"),
            ("{% if generation %}{{ generation }}{% endif %}", "{% if generation %}{{ generation }}{% endif %}"),
            ("generation {% unfinished", "generation {% unfinished"),
            ("{%", "{%"),
        ];
        for (source, expected) in cases {
            assert_eq!(hugging_face_source(source), expected, "{source}");
        }
    }

    #[test]
    fn strftime_now_is_the_local_date() {
        let render = || hugging_face().unwrap().render_str("{{ strftime_now('%d %b %Y') }}", ()).unwrap();
        let today = || ZonedDateTime::now().strftime("%d %b %Y").to_string();
        let before = today();
        let rendered = render();
        assert!(rendered == before || rendered == today(), "{rendered}");
        assert!(hugging_face().unwrap().render_str("{{ strftime_now('%!') }}", ()).is_err());
    }
}
