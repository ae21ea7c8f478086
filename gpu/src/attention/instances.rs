//! The entry points: two head sizes by three classes of rows. Which one serves how many rows is said in `plan`.
use super::element::E4m3;
use super::layout::{GROUP, WARPS};
use super::split::Parts;
use super::verify::{Round, verify};
use cuda_std::prelude::*;

macro_rules! instances {
    ($($name:ident: $element:ident $latent:literal + $rope:literal, $rows:literal rows, $steps:literal steps, $tiles:literal tiles, team $team:ident,
        $height:literal x $columns:literal, $parked:literal parked;)*) => {
        $(
            #[doc = concat!("Attention of a tree's rows over context and tree: latent ", $latent, ", rope ", $rope, ", ", $rows, " rows a block.")]
            ///
            /// out[t, h] = sum_k p_k cache[k, ..latent], p = softmax over visible k of factor * query[t, h] . cache[k]
            ///
            /// Row t sees the first `context` cache rows, and of the `tree_rows` after them those in its mask; where `mask` is
            /// null the tree is a chain, and t sees the first t + 1.
            ///
            #[doc = concat!("* Shapes: `query` [tree_rows, heads, ", stringify!($latent + $rope), "] bf16; `cache` [>= context + tree_rows] rows of ", stringify!($latent + $rope), " ", stringify!($element), " elements and 16 bytes more, the first four of them the row's factor (f32) for e4m3, else unused.")]
            /// * More shapes: `mask` [tree_rows, ceil(tree_rows / 32)] u32; `context` \[1\] u32; `out` [tree_rows, heads, latent] bf16.
            ///   `scale` is the softmax factor times log2(e).
            /// * Scratch: `values`, `log_sums` and `arrivals` as in [`Plan`](super::Plan); `arrivals` is 0 at the first launch and after
            ///   each. Nothing else is kept from launch to launch.
            /// * Work: grid (row tiles, splits), whatever the context; each row tile's splits take equal shares of the tiles of 16 keys,
            ///   as many splits as have two tiles. A block is two groups of four warps: with 64 rows a block the groups have
            ///   different rows, else different keys. A warp scores a quarter of the width and adds up a quarter or an eighth of the
            ///   latent. Of a row tile's blocks the last half to finish, at most `mergers`, merge the splits.
            /// * Shared memory: mbarriers, softmax states, two buffers each of factors, weights (2 KiB at 64 rows) and partial scores
            ///   (12 KiB), then rings of `stages` tiles, as `Layout` says.
            /// * Registers, at latent 512: 72 for the query and 128 for sums with 32 or 64 rows a block, half of that with 16.
            /// * Bytes: the cache once a row tile, row tiles of a split at the same time; FLOPs: 2 x rows x keys x (2 latent + rope).
            /// * Alignment: 16 B for `query`, `cache` and `values`.
            /// * Tolerance: relative error 5e-3 over a row (bf16 weights, partial and final results).
            ///
            /// # Safety
            /// The buffers have those shapes and alignments and do not overlap; every row sees itself; the launch is a plan's.
            #[kernel(threads = 256, blocks_per_sm = 1)]
            pub unsafe fn $name(
                query: Global<Bf16>,
                cache: Global<u8>,
                mask: Global<u32>,
                context: Global<u32>,
                values: GlobalMut<[u32; 4]>,
                log_sums: GlobalMut<f32>,
                arrivals: GlobalMut<u32>,
                out: GlobalMut<Bf16>,
                heads: u32,
                tree_rows: u32,
                scale: f32,
                stages: u32,
                mergers: u32,
            ) {
                let parts = Parts { values, log_sums, arrivals };
                let round = Round { query, cache: cache.cast(), mask, context, parts, out, heads, tree_rows, scale, stages, mergers };
                // SAFETY: the contract is the same.
                unsafe { verify::<$element, $latent, $rope, $steps, $tiles, $team, $height, $columns, $parked>(round) }
            }
        )*
    };
}
instances! {
    verify_attention_512_64_rows16: Bf16 512 + 64, 16 rows, 9 steps, 1 tiles, team GROUP, 1 x 16, 0 parked;
    verify_attention_512_64_rows32: Bf16 512 + 64, 32 rows, 9 steps, 2 tiles, team GROUP, 2 x 16, 2 parked;
    verify_attention_512_64_rows64: Bf16 512 + 64, 64 rows, 9 steps, 2 tiles, team WARPS, 4 x 8, 1 parked;
    verify_attention_64_16_rows16: Bf16 64 + 16, 16 rows, 2 steps, 1 tiles, team GROUP, 1 x 2, 0 parked;
    verify_attention_64_16_rows32: Bf16 64 + 16, 32 rows, 2 steps, 2 tiles, team GROUP, 2 x 2, 0 parked;
    verify_attention_64_16_rows64: Bf16 64 + 16, 64 rows, 2 steps, 2 tiles, team WARPS, 4 x 1, 0 parked;
    verify_attention_512_64_e4m3_rows16: E4m3 512 + 64, 16 rows, 9 steps, 1 tiles, team GROUP, 1 x 16, 0 parked;
    verify_attention_512_64_e4m3_rows32: E4m3 512 + 64, 32 rows, 9 steps, 2 tiles, team GROUP, 2 x 16, 2 parked;
    verify_attention_512_64_e4m3_rows64: E4m3 512 + 64, 64 rows, 9 steps, 2 tiles, team WARPS, 4 x 8, 1 parked;
    verify_attention_64_16_e4m3_rows16: E4m3 64 + 16, 16 rows, 2 steps, 1 tiles, team GROUP, 1 x 2, 0 parked;
    verify_attention_64_16_e4m3_rows32: E4m3 64 + 16, 32 rows, 2 steps, 2 tiles, team GROUP, 2 x 2, 0 parked;
}
