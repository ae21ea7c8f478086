//! JSON text as Python's `json.dumps` writes it, which is what templates' `tojson` means to Hugging Face.

use std::io::{self, Write};

use minijinja::value::{Kwargs, Value};
use minijinja::{Error, ErrorKind};
use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, Serializer};

/// The `tojson` filter: `tojson(ensure_ascii=false, indent=none, separators=none, sort_keys=false)`.
pub(super) fn tojson(value: &Value, options: Kwargs) -> Result<String, Error> {
    let ensure_ascii = options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false);
    let indent = match options.get::<Option<Value>>("indent")?.filter(|v| !v.is_none()) {
        None => None,
        Some(text) if text.as_str().is_some() => Some(text.to_string()),
        Some(columns) => Some(" ".repeat(usize::try_from(columns)?)),
    };
    let (item, key) = match options.get::<Option<Vec<String>>>("separators")?.as_deref() {
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
        Some([item, key]) => (item.clone(), key.clone()),
        Some(other) => return Err(invalid(format!("tojson: separators has {} parts, expected 2", other.len()))),
    };
    let sort_keys = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    if value.is_undefined() {
        return Err(invalid("tojson: the value is undefined".to_owned()));
    }

    let mut tree = serde_json::to_value(value).map_err(|e| invalid(format!("tojson: {e}")))?;
    if sort_keys {
        tree.sort_all_objects();
    }
    let mut out = Vec::new();
    let python = Python { ensure_ascii, indent, item, key, depth: 0, filled: false };
    tree.serialize(&mut Serializer::with_formatter(&mut out, python)).map_err(|e| invalid(format!("tojson: {e}")))?;
    String::from_utf8(out).map_err(|e| invalid(format!("tojson: {e}")))
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidOperation, message)
}

/// Layout of `json.dumps`.
struct Python {
    ensure_ascii: bool,
    indent: Option<String>,
    /// Between items.
    item: String,
    /// Between a key and its value.
    key: String,
    /// Containers open.
    depth: usize,
    /// The container last closed or added to holds something.
    filled: bool,
}

impl Python {
    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if self.filled {
            self.line_break(writer)?;
        }
        self.filled = true;
        writer.write_all(bracket)
    }

    fn begin_item<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.item.as_bytes())?;
        }
        self.filled = true;
        self.line_break(writer)
    }

    fn line_break<W: ?Sized + Write>(&self, writer: &mut W) -> io::Result<()> {
        match &self.indent {
            Some(indent) => write!(writer, "\n{}", indent.repeat(self.depth)),
            None => Ok(()),
        }
    }
}

impl Formatter for Python {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.begin_item(writer, first)
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.begin_item(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }

    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        // Rust and Python agree on the digits and on when to use an exponent, not on how to write it.
        let text = format!("{value:?}");
        match text.split_once('e') {
            None => writer.write_all(text.as_bytes()),
            Some((digits, exponent)) => {
                let (sign, power) = exponent.strip_prefix('-').map_or(('+', exponent), |power| ('-', power));
                write!(writer, "{digits}e{sign}{power:0>2}")
            }
        }
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, fragment: &str) -> io::Result<()> {
        if !self.ensure_ascii {
            return writer.write_all(fragment.as_bytes());
        }
        for character in fragment.chars() {
            if matches!(character, ' '..='~') {
                write!(writer, "{character}")?;
            } else {
                for unit in character.encode_utf16(&mut [0; 2]) {
                    write!(writer, "\\u{unit:04x}")?;
                }
            }
        }
        Ok(())
    }

    fn write_char_escape<W: ?Sized + Write>(&mut self, writer: &mut W, escape: CharEscape) -> io::Result<()> {
        match escape {
            CharEscape::AsciiControl(byte) => write!(writer, "\\u{byte:04x}"),
            CharEscape::Quote => writer.write_all(b"\\\""),
            CharEscape::ReverseSolidus => writer.write_all(b"\\\\"),
            CharEscape::Solidus => writer.write_all(b"/"),
            CharEscape::Backspace => writer.write_all(b"\\b"),
            CharEscape::FormFeed => writer.write_all(b"\\f"),
            CharEscape::LineFeed => writer.write_all(b"\\n"),
            CharEscape::CarriageReturn => writer.write_all(b"\\r"),
            CharEscape::Tab => writer.write_all(b"\\t"),
        }
    }
}
