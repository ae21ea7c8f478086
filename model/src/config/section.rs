//! Typed look-ups in a JSON object whose errors name file, key, value found and value expected. Which keys there are lives
//! beside, by theme.

use std::fmt::Display;
use std::ops::RangeInclusive;
use std::path::Path;

use serde_json::{Map, Value};

use crate::error::{Error, Result};

/// Parses the JSON object that a configuration file is.
pub(super) fn parse_object(path: &Path, bytes: &[u8]) -> Result<Map<String, Value>> {
    serde_json::from_slice(bytes)
        .map_err(|source| Error::Config { path: path.to_owned(), message: format!("not a JSON object: {source}") })
}

/// An object of a configuration file. A key whose value is null counts as absent, as it does for Hugging Face.
#[derive(Clone)]
pub(super) struct Section<'a> {
    path: &'a Path,
    /// Keys that lead here, each followed by a dot.
    prefix: String,
    object: &'a Map<String, Value>,
}

impl<'a> Section<'a> {
    pub fn root(path: &'a Path, object: &'a Map<String, Value>) -> Self {
        Self { path, prefix: String::new(), object }
    }

    /// The value at `key`.
    pub fn get(&self, key: &str) -> Option<&'a Value> {
        self.object.get(key).filter(|value| !value.is_null())
    }

    pub fn has(&self, key: &str) -> bool {
        self.get(key).is_some()
    }

    /// The key as it is written from the file's outermost object on.
    pub fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    /// An error about this file.
    pub fn error(&self, message: impl Into<String>) -> Error {
        Error::Config { path: self.path.to_owned(), message: message.into() }
    }

    /// An error about the value at `key`, or its absence.
    pub fn unexpected(&self, key: &str, expected: impl Display) -> Error {
        let found = match self.get(key) {
            Some(value) => format!("is {}", shortened(value)),
            None => "is missing".to_owned(),
        };
        self.error(format!("{} {found}, expected {expected}", self.key(key)))
    }

    /// The object at `key`.
    pub fn section(&self, key: &str) -> Result<Option<Section<'a>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Object(object)) => {
                Ok(Some(Section { path: self.path, prefix: format!("{}{key}.", self.prefix), object }))
            }
            Some(_) => Err(self.unexpected(key, "an object")),
        }
    }

    /// The objects that are values of this one's keys.
    pub fn sections(&self) -> Result<Vec<Section<'a>>> {
        let keys = self.object.keys().filter(|key| self.has(key));
        Ok(keys.map(|key| self.section(key)).collect::<Result<Vec<_>>>()?.into_iter().flatten().collect())
    }

    /// The whole number at `key`, in `range`.
    pub fn size(&self, key: &str, range: RangeInclusive<usize>) -> Result<usize> {
        let expected =
            || self.unexpected(key, format_args!("a whole number from {} to {}", range.start(), range.end()));
        let value = self.get(key).and_then(Value::as_u64).and_then(|value| usize::try_from(value).ok());
        value.filter(|value| range.contains(value)).ok_or_else(expected)
    }

    /// [`Section::size`] of a key that may be absent.
    pub fn optional_size(&self, key: &str, range: RangeInclusive<usize>) -> Result<Option<usize>> {
        self.has(key).then(|| self.size(key, range)).transpose()
    }

    /// The number at `key` where `accept` holds, which `expected` describes.
    pub fn number(&self, key: &str, accept: impl Fn(f64) -> bool, expected: &str) -> Result<f64> {
        let value = self.get(key).and_then(Value::as_f64).filter(|&value| value.is_finite() && accept(value));
        value.ok_or_else(|| self.unexpected(key, expected))
    }

    /// [`Section::number`] of a key that may be absent.
    pub fn optional_number(&self, key: &str, accept: impl Fn(f64) -> bool, expected: &str) -> Result<Option<f64>> {
        self.has(key).then(|| self.number(key, accept, expected)).transpose()
    }

    /// `rms_norm_eps`, which target and drafter state alike.
    pub fn norm_eps(&self) -> Result<f32> {
        let accept = |eps: f64| eps as f32 > 0.0 && eps < 1.0;
        Ok(self.number("rms_norm_eps", accept, "a number between 0 and 1")? as f32)
    }

    /// The boolean at `key`.
    pub fn optional_flag(&self, key: &str) -> Result<Option<bool>> {
        let value = |value: &Value| value.as_bool().ok_or_else(|| self.unexpected(key, "true or false"));
        self.get(key).map(value).transpose()
    }

    /// The text at `key`.
    pub fn text(&self, key: &str) -> Result<Option<&'a str>> {
        let value = |value: &'a Value| value.as_str().ok_or_else(|| self.unexpected(key, "text"));
        self.get(key).map(value).transpose()
    }

    /// The elements of the array at `key`.
    pub fn array(&self, key: &str) -> Result<Option<&'a [Value]>> {
        let value = |value: &'a Value| value.as_array().ok_or_else(|| self.unexpected(key, "an array"));
        Ok(self.get(key).map(value).transpose()?.map(Vec::as_slice))
    }

    /// The ids at `key`: one number, an array of them, or nothing; each below `vocab_size`.
    pub fn token_ids(&self, key: &str, vocab_size: usize) -> Result<Vec<u32>> {
        let values = match self.get(key) {
            None => &[],
            Some(Value::Array(values)) => values.as_slice(),
            Some(value) => std::slice::from_ref(value),
        };
        let id =
            |value: &Value| value.as_u64().filter(|&id| id < vocab_size as u64).and_then(|id| u32::try_from(id).ok());
        let ids = values.iter().map(id).collect::<Option<Vec<_>>>();
        ids.ok_or_else(|| self.unexpected(key, format_args!("token ids below vocab_size {vocab_size}")))
    }

    /// [`Section::token_ids`] of a key that holds one at most.
    pub fn token_id(&self, key: &str, vocab_size: usize) -> Result<Option<u32>> {
        match self.token_ids(key, vocab_size)?[..] {
            [] => Ok(None),
            [id] => Ok(Some(id)),
            _ => Err(self.unexpected(key, "one token id")),
        }
    }

    /// Fails unless `key` is absent or one of `supported`.
    pub fn require(&self, key: &str, supported: &[Value]) -> Result<()> {
        match self.get(key) {
            Some(value) if !supported.contains(value) => {
                let supported: Vec<String> = supported.iter().map(Value::to_string).collect();
                Err(self.unexpected(key, format_args!("{} (others are not supported)", supported.join(" or "))))
            }
            _ => Ok(()),
        }
    }
}

