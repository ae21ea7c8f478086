//! What a block of every linear kernel does. The kernels themselves are in `instances`.
use super::{CHUNK, EMPTY, GROUP, OUTPUTS, Output, STEP, WARPS, border, stage_bytes};
use cuda_std::{async_copy, atomic, grid, prelude::*, shared, unroll};

/// Warps of a block that shares its outputs with `parts` - 1 others.
pub(super) const fn block_warps(parts: u32) -> u32 {
    if parts == 4 { GROUP } else { WARPS }
}

/// Exchanges that a thread has under way before it waits for the first.
const BATCH: usize = 4;
/// The place of a sum that is not there, or no longer.
const NOWHERE: usize = usize::MAX;

/// Sums of a lane: a fragment of each row tile and each output tile.
type Sums<const TILES: usize, const HEIGHT: usize> = [[[f32; 4]; TILES]; HEIGHT];

/// A warp's ring of chunks in shared memory, and what fills it.
///
/// The weights are operand A (16 outputs a tile), the rows of x operand B (8 a tile). Within a chunk of 32 inputs, lane (g, t)
/// takes inputs 8t..8t+8 of outputs g and g + 8 and of row g: 16 contiguous bytes each. An mma may see its inputs in any
/// order as long as A and B agree, so each lane multiplies what itself has copied: fragments need neither `ldmatrix` nor
/// a barrier, and the ring is only a deep queue of loads.
struct Ring<const TILES: usize, const HEIGHT: usize, const STAGES: u32> {
    /// This lane's first vector in the ring.
    at: Shared<[u32; 4]>,
    warp: u32,
    /// Row of a tile, and output of half a tile.
    g: u32,
    weights: [Global<Bf16>; HEIGHT],
    x: Global<Bf16>,
    rows: u32,
    inputs: u32,
    /// End of the inputs of this block.
    until: u32,
}

impl<const TILES: usize, const HEIGHT: usize, const STAGES: u32> Ring<TILES, HEIGHT, STAGES> {
    /// Chunk `n` of this warp starts at this input. Two neighbouring chunks are a whole 128-byte line of x.
    #[inline(always)]
    fn start(&self, n: u32) -> u32 {
        ((n / 2 * WARPS + self.warp) * 2 + n % 2) * CHUNK
    }

    /// This lane's vector of weights in the stage of chunk `n`.
    #[inline(always)]
    fn weights_at(&self, n: u32) -> Shared<[u32; 4]> {
        self.at.byte_add(n % STAGES * const { stage_bytes(TILES as u32, HEIGHT as u32) })
    }

    /// Likewise of x, behind the weights.
    #[inline(always)]
    fn rows_at(&self, n: u32) -> Shared<[u32; 4]> {
        self.weights_at(n).add(const { 64 * HEIGHT as u32 })
    }

    /// Starts the copies of the weights of chunk `n`.
    #[inline(always)]
    unsafe fn fetch_weights(&self, n: u32) {
        let (first, to) = (self.start(n), self.weights_at(n));
        if first < self.until {
            for (h, weights) in self.weights.iter().enumerate() {
                let from = weights.add((first * OUTPUTS) as usize);
                // SAFETY: whole chunks of tiles that exist; the stage was read before.
                unsafe {
                    async_copy::copy_async(to.add(64 * h as u32), from.cast());
                    async_copy::copy_async(to.add(64 * h as u32 + 32), from.add(256).cast());
                }
            }
        }
    }

    /// Starts the copies of the rows of chunk `n`, and closes the group.
    #[inline(always)]
    unsafe fn fetch_rows(&self, n: u32) {
        let (first, to) = (self.start(n), self.rows_at(n));
        if first < self.until {
            for tile in 0..TILES as u32 {
                let row = tile * 8 + self.g;
                if row < self.rows {
                    let from = self.x.add(row as usize * self.inputs as usize + first as usize);
                    // SAFETY: as above.
                    unsafe { async_copy::copy_async(to.add(32 * tile), from.cast()) };
                }
            }
        }
        async_copy::commit_group();
    }

    /// Zeros for the rows that there are not.
    #[inline(always)]
    unsafe fn clear_missing_rows(&self) {
        for tile in 0..TILES as u32 {
            if tile * 8 + self.g >= self.rows {
                for stage in 0..STAGES {
                    // SAFETY: this lane's own vector; no copy goes there.
                    unsafe { self.rows_at(stage).add(32 * tile).write([0; 4]) };
                }
            }
        }
    }

