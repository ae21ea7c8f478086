//! The decoder of int4 weights with a bf16 scale a group of 32, 64, 128, .. columns.

#![allow(unsafe_code)]

use half::bf16;

use super::kernel::{AHEAD, Decode};
use crate::simd::{LANES, Simd};

/// Columns that share a scale, at least.
const GROUP: usize = 32;
/// Columns of a block: sixteen words of eight.
const BLOCK: usize = 8 * LANES;

/// int4 rows; value = (nibble - 8) x scale.
#[derive(Clone, Copy)]
pub(super) struct Int4<'a> {
    /// `[rows, cols / 8]`.
    packed: &'a [u32],
    /// `[rows, groups]`.
    scale: &'a [bf16],
    /// A multiple of 32.
    cols: usize,
    groups: usize,
    /// Columns of a group, as 32 times a power of two.
    shift: u32,
}

impl<'a> Int4<'a> {
    /// Whether weights of these shapes can be decoded here.
    pub(super) fn takes(cols: usize, group: usize) -> bool {
        group >= GROUP && group.is_power_of_two() && cols.is_multiple_of(group)
    }

    /// `packed` `[rows, cols / 8]` and `scale` `[rows, cols / group]` of shapes that it takes.
    pub(super) fn new(packed: &'a [u32], scale: &'a [bf16], cols: usize, group: usize) -> Self {
        Int4 { packed, scale, cols, groups: cols / group, shift: group.ilog2() - GROUP.ilog2() }
    }

    /// The scale of the 32 columns from `32 x unit` on.
    ///
    /// # Safety
    /// `row` and the columns are in range.
    #[inline(always)]
    unsafe fn scale(&self, row: usize, unit: usize) -> f32 {
        // SAFETY: the caller's promise.
        let scale = unsafe { self.scale.get_unchecked(row * self.groups + (unit >> self.shift)) };
        // bf16 is the upper half of an f32.
        f32::from_bits(u32::from(scale.to_bits()) << 16)
    }
}

// SAFETY: blocks are 128 columns, 64 bytes, within the row; a block of the rest is 32 columns, 16 bytes, since 32 divides
// the columns.
unsafe impl<S: Simd> Decode<S> for Int4<'_> {
    const PLANES: usize = 8;
    const REST_PLANES: usize = 2;
    const SCALED: bool = true;
    /// Words or bytes, and the scales of their columns.
    type Block = (S::U, S::F);

    #[inline(always)]
    fn blocks(&self) -> (usize, usize) {
        (self.cols / BLOCK, self.cols % BLOCK / GROUP)
    }
    #[inline(always)]
    unsafe fn block(&self, s: S, row: usize, block: usize) -> (S::U, S::F) {
        // SAFETY: in range by the caller's promise.
        unsafe {
            let words = self.packed.as_ptr().add(row * (self.cols / 8) + block * LANES);
            s.prefetch(words.wrapping_add(AHEAD * (self.cols / 8)));
            let scales = if self.shift == 0 {
                s.quads_bf16(self.scale.as_ptr().add(row * self.groups + 4 * block).cast())
            } else {
                s.quads([0, 1, 2, 3].map(|i| self.scale(row, 4 * block + i)))
            };
            (s.load_u32(words.cast()), scales)
        }
    }
    #[inline(always)]
    fn plane<const I: usize>(s: S, (words, _): (S::U, S::F)) -> S::F {
        match I {
            0 => s.nibble::<0>(words),
            1 => s.nibble::<1>(words),
            2 => s.nibble::<2>(words),
            3 => s.nibble::<3>(words),
            4 => s.nibble::<4>(words),
            5 => s.nibble::<5>(words),
            6 => s.nibble::<6>(words),
            _ => s.nibble::<7>(words),
        }
    }
    #[inline(always)]
    unsafe fn rest(&self, s: S, row: usize, block: usize) -> (S::U, S::F) {
        let col = self.cols / BLOCK * BLOCK + block * GROUP;
        // SAFETY: in range by the caller's promise.
        unsafe {
            let bytes = self.packed.as_ptr().cast::<u8>().add((row * self.cols + col) / 2);
            (s.load_u8(bytes), s.splat(self.scale(row, col / GROUP)))
        }
    }
    #[inline(always)]
    fn rest_plane<const I: usize>(s: S, (bytes, _): (S::U, S::F)) -> S::F {
        if I == 0 { s.nibble::<0>(bytes) } else { s.nibble::<1>(bytes) }
    }
    #[inline(always)]
    fn scale(_: S, (_, scale): (S::U, S::F)) -> S::F {
        scale
    }
}
