//! Skinny linear layers: up to 64 rows against bf16 weights, bound by reading the weights once.
//! Quantised weights and experts are not here.
mod instances;
mod kernel;
#[cfg(test)]
mod tests;
mod weights;

pub use instances::*;
#[cfg(not(target_arch = "nvptx64"))]
pub use weights::{linear_reference, pack};

use cuda_std::prelude::*;

/// Warps of a block; they share its outputs and divide the inputs among them.
const WARPS: u32 = 8;
/// Outputs of a block: the rows of one mma tile.
const OUTPUTS: u32 = 16;
/// Inputs a warp takes at a time: two mma steps.
const CHUNK: u32 = 32;
/// Inputs after which it is the first warp's turn again: two neighbouring chunks a warp.
const STEP: u32 = WARPS * 2 * CHUNK;
/// Bytes a lane copies at once.
const VECTOR: u32 = 16;
/// What a word of the exchange holds while no half has come: a NaN that no sum is.
pub const EMPTY: u32 = u32::MAX;

/// Where a result goes: f32 as it is, or rounded to bf16.
pub trait Output: cuda_std::DeviceCopy {
    /// The nearest value.
    fn from_f32(x: f32) -> Self;
}
impl Output for f32 {
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x
    }
}
impl Output for Bf16 {
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        Bf16::from_f32(x)
    }
}

/// Bytes of a ring stage of a warp: two vectors of weights a lane for each of `height` output tiles, and one of `x` for each
/// of `tiles` row tiles.
const fn stage_bytes(tiles: u32, height: u32) -> u32 {
    32 * VECTOR * (2 * height + tiles)
}

/// The input at which an output's second half starts; the end or beyond it where there are few inputs.
const fn border(inputs: u32) -> u32 {
    inputs.div_ceil(STEP).div_ceil(2) * STEP
}