    /// Multiplies the chunks from `n` on that start before `until`, and fetches those that follow.
    #[inline(always)]
    unsafe fn multiply<const KEEP: u32>(&self, n: &mut u32, until: u32) -> Sums<TILES, HEIGHT> {
        let mut sums = [[[0.0f32; 4]; TILES]; HEIGHT];
        while self.start(*n) < until {
            // SAFETY: whole warps come here; a lane reads what itself has copied, once that is complete.
            unsafe {
                self.fetch_weights(*n + STAGES - 1);
                self.fetch_rows(*n + STAGES - 1);
                async_copy::wait_group::<KEEP>();
                let (weights, rows) = (self.weights_at(*n), self.rows_at(*n));
                let mut b = [[0u32; 4]; TILES];
                for (tile, b) in b.iter_mut().enumerate() {
                    *b = rows.add(32 * tile as u32).read();
                }
                for (h, sums) in sums.iter_mut().enumerate() {
                    let (low, high) = (weights.add(64 * h as u32).read(), weights.add(64 * h as u32 + 32).read());
                    for (b, sum) in b.iter().zip(sums.iter_mut()) {
                        *sum = mma::m16n8k16_bf16([low[0], high[0], low[1], high[1]], [b[0], b[1]], *sum);
                        *sum = mma::m16n8k16_bf16([low[2], high[2], low[3], high[3]], [b[2], b[3]], *sum);
                    }
                }
            }
            *n += 1;
        }
        sums
    }
}

/// A block: up to 8 `TILES` rows and 16 `HEIGHT` outputs, with `STAGES` chunks in flight a warp, `KEEP` being one less.
///
/// An output is the sum of two halves, split at [`border`]; a half is the sum of two groups of four warps, a group that of its
/// warps' sums in their order. With 1 of `PARTS` a block takes both halves, one after the other; with 2 it takes one and
/// meets the other's block at `exchange`; with 4 it is one group of a half, and the halves meet there after the groups. Since
/// a + b is b + a, the result is the same to the bit.
///
/// Every block reads the rows of x for its inputs, so x costs as much as the weights where there are as many rows as outputs a
/// block: `HEIGHT` tiles share what a lane has of x. Splitting allows more of them without leaving multiprocessors idle.
///
/// Weights do not come from an earlier kernel: the first of them are fetched before that one has ended.
#[inline(always)]
#[allow(clippy::too_many_arguments)]
pub(super) unsafe fn linear<
    const TILES: usize,
    const HEIGHT: usize,
    const STAGES: u32,
    const KEEP: u32,
    const PARTS: u32,
    T: Output,
