//! Shared helpers of the integration tests.

pub mod binary;
pub mod model;
pub mod prompts;
