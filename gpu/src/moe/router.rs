//! The router's product: f32 weights against bf16 rows on tensor cores, without rounding the weights.
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{grid, prelude::*, shared};

/// Warps of a block.
const WARPS: u32 = 8;
/// Experts of a block: the rows of one mma tile.
const EXPERTS: u32 = 16;
/// Inputs a warp takes at a time: two mma steps.
const CHUNK: u32 = 32;

/// Eight f32 as bf16 pairs of three magnitudes whose sum they are: 24 bits are three times eight.
#[inline(always)]
fn split(values: [f32; 8]) -> [[u32; 4]; 3] {
    let mut rest = values;
    core::array::from_fn(|_| {
        core::array::from_fn(|i| {
            let (low, high) = (rest[2 * i].to_bits() & 0xffff_0000, rest[2 * i + 1].to_bits() & 0xffff_0000);
            // Exact: the leading bits are taken off.
            rest[2 * i] -= f32::from_bits(low);
            rest[2 * i + 1] -= f32::from_bits(high);
            low >> 16 | high
        })
    })
}

/// The kernel for up to 8 `TILES` rows. An mma may see its inputs in any order as long as both operands agree: lane (g, t)
/// takes inputs 8t..8t+8 of a chunk of experts g and g + 8 and of row g.
#[inline(always)]
unsafe fn router<const TILES: usize>(
    x: Global<Bf16>,
    weight: Global<f32>,
    partial: GlobalMut<f32>,
    rows: u32,
    inputs: u32,
    experts: u32,
) {
    // SAFETY: experts past the end are clamped when read and skipped when written, rows past it are zeros.
    unsafe {
        let thread = thread::thread_idx_x();
        let (lane, warp) = (thread % 32, thread / 32);
        let (g, t) = (lane / 4, lane % 4);
        let first = thread::block_idx_x() * EXPERTS;
        let part = thread::block_idx_y();
        let from = |expert: u32| weight.add(expert.min(experts - 1) as usize * inputs as usize + 8 * t as usize);
        let (low, high) = (from(first + g), from(first + g + 8));
        let step = thread::grid_dim_y() * WARPS * CHUNK;
        let weights = |at: u32| {
            let read = |row: Global<f32>| {
                let from = row.add(at as usize).cast::<[f32; 4]>();
                let ([a, b, c, d], [e, f, g, h]) = (from.read_once(), from.add(1).read_once());
                [a, b, c, d, e, f, g, h]
            };
            if at < inputs { [read(low), read(high)] } else { [[0.0; 8]; 2] }
        };
        let mut at = (part * WARPS + warp) * CHUNK;
        // Weights do not come from the kernel before.
        let mut now = weights(at);
        grid::dependency_wait();
        let mut sums = [[0.0f32; 4]; TILES];
        while at < inputs {
            let mut b = [[0u32; 4]; TILES];
            for (tile, b) in b.iter_mut().enumerate() {
                let row = tile as u32 * 8 + g;
                if row < rows {
                    *b = x.add(row as usize * inputs as usize + (at + 8 * t) as usize).cast::<[u32; 4]>().read();
                }
            }
            let next = weights(at + step);
            let (low, high) = (split(now[0]), split(now[1]));
            for (low, high) in low.iter().zip(&high) {
                for (b, sum) in b.iter().zip(sums.iter_mut()) {
                    *sum = mma::m16n8k16_bf16([low[0], high[0], low[1], high[1]], [b[0], b[1]], *sum);
                    *sum = mma::m16n8k16_bf16([low[2], high[2], low[3], high[3]], [b[2], b[3]], *sum);
                }
            }
            now = next;
            at += step;
        }

        // [warp, row, expert], added up in the order of warps.
        let scratch = shared::dynamic_shared_mem::<f32>();
        let size = const { 8 * TILES as u32 * EXPERTS };
        for (tile, sum) in sums.iter().enumerate() {
            let to = scratch.add(warp * size + (8 * tile as u32 + 2 * t) * EXPERTS + g);
            to.write(sum[0]);
            to.add(EXPERTS).write(sum[1]);
            to.add(8).write(sum[2]);
            to.add(EXPERTS + 8).write(sum[3]);
        }
        thread::sync_threads();
        let mut i = thread;
        while i < size {
            let (row, expert) = (i / EXPERTS, first + i % EXPERTS);
            if row < rows && expert < experts {
                let mut sum = 0.0;
                for warp in 0..WARPS {
                    sum += scratch.add(warp * size + i).read();
                }
                partial.add(((part * rows + row) * experts + expert) as usize).write(sum);
            }
            i += WARPS * 32;
        }
        grid::dependency_launch();
    }
}

/// A router's kernel.
#[cfg(not(target_arch = "nvptx64"))]
pub type Router = cuda_std::launch::Kernel<(Global<Bf16>, Global<f32>, GlobalMut<f32>, u32, u32, u32)>;

/// An instance for up to `bound` rows.
#[cfg(not(target_arch = "nvptx64"))]
pub struct Instance {
    /// The kernel.
    pub kernel: Router,
    /// Most rows.
    pub bound: u32,
}

#[cfg(not(target_arch = "nvptx64"))]
impl Instance {
    /// Its launch.
    pub fn shape(&self, inputs: u32, experts: u32) -> LaunchShape {
        let grid = (experts.div_ceil(EXPERTS), parts(inputs));
        LaunchShape::new(grid, WARPS * 32).shared(WARPS * self.bound * EXPERTS * 4)
    }
}

