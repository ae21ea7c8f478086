//! One row of logits: its tokens' order and weights, and the walk over them.
use super::histogram::{BINS, THREADS};
use crate::exponential::exp;
use cuda_std::{prelude::*, unroll};

/// Logits that the block reads in one go.
const STEP: u32 = THREADS * 4;
/// Bins of width 1 / 62 in units of the exponent cover all weights that are not 0.
const BINS_A_UNIT: f32 = 62.0;

/// The weight of the most probable token: weights are multiples of 2^-46, so that 2^17 of them fit 64 bits.
pub(super) const ONE: u64 = 1 << 46;
/// Exponents below this give weight 0: e^-33 < 2^-47.
const LEAST: f64 = -33.0;

/// One row of logits and what turns them into weights. The same in all threads.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub logits: Global<f32>,
    pub vocab: u32,
    /// The largest logit.
    pub max: f32,
    /// 1 / temperature.
    pub scale: f64,
    /// Tokens of weight 0 count too, if their logit is a number above -inf.
    pub all: bool,
}

/// A token of some weight.
#[derive(Clone, Copy)]
pub(super) struct Token {
    /// Orders tokens: the larger comes first.
    pub key: u64,
    pub weight: u64,
    pub bin: u32,
}

/// An integer that orders like (logit ascending, id descending); -0 counts as 0.
#[inline(always)]
pub(super) fn key_of(logit: f32, id: u32) -> u64 {
    let bits = (logit + 0.0).to_bits();
    let ordered = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    u64::from(ordered) << 32 | u64::from(!id)
}

/// The logit in a key.
#[inline(always)]
pub(super) fn logit_of(key: u64) -> f32 {
    let ordered = (key >> 32) as u32;
    f32::from_bits(if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered })
}

/// The id in a key.
#[inline(always)]
pub(super) fn id_of(key: u64) -> u32 {
    !(key as u32)
}

impl Row {
    /// The weight of a logit in units of [`ONE`], rounded, and unrounded: e^((logit - max) / temperature).
    #[inline(always)]
    pub fn weight(self, logit: f32) -> (u64, f64) {
        if logit == self.max {
            return (ONE, 1.0);
        }
        let x = (f64::from(logit) - f64::from(self.max)) * self.scale;
        // x is NaN where the logit is.
        if x < LEAST || x.is_nan() {
            return (0, 0.0);
        }
        let weight = exp(x);
        ((weight * ONE as f64 + 0.5) as u64, weight)
    }

    /// The bin of a logit. It never falls as logits fall, and equal logits share one.
    #[inline(always)]
    fn bin(self, logit: f32) -> u32 {
        let distance = (self.max - logit) * self.scale as f32 * BINS_A_UNIT;
        // Equal logits have distance 0, where infinities would have none.
        if logit == self.max { 0 } else { (distance as u32).min(BINS - 1) }
    }

    /// Calls `visit` with each token of this thread: four neighbouring ones, then on by 2048; four such loads are on their
    /// way at a time.
    #[inline(always)]
    pub unsafe fn each(self, mut visit: impl FnMut(f32, u32)) {
        let mut i = thread::thread_idx_x() * 4;
        while i + 3 * STEP + 4 <= self.vocab {
            let mut held = [[0.0f32; 4]; 4];
            unroll!(LOAD in [0 1 2 3] {
                // SAFETY: below the vocabulary.
                unsafe { held[LOAD] = self.logits.add((i + LOAD as u32 * STEP) as usize).cast().read() };
            });
            unroll!(LOAD in [0 1 2 3] {
                unroll!(J in [0 1 2 3] {
                    visit(held[LOAD][J], i + LOAD as u32 * STEP + J as u32);
                });
            });
            i += 4 * STEP;
        }
        while i < self.vocab {
            // SAFETY: below the vocabulary.
            unsafe {
                let at = self.logits.add(i as usize);
                if i + 4 <= self.vocab {
                    let [a, b, c, d] = at.cast::<[f32; 4]>().read();
                    visit(a, i);
                    visit(b, i + 1);
                    visit(c, i + 2);
                    visit(d, i + 3);
                } else {
                    for j in 0..self.vocab - i {
                        visit(at.add(j as usize).read(), i + j);
                    }
                }
            }
            i += STEP;
        }
    }

    /// Calls `visit` with each token of this thread that has some weight, and its weight unrounded.
    #[inline(always)]
    pub unsafe fn each_weighted(self, mut visit: impl FnMut(Token, f64)) {
        // SAFETY: the caller's contract.
        unsafe {
            self.each(|logit, id| {
                let (weight, unrounded) = self.weight(logit);
                if weight > 0 || self.all && logit > f32::NEG_INFINITY {
                    visit(Token { key: key_of(logit, id), weight, bin: self.bin(logit) }, unrounded);
                }
            });
        }
    }
}
