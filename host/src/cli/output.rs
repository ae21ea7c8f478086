//! Where results go: standard output and files.

use std::fs;
use std::io::{self, IsTerminal, Write};
use std::path::Path;

use serde::Serialize;

use crate::error::{Error, Result};

/// Prints a result.
///
/// # Errors
/// [`Error::Output`].
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes()).and_then(|()| out.flush()).map_err(Error::Output)
}

/// Ends a text that was printed so that a terminal's prompt begins on its own line; a pipe gets the text as it is.
///
/// # Errors
/// [`Error::Output`].
pub fn end_line(text: &str) -> Result<()> {
    if !text.is_empty() && !text.ends_with('\n') && io::stdout().is_terminal() { print("\n") } else { Ok(()) }
}

/// Prints an object as one line of JSON.
///
/// # Errors
/// [`Error::Output`].
pub fn print_json(value: &impl Serialize) -> Result<()> {
    print(&json(value)?)
}

/// Writes an object to `path` as one line of JSON.
///
/// # Errors
/// [`Error::File`].
pub fn write_json(value: &impl Serialize, path: &Path) -> Result<()> {
    write(json(value)?.as_bytes(), path)
}

/// Writes a file.
///
/// # Errors
/// [`Error::File`].
pub fn write(bytes: &[u8], path: &Path) -> Result<()> {
    fs::write(path, bytes).map_err(|source| Error::File { action: "write", path: path.to_owned(), source })
}

/// Numbers that JSON has no words for (NaN, infinities) are null.
fn json(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string(value).map_err(|error| Error::Output(error.into()))?;
    Ok(text + "\n")
}
