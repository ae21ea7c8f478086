//! Stored types by their definition, an element at a time: for shapes of scales that the vector decoders leave out, and
//! the reference that those are tested against.

#![allow(unsafe_code)]

use coppice_model::weight::{Storage, Weight, e4m3_to_f32};

use super::kernel::Decode;
use crate::simd::{LANES, Simd};

/// Element `[row, col]` of `weight`.
pub(crate) fn element(weight: &Weight, row: usize, col: usize) -> f32 {
    let cols = weight.cols;
    let index = row * cols + col;
    match &weight.storage {
        Storage::F32(values) => values[index],
        Storage::F16(values) => values[index].to_f32(),
        Storage::Bf16(values) => values[index].to_f32(),
        Storage::Fp8Block { values, scale_inv, block } => {
            let scale = scale_inv[row / block[0] * cols.div_ceil(block[1]) + col / block[1]];
            e4m3_to_f32(values[index]) * scale
        }
        Storage::Int4Group { packed, scale, group } => {
            let word = packed[row * cols.div_ceil(8) + col / 8];
            let nibble = word >> (4 * (col % 8)) & 0xf;
            let scale = scale[row * cols.div_ceil(*group) + col / group];
            (nibble as f32 - 8.0) * scale.to_f32()
        }
    }
}

/// A weight of any storage.
#[derive(Clone, Copy)]
pub(super) struct ByDefinition<'a>(pub(super) &'a Weight);

// SAFETY: elements are read through checked indices.
unsafe impl<S: Simd> Decode<S> for ByDefinition<'_> {
    const PLANES: usize = 1;
    const REST_PLANES: usize = 1;
    const IN_REGISTERS: bool = false;
    type Block = S::F;

    #[inline(always)]
    fn blocks(&self) -> (usize, usize) {
        (self.0.cols / LANES, usize::from(!self.0.cols.is_multiple_of(LANES)))
    }
    #[inline(always)]
    unsafe fn block(&self, s: S, row: usize, block: usize) -> S::F {
        let mut lanes = [0.0; LANES];
        for (col, lane) in (block * LANES..self.0.cols).zip(&mut lanes) {
            *lane = element(self.0, row, col);
        }
        // SAFETY: sixteen f32.
        unsafe { s.load(lanes.as_ptr()) }
    }
    #[inline(always)]
    unsafe fn rest(&self, s: S, row: usize, _: usize) -> S::F {
        // SAFETY: the caller's promise.
        unsafe { self.block(s, row, self.0.cols / LANES) }
    }
    #[inline(always)]
    fn plane<const I: usize>(_: S, block: S::F) -> S::F {
        block
    }
}
