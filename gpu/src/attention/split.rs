//! Splits of the context over blocks: what each leaves behind, who stays, and the merge.
use super::element::Element;
use super::layout::{Layout, WARPS};
use super::online::State;
use super::sums::{Slab, write_rows};
use cuda_std::{atomic, convert, prelude::*, unroll};

/// Splits that a warp merges in one go: their loads are in flight together.
const BATCH: usize = 12;
/// Splits per warp from which on more warps share a unit.
const DEEP: u32 = 17;

/// Results of the splits, scratch in global memory.
#[derive(Clone, Copy)]
pub struct Parts {
    /// Normalised sums of values [row tile, split, unit, lane], four pairs of bf16 each.
    pub values: GlobalMut<[u32; 4]>,
    /// log2 of the sum of weights [row tile, split, row]; -inf where a split saw no key.
    pub log_sums: GlobalMut<f32>,
    /// Blocks of a row tile that are done, and those that know it [row tile, 2].
    pub arrivals: GlobalMut<u32>,
}

/// A row tile of the output and the splits of its context.
#[derive(Clone, Copy)]
pub struct Target {
    pub out: GlobalMut<Bf16>,
    /// Heads x tree rows.
    pub rows: u32,
    pub row_tile: u32,
    /// Splits that there is room for, and those in use.
    pub splits: u32,
    pub active: u32,
}

/// Start of share `i` when `total` things are divided among `n`.
#[inline(always)]
pub fn share(i: u32, n: u32, total: u32) -> u32 {
    i * total / n
}

/// Called by each of the `active` blocks of a row tile when its part is written. All but the last `mergers` to come leave (`None`);
/// those wait for the others and get their number among them, and all parts are visible to them.
///
/// Few enough stay for the rest to run: whoever waits, waits for blocks that are running or have room to. Leaves the counters
/// at 0 for the next launch.
#[inline(always)]
pub unsafe fn arrive(counters: GlobalMut<u32>, active: u32, mergers: u32, flag: Shared<u32>) -> Option<u32> {
    // SAFETY: all threads of the block come here together; the flag is used for nothing else.
    unsafe {
        thread::device_fence();
        thread::sync_threads();
        if thread::thread_idx_x() == 0 {
            let before = atomic::fetch_add(counters, 1);
            let mut number = u32::MAX;
            if before + mergers >= active {
                number = before + mergers - active;
                while atomic::load_acquire(counters) < active {}
                if atomic::fetch_add(counters.add(1), 1) == mergers - 1 {
                    atomic::store_relaxed(counters, 0);
                    atomic::store_relaxed(counters.add(1), 0);
                }
            }
            flag.write(number);
        }
        thread::sync_threads();
        let number = flag.read();
        (number != u32::MAX).then_some(number)
    }
}

/// Merges share `number` of `mergers` of a row tile's units over its splits, in an order that depends on the number of splits alone.
/// `scratch` is shared memory for four vectors a thread.
#[inline(always)]
pub unsafe fn merge<E: Element, const HEIGHT: usize, const COLUMNS: usize>(
    parts: Parts,
    target: Target,
    layout: Layout,
    (number, mergers): (u32, u32),
    scratch: Shared<[f32; 4]>,
) {
    let thread = thread::thread_idx_x();
    let (warp, lane) = (thread / 32, thread % 32);
    // Warps that share a unit, each taking every so many splits.
    let mut depth = 1;
    while depth < WARPS && target.active > depth * DEEP {
        depth *= 2;
    }
    let part = warp % depth;
    let (mut first, end) = (share(number, mergers, layout.units), share(number + 1, mergers, layout.units));
    while first < end {
        let unit = first + warp / depth;
        let mut merged = Merged::EMPTY;
        if unit < end {
            let slab = Slab::<E, HEIGHT, COLUMNS>::of_unit(unit);
            let rows: [u32; 4] = core::array::from_fn(|word| slab.row(word, lane));
            // SAFETY: the caller's contract.
            unsafe { merged.take(parts, target, layout, (unit, rows), (part, depth)) };
        }
        if depth > 1 {
            // SAFETY: all warps come here together, as bounds are uniform in the block.
            unsafe { merged.join(scratch, (part, depth)) };
        }
        if part == 0 && unit < end {
            // SAFETY: rows beyond the last are skipped.
            unsafe { write_rows(Slab::<E, HEIGHT, COLUMNS>::of_unit(unit), target, layout, merged.normalised()) };
        }
        first += WARPS / depth;
    }
}