/// The value as JSON, cut where it gets long.
fn shortened(value: &Value) -> String {
    const LONGEST: usize = 80;
    let text = value.to_string();
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn errors_name_key_value_and_expectation() {
        let value = json!({"inner": {"size": "many", "zero": 0, "half": 0.5, "ids": [1, 9], "long": "x".repeat(500)}});
        let root = Section::root(Path::new("dir/config.json"), value.as_object().unwrap());
        let inner = root.section("inner").unwrap().unwrap();
        let cases = [
            (inner.size("size", 1..=8).unwrap_err(), r#"inner.size is "many", expected a whole number from 1 to 8"#),
            (inner.size("zero", 1..=8).unwrap_err(), "inner.zero is 0, expected a whole number from 1 to 8"),
            (inner.size("half", 1..=8).unwrap_err(), "inner.half is 0.5, expected a whole number from 1 to 8"),
            (inner.size("none", 1..=8).unwrap_err(), "inner.none is missing, expected a whole number from 1 to 8"),
            (inner.token_ids("ids", 9).unwrap_err(), "inner.ids is [1,9], expected token ids below vocab_size 9"),
            (inner.section("ids").err().unwrap(), "inner.ids is [1,9], expected an object"),
            (inner.optional_flag("zero").unwrap_err(), "inner.zero is 0, expected true or false"),
            (
                inner.require("zero", &[json!(1), json!("one")]).unwrap_err(),
                r#"inner.zero is 0, expected 1 or "one" (others are not supported)"#,
            ),
        ];
        for (error, expected) in cases {
            assert_eq!(error.to_string(), format!("dir/config.json: {expected}"));
        }
        assert!(inner.size("long", 0..=1).unwrap_err().to_string().len() < 200);
    }

    #[test]
    fn null_counts_as_absent() {
        let value = json!({"size": null, "flag": null, "object": null});
        let root = Section::root(Path::new("config.json"), value.as_object().unwrap());
        assert_eq!(root.optional_size("size", 1..=2).unwrap(), None);
        assert_eq!(root.optional_flag("flag").unwrap(), None);
        assert!(root.section("object").unwrap().is_none());
        root.require("flag", &[json!(false)]).unwrap();
    }
}
