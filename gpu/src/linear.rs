//! Skinny linear layers: up to 64 rows against bf16 weights, bound by reading the weights once.
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{async_copy, grid, prelude::*, shared};

/// Warps of a block; they share its outputs and divide the inputs among them.
const WARPS: u32 = 8;
/// Outputs of a block: the rows of one mma tile.
const OUTPUTS: u32 = 16;
/// Inputs a warp takes at a time: two mma steps.
const CHUNK: u32 = 32;
/// Bytes a lane copies at once.
const VECTOR: u32 = 16;

/// Where a result goes: f32 as it is, or rounded to bf16.
trait Output: cuda_std::DeviceCopy {
    fn from_f32(x: f32) -> Self;
}
impl Output for f32 {
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        x
    }
}
impl Output for Bf16 {
    #[inline(always)]
    fn from_f32(x: f32) -> Self {
        Bf16::from_f32(x)
    }
}

/// Bytes of a ring stage of a warp: two vectors of weights a lane, and one of `x` for each of `tiles` row tiles.
const fn stage_bytes(tiles: u32) -> u32 {
    32 * VECTOR * (2 + tiles)
}

/// The kernel, for up to 8 `TILES` rows, with `STAGES` chunks in flight a warp.
///
/// The weights are operand A (16 outputs), the rows of x operand B (8 a tile). Within a chunk of 32 inputs, lane (g, t)
/// takes inputs 8t..8t+8 of outputs g and g + 8 and of row g: 16 contiguous bytes each. An mma may see its inputs in any
/// order as long as A and B agree, so each lane multiplies what itself has copied: fragments need neither `ldmatrix` nor
/// a barrier, and the ring in shared memory is only a deep queue of loads.
#[inline(always)]
unsafe fn linear<const TILES: usize, const STAGES: u32, const KEEP: u32, T: Output>(
    x: Global<Bf16>,
    weight: Global<Bf16>,
    out: GlobalMut<T>,
    rows: u32,
    inputs: u32,
    outputs: u32,
) {
    // SAFETY: rows and outputs beyond the end are clamped when read and skipped when written; each lane reads back only
    // vectors that it copied and waited for, until the barrier after which the ring holds partial sums.
    unsafe {
        let thread = thread::thread_idx_x();
        let (lane, warp) = (thread % 32, thread / 32);
        let (g, t) = (lane / 4, lane % 4);
        let first = thread::block_idx_x() * OUTPUTS;
        let low = weight.add((first + g).min(outputs - 1) as usize * inputs as usize + 8 * t as usize);
        let high = weight.add((first + g + 8).min(outputs - 1) as usize * inputs as usize + 8 * t as usize);
        let row = |tile: usize| {
            let row = (tile as u32 * 8 + g).min(rows - 1);
            x.add(row as usize * inputs as usize + 8 * t as usize)
        };
        let stage = const { stage_bytes(TILES as u32) };
        let ring = shared::dynamic_shared_mem::<[u32; 4]>().byte_add(warp * STAGES * stage).add(lane);

        // Two neighbouring chunks a warp: whole 128-byte lines. Chunk n of this warp starts at input `start(n)`.
        let start = |n: u32| ((n / 2 * WARPS + warp) * 2 + n % 2) * CHUNK;
        let fetch = |n: u32| {
            let from = start(n);
            if from < inputs {
                let to = ring.byte_add(n % STAGES * stage);
                async_copy::copy_async(to, low.add(from as usize).cast());
                async_copy::copy_async(to.add(32), high.add(from as usize).cast());
                for tile in 0..TILES {
                    async_copy::copy_async(to.add(64 + 32 * tile as u32), row(tile).add(from as usize).cast());
                }
            }
            async_copy::commit_group();
        };

        grid::dependency_wait();
        for n in 0..STAGES - 1 {
            fetch(n);
        }
        let mut sums = [[0.0f32; 4]; TILES];
        let mut n = 0;
        while start(n) < inputs {
            fetch(n + STAGES - 1);
            async_copy::wait_group::<KEEP>();
            let from = ring.byte_add(n % STAGES * stage);
            let (a_low, a_high) = (from.read(), from.add(32).read());
            for (tile, sum) in sums.iter_mut().enumerate() {
                let b = from.add(64 + 32 * tile as u32).read();
                *sum = mma::m16n8k16_bf16([a_low[0], a_high[0], a_low[1], a_high[1]], [b[0], b[1]], *sum);
                *sum = mma::m16n8k16_bf16([a_low[2], a_high[2], a_low[3], a_high[3]], [b[2], b[3]], *sum);
            }
            n += 1;
        }

        // Partial sums [warp, row, output], added up in the order of warps.
        thread::sync_threads();
        let partial = shared::dynamic_shared_mem::<f32>();
        let size = 8 * TILES as u32 * OUTPUTS;
        for (tile, sum) in sums.iter().enumerate() {
            let to = partial.add(warp * size + (8 * tile as u32 + 2 * t) * OUTPUTS + g);
            to.write(sum[0]);
            to.add(OUTPUTS).write(sum[1]);
            to.add(8).write(sum[2]);
            to.add(OUTPUTS + 8).write(sum[3]);
        }
        thread::sync_threads();
        let mut i = thread;
        while i < size {
            let (row, output) = (i / OUTPUTS, first + i % OUTPUTS);
            if row < rows && output < outputs {
                let mut sum = 0.0;
                for warp in 0..WARPS {
                    sum += partial.add(warp * size + i).read();
                }
                out.add(row as usize * outputs as usize + output as usize).write(T::from_f32(sum));
            }
            i += WARPS * 32;
        }
        grid::dependency_launch();
    }
}

