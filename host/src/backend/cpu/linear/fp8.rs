//! The decoder of fp8-e4m3 weights with an f32 scale a block of rows by 64 k columns.

#![allow(unsafe_code)]

use super::kernel::Decode;
use crate::backend::cpu::simd::{LANES, Simd};

/// Columns of a block of the kernel: sixteen words of four.
const BLOCK: usize = 4 * LANES;

/// e4m3 rows; value = fp8 x scale, rounded once.
#[derive(Clone, Copy)]
pub(super) struct Fp8<'a> {
    /// `[rows, cols]`.
    pub(super) values: &'a [u8],
    /// `[ceil(rows / block[0]), ceil(cols / block[1])]`.
    pub(super) scale_inv: &'a [f32],
    pub(super) cols: usize,
    /// `block[1]` is a multiple of 64.
    pub(super) block: [usize; 2],
}

impl Fp8<'_> {
    /// # Safety
    /// Row and column are in range.
    #[inline(always)]
    unsafe fn scale(&self, row: usize, col: usize) -> f32 {
        let index = row / self.block[0] * self.cols.div_ceil(self.block[1]) + col / self.block[1];
        // SAFETY: the caller's promise.
        unsafe { *self.scale_inv.get_unchecked(index) }
    }
}

/// The value of the e4m3 number in the top byte of each word.
///
/// Sign and the seven bits of exponent and mantissa are moved to their places in an f32; the exponents' biases differ by
/// 120, which a multiplication mends for normal and subnormal numbers alike. All ones is NaN.
#[inline(always)]
fn e4m3<S: Simd>(s: S, words: S::U) -> S::F {
    let bits = s.and(s.sar::<4>(words), s.splat_u(0x87f0_0000));
    let value = s.mul(s.as_f(bits), s.splat(f32::from_bits((127 + 120) << 23)));
    let magnitude = s.and(bits, s.splat_u(0x07f0_0000));
    s.nan_where_eq(magnitude, s.splat_u(0x07f0_0000), value)
}

// SAFETY: blocks are 64 columns within the row; the rest is copied by its length.
unsafe impl<S: Simd> Decode<S> for Fp8<'_> {
    const PLANES: usize = 4;
    const REST_PLANES: usize = 4;
    /// Words and their scale.
    type Block = (S::U, S::F);
    type Rest = (S::U, S::F);

    #[inline(always)]
    fn blocks(&self) -> (usize, usize) {
        (self.cols / BLOCK, usize::from(!self.cols.is_multiple_of(BLOCK)))
    }
    #[inline(always)]
    unsafe fn block(&self, s: S, row: usize, block: usize) -> (S::U, S::F) {
        // SAFETY: in range by the caller's promise.
        unsafe {
            let words = self.values.as_ptr().add(row * self.cols + block * BLOCK);
            (s.load_u32(words), s.splat(self.scale(row, block * BLOCK)))
        }
    }
    #[inline(always)]
    fn plane<const I: usize>(s: S, (words, scale): (S::U, S::F)) -> S::F {
        let top = match I {
            0 => s.shl::<24>(words),
            1 => s.shl::<16>(words),
            2 => s.shl::<8>(words),
            _ => words,
        };
        s.mul(e4m3(s, top), scale)
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
            (s.load_u32(words.as_ptr()), s.splat(self.scale(row, col)))
        }
    }
    #[inline(always)]
    fn rest_plane<const I: usize>(s: S, block: (S::U, S::F)) -> S::F {
        <Self as Decode<S>>::plane::<I>(s, block)
    }
}
