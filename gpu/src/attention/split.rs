//! Splits of the context over blocks: what each leaves behind, who comes last, and the merge.
use super::online::State;
use super::tile::{ROWS, WARPS};
use cuda_std::{atomic, prelude::*};

/// Results of the splits, scratch in global memory.
#[derive(Clone, Copy)]
pub struct Parts {
    /// Normalised sums of values [splits, rows, latent].
    pub values: GlobalMut<f32>,
    /// log2 of the sum of weights [splits, rows]; -inf where a split saw no key.
    pub log_sums: GlobalMut<f32>,
    /// Blocks that are done, one counter a row tile.
    pub arrivals: GlobalMut<u32>,
}

/// Whether this block is the last of `blocks` to come here; its earlier writes, and those of the others, are visible then.
/// Leaves the counter at 0 for the next launch.
#[inline(always)]
pub unsafe fn arrive_last(counter: GlobalMut<u32>, blocks: u32, flag: Shared<Bf16>) -> bool {
    // SAFETY: all threads of the block come here together; the flag is used for nothing else.
    unsafe {
        let flag = flag.cast::<u32>();
        thread::device_fence();
        thread::sync_threads();
        if thread::thread_idx_x() == 0 {
            let last = atomic::fetch_add(counter, 1) == blocks - 1;
            if last {
                atomic::store_relaxed(counter, 0);
            }
            flag.write(last.into());
        }
        thread::sync_threads();
        flag.read() != 0
    }
}

/// Merges the splits' results of 16 rows, in the order of splits.
#[inline(always)]
pub unsafe fn merge<const LATENT: u32>(parts: Parts, out: GlobalMut<Bf16>, first_row: u32, rows: u32, splits: u32) {
    let mut i = thread::thread_idx_x();
    while i < ROWS * LATENT {
        let (row, column) = (first_row + i / LATENT, i % LATENT);
        if row < rows {
            // SAFETY: inside the partial results, which are complete.
            unsafe {
                let mut state = State::EMPTY;
                let mut sum = 0.0;
                for split in 0..splits {
                    let at = (split * rows + row) as usize;
                    let log_sum = parts.log_sums.add(at).read();
                    sum *= state.raise(log_sum);
                    let weight = state.weight(log_sum);
                    state.sum += weight;
                    sum = math::fma(weight, parts.values.add(at * LATENT as usize + column as usize).read(), sum);
                }
                let to = out.add(row as usize * LATENT as usize + column as usize);
                to.write(Bf16::from_f32(sum * math::rcp(state.sum)));
            }
        }
        i += WARPS * 32;
    }
}
