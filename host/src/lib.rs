//! Coppice: text generation with MLA + MoE models by DFlash drafting and DDTree verification.
//!
//! A token's way: `main` -> `cli::generate` -> `engine::session` -> `engine::step` -> `layers` -> `backend` -> kernel, and
//! back once.

pub mod backend;
pub mod bench;
pub mod cli;
pub mod draft;
pub mod engine;
pub mod error;
pub mod layers;
pub mod profile;
pub mod report;
pub mod sampling;
pub mod simd;
pub mod tree;

pub use error::{Error, Result};
