//! Coppice: the engine.

pub mod draft;
pub mod sampling;
pub mod tree;
