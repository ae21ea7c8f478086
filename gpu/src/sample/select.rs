//! Where a running total over one row's tokens, most probable first, passes a given amount: by histograms of exact integers,
//! so that the answer depends on no order of additions. Which amounts matter is the caller's affair.
use super::histogram::{
    Amount, BINS, COUNTER, DIGITS, HISTOGRAM, LIST, LISTED, REFINED, Sums, THREADS, TOLD, at, bin_sums, clear, count,
    prefix,
};
use super::row::{Row, Token, key_of};
use cuda_std::{atomic, prelude::*};

/// Bins a thread sums.
const OWN: u32 = BINS / THREADS;

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

impl Row {
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