macro_rules! instances {
    ($($name:ident, $rows:literal rows, $tiles:literal tiles, $stages:literal stages, $output:ty, $output_name:literal;)*) => {
        $(
            #[doc = concat!("Linear layer of up to ", $rows, " rows with ", $output_name, " results.")]
            ///
            /// out[t, o] = sum_i x[t, i] * weight[o, i]
            ///
            /// * Shapes: `x` [rows, inputs] bf16; `weight` [outputs, inputs] bf16; `out` [rows, outputs].
            /// * Work: a block of 8 warps per 16 outputs; warp w takes chunks of 64 inputs w, w + 8, ..., in a ring filled
            ///   by cp.async. One order of addition an output, whatever the number of rows.
            /// * Shared memory: 8 rings of 2 to 8 stages of 512 x (2 + rows / 8) B; afterwards partial sums [8, rows, 16].
            /// * Registers: 4 a row tile of sums, 8 of weights, 4 of x; 40 to 80.
            /// * Bytes: 2 x outputs x inputs, once; FLOPs: 2 x rows x outputs x inputs.
            /// * Alignment: `x` and `weight` 16 B; `inputs` a multiple of 32. Any number of outputs.
            /// * Tolerance: 2^-20 x sum_i |x w| for f32 accumulation, plus the rounding of a bf16 result.
            ///
            /// # Safety
            /// The buffers have those shapes and alignments, `rows` is from 1 to the bound, and `out` overlaps nothing.
            #[kernel(threads = 256)]
            pub unsafe fn $name(
                x: Global<Bf16>,
                weight: Global<Bf16>,
                out: GlobalMut<$output>,
                rows: u32,
                inputs: u32,
                outputs: u32,
            ) {
                // SAFETY: the contract is the same.
                unsafe { linear::<$tiles, $stages, { $stages - 1 }, $output>(x, weight, out, rows, inputs, outputs) }
            }
        )*
    };
}
instances! {
    linear_f32_8, 8 rows, 1 tiles, 8 stages, f32, "f32";
    linear_f32_16, 16 rows, 2 tiles, 6 stages, f32, "f32";
    linear_f32_32, 32 rows, 4 tiles, 4 stages, f32, "f32";
    linear_f32_64, 64 rows, 8 tiles, 2 stages, f32, "f32";
    linear_bf16_8, 8 rows, 1 tiles, 8 stages, Bf16, "bf16";
    linear_bf16_16, 16 rows, 2 tiles, 6 stages, Bf16, "bf16";
    linear_bf16_32, 32 rows, 4 tiles, 4 stages, Bf16, "bf16";
    linear_bf16_64, 64 rows, 8 tiles, 2 stages, Bf16, "bf16";
}

/// Launch of the instance for up to `bound` rows (8, 16, 32 or 64).
#[cfg(not(target_arch = "nvptx64"))]
pub fn shape(bound: u32, outputs: u32) -> LaunchShape {
    let (tiles, stages) = match bound {
        8 => (1, 8),
        16 => (2, 6),
        32 => (4, 4),
        _ => (8, 2),
    };
    let partial = WARPS * 8 * tiles * OUTPUTS * 4;
    LaunchShape::new(outputs.div_ceil(OUTPUTS), WARPS * 32).shared((WARPS * stages * stage_bytes(tiles)).max(partial))
}

