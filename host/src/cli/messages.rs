//! What is said on standard error. Nothing here can fail: a closed standard error silences messages, not the work.

use std::fmt::Display;
use std::io::Write;

/// A reason for which the command failed.
pub fn error(message: &dyn Display) {
    line(&format_args!("error: {message}"));
}

/// Something that may explain a poor result.
pub fn warning(message: &dyn Display) {
    line(&format_args!("warning: {message}"));
}

/// One line, or several, as they are.
pub fn line(message: &dyn Display) {
    let _ = writeln!(std::io::stderr(), "{message}");
}
