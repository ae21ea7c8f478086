//! Shared helpers of the integration tests.

pub mod binary;
pub mod kimi_slice;
pub mod model;
pub mod prompts;
