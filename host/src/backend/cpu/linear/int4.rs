//! The decoder of int4 weights with a bf16 scale a group of 32 k columns.

#![allow(unsafe_code)]

use half::bf16;

use super::kernel::Decode;
use crate::backend::cpu::simd::{LANES, Simd};

/// Columns that share a scale at least.
const GROUP: usize = 32;
/// Columns of a block: sixteen words of eight.
const BLOCK: usize = 8 * LANES;

/// int4 rows; value = (nibble - 8) x scale, which f32 holds exactly.
#[derive(Clone, Copy)]
pub(super) struct Int4<'a> {
    /// `[rows, cols / 8]`.
    pub(super) packed: &'a [u32],
    /// `[rows, cols / group]`.
    pub(super) scale: &'a [bf16],
    pub(super) cols: usize,
    /// A multiple of 32 that divides `cols`.
    pub(super) group: usize,
}

impl Int4<'_> {
    /// The scale of the 32 columns from `32 x group` on.
    ///
    /// # Safety
    /// `row` and the columns are in range.
    #[inline(always)]
    unsafe fn scale(&self, row: usize, group: usize) -> f32 {
        let index = row * (self.cols / self.group) + group / (self.group / GROUP);
        // SAFETY: the caller's promise. bf16 is the upper half of an f32.
        f32::from_bits(u32::from(unsafe { self.scale.get_unchecked(index) }.to_bits()) << 16)
    }
}

/// `nibble - 8` where the nibble is at bit `SHIFT <= 16` of each word.
///
/// The nibble is moved nowhere: under the exponent of 2^(23 - SHIFT) it reads as 2^(23 - SHIFT) + nibble.
#[inline(always)]
fn centred<S: Simd, const SHIFT: u32>(s: S, words: S::U) -> S::F {
    let base = f32::from_bits((127 + 23 - SHIFT) << 23);
    let biased = s.and_or(words, s.splat_u(0xf << SHIFT), s.splat_u(base.to_bits()));
    s.sub(s.as_f(biased), s.splat(base + 8.0))
}

// SAFETY: blocks are 128 columns, 64 bytes, within the row; a block of the rest is 32 columns, 16 bytes, since 32 divides
// the columns.
unsafe impl<S: Simd> Decode<S> for Int4<'_> {
    const PLANES: usize = 8;
    const REST_PLANES: usize = 2;
    /// Words and the scales of their columns.
    type Block = (S::U, S::F);
    /// Bytes and the scales of their columns.
    type Rest = (S::U, S::F);

    #[inline(always)]
    fn blocks(&self) -> (usize, usize) {
        (self.cols / BLOCK, self.cols % BLOCK / GROUP)
    }
    #[inline(always)]
    unsafe fn block(&self, s: S, row: usize, block: usize) -> (S::U, S::F) {
        // SAFETY: in range by the caller's promise.
        unsafe {
            let words = self.packed.as_ptr().add(row * (self.cols / 8) + block * LANES);
            let scales = if self.group == GROUP {
                s.quads_bf16(self.scale.as_ptr().add(row * (self.cols / GROUP) + 4 * block).cast())
            } else {
                s.quads([0, 1, 2, 3].map(|i| self.scale(row, 4 * block + i)))
            };
            (s.load_u32(words.cast()), scales)
        }
    }
    #[inline(always)]
    fn plane<const I: usize>(s: S, (words, scale): (S::U, S::F)) -> S::F {
        let centred = match I {
            0 => centred::<S, 0>(s, words),
            1 => centred::<S, 4>(s, words),
            2 => centred::<S, 8>(s, words),
            3 => centred::<S, 12>(s, words),
            4 => centred::<S, 16>(s, words),
            5 => centred::<S, 8>(s, s.shr::<12>(words)),
            6 => centred::<S, 12>(s, s.shr::<12>(words)),
            _ => centred::<S, 16>(s, s.shr::<12>(words)),
        };
        s.mul(centred, scale)
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
    fn rest_plane<const I: usize>(s: S, (bytes, scale): (S::U, S::F)) -> S::F {
        let centred = if I == 0 { centred::<S, 0>(s, bytes) } else { centred::<S, 4>(s, bytes) };
        s.mul(centred, scale)
    }
}
