//! The one error type of this crate.

use std::path::{Path, PathBuf};

/// Shorthand for a result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can go wrong while running a model.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The model's files or text.
    #[error(transparent)]
    Model(#[from] coppice_model::Error),
    /// A file named on the command line could not be read or written.
    #[error("cannot {action} {}: {source}", path.display())]
    File {
        /// `read` or `write`.
        action: &'static str,
        /// The file.
        path: PathBuf,
        /// The operating system's word.
        source: std::io::Error,
    },
    /// Standard output could not be written.
    #[error("cannot write to standard output: {0}")]
    Output(#[source] std::io::Error),
    /// A file's contents are not what the flag that named it takes.
    #[error("{}: {message}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What was found and what was expected.
        message: String,
    },
    /// A flag has a value it cannot have, alone or beside another.
    #[error("{0}")]
    Usage(String),
    /// A request does not fit the model or the device.
    #[error("{0}")]
    Request(String),
    /// A model could not be run.
    #[error("running {}: {source}", model.display())]
    Running {
        /// The model's folder, or the embedded model's name.
        model: PathBuf,
        /// What went wrong.
        source: Box<Error>,
    },
    /// An operation on the device failed.
    #[error("{backend} backend: {message}")]
    Backend {
        /// Which backend.
        backend: &'static str,
        /// Operation, values, cause.
        message: String,
    },
}

impl Error {
    /// With the model that was being run, where the error itself is about an operation.
    pub fn of_model(self, model: &Path) -> Self {
        match self {
            Self::Backend { .. } => Self::Running { model: model.to_owned(), source: Box::new(self) },
            other => other,
        }
    }
}

/// What to do about numbers that are none, as the end of a message.
pub(crate) const NOT_A_NUMBER: &str = "the weights hold values that are no numbers, or config.json is not the \
                                       checkpoint's own: compare both with where they came from";
