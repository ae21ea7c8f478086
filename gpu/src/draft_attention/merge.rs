//! Puts the parts of drafter attention together.
use super::Extent;
use crate::block::block_sum;
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{grid, prelude::*, shared, unroll};

/// Shared memory before the weights: a maximum and a sum a warp.
const WEIGHTS: u32 = 32;

/// One row's parts, a column a thread. `HEAD` threads come here.
#[inline(always)]
unsafe fn merge<const HEAD: u32>(parts: u32, stride: usize, partial: Global<f32>, log_sums: Global<f32>) -> f32 {
    // SAFETY: the caller gives the row's first part; barriers are reached by all threads.
    unsafe {
        let thread = thread::thread_idx_x();
        let weights = shared::dynamic_shared_mem::<f32>().byte_add(WEIGHTS);
        let maxima = shared::dynamic_shared_mem::<f32>();
        let mut max = f32::NEG_INFINITY;
        let mut part = thread;
        while part < parts {
            let log_sum = log_sums.add(part as usize * stride).read();
            weights.add(part).write(log_sum);
            max = max.max(log_sum);
            part += HEAD;
        }
        let max = warp::warp_max(max);
        if thread.is_multiple_of(32) {
            maxima.add(thread / 32).write(max);
        }
        thread::sync_threads();
        let mut max = f32::NEG_INFINITY;
        for w in 0..HEAD / 32 {
            max = max.max(maxima.add(w).read());
        }
        let mut sum = 0.0;
        let mut part = thread;
        while part < parts {
            let log_sum = weights.add(part).read();
            // A part that saw no key has no weight; every row sees some.
            let weight = if log_sum == f32::NEG_INFINITY { 0.0 } else { math::ex2(log_sum - max) };
            weights.add(part).write(weight);
            sum += weight;
            part += HEAD;
        }
        let total = block_sum(sum, maxima.add(HEAD / 32));
        let column = partial.add(thread as usize);
        let mut value = 0.0;
        let mut part = 0;
        while part < parts {
            // Eight loads on their way at a time.
            let mut held = [0.0f32; 8];
            unroll!(I in [0 1 2 3 4 5 6 7] {
                let part = (part + I as u32).min(parts - 1);
                held[I] = column.add(part as usize * stride * HEAD as usize).read();
            });
            unroll!(I in [0 1 2 3 4 5 6 7] {
                if part + (I as u32) < parts {
                    value = math::fma(weights.add(part + I as u32).read(), held[I], value);
                }
            });
            part += 8;
        }
        value * math::rcp(total)
    }
}

macro_rules! instances {
    ($($name:ident, $shape:ident, $head:literal;)*) => {
        $(
            #[doc = concat!("Merges the parts of drafter attention, heads of ", $head, ".")]
            ///
            /// out[t, h] = sum_p 2^(log_sums[p, g, r]) partial[p, g, r] / sum_p 2^(log_sums[p, g, r]), with g and r as in
            #[doc = concat!("[`draft_attention_", $head, "`](super::draft_attention_", $head, ").")]
            ///
            /// * Shapes: as there, with the same window and splits; `out` [capacity, heads, head] bf16. Rows past the count are
            ///   left alone.
            /// * Work: grid (capacity x heads), a thread a column; parts in order, eight loads on their way at a time.
            /// * Shared memory: 32 B + 4 B a split: a maximum and a sum a warp, then the weights.
            /// * Registers: under 40.
            /// * Bytes: 4 an element and part; FLOPs: 2 an element and part.
            /// * Alignment: 4 B, `out` 2 B.
            /// * Tolerance: 2^-8, the rounding to bf16. Deterministic.
            ///
            /// # Safety
            /// The buffers have those shapes.
            #[kernel(threads = $head)]
            pub unsafe fn $name(
                rows: Global<u32>,
                partial: Global<f32>,
                log_sums: Global<f32>,
                out: GlobalMut<Bf16>,
                capacity: u32,
                heads: u32,
                kv_heads: u32,
                splits: u32,
                window: u32,
            ) {
                // SAFETY: one row a block, inside the buffers by the contract; a block goes one way.
                unsafe {
                    grid::dependency_wait();
                    let extent = Extent::of(rows, window, splits);
                    let (slot, head) = (thread::block_idx_x() / heads, thread::block_idx_x() % heads);
                    if slot < extent.count {
                        let group = heads / kv_heads;
                        let most_rows = (capacity * group) as usize;
                        let row = (slot * group + head % group) as usize;
                        let first = (head / group) as usize * most_rows + row;
                        let (partial, log_sums) = (partial.add(first * $head), log_sums.add(first));
                        let value = merge::<$head>(extent.parts, kv_heads as usize * most_rows, partial, log_sums);
                        let at = thread::block_idx_x() as usize * $head + thread::thread_idx_x() as usize;
                        out.add(at).write(Bf16::from_f32(value));
                    }
                    grid::dependency_launch();
                }
            }

            #[doc = concat!("Launch of [`", stringify!($name), "`].")]
            #[cfg(not(target_arch = "nvptx64"))]
            pub fn $shape(capacity: u32, heads: u32, splits: u32) -> LaunchShape {
                LaunchShape::new(capacity * heads, $head).shared(WEIGHTS + 4 * splits)
            }
        )*
    };
}
instances! {
    draft_merge_64, merge_shape_64, 64;
    draft_merge_128, merge_shape_128, 128;
}
