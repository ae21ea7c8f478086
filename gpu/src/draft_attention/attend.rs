//! The scores and weighted values of a block's slots over a part of the keys.
use super::{Extent, KEYS, PADDING};
use crate::attention::online::State;
use cuda_std::barrier::{self, Mbarrier};
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{async_copy, convert, grid, prelude::*, shared, unroll};

/// Warps of a block, each with 16 query rows.
const WARPS: u32 = 4;
/// Query rows of a block.
const ROWS: u32 = 16 * WARPS;
/// Tiles in shared memory: one in use, one on its way.
const STAGES: u32 = 2;
/// Offset of the tiles in shared memory, after the barriers.
const TILES: u32 = 128;

/// Arguments that do not depend on the size of a head.
#[derive(Clone, Copy)]
struct Block {
    query: Global<Bf16>,
    keys: Global<Bf16>,
    values: Global<Bf16>,
    partial: GlobalMut<f32>,
    log_sums: GlobalMut<f32>,
    extent: Extent,
    /// Query rows of a key head at full capacity.
    most_rows: u32,
    heads: u32,
    kv_heads: u32,
    slots: u32,
    scale: f32,
}

/// Bytes of a cached row.
const fn row_bytes(head: u32) -> u32 {
    2 * (head + PADDING)
}

