//! Verify attention: the rows of a tree over context and tree, in the absorbed form of MLA.
use super::online::State;
use super::split::{Parts, arrive_last, merge};
use super::tile::{KEYS, Layout, ROWS, SCORE_STRIDE, STAGES, WARPS, clear_missing, load_query, score};
use cuda_std::barrier::{self, Mbarrier};
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{async_copy, convert, grid, prelude::*, shared, unroll};

/// Arguments that do not depend on the size of a head.
#[derive(Clone, Copy)]
struct Round {
    query: Global<Bf16>,
    cache: Global<Bf16>,
    mask: Global<u32>,
    context: Global<u32>,
    parts: Parts,
    out: GlobalMut<Bf16>,
    heads: u32,
    tree_rows: u32,
    scale: f32,
}

/// `COLUMNS` tiles of 8 values a warp accumulates: latent / 32.
#[inline(always)]
unsafe fn verify<const LATENT: u32, const ROPE: u32, const COLUMNS: usize>(round: Round) {
    // SAFETY: sizes as in the kernels' contract; barriers are reached by all threads, since all bounds are uniform in a
    // block; a tile's stage is refilled only after the barrier that ends its use.
    unsafe {
        let layout = const { Layout::new(LATENT, ROPE) };
        let (thread, lane) = (thread::thread_idx_x(), thread::thread_idx_x() % 32);
        let warp = thread / 32;
        let (g, t) = (lane / 4, lane % 4);
        let base = shared::dynamic_shared_mem::<Bf16>();
        let scores = base.byte_add(layout.scores).cast::<f32>();
        let full = |tile: u32| Mbarrier::at(base.byte_add(layout.barriers).cast::<u64>().add(tile % STAGES));
        let stage = |tile: u32| base.byte_add(layout.keys + tile % STAGES * (KEYS * layout.row));

        grid::dependency_wait();
        let rows = round.heads * round.tree_rows;
        let first_row = thread::block_idx_x() * ROWS;
        let context = round.context.read();
        let keys = context + round.tree_rows;
        let (split, splits) = (thread::block_idx_y(), thread::grid_dim_y());
        let tiles = keys.div_ceil(KEYS);
        let (begin, end) = (share(split, splits, tiles), share(split + 1, splits, tiles));

        // Thread 0 keeps the copies going: one bulk copy a tile, of the keys that exist.
        let fetch = |tile: u32| {
            let bytes = (keys - tile * KEYS).min(KEYS) * layout.row;
            full(tile - begin).arrive_expect_tx(bytes);
            let from = round.cache.byte_add((tile * KEYS) as usize * layout.row as usize);
            async_copy::copy_bulk(stage(tile - begin), from, bytes, full(tile - begin));
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
        load_query(base, round.query, layout, first_row, rows);
        thread::sync_threads();

        let mut states = [State::EMPTY; 2];
        let mut sums = [[0.0f32; 4]; COLUMNS];
        for tile in begin..end {
            let i = tile - begin;
            full(i).wait(i / STAGES % 2);
            let tile_keys = stage(i);
            if keys - tile * KEYS < KEYS {
                clear_missing(tile_keys, layout, keys - tile * KEYS);
                thread::sync_threads();
            }
            score(base, tile_keys, scores, layout, warp);
            thread::sync_threads();

            // Every warp does the softmax of all rows: cheaper than telling the others.
            let mut weights = [[0u32; 4]; 2];
            unroll!(HALF in [0 1] {
                let state = &mut states[HALF];
                let row = first_row + g + 8 * HALF as u32;
                let mut s = [0.0f32; 8];
                for pair in 0..4 {
                    let from = scores.add((g + 8 * HALF as u32) * SCORE_STRIDE + 8 * pair as u32 + 2 * t);
                    let [x, y] = from.cast::<[f32; 2]>().read();
                    (s[2 * pair], s[2 * pair + 1]) = (x * round.scale, y * round.scale);
                }
                // Only tiles that hold tree rows or the end need the mask.
                if (tile + 1) * KEYS > context {
                    for (j, s) in s.iter_mut().enumerate() {
                        let key = tile * KEYS + (j as u32 / 2) * 8 + 2 * t + j as u32 % 2;
                        if row >= rows || !visible(round.mask, key, context, row / round.heads, round.tree_rows) {
                            *s = f32::NEG_INFINITY;
                        }
                    }
                }
                let mut max = s[0].max(s[1]).max(s[2].max(s[3])).max(s[4].max(s[5]).max(s[6].max(s[7])));
                max = max.max(warp::warp_shuffle_xor(warp::FULL_MASK, max, 1, 32));
                max = max.max(warp::warp_shuffle_xor(warp::FULL_MASK, max, 2, 32));
                let factor = state.raise(max);
                for pair in 0..4 {
                    let (x, y) = (state.weight(s[2 * pair]), state.weight(s[2 * pair + 1]));
                    state.sum += x + y;
                    // Fragment A: registers 0 and 1 hold keys 0..8 of a step, 2 and 3 keys 8..16; odd ones rows 8..16.
                    weights[pair / 2][pair % 2 * 2 + HALF] = convert::bf16x2_from_f32(x, y);
                }
                for sum in &mut sums {
                    sum[2 * HALF] *= factor;
                    sum[2 * HALF + 1] *= factor;
                }
            });

            // Values are the latent part of the keys: B fragments by the transposed load, two tiles of 8 values at once.
            let row = tile_keys.byte_add(lane % 16 * layout.row + (warp * LATENT / WARPS + lane / 16 * 8) * 2);
            for (step, weights) in weights.iter().enumerate() {
                for pair in 0..COLUMNS / 2 {
                    let at = row.byte_add(step as u32 * 16 * layout.row + pair as u32 * 32);
                    let [b0, b1, b2, b3] = mma::ldmatrix_x4_trans(at);
                    sums[2 * pair] = mma::m16n8k16_bf16(*weights, [b0, b1], sums[2 * pair]);
                    sums[2 * pair + 1] = mma::m16n8k16_bf16(*weights, [b2, b3], sums[2 * pair + 1]);
                }
            }
            thread::sync_threads();
            if thread == 0 && tile + STAGES < end {
                barrier::fence_proxy_async();
                fetch(tile + STAGES);
            }
        }

        unroll!(HALF in [0 1] {
            let state = &mut states[HALF];
            state.sum += warp::warp_shuffle_xor(warp::FULL_MASK, state.sum, 1, 32);
            state.sum += warp::warp_shuffle_xor(warp::FULL_MASK, state.sum, 2, 32);
            let row = first_row + g + 8 * HALF as u32;
            if row < rows {
                let inverse = if state.sum == 0.0 { 0.0 } else { math::rcp(state.sum) };
                let at = (split * rows + row) as usize;
                let to = round.parts.values.add(at * LATENT as usize + (warp * LATENT / WARPS + 2 * t) as usize);
                for (tile, sum) in sums.iter().enumerate() {
                    let value = [sum[2 * HALF] * inverse, sum[2 * HALF + 1] * inverse];
                    to.add(8 * tile).cast::<[f32; 2]>().write(value);
                }
                if warp == 0 && t == 0 {
                    round.parts.log_sums.add(at).write(state.log_sum());
                }
            }
        });
        if arrive_last(
            round.parts.arrivals.add(thread::block_idx_x() as usize),
            splits,
            base.byte_add(layout.total - 8),
        ) {
            merge::<LATENT>(round.parts, round.out, first_row, rows, splits);
        }
        grid::dependency_launch();
    }
}

/// First of the tiles of split `i` of `n`.
#[inline(always)]
fn share(i: u32, n: u32, tiles: u32) -> u32 {
    i * tiles / n
}

/// Whether tree row `row` sees `key`: the context, its ancestors and itself.
#[inline(always)]
unsafe fn visible(mask: Global<u32>, key: u32, context: u32, row: u32, tree_rows: u32) -> bool {
    if key < context {
        return true;
    }
    let node = key - context;
    if node >= tree_rows {
        return false;
    }
    // SAFETY: row and node are rows of the mask.
    let bits = unsafe { mask.add((row * tree_rows.div_ceil(32) + node / 32) as usize).read() };
    bits >> (node % 32) & 1 == 1
}

macro_rules! instances {
    ($($name:ident, $shape:ident, $latent:literal, $rope:literal, $columns:literal, $cache_row:literal;)*) => {
        $(
            #[doc = concat!("Attention of a tree's rows over context and tree, latent ", $latent, " and rope ", $rope, ".")]
            ///
            /// out[t, h] = sum_k p_k cache[k, ..latent], p = softmax over visible k of factor * query[t, h] . cache[k]
            ///
            /// Row t sees the first `context` cache rows, and of the `tree_rows` after them those in its mask.
            ///
            #[doc = concat!("* Shapes: `query` [tree_rows, heads, ", stringify!($latent + $rope), "] bf16; `cache` [>= context + tree_rows, ", $cache_row, "] bf16, the row's last 8 elements unused.")]
            /// * More shapes: `mask` [tree_rows, ceil(tree_rows / 32)] u32; `context` \[1\] u32; `out` [tree_rows, heads,
            ///   latent] bf16. `scale` is the softmax factor times log2(e).
            /// * Scratch: `partial` [splits, tree_rows x heads, latent] f32, `log_sums` [splits, tree_rows x heads] f32,
            ///   `arrivals` [ceil(tree_rows x heads / 16)] u32, which is 0 at the first launch and after each.
            /// * Work: grid (ceil(tree_rows x heads / 16), splits); a block of 4 warps takes 16 rows and a share of the
            ///   tiles of 32 keys. Each warp scores 8 keys of a tile, then accumulates a quarter of the latent. The last
            ///   block of a row tile merges the splits. The grid does not depend on the context.
            /// * Shared memory: 16 query rows, two tiles of 32 cache rows, 16 x 36 f32 scores, two mbarriers, a flag.
            /// * Registers: latent / 8 sums a thread; 200 at latent 512, 88 at 64.
            /// * Bytes: 2 x (context + tree_rows) x cache row a row tile, once from DRAM; FLOPs: 2 x rows x keys x (2 latent +
            ///   rope).
            /// * Alignment: `query`, `cache` 16 B, `partial` 8 B.
            /// * Tolerance: 2^-7 of the largest |cache| seen: bf16 weights and result.
            ///
            /// # Safety
            /// The buffers have those shapes and alignments and do not overlap; every row sees itself.
            #[kernel(threads = 128, blocks_per_sm = 1)]
            pub unsafe fn $name(
                query: Global<Bf16>,
                cache: Global<Bf16>,
                mask: Global<u32>,
                context: Global<u32>,
                partial: GlobalMut<f32>,
                log_sums: GlobalMut<f32>,
                arrivals: GlobalMut<u32>,
                out: GlobalMut<Bf16>,
                heads: u32,
                tree_rows: u32,
                scale: f32,
            ) {
                let parts = Parts { values: partial, log_sums, arrivals };
                let round = Round { query, cache, mask, context, parts, out, heads, tree_rows, scale };
                // SAFETY: the contract is the same.
                unsafe { verify::<$latent, $rope, $columns>(round) }
            }

            #[doc = concat!("Launch of [`", stringify!($name), "`].")]
            #[cfg(not(target_arch = "nvptx64"))]
            pub fn $shape(heads: u32, tree_rows: u32, splits: u32) -> LaunchShape {
                let rows = heads * tree_rows;
                LaunchShape::new((rows.div_ceil(ROWS), splits), WARPS * 32).shared(Layout::new($latent, $rope).total)
            }
        )*
    };
}
instances! {
    verify_attention_512_64, shape_512_64, 512, 64, 16, 584;
    verify_attention_64_16, shape_64_16, 64, 16, 2, 88;
}

/// One row of attention by its formula, in f64: `keys` are the visible cache rows, `scale` the natural factor.
#[cfg(not(target_arch = "nvptx64"))]
pub fn attention_reference(query: &[Bf16], keys: &[&[Bf16]], latent: usize, scale: f64) -> std::vec::Vec<f32> {
    let dot =
        |key: &[Bf16]| query.iter().zip(key).map(|(q, k)| f64::from(q.to_f32()) * f64::from(k.to_f32())).sum::<f64>();
    let scores: std::vec::Vec<f64> = keys.iter().map(|key| scale * dot(key)).collect();
    let max = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let weights: std::vec::Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
    let total: f64 = weights.iter().sum();
    let value = |i: usize| keys.iter().zip(&weights).map(|(key, w)| w * f64::from(key[i].to_f32())).sum::<f64>();
    (0..latent).map(|i| (value(i) / total) as f32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Failures, Random};
    use crate::tree::tree_layout_reference;
    use cuda_std::launch::Kernel;
    use cuda_std::simulate::{Buffer, Simulator};
    use std::vec::Vec;

    type Instance = Kernel<(
        Global<Bf16>,
        Global<Bf16>,
        Global<u32>,
        Global<u32>,
        GlobalMut<f32>,
        GlobalMut<f32>,
        GlobalMut<u32>,
        GlobalMut<Bf16>,
        u32,
        u32,
        f32,
    )>;

    struct Case {
        heads: usize,
        tree_rows: usize,
        context: usize,
        splits: usize,
    }

    fn check(
        kernel: &Instance,
        shape: fn(u32, u32, u32) -> LaunchShape,
        latent: usize,
        rope: usize,
        case: &Case,
    ) -> Failures {
        let Case { heads, tree_rows, context, splits } = *case;
        let name = std::format!("{heads} heads, {tree_rows} rows, context {context}, {splits} splits");
        let (width, stride, rows) = (latent + rope, latent + rope + 8, heads * tree_rows);
        let mut random = Random::new((heads + tree_rows * 100 + context) as u64);
        let bf16 = |x: f32| Bf16::from_f32(x);
        let query: Vec<Bf16> = random.normals(rows * width).into_iter().map(bf16).collect();
        let mut cache: Vec<Bf16> = random.normals((context + tree_rows + 1) * stride).into_iter().map(bf16).collect();
        // What lies past the end, and the padding, must not matter.
        cache[(context + tree_rows) * stride..].fill(Bf16(u16::MAX));
        cache.chunks_mut(stride).for_each(|row| row[width..].fill(Bf16(u16::MAX)));
        let parents: Vec<u32> = (0..tree_rows as u32).map(|t| if t == 0 { 0 } else { random.below(t) }).collect();
        let (_, sees) = tree_layout_reference(&parents, context as u32);
        let words = tree_rows.div_ceil(32);
        let mut mask = std::vec![0u32; tree_rows * words];
        for (row, sees) in sees.iter().enumerate() {
            for node in (0..tree_rows).filter(|node| sees[*node]) {
                mask[row * words + node / 32] |= 1 << (node % 32);
            }
        }

        let inputs = (Buffer::input("query", &query), Buffer::input("cache", &cache), Buffer::input("mask", &mask));
        let length = Buffer::input("context", &[context as u32]);
        let partial = Buffer::<f32>::poisoned("partial", splits * rows * latent);
        let log_sums = Buffer::<f32>::poisoned("log_sums", splits * rows);
        let arrivals = Buffer::new("arrivals", &std::vec![0u32; rows.div_ceil(16)]);
        let out = Buffer::<Bf16>::poisoned("out", rows * latent);
        let scale = (width as f32).powf(-0.5);
        let arguments = (
            inputs.0.ptr(),
            inputs.1.ptr(),
            inputs.2.ptr(),
            length.ptr(),
            partial.ptr_mut(),
            log_sums.ptr_mut(),
            arrivals.ptr_mut(),
            out.ptr_mut(),
            heads as u32,
            tree_rows as u32,
            scale * math::LOG2_E,
        );
        let shape = shape(heads as u32, tree_rows as u32, splits as u32);
        Simulator::default().seed(context as u64).launch(kernel, shape, arguments).unwrap();

        let mut failures = Failures::default();
        failures.check(arrivals.to_vec().iter().all(|n| *n == 0), &name, "leaves a counter that is not 0");
        for (row, found) in out.to_vec().chunks(latent).enumerate() {
            let sees = &sees[row / heads];
            let visible = (0..context + tree_rows).filter(|k| *k < context || sees[*k - context]);
            let keys: Vec<&[Bf16]> = visible.map(|k| &cache[k * stride..][..width]).collect();
            let expected = attention_reference(&query[row * width..][..width], &keys, latent, scale.into());
            let found: Vec<f32> = found.iter().map(|x| x.to_f32()).collect();
            // Weights and result are bf16; values are of order 1.
            failures.compare(&std::format!("{name}, row {row}"), &found, &expected, (1.0 / 128.0, 1.0 / 128.0));
        }
        failures
    }

    #[test]
    fn small_heads_agree_with_the_formula() {
        for (heads, tree_rows, context, splits) in [
            (1, 1, 0, 1),
            (1, 1, 1, 1),
            (1, 2, 31, 1),
            (3, 5, 27, 1),
            (4, 4, 32, 2),
            (2, 8, 33, 1),
            (5, 7, 63, 2),
            (8, 16, 100, 3),
            (1, 33, 50, 2),
            (7, 3, 129, 5),
            (2, 64, 65, 2),
            (3, 31, 200, 4),
            (16, 1, 257, 9),
            (1, 17, 5, 7),
        ] {
            let case = Case { heads, tree_rows, context, splits };
            check(&verify_attention_64_16::KERNEL, shape_64_16, 64, 16, &case).report();
        }
    }

    #[test]
    fn full_heads_agree_with_the_formula() {
        for (heads, tree_rows, context, splits) in [
            (1, 1, 0, 1),
            (1, 1, 40, 1),
            (2, 3, 15, 1),
            (16, 1, 17, 1),
            (1, 5, 33, 3),
            (3, 7, 61, 2),
            (5, 3, 64, 2),
            (8, 2, 97, 2),
            (1, 33, 31, 3),
            (1, 16, 1, 2),
            (7, 2, 47, 5),
            (17, 1, 5, 1),
        ] {
            let case = Case { heads, tree_rows, context, splits };
            check(&verify_attention_512_64::KERNEL, shape_512_64, 512, 64, &case).report();
        }
    }

    #[test]
    fn a_block_fits_the_shared_memory_of_sm_120() {
        assert!(shape_512_64(64, 64, 4).shared_bytes <= 101_376);
    }
}
