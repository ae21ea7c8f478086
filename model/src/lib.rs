//! What a model *is*: configuration, checkpoint, stored weights, tokenizer, chat template. No compute, no device.

pub mod bind;
pub mod config;
pub mod error;
pub mod tokenizer;
pub mod weight;

pub use error::{Error, Result};