/// `STEPS` = head / 16 products a score, `COLUMNS` = head / 8 tiles of values.
#[inline(always)]
unsafe fn attend<const HEAD: u32, const STEPS: usize, const COLUMNS: usize>(block: Block) {
    // SAFETY: sizes as in the kernels' contract; barriers are reached by all threads, since all bounds are uniform in a
    // block; a tile's stage is refilled only after the barrier that ends its use.
    unsafe {
        let row_bytes = const { row_bytes(HEAD) };
        let Block { extent, heads, kv_heads, .. } = block;
        let (thread, lane) = (thread::thread_idx_x(), thread::thread_idx_x() % 32);
        let (warp, g, t) = (thread / 32, lane / 4, lane % 4);
        let (head, part) = (thread::block_idx_y(), thread::block_idx_z());
        let group = heads / kv_heads;
        let rows = extent.count * group;
        let first_row = thread::block_idx_x() * ROWS + 16 * warp;
        let last_key = extent.keys();
        let tile_of = |part: u32| extent.first_tile + part * extent.tiles / extent.parts;
        let (begin, end) = (tile_of(part), tile_of(part + 1));

        let base = shared::dynamic_shared_mem::<Bf16>();
        let full = |i: u32| Mbarrier::at(base.cast::<u64>().add(i % STAGES));
        let stage = |i: u32| base.byte_add(TILES + i % STAGES * (2 * KEYS * row_bytes));
        let first_slot = head as usize * block.slots as usize;
        // Thread 0 keeps the copies going: of keys and of values one bulk copy a tile, of the slots that are used.
        let fetch = |tile: u32| {
            let bytes = (last_key - tile * KEYS).min(KEYS) * row_bytes;
            let from = (first_slot + (tile * KEYS) as usize) * row_bytes as usize;
            let i = tile - begin;
            full(i).arrive_expect_tx(2 * bytes);
            async_copy::copy_bulk(stage(i), block.keys.byte_add(from), bytes, full(i));
            async_copy::copy_bulk(stage(i).byte_add(KEYS * row_bytes), block.values.byte_add(from), bytes, full(i));
        };
        if thread == 0 {
            for i in 0..STAGES {
                full(i).init(1);
            }
            barrier::fence_init();
            for tile in begin..end.min(begin + STAGES) {
                fetch(tile);
            }
        }
        thread::sync_threads();

        // Row r of a key head: query head r % group of slot r / group.
        let mut query = [[0u32; 4]; STEPS];
        unroll!(HALF in [0 1] {
            let row = first_row + g + 8 * HALF as u32;
            if row < rows {
                let own = (row / group) as usize * heads as usize + (head * group + row % group) as usize;
                let from = block.query.add(own * HEAD as usize + 2 * t as usize);
                for (step, query) in query.iter_mut().enumerate() {
                    query[HALF] = from.add(16 * step).cast::<u32>().read();
                    query[2 + HALF] = from.add(16 * step + 8).cast::<u32>().read();
                }
            }
        });
        let lowest = [0, 8].map(|half| extent.lowest((first_row + g + half).min(rows - 1) / group));
        // Tiles from here to the end of the context need no test.
        let unmasked = extent.lowest(extent.count - 1);
        let mut states = [State::EMPTY; 2];
        let mut sums = [[0.0f32; 4]; COLUMNS];
        for tile in begin..end {
            let i = tile - begin;
            full(i).wait(i / STAGES % 2);
            let keys = stage(i);
            let values = keys.byte_add(KEYS * row_bytes);
            let present = last_key - tile * KEYS;
            if present < KEYS {
                // Values of keys that do not exist must be numbers: their weight is 0.
                let mut offset = present * row_bytes + thread * 16;
                while offset < KEYS * row_bytes {
                    keys.byte_add(offset).cast::<[u32; 4]>().write([0; 4]);
                    values.byte_add(offset).cast::<[u32; 4]>().write([0; 4]);
                    offset += WARPS * 32 * 16;
                }
                thread::sync_threads();
            }
            // The same in all lanes of a warp.
            if first_row < rows {
                let mut scores = [[0.0f32; 4]; KEYS as usize / 8];
                let from = keys.byte_add(lane % 8 * row_bytes + lane / 8 * 16);
                for (n, scores) in scores.iter_mut().enumerate() {
                    for pair in 0..STEPS / 2 {
                        let at = from.byte_add(8 * n as u32 * row_bytes + 64 * pair as u32);
                        let [b0, b1, b2, b3] = mma::ldmatrix_x4(at);
                        *scores = mma::m16n8k16_bf16(query[2 * pair], [b0, b1], *scores);
                        *scores = mma::m16n8k16_bf16(query[2 * pair + 1], [b2, b3], *scores);
                    }
                }
                let masked = present < KEYS || tile * KEYS < unmasked;
                let mut weights = [[0u32; 4]; KEYS as usize / 16];
                unroll!(HALF in [0 1] {
                    let state = &mut states[HALF];
                    let mut max = f32::NEG_INFINITY;
                    for (n, scores) in scores.iter_mut().enumerate() {
                        unroll!(J in [0 1] {
                            let key = tile * KEYS + 8 * n as u32 + 2 * t + J as u32;
                            let hidden = key >= last_key || key < lowest[HALF];
                            let score = scores[2 * HALF + J] * block.scale;
                            let score = if masked && hidden { f32::NEG_INFINITY } else { score };
                            scores[2 * HALF + J] = score;
                            max = max.max(score);
                        });
                    }
                    max = max.max(warp::warp_shuffle_xor(warp::FULL_MASK, max, 1, 32));
                    max = max.max(warp::warp_shuffle_xor(warp::FULL_MASK, max, 2, 32));
                    let factor = state.raise(max);
                    for (n, scores) in scores.iter().enumerate() {
                        let (x, y) = (state.weight(scores[2 * HALF]), state.weight(scores[2 * HALF + 1]));
                        state.sum += x + y;
                        // Fragment A: registers 0 and 1 hold keys 0..8 of a step, 2 and 3 keys 8..16.
                        weights[n / 2][n % 2 * 2 + HALF] = convert::bf16x2_from_f32(x, y);
                    }
                    for sum in &mut sums {
                        sum[2 * HALF] *= factor;
                        sum[2 * HALF + 1] *= factor;
                    }
                });
                let from = values.byte_add(lane % 16 * row_bytes + lane / 16 * 16);
                for (step, weights) in weights.iter().enumerate() {
                    for pair in 0..COLUMNS / 2 {
                        let at = from.byte_add(16 * step as u32 * row_bytes + 32 * pair as u32);
                        let [b0, b1, b2, b3] = mma::ldmatrix_x4_trans(at);
                        sums[2 * pair] = mma::m16n8k16_bf16(*weights, [b0, b1], sums[2 * pair]);
                        sums[2 * pair + 1] = mma::m16n8k16_bf16(*weights, [b2, b3], sums[2 * pair + 1]);
                    }
                }
            }
            thread::sync_threads();
            if thread == 0 && tile + STAGES < end {
                barrier::fence_proxy_async();
                fetch(tile + STAGES);
            }
        }
        if first_row < rows {
            unroll!(HALF in [0 1] {
                let state = &mut states[HALF];
                state.sum += warp::warp_shuffle_xor(warp::FULL_MASK, state.sum, 1, 32);
                state.sum += warp::warp_shuffle_xor(warp::FULL_MASK, state.sum, 2, 32);
                let row = first_row + g + 8 * HALF as u32;
                if row < rows {
                    let inverse = if state.sum == 0.0 { 0.0 } else { math::rcp(state.sum) };
                    let at = ((part * kv_heads + head) * block.most_rows + row) as usize;
                    let to = block.partial.add(at * HEAD as usize + 2 * t as usize);
                    for (tile, sum) in sums.iter().enumerate() {
                        let value = [sum[2 * HALF] * inverse, sum[2 * HALF + 1] * inverse];
                        to.add(8 * tile).cast::<[f32; 2]>().write(value);
                    }
                    if t == 0 {
                        block.log_sums.add(at).write(state.log_sum());
                    }
                }
            });
        }
    }
}

