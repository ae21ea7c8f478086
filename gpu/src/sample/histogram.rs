//! Histograms of counts and exact weights in shared memory, and sums over a block. What is counted, others decide.
use cuda_std::{atomic, prelude::*, shared};

/// Threads of a block: one row of logits.
pub(super) const THREADS: u32 = 512;
const WARPS: u32 = THREADS / 32;
/// Bins of the first histogram.
pub(super) const BINS: u32 = 2048;
/// Digits of a key that a refinement tells apart.
pub(super) const DIGITS: u32 = 256;
/// Tokens that are listed and compared one by one.
pub(super) const LISTED: u32 = 1024;

/// Offsets in shared memory, bytes.
pub(super) const TOLD: u32 = 0;
const TOTALS: u32 = TOLD + 64;
pub(super) const SCRATCH: u32 = TOTALS + 16 * WARPS;
pub(super) const COUNTER: u32 = SCRATCH + 8 * WARPS;
pub(super) const HISTOGRAM: u32 = COUNTER + 16;
pub(super) const REFINED: u32 = HISTOGRAM + 12 * BINS;
pub(super) const LIST: u32 = REFINED + 12 * DIGITS;
/// Shared memory of a block, bytes.
pub(super) const SHARED_BYTES: u32 = LIST + 16 * LISTED;

/// A place in shared memory.
#[inline(always)]
pub(super) fn at<T>(offset: u32) -> Shared<T> {
    shared::dynamic_shared_mem::<u8>().byte_add(offset).cast()
}

/// What to look for: the first token, in descending order, with which the total exceeds the amount.
#[derive(Clone, Copy)]
pub(super) enum Amount {
    /// The total counts tokens.
    Tokens(u64),
    /// The total adds weights.
    Weight(u64),
}

/// Sums over tokens.
#[derive(Clone, Copy)]
pub(super) struct Sums {
    pub tokens: u64,
    pub weight: u64,
}

impl Sums {
    pub const NONE: Self = Self { tokens: 0, weight: 0 };

    #[inline(always)]
    pub fn plus(self, other: Self) -> Self {
        Self { tokens: self.tokens + other.tokens, weight: self.weight.wrapping_add(other.weight) }
    }

    /// Whether the total passes the amount within `own`, which follows `self`.
    #[inline(always)]
    pub fn passes(self, own: Self, amount: Amount) -> bool {
        match amount {
            Amount::Tokens(n) => self.tokens <= n && n < self.tokens + own.tokens,
            Amount::Weight(w) => self.weight <= w && w < self.weight.wrapping_add(own.weight),
        }
    }
}

/// Zeros for a histogram.
#[inline(always)]
pub(super) unsafe fn clear(histogram: u32, bins: u32) {
    let mut i = thread::thread_idx_x();
    while i < 3 * bins {
        // SAFETY: inside the histogram.
        unsafe { at::<u32>(histogram).add(i).write(0) };
        i += THREADS;
    }
}

/// Counts a token: tokens, then the weight's low and high words, with the carry between them.
#[inline(always)]
pub(super) unsafe fn count(histogram: u32, bins: u32, bin: u32, weight: u64) {
    let words = at::<u32>(histogram).add(bin);
    let low = weight as u32;
    // SAFETY: inside the histogram, which was cleared.
    unsafe {
        atomic::shared_fetch_add(words, 1);
        let old = atomic::shared_fetch_add(words.add(bins), low);
        let carry = u32::from(old.checked_add(low).is_none());
        let high = (weight >> 32) as u32 + carry;
        if high > 0 {
            atomic::shared_fetch_add(words.add(2 * bins), high);
        }
    }
}

/// What a bin holds.
#[inline(always)]
pub(super) unsafe fn bin_sums(histogram: u32, bins: u32, bin: u32) -> Sums {
    let words = at::<u32>(histogram).add(bin);
    // SAFETY: inside the histogram, which is complete.
    unsafe {
        let (low, high) = (words.add(bins).read(), words.add(2 * bins).read());
        Sums { tokens: words.read().into(), weight: u64::from(high) << 32 | u64::from(low) }
    }
}

/// The sums of all threads before this one, and of the whole block.
#[inline(always)]
pub(super) unsafe fn prefix(own: Sums) -> (Sums, Sums) {
    // SAFETY: the caller's contract: all threads of the block come here together.
    unsafe {
        let (thread, lane) = (thread::thread_idx_x(), warp::lane_id());
        let mut through = own;
        let mut step = 1;
        while step < 32 {
            let up = |value: u32| warp::warp_shuffle_up(warp::FULL_MASK, value, step, 32);
            let (low, high) = (up(through.weight as u32), up((through.weight >> 32) as u32));
            let other =
                Sums { tokens: up(through.tokens as u32).into(), weight: u64::from(high) << 32 | u64::from(low) };
            if lane >= step {
                through = through.plus(other);
            }
            step *= 2;
        }
        let totals = at::<[u64; 2]>(TOTALS);
        if lane == 31 {
            totals.add(thread / 32).write([through.tokens, through.weight]);
        }
        thread::sync_threads();
        let (mut before, mut total) = (Sums::NONE, Sums::NONE);
        for w in 0..WARPS {
            let [tokens, weight] = totals.add(w).read();
            if w == thread / 32 {
                before = total;
            }
            total = total.plus(Sums { tokens, weight });
        }
        // The totals may be written anew.
        thread::sync_threads();
        let inclusive = before.plus(through);
        let exclusive =
            Sums { tokens: inclusive.tokens - own.tokens, weight: inclusive.weight.wrapping_sub(own.weight) };
        (exclusive, total)
    }
}
