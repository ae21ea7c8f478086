//! The one error type of this crate.

use std::path::PathBuf;

/// Shorthand for a result of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// What can be wrong with a model's files or text. Every message names the object, what was found, what was
/// expected and, where there is one, the remedy.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read.
    #[error("cannot read {}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The operating system's word.
        source: std::io::Error,
    },
    /// A configuration key is absent, of the wrong type, or out of range.
    #[error("{}: {message}", path.display())]
    Config {
        /// The configuration file.
        path: PathBuf,
        /// Key, value found, value expected.
        message: String,
    },
    /// A checkpoint file is malformed, or an index and its shards disagree.
    #[error("{}: {message}", path.display())]
    Checkpoint {
        /// The file.
        path: PathBuf,
        /// What was found and what was expected.
        message: String,
    },
    /// Tensors that the configuration asks for are not there.
    #[error("{}: {}", path.display(), cannot_find(missing))]
    MissingTensors {
        /// The checkpoint.
        path: PathBuf,
        /// Their names, in the order of the model, the first with the reason it is expected where that is not obvious.
        missing: Vec<String>,
        /// Tensors of the checkpoint that nothing asked for, ascending.
        unused: Vec<String>,
    },
    /// A tensor has an unexpected dtype, shape or content.
    #[error("tensor {name} in {} {message}", path.display())]
    Tensor {
        /// The tensor's name.
        name: String,
        /// The file that holds it.
        path: PathBuf,
        /// What was found and what was expected, as the end of the sentence that begins with the tensor.
        message: String,
    },
    /// The embedded model was asked for and is not in the program.
    #[error("{}: the program was built without the feature embedded-model: name a model folder", path.display())]
    NotEmbedded {
        /// The name of the embedded model.
        path: PathBuf,
    },
    /// The tokenizer's files cannot be used, or text cannot be tokenised.
    #[error("tokenizer {}: {message}", path.display())]
    Tokenizer {
        /// The tokenizer file.
        path: PathBuf,
        /// What went wrong.
        message: String,
    },
    /// The chat template cannot be rendered.
    #[error("chat template {}: {message}", path.display())]
    ChatTemplate {
        /// The file that holds the template.
        path: PathBuf,
        /// What went wrong.
        message: String,
    },
}

/// Missing tensors that a message lists by name.
const LISTED: usize = 5;

fn cannot_find(missing: &[String]) -> String {
    match missing {
        [one] => format!("cannot find tensor {one}"),
        several => {
            let count = several.len();
            let rest = if count > LISTED { format!(" and {} more", count - LISTED) } else { String::new() };
            let first = several[..count.min(LISTED)].join(", ");
            format!("cannot find {count} tensors: {first}{rest}; does config.json belong to this checkpoint?")
        }
    }
}