macro_rules! instances {
    ($($name:ident, $shape:ident, $head:literal, $steps:literal, $columns:literal;)*) => {
        $(
            #[doc = concat!("Attention of a block's slots over parts of context and block, heads of ", $head, ".")]
            ///
            /// partial[p, g, r] = sum_k w_k values[g, k] / sum_k w_k, w_k = e^(factor * query[t, h] . keys[g, k]) over the keys k
            /// of part p that slot t sees; log_sums[p, g, r] = log2 sum_k w_k, -inf where there are none. Row r = t x group + i is
            /// query head h = g x group + i of slot t, group = heads / kv_heads.
            ///
            /// Slot t at position start + t sees the context keys (below start) at positions > start + t - window, all of them
            /// where window = 0, and every key of the block. Tiles of 64 keys are cut into min(splits, tiles) parts.
            ///
            /// * Shapes: `rows` as [`RowLayout`](crate::round::RowLayout) has it, of which count and start are read; `query`
            #[doc = concat!("  [capacity, heads, ", $head, "] bf16; `keys`, `values` [kv_heads, cache_slots, ", $head, " + 8] bf16, as")]
            ///   [`draft_append`](super::draft_append) leaves them; `partial` [splits, kv_heads, capacity x group, head] f32;
            ///   `log_sums` [splits, kv_heads, capacity x group] f32. `scale` is the softmax factor times log2(e).
            /// * Work: grid (ceil(capacity x group / 64), kv_heads, splits), 4 warps with 16 query rows each, which share tiles of
            ///   64 keys. The grid does not depend on the context; blocks without rows or tiles leave at once.
            #[doc = concat!("* Shared memory: two tiles of 64 keys and values of ", stringify!(2 * ($head + 8)), " B, after 128 B of barriers.")]
            /// * Registers: head / 2 sums, head / 4 of the query, 32 scores a thread; up to 250.
            /// * Bytes: 4 x (head + 8) x keys a key head and row tile, once from DRAM; FLOPs: 4 x head x keys a row.
            /// * Alignment: `keys`, `values` 16 B, `partial` 8 B, `query` 4 B.
            /// * Tolerance: 2^-7 of the largest value seen: bf16 weights. The same for the same splits, context and count.
            ///
            /// # Safety
            /// The buffers have those shapes and alignments; `kv_heads` divides `heads`; start + count slots are in the cache.
            #[kernel(threads = 128, blocks_per_sm = 1)]
            pub unsafe fn $name(
                rows: Global<u32>,
                query: Global<Bf16>,
                keys: Global<Bf16>,
                values: Global<Bf16>,
                partial: GlobalMut<f32>,
                log_sums: GlobalMut<f32>,
                capacity: u32,
                heads: u32,
                kv_heads: u32,
                cache_slots: u32,
                window: u32,
                scale: f32,
            ) {
                // SAFETY: the contract is the same.
                unsafe {
                    grid::dependency_wait();
                    let extent = Extent::of(rows, window, thread::grid_dim_z());
                    let group = heads / kv_heads;
                    let no_rows = thread::block_idx_x() * ROWS >= extent.count * group;
                    if !no_rows && thread::block_idx_z() < extent.parts {
                        attend::<$head, $steps, $columns>(Block {
                            query,
                            keys,
                            values,
                            partial,
                            log_sums,
                            extent,
                            most_rows: capacity * group,
                            heads,
                            kv_heads,
                            slots: cache_slots,
                            scale,
                        });
                    }
                    grid::dependency_launch();
                }
            }

            #[doc = concat!("Launch of [`", stringify!($name), "`].")]
            #[cfg(not(target_arch = "nvptx64"))]
            pub fn $shape(capacity: u32, heads: u32, kv_heads: u32, splits: u32) -> LaunchShape {
                let rows = capacity * heads / kv_heads;
                LaunchShape::new((rows.div_ceil(ROWS), kv_heads, splits), WARPS * 32)
                    .shared(TILES + STAGES * 2 * KEYS * row_bytes($head))
            }
        )*
    };
}
instances! {
    draft_attention_64, attention_shape_64, 64, 4, 8;
    draft_attention_128, attention_shape_128, 128, 8, 16;
}

#[cfg(test)]
#[path = "attend_tests.rs"]
mod tests;
