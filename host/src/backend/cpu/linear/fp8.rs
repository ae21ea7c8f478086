//! The decoder of fp8-e4m3 weights with an f32 scale a block of 2^i rows by 64, 128, .. columns.

#![allow(unsafe_code)]

use super::kernel::{AHEAD, Decode};
use crate::simd::{LANES, Simd};

/// Columns of a block of the kernel: sixteen words of four.
const BLOCK: usize = 4 * LANES;

/// e4m3 rows; value = fp8 x scale.
#[derive(Clone, Copy)]
pub(super) struct Fp8<'a> {
    /// `[rows, cols]`.
    values: &'a [u8],
    /// `[ceil(rows / 2^shift[0]), ceil(cols / 2^shift[1])]`.
    scale_inv: &'a [f32],
    cols: usize,
    scales: usize,
    shift: [u32; 2],
}

impl<'a> Fp8<'a> {
    /// Whether weights with scale blocks of this shape can be decoded here.
    pub(super) fn takes(block: [usize; 2]) -> bool {
        block[0].is_power_of_two() && block[1].is_power_of_two() && block[1] >= BLOCK
    }

    /// `values` `[rows, cols]` and `scale_inv` `[ceil(rows / block[0]), ceil(cols / block[1])]`, of blocks that it takes.
    pub(super) fn new(values: &'a [u8], scale_inv: &'a [f32], cols: usize, block: [usize; 2]) -> Self {
        Fp8 { values, scale_inv, cols, scales: cols.div_ceil(block[1]), shift: block.map(usize::ilog2) }
    }

    /// # Safety
    /// Row and column are in range.
    #[inline(always)]
    unsafe fn scale(&self, row: usize, col: usize) -> f32 {
        let index = (row >> self.shift[0]) * self.scales + (col >> self.shift[1]);
        // SAFETY: the caller's promise.
        unsafe { *self.scale_inv.get_unchecked(index) }
    }
}

/// The value of the e4m3 number in the top byte of each word.
///
/// Sign and the seven bits of exponent and mantissa are moved to their places in an f32; the exponents' biases differ by
/// 120, which a multiplication mends for normal and subnormal numbers alike. NaN is read as 480.
#[inline(always)]
fn e4m3<S: Simd>(s: S, words: S::U) -> S::F {
    let bits = s.and(s.sar::<4>(words), s.splat_u(0x87f0_0000));
    s.mul(s.as_f(bits), s.splat(f32::from_bits((127 + 120) << 23)))
}

/// The scale of a block, NaN in the lanes of words that hold a NaN: every sum with the word's columns is then NaN, as it
/// should be.
#[inline(always)]
fn guarded<S: Simd>(s: S, words: S::U, scale: f32) -> S::F {
    // A carry into the sign bit tells a byte of seven ones.
    let carried = s.add_u(s.and(words, s.splat_u(0x7f7f_7f7f)), s.splat_u(0x0101_0101));
    s.nan_where(s.and(carried, s.splat_u(0x8080_8080)), s.splat(scale))
}

// SAFETY: blocks are 64 columns within the row; the rest is copied by its length.
unsafe impl<S: Simd> Decode<S> for Fp8<'_> {
    const PLANES: usize = 4;
    const REST_PLANES: usize = 4;
    const SCALED: bool = true;
    /// Words and their scale.
    type Block = (S::U, S::F);

    #[inline(always)]
    fn blocks(&self) -> (usize, usize) {
        (self.cols / BLOCK, usize::from(!self.cols.is_multiple_of(BLOCK)))
    }
    #[inline(always)]
    unsafe fn block(&self, s: S, row: usize, block: usize) -> (S::U, S::F) {
        // SAFETY: in range by the caller's promise.
        unsafe {
            let words = self.values.as_ptr().add(row * self.cols + block * BLOCK);
            s.prefetch(words.wrapping_add(AHEAD * self.cols));
            let words = s.load_u32(words);
            (words, guarded(s, words, self.scale(row, block * BLOCK)))
        }
    }
    #[inline(always)]
    fn plane<const I: usize>(s: S, (words, _): (S::U, S::F)) -> S::F {
        e4m3(
            s,
            match I {
                0 => s.shl::<24>(words),
                1 => s.shl::<16>(words),
                2 => s.shl::<8>(words),
                _ => words,
            },
        )
    }
    #[inline(always)]
    fn scale(_: S, (_, scale): (S::U, S::F)) -> S::F {
        scale
    }
    #[inline(always)]
    unsafe fn rest(&self, s: S, row: usize, _: usize) -> (S::U, S::F) {
        let col = self.cols / BLOCK * BLOCK;
        let start = row * self.cols + col;
        let mut words = [0; BLOCK];
        // SAFETY: in range by the caller's promise; the copy has 64 bytes.
        unsafe {
            let rest = self.values.get_unchecked(start..start + self.cols - col);
            words[..rest.len()].copy_from_slice(rest);
            let words = s.load_u32(words.as_ptr());
            (words, guarded(s, words, self.scale(row, col)))
        }
    }
}
