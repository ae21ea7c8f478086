//! Attention of the round's rows over the KV cache. Projections before and after it are linear layers.
pub(crate) mod online;
mod split;
mod tile;
mod verify;

pub use verify::*;
