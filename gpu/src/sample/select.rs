//! Where a running total over one row's tokens, most probable first, passes a given amount: by histograms of exact integers,
//! so that the answer depends on no order of additions. Which amounts matter is the draw's affair.
use crate::exponential::exp;
use cuda_std::{atomic, prelude::*, shared, unroll};

/// Threads of a block: one row of logits.
pub(super) const THREADS: u32 = 512;
const WARPS: u32 = THREADS / 32;
/// Logits that the block reads in one go.
const STEP: u32 = THREADS * 4;
/// Bins of the first histogram.
const BINS: u32 = 2048;
/// Bins a thread sums.
const OWN: u32 = BINS / THREADS;
/// Bins of width 1 / 62 in units of the exponent cover all weights that are not 0.
const BINS_A_UNIT: f32 = 62.0;
/// Digits of a key that a refinement tells apart.
const DIGITS: u32 = 256;
/// Tokens that are listed and compared one by one.
const LISTED: u32 = 1024;

/// The weight of the most probable token: weights are multiples of 2^-46, so that 2^17 of them fit 64 bits.
pub(super) const ONE: u64 = 1 << 46;
/// Exponents below this give weight 0: e^-33 < 2^-47.
const LEAST: f64 = -33.0;

/// Offsets in shared memory, bytes.
const TOLD: u32 = 0;
const TOTALS: u32 = TOLD + 64;
pub(super) const SCRATCH: u32 = TOTALS + 16 * WARPS;
const COUNTER: u32 = SCRATCH + 8 * WARPS;
const HISTOGRAM: u32 = COUNTER + 16;
const REFINED: u32 = HISTOGRAM + 12 * BINS;
const LIST: u32 = REFINED + 12 * DIGITS;
/// Shared memory of a block, bytes.
pub(super) const SHARED_BYTES: u32 = LIST + 16 * LISTED;

/// A place in shared memory.
#[inline(always)]
pub(super) fn at<T>(offset: u32) -> Shared<T> {
    shared::dynamic_shared_mem::<u8>().byte_add(offset).cast()
}

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
struct Token {
    /// Orders tokens: the larger comes first.
    key: u64,
    weight: u64,
    bin: u32,
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
    const NONE: Self = Self { tokens: 0, weight: 0 };

    #[inline(always)]
    fn plus(self, other: Self) -> Self {
        Self { tokens: self.tokens + other.tokens, weight: self.weight.wrapping_add(other.weight) }
    }

    /// Whether the total passes the amount within `own`, which follows `self`.
    #[inline(always)]
    fn passes(self, own: Self, amount: Amount) -> bool {
        match amount {
            Amount::Tokens(n) => self.tokens <= n && n < self.tokens + own.tokens,
            Amount::Weight(w) => self.weight <= w && w < self.weight.wrapping_add(own.weight),
        }
    }
}

/// Tokens that are still in question: those of a bin whose keys begin with `prefix`.
#[derive(Clone, Copy)]
struct Region {
    bin: u32,
    /// Bits of a key after the prefix; 64: no prefix.
    shift: u32,
    prefix: u64,
    /// All before the region.
    before: Sums,
    /// Tokens in it.
    tokens: u32,
}

