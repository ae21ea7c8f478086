//! What a block of every linear kernel does. The kernels themselves are in `instances`.
use super::{CHUNK, EMPTY, OUTPUTS, Output, STEP, WARPS, border, stage_bytes};
use cuda_std::{async_copy, atomic, grid, prelude::*, shared};

/// Threads of a block.
const THREADS: u32 = WARPS * 32;
/// Exchanges that a thread has under way before it waits for the first.
const BATCH: usize = 4;

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
/// An output is the sum of two halves, split at [`border`]; a half is the sum of its warps' sums in their order. With `SPLIT`
/// a block takes one of the halves, blockIdx.y, and meets the other's block at `exchange`; otherwise it takes both, one
/// after the other. The result is the same to the bit.
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
    const SPLIT: bool,
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
        let (g, t) = (lane / 4, lane % 4);
        let width = const { OUTPUTS * HEIGHT as u32 };
        let first_output = thread::block_idx_x() * width;
        let last_tile = outputs.div_ceil(OUTPUTS) - 1;
        let border = border(inputs);
        let (from, until) = match (SPLIT, thread::block_idx_y()) {
            (false, _) => (0, inputs),
            (true, 0) => (0, border.min(inputs)),
            (true, _) => (border, inputs),
        };
        let stage = const { stage_bytes(TILES as u32, HEIGHT as u32) };
        let ring = Ring::<TILES, HEIGHT, STAGES> {
            at: shared::dynamic_shared_mem::<[u32; 4]>().byte_add(warp * STAGES * stage).add(lane),
            warp,
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
        let low = ring.multiply::<KEEP>(&mut n, if SPLIT { until } else { border.min(inputs) });
        let high = if SPLIT { low } else { ring.multiply::<KEEP>(&mut n, until) };

        // Partial sums [half, warp, row, output].
        thread::sync_threads();
        let partial = shared::dynamic_shared_mem::<f32>();
        let size = 8 * TILES as u32 * width;
        let keep = |half: u32, sums: &Sums<TILES, HEIGHT>| {
            for (h, sums) in sums.iter().enumerate() {
                for (tile, sum) in sums.iter().enumerate() {
                    let place = (8 * tile as u32 + 2 * t) * width + 16 * h as u32 + g;
                    let to = partial.add((half * WARPS + warp) * size + place);
                    to.write(sum[0]);
                    to.add(width).write(sum[1]);
                    to.add(8).write(sum[2]);
                    to.add(width + 8).write(sum[3]);
                }
            }
        };
        keep(0, &low);
        if !SPLIT {
            keep(1, &high);
        }
        thread::sync_threads();
        let half_sum = |half: u32, i: u32| {
            let mut sum = 0.0;
            for warp in half * WARPS..(half + 1) * WARPS {
                sum += partial.add(warp * size + i).read();
            }
            sum
        };
        // Where partial sum `i` belongs in `out`, if it does.
        let place = |i: u32| {
            let (row, output) = (i / width, first_output + i % width);
            (i < size && row < rows && output < outputs).then_some(row as usize * outputs as usize + output as usize)
        };
        let mut i = thread;
        while i < size {
            if SPLIT {
                let (mut mine, mut other) = ([0.0f32; BATCH], [EMPTY; BATCH]);
                for (k, (mine, other)) in mine.iter_mut().zip(&mut other).enumerate() {
                    let i = i + k as u32 * THREADS;
                    if let Some(at) = place(i) {
                        *mine = half_sum(0, i);
                        *other = atomic::exchange_relaxed(exchange.add(at), mine.to_bits());
                    }
                }
                for (k, (mine, other)) in mine.iter().zip(&other).enumerate() {
                    if let Some(at) = place(i + k as u32 * THREADS)
                        && *other != EMPTY
                    {
                        exchange.add(at).write(EMPTY);
                        out.add(at).write(T::from_f32(mine + f32::from_bits(*other)));
                    }
                }
                i += BATCH as u32 * THREADS;
            } else {
                if let Some(at) = place(i) {
                    out.add(at).write(T::from_f32(half_sum(0, i) + half_sum(1, i)));
                }
                i += THREADS;
            }
        }
    }
}