>(
    x: Global<Bf16>,
    weight: Global<Bf16>,
    exchange: GlobalMut<u32>,
    out: GlobalMut<T>,
    rows: u32,
    inputs: u32,
    outputs: u32,
) {
    // SAFETY: output tiles beyond the end are clamped when read and skipped when written, rows beyond it are zeros in shared
    // memory; each lane reads back only vectors that it wrote, or copied and waited for, until the barrier after which the
    // ring holds partial sums. A word of `exchange` is only touched atomically until both halves have met.
    unsafe {
        grid::dependency_launch();
        let thread = thread::thread_idx_x();
        let (lane, warp) = (thread % 32, thread / 32);
        let part = if PARTS == 1 { 0 } else { thread::block_idx_y() };
        let warps = const { block_warps(PARTS) };
        let (g, t) = (lane / 4, lane % 4);
        let width = const { OUTPUTS * HEIGHT as u32 };
        let first_output = thread::block_idx_x() * width;
        let last_tile = outputs.div_ceil(OUTPUTS) - 1;
        let border = border(inputs);
        let (from, until) = match (PARTS, part / const { PARTS.div_ceil(2) }) {
            (1, _) => (0, inputs),
            (_, 0) => (0, border.min(inputs)),
            (_, _) => (border, inputs),
        };
        let stage = const { stage_bytes(TILES as u32, HEIGHT as u32) };
        let ring = Ring::<TILES, HEIGHT, STAGES> {
            at: shared::dynamic_shared_mem::<[u32; 4]>().byte_add(warp * STAGES * stage).add(lane),
            warp: if PARTS == 4 { part % 2 * GROUP + warp } else { warp },
            g,
            weights: core::array::from_fn(|h| {
                let tile = (thread::block_idx_x() * HEIGHT as u32 + h as u32).min(last_tile);
                weight.add(tile as usize * OUTPUTS as usize * inputs as usize + 8 * lane as usize)
            }),
            x: x.add(8 * t as usize),
            rows,
            inputs,
            until,
        };

        let first = from / STEP * 2;
        for n in first..first + STAGES - 1 {
            ring.fetch_weights(n);
        }
        ring.clear_missing_rows();
        grid::dependency_wait();
        for n in first..first + STAGES - 1 {
            ring.fetch_rows(n);
        }
        let mut n = first;
        let low = ring.multiply::<KEEP>(&mut n, if PARTS == 1 { border.min(inputs) } else { until });
        let high = if PARTS == 1 { ring.multiply::<KEEP>(&mut n, until) } else { low };

        // Partial sums [half, warp, row, output].
        thread::sync_threads();
        let partial = shared::dynamic_shared_mem::<f32>();
        let size = 8 * TILES as u32 * width;
        let keep = |half: u32, sums: &Sums<TILES, HEIGHT>| {
            for (h, sums) in sums.iter().enumerate() {
                for (tile, sum) in sums.iter().enumerate() {
                    let place = (8 * tile as u32 + 2 * t) * width + 16 * h as u32 + g;
                    let to = partial.add((half * warps + warp) * size + place);
                    to.write(sum[0]);
                    to.add(width).write(sum[1]);
                    to.add(8).write(sum[2]);
                    to.add(width + 8).write(sum[3]);
                }
            }
        };
        keep(0, &low);
        if PARTS == 1 {
            keep(1, &high);
        }
        thread::sync_threads();
        let group_sum = |group: u32, i: u32| {
            let mut sum = 0.0;
            for warp in group * GROUP..(group + 1) * GROUP {
                sum += partial.add(warp * size + i).read();
            }
            sum
        };
        let half_sum = |half: u32, i: u32| group_sum(2 * half, i) + group_sum(2 * half + 1, i);
        // Where partial sum `i` belongs in `out`, if it does.
        let place = |i: u32| {
            let (row, output) = (i / width, first_output + i % width);
            (i < size && row < rows && output < outputs).then_some(row as usize * outputs as usize + output as usize)
        };
        let mut i = thread;
        while i < size {
            if PARTS == 1 {
                if let Some(at) = place(i) {
                    out.add(at).write(T::from_f32(half_sum(0, i) + half_sum(1, i)));
                }
                i += warps * 32;
                continue;
            }
            let words = rows as usize * outputs as usize;
            let mut batch = Batch { places: [NOWHERE; BATCH], sums: [0.0; BATCH] };
            unroll!(K in [0 1 2 3] {
                let i = i + K as u32 * warps * 32;
                if let Some(at) = place(i) {
                    batch.places[K] = at;
                    batch.sums[K] = if PARTS == 4 { group_sum(0, i) } else { half_sum(0, i) };
                }
            });
            if PARTS == 4 {
                batch.meet(exchange.add((1 + part as usize / 2) * words));
            }
            batch.meet(exchange);
            unroll!(K in [0 1 2 3] {
                if batch.places[K] != NOWHERE {
                    out.add(batch.places[K]).write(T::from_f32(batch.sums[K]));
                }
            });
            i += BATCH as u32 * warps * 32;
        }
    }
}

/// Sums of a thread on their way to the output.
struct Batch {
    /// Where in the output each belongs, or [`NOWHERE`].
    places: [usize; BATCH],
    sums: [f32; BATCH],
}

impl Batch {
    /// Leaves each sum for the other block, or adds to it what that one has left: only one of the two keeps it.
    #[inline(always)]
    unsafe fn meet(&mut self, exchange: GlobalMut<u32>) {
        // SAFETY: a word of the exchange a sum, touched atomically until both blocks have been there, then by one of them.
        unsafe {
            let mut others = [EMPTY; BATCH];
            unroll!(K in [0 1 2 3] {
                if self.places[K] != NOWHERE {
                    others[K] = atomic::exchange_relaxed(exchange.add(self.places[K]), self.sums[K].to_bits());
                }
            });
            unroll!(K in [0 1 2 3] {
                if others[K] == EMPTY {
                    self.places[K] = NOWHERE;
                } else {
                    exchange.add(self.places[K]).write(EMPTY);
                    self.sums[K] += f32::from_bits(others[K]);
                }
            });
        }
    }
}