/// State and sums of the two values of each of a lane's four words.
struct Merged {
    states: [State; 4],
    sums: [[f32; 2]; 4],
}

impl Merged {
    const EMPTY: Self = Self { states: [State::EMPTY; 4], sums: [[0.0; 2]; 4] };

    /// Merges splits `from`, `from + step`, ... into it.
    #[inline(always)]
    unsafe fn take(
        &mut self,
        parts: Parts,
        target: Target,
        layout: Layout,
        (unit, rows): (u32, [u32; 4]),
        (from, step): (u32, u32),
    ) {
        let tile = target.row_tile * target.splits;
        let log_sums = parts.log_sums.add((tile * layout.rows) as usize);
        let lane = thread::thread_idx_x() % 32;
        let values = parts.values.add(((tile * layout.units + unit) * 32 + lane) as usize);
        let mut next = from;
        while next < target.active {
            let mut words = [[0u32; 4]; BATCH];
            let mut logs = [[f32::NEG_INFINITY; 4]; BATCH];
            unroll!(I in [0 1 2 3 4 5 6 7 8 9 10 11] {
                let split = next + I as u32 * step;
                if split < target.active {
                    // SAFETY: inside the parts, which are complete.
                    unsafe {
                        words[I] = values.add((split * layout.units * 32) as usize).read();
                        logs[I] = rows.map(|row| log_sums.add((split * layout.rows + row) as usize).read());
                    }
                }
            });
            unroll!(WORD in [0 1 2 3] {
                let (state, sums) = (&mut self.states[WORD], &mut self.sums[WORD]);
                let max = logs.iter().fold(f32::NEG_INFINITY, |max, logs| max.max(logs[WORD]));
                let factor = state.raise(max);
                *sums = [sums[0] * factor, sums[1] * factor];
                unroll!(I in [0 1 2 3 4 5 6 7 8 9 10 11] {
                    let weight = state.weight(logs[I][WORD]);
                    state.sum += weight;
                    let [low, high] = convert::bf16x2_to_f32(words[I][WORD]);
                    *sums = [math::fma(weight, low, sums[0]), math::fma(weight, high, sums[1])];
                });
            });
            next += BATCH as u32 * step;
        }
    }

    /// Joins what neighbouring `depth` warps hold in the first of them, in order.
    #[inline(always)]
    unsafe fn join(&mut self, scratch: Shared<[f32; 4]>, (part, depth): (u32, u32)) {
        let thread = thread::thread_idx_x();
        let place = |thread: u32, i: u32| scratch.add(i * (WARPS * 32) + thread);
        // SAFETY: all threads come here together; four vectors a thread.
        unsafe {
            thread::sync_threads();
            for (i, [low, high]) in self.sums.iter().enumerate() {
                let state = self.states[i];
                place(thread, i as u32).write([*low, *high, state.max, state.sum]);
            }
            thread::sync_threads();
            if part == 0 {
                for other in 1..depth {
                    for word in 0..4 {
                        let [low, high, max, sum] = place(thread + 32 * other, word as u32).read();
                        let mine = &mut self.states[word];
                        let factor = mine.raise(max);
                        let weight = mine.weight(max);
                        mine.sum = math::fma(weight, sum, mine.sum);
                        let [a, b] = self.sums[word];
                        self.sums[word] = [math::fma(weight, low, a * factor), math::fma(weight, high, b * factor)];
                    }
                }
            }
        }
    }

    /// The merged values.
    #[inline(always)]
    fn normalised(&self) -> [[f32; 2]; 4] {
        core::array::from_fn(|word| self.sums[word].map(|sum| sum * math::rcp(self.states[word].sum)))
    }
}