/// One output of a linear layer by its formula, in f64, and the sum of the terms' magnitudes.
#[cfg(not(target_arch = "nvptx64"))]
pub fn linear_reference(x: &[Bf16], weight: &[Bf16]) -> (f64, f64) {
    let terms = x.iter().zip(weight).map(|(x, w)| f64::from(x.to_f32()) * f64::from(w.to_f32()));
    terms.fold((0.0, 0.0), |(sum, magnitude), term| (sum + term, magnitude + term.abs()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Failures, Random};
    use cuda_std::launch::Kernel;
    use cuda_std::simulate::{Buffer, Simulator};
    use std::vec::Vec;

    type Instance<T> = Kernel<(Global<Bf16>, Global<Bf16>, GlobalMut<T>, u32, u32, u32)>;
    const SHAPES: [(u32, u32); 13] = [
        (32, 1),
        (32, 16),
        (64, 17),
        (96, 5),
        (128, 33),
        (480, 7),
        (512, 16),
        (544, 19),
        (768, 31),
        (1024, 8),
        (1056, 15),
        (1536, 2),
        (7168, 3),
    ];

    fn random(random: &mut Random, n: u32) -> Vec<Bf16> {
        random.normals(n as usize).into_iter().map(Bf16::from_f32).collect()
    }

    fn run<T: Output>(kernel: &Instance<T>, bound: u32, rows: u32, (inputs, outputs): (u32, u32)) -> Vec<T> {
        let mut generator = Random::new((inputs + outputs).into());
        let (w, x) = (random(&mut generator, inputs * outputs), random(&mut generator, rows * inputs));
        let (x, w) = (Buffer::input("x", &x), Buffer::input("weight", &w));
        let out = Buffer::<T>::poisoned("out", (rows * outputs) as usize);
        let arguments = (x.ptr(), w.ptr(), out.ptr_mut(), rows, inputs, outputs);
        Simulator::default().seed(rows.into()).launch(kernel, shape(bound, outputs), arguments).unwrap();
        out.to_vec()
    }

    #[test]
    fn every_instance_equals_the_scalar_product() {
        let mut failures = Failures::default();
        let instances: [(Instance<f32>, u32, &[u32]); 4] = [
            (linear_f32_8::KERNEL, 8, &[1, 5, 8]),
            (linear_f32_16::KERNEL, 16, &[9, 16]),
            (linear_f32_32::KERNEL, 32, &[17, 31]),
            (linear_f32_64::KERNEL, 64, &[33, 64]),
        ];
        for (kernel, bound, row_counts) in &instances {
            for (i, (inputs, outputs)) in SHAPES.into_iter().enumerate() {
                let rows = row_counts[i % row_counts.len()];
                let mut generator = Random::new((inputs + outputs).into());
                let (w, x) = (random(&mut generator, inputs * outputs), random(&mut generator, rows * inputs));
                let found = run(kernel, *bound, rows, (inputs, outputs));
                for (i, found) in found.iter().enumerate() {
                    let (row, output) = (i / outputs as usize, i % outputs as usize);
                    let x = &x[row * inputs as usize..][..inputs as usize];
                    let (exact, magnitude) = linear_reference(x, &w[output * inputs as usize..][..inputs as usize]);
                    let close = (f64::from(*found) - exact).abs() <= magnitude * 2f64.powi(-20);
                    let case = std::format!("{rows} of {bound} rows, {inputs} to {outputs}, ({row}, {output})");
                    failures.check(close, &case, &std::format!("{found}, expected {exact}"));
                }
            }
        }
        failures.report();
    }

    #[test]
    fn a_row_does_not_depend_on_the_rows_beside_it() {
        let shape = (1056, 18);
        let one = run(&linear_f32_8::KERNEL, 8, 1, shape);
        for (kernel, bound, rows) in [
            (linear_f32_8::KERNEL, 8, 7),
            (linear_f32_16::KERNEL, 16, 16),
            (linear_f32_32::KERNEL, 32, 19),
            (linear_f32_64::KERNEL, 64, 50),
        ] {
            let many = run(&kernel, bound, rows, shape);
            assert_eq!(many[..18], one[..], "{rows} rows");
        }
    }

    #[test]
    fn bf16_results_are_the_f32_results_rounded() {
        let shape = (544, 21);
        for (f32s, bf16s, bound, rows) in [
            (linear_f32_8::KERNEL, linear_bf16_8::KERNEL, 8, 3),
            (linear_f32_16::KERNEL, linear_bf16_16::KERNEL, 16, 11),
            (linear_f32_32::KERNEL, linear_bf16_32::KERNEL, 32, 30),
            (linear_f32_64::KERNEL, linear_bf16_64::KERNEL, 64, 61),
        ] {
            let expected: Vec<Bf16> = run(&f32s, bound, rows, shape).into_iter().map(Bf16::from_f32).collect();
            assert_eq!(run(&bf16s, bound, rows, shape), expected, "{rows} rows");
        }
    }
}
