//! Reductions over a block that several kernels share. No kernel lives here.
use cuda_std::prelude::*;

/// Sum over the block, in every thread: lanes by butterfly, then warps in order, so the result depends on nothing else.
///
/// `scratch` holds a value a warp and must not be used again before the next barrier.
///
/// # Safety
/// All threads of the block, a multiple of 32, must come here together.
#[inline(always)]
pub unsafe fn block_sum(value: f32, scratch: Shared<f32>) -> f32 {
    // SAFETY: the caller's contract; one word a warp, read after the barrier.
    unsafe {
        let t = thread::thread_idx_x();
        let warp_total = warp::warp_sum(value);
        if t.is_multiple_of(32) {
            scratch.add(t / 32).write(warp_total);
        }
        thread::sync_threads();
        let mut total = 0.0;
        for w in 0..thread::block_dim_x() / 32 {
            total += scratch.add(w).read();
        }
        total
    }
}

/// A value and where it was found.
#[derive(Clone, Copy)]
pub struct Candidate {
    /// The value.
    pub value: f32,
    /// Its index.
    pub index: u32,
}

impl Candidate {
    /// Loses against everything.
    pub const NONE: Self = Self { value: f32::NEG_INFINITY, index: u32::MAX };

    /// Whether `self` comes before `other` in the order of values falling and indices rising.
    #[inline(always)]
    pub fn precedes(self, other: Self) -> bool {
        other.value < self.value || (other.value == self.value && other.index > self.index)
    }

    /// The larger value; of equal ones the lower index. NaN never wins.
    #[inline(always)]
    pub fn better(self, other: Self) -> Self {
        let wins = other.value > self.value || (other.value == self.value && other.index < self.index);
        if wins { other } else { self }
    }
}

/// The best candidate of the block, in every thread.
///
/// `scratch` holds two words a warp and must not be used again before the next barrier.
///
/// # Safety
/// All threads of the block, a multiple of 32, must come here together.
#[inline(always)]
pub unsafe fn block_best(mut best: Candidate, scratch: Shared<[u32; 2]>) -> Candidate {
    // SAFETY: the caller's contract; two words a warp, read after the barrier.
    unsafe {
        let t = thread::thread_idx_x();
        let mut step = 16;
        while step > 0 {
            let value = warp::warp_shuffle_xor(warp::FULL_MASK, best.value, step, 32);
            let index = warp::warp_shuffle_xor(warp::FULL_MASK, best.index, step, 32);
            best = best.better(Candidate { value, index });
            step /= 2;
        }
        if t.is_multiple_of(32) {
            scratch.add(t / 32).write([best.value.to_bits(), best.index]);
        }
        thread::sync_threads();
        for w in 0..thread::block_dim_x() / 32 {
            let [value, index] = scratch.add(w).read();
            best = best.better(Candidate { value: f32::from_bits(value), index });
        }
        best
    }
}
