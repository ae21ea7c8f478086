//! Decoders of f32, f16 and bf16 weights.

#![allow(unsafe_code)]

use half::{bf16, f16};

use super::kernel::{AHEAD, Decode};
use crate::simd::{LANES, Simd};

/// A row's last columns, fewer than a block, padded with zeros.
///
/// # Safety
/// `count` elements are readable at `p`.
#[inline(always)]
unsafe fn padded<T: Copy + Default, const N: usize>(p: *const T, count: usize) -> [T; N] {
    let mut block = [T::default(); N];
    // SAFETY: the caller's promise.
    unsafe { std::ptr::copy_nonoverlapping(p, block.as_mut_ptr(), count.min(N)) };
    block
}

/// A row-major matrix of `T` with `cols` columns.
#[derive(Clone, Copy)]
pub(super) struct Dense<'a, T> {
    pub(super) values: &'a [T],
    pub(super) cols: usize,
}

impl<T: Copy + Default> Dense<'_, T> {
    /// The `N` elements of a block.
    ///
    /// # Safety
    /// `row` is in range, and so is the whole block.
    #[inline(always)]
    unsafe fn at<const N: usize>(&self, row: usize, block: usize) -> *const T {
        // SAFETY: the caller's promise.
        unsafe { self.values.as_ptr().add(row * self.cols + block * N) }
    }

    /// The ragged block after the full blocks of `N`.
    ///
    /// # Safety
    /// `row` is in range.
    #[inline(always)]
    unsafe fn last<const N: usize>(&self, row: usize) -> [T; N] {
        let full = self.cols / N;
        // SAFETY: what is left of the row begins there.
        unsafe { padded(self.at::<N>(row, full), self.cols - full * N) }
    }

    #[inline(always)]
    fn block_counts<const N: usize>(&self) -> (usize, usize) {
        (self.cols / N, usize::from(!self.cols.is_multiple_of(N)))
    }
}

macro_rules! plain {
    ($type:ty, |$s:ident, $p:ident| $load:expr) => {
        // SAFETY: blocks are sixteen columns within the row; the rest is copied by its length.
        unsafe impl<S: Simd> Decode<S> for Dense<'_, $type> {
            const PLANES: usize = 1;
            const REST_PLANES: usize = 1;
            type Block = S::F;

            #[inline(always)]
            fn blocks(&self) -> (usize, usize) {
                self.block_counts::<LANES>()
            }
            #[inline(always)]
            unsafe fn block(&self, $s: S, row: usize, block: usize) -> S::F {
                // SAFETY: in range by the caller's promise.
                unsafe {
                    let $p = self.at::<LANES>(row, block);
                    $s.prefetch($p.wrapping_add(AHEAD * self.cols));
                    $load
                }
            }
            #[inline(always)]
            fn plane<const I: usize>(_: S, block: S::F) -> S::F {
                block
            }
            #[inline(always)]
            unsafe fn rest(&self, $s: S, row: usize, _: usize) -> S::F {
                // SAFETY: in range by the caller's promise; the copy has sixteen elements.
                unsafe {
                    let last = self.last::<LANES>(row);
                    let $p = last.as_ptr();
                    $load
                }
            }
        }
    };
}

plain!(f32, |s, p| s.load(p));
plain!(f16, |s, p| s.load_f16(p.cast()));

/// Columns of a block of bf16: sixteen words of two.
const PAIRS: usize = 2 * LANES;

// SAFETY: blocks are 32 columns within the row; the rest is copied by its length.
unsafe impl<S: Simd> Decode<S> for Dense<'_, bf16> {
    const PLANES: usize = 2;
    const REST_PLANES: usize = 2;
    type Block = S::U;

    #[inline(always)]
    fn blocks(&self) -> (usize, usize) {
        self.block_counts::<PAIRS>()
    }
    #[inline(always)]
    unsafe fn block(&self, s: S, row: usize, block: usize) -> S::U {
        // SAFETY: in range by the caller's promise.
        unsafe {
            let words = self.at::<PAIRS>(row, block);
            s.prefetch(words.wrapping_add(AHEAD * self.cols));
            s.load_u32(words.cast())
        }
    }
    /// bf16 is the upper half of an f32.
    #[inline(always)]
    fn plane<const I: usize>(s: S, block: S::U) -> S::F {
        s.as_f(if I == 0 { s.shl::<16>(block) } else { s.and(block, s.splat_u(0xffff_0000)) })
    }
    #[inline(always)]
    unsafe fn rest(&self, s: S, row: usize, _: usize) -> S::U {
        // SAFETY: in range by the caller's promise; the copy has 32 elements.
        unsafe { s.load_u32(self.last::<PAIRS>(row).as_ptr().cast()) }
    }
}
