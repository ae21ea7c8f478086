//! Where results go: standard output and files.

use std::env;
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use serde::Serialize;

use super::validate::ReportArgs;
use crate::error::{Error, Result};

/// A file that a result will be written to. It is opened before the work begins, so that a path which cannot be written
/// costs nothing; what it holds is replaced by the result only, and a file that was made for a result which never came is
/// removed.
#[derive(Debug)]
pub struct ResultFile {
    path: PathBuf,
    file: File,
    /// It did not exist before, and has no result yet.
    empty: AtomicBool,
}

impl ResultFile {
    /// Opens `path` for writing.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn open(path: &Path) -> Result<Self> {
        let open = || match OpenOptions::new().write(true).create_new(true).open(path) {
            Ok(file) => Ok((file, true)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                Ok((OpenOptions::new().write(true).open(path)?, false))
            }
            Err(error) => Err(error),
        };
        let (file, empty) = open().map_err(|source| unwritable(path, source))?;
        Ok(Self { path: path.to_owned(), file, empty: AtomicBool::new(empty) })
    }

    /// Replaces what the file holds.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write(&self, bytes: &[u8]) -> Result<()> {
        let replace = |mut file: &File| {
            // Pipes and devices have no length to set.
            if file.metadata()?.is_file() {
                file.set_len(0)?;
            }
            file.write_all(bytes)
        };
        self.empty.store(false, Ordering::Relaxed);
        replace(&self.file).map_err(|source| unwritable(&self.path, source))
    }

    /// Replaces what the file holds by an object as one line of JSON.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn write_json(&self, value: &impl Serialize) -> Result<()> {
        self.write(json(value)?.as_bytes())
    }
}

impl Drop for ResultFile {
    fn drop(&mut self) {
        if *self.empty.get_mut() {
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn unwritable(path: &Path, source: io::Error) -> Error {
    Error::File { action: "write", path: path.to_owned(), source }
}

/// The way out of a command whose result is a report.
#[derive(Debug)]
pub struct ReportOutput {
    json: bool,
    file: Option<ResultFile>,
}

impl ReportOutput {
    /// Opens the file, if there is to be one.
    ///
    /// # Errors
    /// [`Error::File`].
    pub fn open(args: &ReportArgs) -> Result<Self> {
        Ok(Self { json: args.json, file: args.output.as_deref().map(ResultFile::open).transpose()? })
    }

    /// Writes the report to the file and prints it, as `text` unless JSON was asked for.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Output`].
    pub fn write(&self, report: &impl Serialize, text: impl FnOnce() -> String) -> Result<()> {
        if let Some(file) = &self.file {
            file.write_json(report)?;
        }
        if self.json { print_json(report) } else { print(&text()) }
    }
}

/// Whether the terminal's character set has more than ASCII: the first of these variables that is set names it.
pub fn shows_unicode() -> bool {
    let set = ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(|name| env::var(name).ok());
    let locale = set.into_iter().find(|value| !value.is_empty()).unwrap_or_default().to_lowercase();
    ["utf-8", "utf8"].iter().any(|name| locale.contains(name))
}

/// Prints a result.
///
/// # Errors
/// [`Error::Output`].
pub fn print(text: &str) -> Result<()> {
    print_bytes(text.as_bytes())
}

/// Prints a result that is no text.
///
/// # Errors
/// [`Error::Output`].
pub fn print_bytes(bytes: &[u8]) -> Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(Error::Output)
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

/// An object as one line. Numbers that JSON has no words for (NaN, infinities) are null.
///
/// # Errors
/// [`Error::Output`] for what JSON cannot express.
pub fn json(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string(value).map_err(|error| Error::Output(error.into()))?;
    Ok(text + "\n")
}

/// Standard output of a text that is wanted elsewhere too: once its reader has closed it, what is written is dropped.
#[derive(Debug, Default)]
pub struct UntilClosed {
    closed: bool,
}

impl UntilClosed {
    fn unless_closed<T>(&mut self, result: io::Result<T>, dropped: T) -> io::Result<T> {
        match result {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => {
                self.closed = true;
                Ok(dropped)
            }
            result => result,
        }
    }
}

impl Write for UntilClosed {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.closed {
            return Ok(bytes.len());
        }
        let written = io::stdout().write(bytes);
        self.unless_closed(written, bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.closed {
            return Ok(());
        }
        let flushed = io::stdout().flush();
        self.unless_closed(flushed, ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_checked_first_replaced_by_a_result_and_left_alone_without_one() {
        let folder = std::env::temp_dir().join(format!("coppice-output-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let (old, new) = (folder.join("old"), folder.join("new"));
        fs::write(&old, "what was there before").unwrap();
        drop(ResultFile::open(&old).unwrap());
        drop(ResultFile::open(&new).unwrap());
        assert_eq!((fs::read_to_string(&old).unwrap().as_str(), new.exists()), ("what was there before", false));
        for path in [&old, &new] {
            ResultFile::open(path).unwrap().write(b"result").unwrap();
            assert_eq!(fs::read(path).unwrap(), b"result");
        }
        for nowhere in [folder.clone(), folder.join("no/such/folder")] {
            let message = ResultFile::open(&nowhere).unwrap_err().to_string();
            assert!(message.starts_with(&format!("cannot write {}", nowhere.display())), "{message}");
        }
        fs::remove_dir_all(&folder).unwrap();
    }
}
