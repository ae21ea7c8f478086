//! What a model *is*: configuration, checkpoint, stored weights, tokenizer, chat template. No compute, no device.

pub mod bind;
pub mod chat;
pub mod checkpoint;
pub mod config;
mod embedded;
pub mod error;
mod model;
pub mod source;
pub mod tokenizer;
pub mod weight;

pub use error::{Error, Result};
pub use model::{DraftModel, TargetModel};
pub use source::Source;