macro_rules! instances {
    ($($name:ident, $rows:literal rows, $tiles:literal tiles;)*) => {
        $(
            #[doc = concat!("Router logits of up to ", $rows, " rows, as partial sums over the inputs.")]
            ///
            /// sum_p partial[p, t, e] = sum_i x[t, i] * weight[e, i]
            ///
            /// * Shapes: `x` [rows, inputs] bf16; `weight` [experts, inputs] f32, row major; `partial` [parts, rows, experts]
            ///   f32, parts = [`parts`] of the inputs alone.
            /// * Work: grid (ceil(experts / 16), parts), 8 warps; a warp takes every (8 x parts)-th chunk of 32 inputs. A weight
            ///   is the exact sum of three bf16, hence three mma.
            /// * Shared memory: partial sums [8, rows, 16] f32.
            /// * Registers: 32 of weights, 4 a row tile of x and of sums; under 168.
            /// * Bytes: 4 x experts x inputs, once; FLOPs: 6 x rows x experts x inputs.
            /// * Alignment: `x` and `weight` 16 B; `inputs` a multiple of 32. Any number of experts.
            /// * Tolerance: 2^-20 x sum_i |x w|.
            ///
            /// # Safety
            /// The buffers have those shapes and alignments, `rows` is from 1 to the bound. No kernel before it in the stream
            /// writes `weight`.
            #[kernel(threads = 256, blocks_per_sm = 1)]
            pub unsafe fn $name(
                x: Global<Bf16>,
                weight: Global<f32>,
                partial: GlobalMut<f32>,
                rows: u32,
                inputs: u32,
                experts: u32,
            ) {
                // SAFETY: the contract is the same.
                unsafe { router::<$tiles>(x, weight, partial, rows, inputs, experts) }
            }
        )*

        /// The instances by bound.
        #[cfg(not(target_arch = "nvptx64"))]
        pub const INSTANCES: [Instance; 4] = [$(Instance { kernel: $name::KERNEL, bound: $rows }),*];
    };
}
instances! {
    router_8, 8 rows, 1 tiles;
    router_16, 16 rows, 2 tiles;
    router_32, 32 rows, 4 tiles;
    router_64, 64 rows, 8 tiles;
}

/// Parts of the inputs that are summed apart: four chunks a warp.
#[cfg(not(target_arch = "nvptx64"))]
pub fn parts(inputs: u32) -> u32 {
    inputs.div_ceil(4 * WARPS * CHUNK)
}

/// One logit by its formula, in f64, and the sum of the terms' magnitudes.
#[cfg(not(target_arch = "nvptx64"))]
pub fn router_reference(x: &[Bf16], weight: &[f32]) -> (f64, f64) {
    let terms = x.iter().zip(weight).map(|(x, w)| f64::from(x.to_f32()) * f64::from(*w));
    terms.fold((0.0, 0.0), |(sum, magnitude), term| (sum + term, magnitude + term.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Failures, Random};
    use cuda_std::simulate::{Buffer, Simulator};
    use std::vec::Vec;

    fn run(instance: &Instance, x: &[Bf16], weight: &[f32], (rows, inputs, experts): (u32, u32, u32)) -> Vec<f32> {
        let (x, w) = (Buffer::input("x", x), Buffer::input("weight", weight));
        let size = (rows * experts) as usize;
        let partial = Buffer::<f32>::poisoned("partial", parts(inputs) as usize * size);
        let arguments = (x.ptr(), w.ptr(), partial.ptr_mut(), rows, inputs, experts);
        let shape = instance.shape(inputs, experts);
        Simulator::default().seed(rows.into()).launch(&instance.kernel, shape, arguments).unwrap();
        let partial = partial.to_vec();
        (0..size).map(|i| partial.iter().skip(i).step_by(size).sum()).collect()
    }

    #[test]
    fn logits_are_those_of_unrounded_weights() {
        let mut failures = Failures::default();
        for (i, (inputs, experts)) in [
            (32, 1),
            (32, 16),
            (64, 17),
            (96, 8),
            (160, 33),
            (256, 16),
            (288, 5),
            (1024, 7),
            (1056, 40),
            (2048, 31),
            (3104, 16),
            (7168, 20),
        ]
        .into_iter()
        .enumerate()
        {
            let instance = &INSTANCES[i % 4];
            let rows = instance.bound - (i as u32 % 3);
            let mut random = Random::new(i as u64);
            let x: Vec<Bf16> = random.normals((rows * inputs) as usize).into_iter().map(Bf16::from_f32).collect();
            let weight = random.normals((experts * inputs) as usize);
            let found = run(instance, &x, &weight, (rows, inputs, experts));
            for (i, found) in found.iter().enumerate() {
                let (row, expert) = (i / experts as usize, i % experts as usize);
                let n = inputs as usize;
                let (exact, magnitude) = router_reference(&x[row * n..][..n], &weight[expert * n..][..n]);
                let close = (f64::from(*found) - exact).abs() <= magnitude * 2f64.powi(-20);
                let case = std::format!("{rows} rows, {inputs} to {experts}, ({row}, {expert})");
                failures.check(close, &case, &std::format!("{found}, expected {exact}"));
            }
        }
        failures.report();
    }

    #[test]
    fn a_row_does_not_depend_on_the_rows_beside_it() {
        let (inputs, experts) = (1056, 19);
        let mut random = Random::new(3);
        let x: Vec<Bf16> = random.normals(64 * inputs as usize).into_iter().map(Bf16::from_f32).collect();
        let weight = random.normals((experts * inputs) as usize);
        let one = run(&INSTANCES[0], &x, &weight, (1, inputs, experts));
        for instance in &INSTANCES {
            let all = run(instance, &x, &weight, (instance.bound, inputs, experts));
            assert_eq!(all[..experts as usize], one[..], "{}", instance.kernel.name);
        }
    }
}