impl Region {
    #[inline(always)]
    fn holds(self, token: Token) -> bool {
        token.bin == self.bin && (self.shift == 64 || token.key >> self.shift == self.prefix)
    }
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
    unsafe fn each_weighted(self, mut visit: impl FnMut(Token, f64)) {
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

    /// Fills the histogram of the whole row; returns the sums over it, and the weight of tokens of at least `min_p`.
    ///
    /// # Safety
    /// All threads of the block come here together; shared memory is this module's.
    #[inline(always)]
    pub unsafe fn fill(self, min_p: f64) -> (Sums, u64) {
        // SAFETY: the caller's contract.
        unsafe {
            clear(HISTOGRAM, BINS);
            thread::sync_threads();
            let mut likely = 0;
            self.each_weighted(|token, unrounded| {
                count(HISTOGRAM, BINS, token.bin, token.weight);
                if unrounded >= min_p {
                    likely += token.weight;
                }
            });
            thread::sync_threads();
            let mut own = Sums::NONE;
            for i in 0..OWN {
                own = own.plus(bin_sums(HISTOGRAM, BINS, thread::thread_idx_x() * OWN + i));
            }
            let (_, total) = prefix(own);
            let (_, likely) = prefix(Sums { tokens: 0, weight: likely });
            (total, likely.weight)
        }
    }

    /// The bin where the total passes `amount`. [`fill`](Self::fill) came before; the amount is below the row's.
    ///
    /// # Safety
    /// All threads of the block come here together.
    #[inline(always)]
    unsafe fn bin_of(self, amount: Amount) -> Region {
        // SAFETY: the caller's contract.
        unsafe {
            let thread = thread::thread_idx_x();
            let mut own = Sums::NONE;
            for i in 0..OWN {
                own = own.plus(bin_sums(HISTOGRAM, BINS, thread * OWN + i));
            }
            let (mut before, _) = prefix(own);
            if before.passes(own, amount) {
                for i in 0..OWN {
                    let bin = thread * OWN + i;
                    let inside = bin_sums(HISTOGRAM, BINS, bin);
                    if before.passes(inside, amount) {
                        tell(Region { bin, shift: 64, prefix: 0, before, tokens: inside.tokens as u32 });
                    }
                    before = before.plus(inside);
                }
            }
            thread::sync_threads();
            told()
        }
    }

    /// The key of the token where the total passes `amount`, and the weight up to and with it. [`fill`](Self::fill) came
    /// before; the amount is below the row's.
    ///
    /// # Safety
    /// All threads of the block come here together.
    #[inline(always)]
    pub unsafe fn locate(self, amount: Amount) -> (u64, u64) {
        // SAFETY: the caller's contract; regions are the same in all threads.
        unsafe {
            let mut region = self.bin_of(amount);
            while region.tokens > LISTED {
                region = self.refine(region, amount);
            }
            self.search(region, amount)
        }
    }

    /// Lists the `count` tokens that come first, and perhaps some more: how many, and the list of [key, weight]. `count` is at
    /// least 1, at most 1024, and at most the row's. [`fill`](Self::fill) came before.
    ///
    /// # Safety
    /// All threads of the block come here together.
    #[inline(always)]
    pub unsafe fn list_first(self, count: u32) -> (u32, Shared<[u64; 2]>) {
        // SAFETY: the caller's contract; regions are the same in all threads.
        unsafe {
            let amount = Amount::Tokens(u64::from(count) - 1);
            let mut region = self.bin_of(amount);
            let bins = region.before.tokens as u32 + region.tokens;
            let (mut least, mut listed) = (0, bins);
            if bins > LISTED {
                while region.tokens > LISTED {
                    region = self.refine(region, amount);
                }
                (least, listed) = (self.search(region, amount).0, count);
            }
            let (counter, list) = (at::<u32>(COUNTER), at::<[u64; 2]>(LIST));
            if thread::thread_idx_x() == 0 {
                counter.write(0);
            }
            thread::sync_threads();
            self.each_weighted(|token, _| {
                if token.bin <= region.bin && token.key >= least {
                    list.add(atomic::shared_fetch_add(counter, 1)).write([token.key, token.weight]);
                }
            });
            thread::sync_threads();
            (listed, list)
        }
    }

    /// The part of a region, by the next digit of its keys, where the total passes the amount.
    #[inline(always)]
    unsafe fn refine(self, region: Region, amount: Amount) -> Region {
        // SAFETY: the caller's contract.
        unsafe {
            let thread = thread::thread_idx_x();
            let shift = region.shift - 8;
            clear(REFINED, DIGITS);
            thread::sync_threads();
            self.each_weighted(|token, _| {
                if region.holds(token) {
                    let digit = (token.key >> shift) as u32 % DIGITS;
                    count(REFINED, DIGITS, DIGITS - 1 - digit, token.weight);
                }
            });
            thread::sync_threads();
            let own = if thread < DIGITS { bin_sums(REFINED, DIGITS, thread) } else { Sums::NONE };
            let before = prefix(own).0.plus(region.before);
            if before.passes(own, amount) {
                let above = if region.shift == 64 { 0 } else { region.prefix << 8 };
                let prefix = above | u64::from(DIGITS - 1 - thread);
                tell(Region { shift, prefix, before, tokens: own.tokens as u32, ..region });
            }
            thread::sync_threads();
            told()
        }
    }

    /// Lists a region's tokens and compares each with all: the one where the total passes the amount.
    #[inline(always)]
    unsafe fn search(self, region: Region, amount: Amount) -> (u64, u64) {
        // SAFETY: the caller's contract.
        unsafe {
            let thread = thread::thread_idx_x();
            let (counter, list) = (at::<u32>(COUNTER), at::<[u64; 2]>(LIST));
            if thread == 0 {
                counter.write(0);
            }
            thread::sync_threads();
            self.each_weighted(|token, _| {
                if region.holds(token) {
                    list.add(atomic::shared_fetch_add(counter, 1)).write([token.key, token.weight]);
                }
            });
            thread::sync_threads();
            let mut i = thread;
            while i < region.tokens {
                let [key, weight] = list.add(i).read();
                let mut before = region.before;
                for j in 0..region.tokens {
                    let [other, weight] = list.add(j).read();
                    if other > key {
                        before = before.plus(Sums { tokens: 1, weight });
                    }
                }
                if before.passes(Sums { tokens: 1, weight }, amount) {
                    at::<[u64; 2]>(TOLD).write([key, before.weight + weight]);
                }
                i += THREADS;
            }
            thread::sync_threads();
            let [key, weight] = at::<[u64; 2]>(TOLD).read();
            // Before anyone tells anything else.
            thread::sync_threads();
            (key, weight)
        }
    }

    /// The weight of all tokens whose logit is at least that of `key`.
    ///
    /// # Safety
    /// All threads of the block come here together.
    #[inline(always)]
    pub unsafe fn weight_from(self, key: u64) -> u64 {
        // SAFETY: the caller's contract.
        unsafe {
            let mut sum = Sums::NONE;
            self.each(|logit, id| {
                if key_of(logit, id) >> 32 >= key >> 32 {
                    sum.weight += self.weight(logit).0;
                }
            });
            prefix(sum).1.weight
        }
    }
}

/// Zeros for a histogram.
#[inline(always)]
unsafe fn clear(histogram: u32, bins: u32) {
    let mut i = thread::thread_idx_x();
    while i < 3 * bins {
        // SAFETY: inside the histogram.
        unsafe { at::<u32>(histogram).add(i).write(0) };
        i += THREADS;
    }
}

/// Counts a token: tokens, then the weight's low and high words, with the carry between them.
#[inline(always)]
unsafe fn count(histogram: u32, bins: u32, bin: u32, weight: u64) {
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
unsafe fn bin_sums(histogram: u32, bins: u32, bin: u32) -> Sums {
    let words = at::<u32>(histogram).add(bin);
    // SAFETY: inside the histogram, which is complete.
    unsafe {
        let (low, high) = (words.add(bins).read(), words.add(2 * bins).read());
        Sums { tokens: words.read().into(), weight: u64::from(high) << 32 | u64::from(low) }
    }
}

/// The sums of all threads before this one, and of the whole block.
#[inline(always)]
unsafe fn prefix(own: Sums) -> (Sums, Sums) {
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

/// Writes a region for the block to read after a barrier.
#[inline(always)]
unsafe fn tell(region: Region) {
    let Region { bin, shift, prefix, before, tokens } = region;
    let to = at::<[u64; 2]>(TOLD);
    // SAFETY: one thread does this.
    unsafe {
        to.write([u64::from(bin) << 32 | u64::from(shift), prefix]);
        to.add(1).write([before.tokens, before.weight]);
        to.add(2).write([tokens.into(), 0]);
    }
}

/// The region that was told.
#[inline(always)]
unsafe fn told() -> Region {
    let from = at::<[u64; 2]>(TOLD);
    // SAFETY: written before the last barrier.
    unsafe {
        let ([place, prefix], [tokens, weight]) = (from.read(), from.add(1).read());
        let inside = from.add(2).read()[0] as u32;
        // Before anyone tells anything else.
        thread::sync_threads();
        let before = Sums { tokens, weight };
        Region { bin: (place >> 32) as u32, shift: place as u32, prefix, before, tokens: inside }
    }
}
