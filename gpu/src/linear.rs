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

/// Bytes of a ring stage of a warp: two vectors of weights a lane for each of `height` output tiles, and one of `x` for each
/// of `tiles` row tiles.
const fn stage_bytes(tiles: u32, height: u32) -> u32 {
    32 * VECTOR * (2 * height + tiles)
}

/// The kernel, for up to 8 `TILES` rows and 16 `HEIGHT` outputs a block, with `STAGES` chunks in flight a warp.
///
/// The weights are operand A (16 outputs a tile), the rows of x operand B (8 a tile). Within a chunk of 32 inputs, lane (g, t)
/// takes inputs 8t..8t+8 of outputs g and g + 8 and of row g: 16 contiguous bytes each. An mma may see its inputs in any
/// order as long as A and B agree, so each lane multiplies what itself has copied: fragments need neither `ldmatrix` nor
/// a barrier, and the ring in shared memory is only a deep queue of loads. The weights lie packed ([`pack`]) in the order in
/// which lanes want them: 512 contiguous bytes a load, 16 KiB a block and step. Every block reads all of x, so x costs as much
/// as the weights where there are as many rows as outputs a block: `HEIGHT` tiles share what a lane has of x.
///
/// Weights do not come from an earlier kernel: with `EARLY`, the first of them are fetched before that one has ended.
#[inline(always)]
unsafe fn linear<
    const TILES: usize,
    const HEIGHT: usize,
    const STAGES: u32,
    const KEEP: u32,
    const EARLY: bool,
    T: Output,
>(
    x: Global<Bf16>,
    weight: Global<Bf16>,
    out: GlobalMut<T>,
    rows: u32,
    inputs: u32,
    outputs: u32,
) {
    // SAFETY: output tiles beyond the end are clamped when read and skipped when written, rows beyond it are zeros in shared
    // memory; each lane reads back only vectors that it wrote, or copied and waited for, until the barrier after which the
    // ring holds partial sums.
    unsafe {
        grid::dependency_launch();
        let thread = thread::thread_idx_x();
        let (lane, warp) = (thread % 32, thread / 32);
        let (g, t) = (lane / 4, lane % 4);
        let width = const { OUTPUTS * HEIGHT as u32 };
        let first = thread::block_idx_x() * width;
        let last = outputs.div_ceil(OUTPUTS) - 1;
        let weights: [Global<Bf16>; HEIGHT] = core::array::from_fn(|h| {
            let tile = (thread::block_idx_x() * HEIGHT as u32 + h as u32).min(last);
            weight.add(tile as usize * OUTPUTS as usize * inputs as usize + 8 * lane as usize)
        });
        let x = x.add(8 * t as usize);
        let stage = const { stage_bytes(TILES as u32, HEIGHT as u32) };
        let ring = shared::dynamic_shared_mem::<[u32; 4]>().byte_add(warp * STAGES * stage).add(lane);
        let rows_at = const { 64 * HEIGHT as u32 };

        // Two neighbouring chunks a warp: whole 128-byte lines. Chunk n of this warp starts at input `start(n)`.
        let start = |n: u32| ((n / 2 * WARPS + warp) * 2 + n % 2) * CHUNK;
        let fetch_weights = |n: u32| {
            let from = start(n);
            if from < inputs {
                let to = ring.byte_add(n % STAGES * stage);
                for (h, weights) in weights.iter().enumerate() {
                    let from = weights.add((from * OUTPUTS) as usize);
                    async_copy::copy_async(to.add(64 * h as u32), from.cast());
                    async_copy::copy_async(to.add(64 * h as u32 + 32), from.add(256).cast());
                }
            }
        };
        let fetch_rows = |n: u32| {
            let from = start(n);
            if from < inputs {
                let to = ring.byte_add(n % STAGES * stage).add(rows_at);
                for tile in 0..TILES as u32 {
                    let row = tile * 8 + g;
                    if row < rows {
                        let from = x.add(row as usize * inputs as usize + from as usize);
                        async_copy::copy_async(to.add(32 * tile), from.cast());
                    }
                }
            }
            async_copy::commit_group();
        };

        if EARLY {
            for n in 0..STAGES - 1 {
                fetch_weights(n);
            }
        }
        for tile in 0..TILES as u32 {
            if tile * 8 + g >= rows {
                for n in 0..STAGES {
                    ring.byte_add(n * stage).add(rows_at + 32 * tile).write([0; 4]);
                }
            }
        }
        grid::dependency_wait();
        for n in 0..STAGES - 1 {
            if !EARLY {
                fetch_weights(n);
            }
            fetch_rows(n);
        }
        let mut sums = [[[0.0f32; 4]; TILES]; HEIGHT];
        let mut n = 0;
        while start(n) < inputs {
            fetch_weights(n + STAGES - 1);
            fetch_rows(n + STAGES - 1);
            async_copy::wait_group::<KEEP>();
            let from = ring.byte_add(n % STAGES * stage);
            let mut b = [[0u32; 4]; TILES];
            for (tile, b) in b.iter_mut().enumerate() {
                *b = from.add(rows_at + 32 * tile as u32).read();
            }
            for (h, sums) in sums.iter_mut().enumerate() {
                let (low, high) = (from.add(64 * h as u32).read(), from.add(64 * h as u32 + 32).read());
                for (b, sum) in b.iter().zip(sums.iter_mut()) {
                    *sum = mma::m16n8k16_bf16([low[0], high[0], low[1], high[1]], [b[0], b[1]], *sum);
                    *sum = mma::m16n8k16_bf16([low[2], high[2], low[3], high[3]], [b[2], b[3]], *sum);
                }
            }
            n += 1;
        }

        // Partial sums [warp, row, output], added up in the order of warps.
        thread::sync_threads();
        let partial = shared::dynamic_shared_mem::<f32>();
        let size = 8 * TILES as u32 * width;
        for (h, sums) in sums.iter().enumerate() {
            for (tile, sum) in sums.iter().enumerate() {
                let to = partial.add(warp * size + (8 * tile as u32 + 2 * t) * width + 16 * h as u32 + g);
                to.write(sum[0]);
                to.add(width).write(sum[1]);
                to.add(8).write(sum[2]);
                to.add(width + 8).write(sum[3]);
            }
        }
        thread::sync_threads();
        let mut i = thread;
        while i < size {
            let (row, output) = (i / width, first + i % width);
            if row < rows && output < outputs {
                let mut sum = 0.0;
                for warp in 0..WARPS {
                    sum += partial.add(warp * size + i).read();
                }
                out.add(row as usize * outputs as usize + output as usize).write(T::from_f32(sum));
            }
            i += WARPS * 32;
        }
    }
}

/// Outputs from which on blocks of several tiles are enough to fill a large GPU.
#[cfg(not(target_arch = "nvptx64"))]
const WIDE: u32 = 8192;

/// A linear layer's kernel.
#[cfg(not(target_arch = "nvptx64"))]
pub type Linear<T> = cuda_std::launch::Kernel<(Global<Bf16>, Global<Bf16>, GlobalMut<T>, u32, u32, u32)>;

/// An instance with the sizes that its launch depends on.
#[cfg(not(target_arch = "nvptx64"))]
pub struct Instance<T> {
    /// The kernel.
    pub kernel: Linear<T>,
    /// Most rows.
    pub bound: u32,
    /// Output tiles a block.
    pub height: u32,
    /// Whether it gains by starting before the kernel before it has ended. Where blocks live on x, it loses: those that
    /// start early share multiprocessors while others stay idle.
    pub early: bool,
    stages: u32,
}

#[cfg(not(target_arch = "nvptx64"))]
impl<T> Instance<T> {
    /// Its launch.
    pub fn shape(&self, outputs: u32) -> LaunchShape {
        let (tiles, width) = (self.bound / 8, OUTPUTS * self.height);
        let partial = WARPS * self.bound * width * 4;
        let ring = WARPS * self.stages * stage_bytes(tiles, self.height);
        LaunchShape::new(outputs.div_ceil(width), WARPS * 32).shared(ring.max(partial))
    }
}

macro_rules! instances {
    ($($list:ident: $output:ty, $output_name:literal {
        $($name:ident, $rows:literal rows, $tiles:literal tiles, $height:literal high, $stages:literal stages, $early:literal early;)*
    })*) => {
        $(
            $(
                #[doc = concat!("Linear layer of up to ", $rows, " rows with ", $output_name, " results, 16 x ", $height, " a block.")]
                ///
                /// out[t, o] = sum_i x[t, i] * weight[o, i]
                ///
                /// * Shapes: `x` [rows, inputs] bf16; `weight` [outputs, inputs] bf16, packed by [`pack`]; `out` [rows,
                ///   outputs].
                /// * Work: a block of 8 warps per 16 x height outputs; warp w takes chunks of 64 inputs w, w + 8, ..., in a ring
                ///   filled by cp.async. One order of addition an output, whatever the number of rows and the height.
                /// * Shared memory: 8 rings of 2 to 8 stages of 512 x (2 height + rows / 8) B; afterwards partial sums [8, rows,
                ///   16 height].
                /// * Registers: 4 a row tile and output tile of sums, 8 of weights, 4 a row tile of x; 40 to 128.
                /// * Bytes: 2 x outputs x inputs, once; FLOPs: 2 x rows x outputs x inputs.
                /// * Alignment: `x` and `weight` 16 B; `inputs` a multiple of 32. Any number of outputs.
                /// * Tolerance: 2^-20 x sum_i |x w| for f32 accumulation, plus the rounding of a bf16 result.
                ///
                /// # Safety
                /// The buffers have those shapes and alignments, `rows` is from 1 to the bound, and `out` overlaps nothing. No
                /// kernel before it in the stream writes `weight`.
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
                    unsafe { linear::<$tiles, $height, $stages, { $stages - 1 }, $early, $output>(x, weight, out, rows, inputs, outputs) }
                }
            )*

            #[doc = concat!("The instances with ", $output_name, " results: those for few outputs, then those for many, each by bound.")]
            #[cfg(not(target_arch = "nvptx64"))]
            pub const $list: [Instance<$output>; 8] = [$(Instance {
                kernel: $name::KERNEL,
                bound: $rows,
                height: $height,
                early: $early,
                stages: $stages,
            }),*];
        )*
    };
}
instances! {
    F32: f32, "f32" {
        linear_f32_8, 8 rows, 1 tiles, 1 high, 8 stages, true early;
        linear_f32_16, 16 rows, 2 tiles, 1 high, 6 stages, false early;
        linear_f32_32, 32 rows, 4 tiles, 1 high, 4 stages, false early;
        linear_f32_64, 64 rows, 8 tiles, 1 high, 2 stages, false early;
        linear_f32_8_wide, 8 rows, 1 tiles, 2 high, 4 stages, true early;
        linear_f32_16_wide, 16 rows, 2 tiles, 2 high, 4 stages, true early;
        linear_f32_32_wide, 32 rows, 4 tiles, 3 high, 2 stages, true early;
        linear_f32_64_wide, 64 rows, 8 tiles, 2 high, 2 stages, true early;
    }
    BF16: Bf16, "bf16" {
        linear_bf16_8, 8 rows, 1 tiles, 1 high, 8 stages, true early;
        linear_bf16_16, 16 rows, 2 tiles, 1 high, 6 stages, false early;
        linear_bf16_32, 32 rows, 4 tiles, 1 high, 4 stages, false early;
        linear_bf16_64, 64 rows, 8 tiles, 1 high, 2 stages, false early;
        linear_bf16_8_wide, 8 rows, 1 tiles, 2 high, 4 stages, true early;
        linear_bf16_16_wide, 16 rows, 2 tiles, 2 high, 4 stages, true early;
        linear_bf16_32_wide, 32 rows, 4 tiles, 3 high, 2 stages, true early;
        linear_bf16_64_wide, 64 rows, 8 tiles, 2 high, 2 stages, true early;
    }
}

/// The instance for this many rows and outputs; `None` for more than 64 rows.
#[cfg(not(target_arch = "nvptx64"))]
pub fn choose<T>(instances: &[Instance<T>], rows: u32, outputs: u32) -> Option<&Instance<T>> {
    let wide = outputs >= WIDE;
    instances.iter().find(|instance| instance.bound >= rows && (instance.height > 1) == wide)
}

/// Weights [outputs, inputs] in the order the kernels read them: [output tile, chunk, half, g, t, 8], for outputs 16 tile + 8
/// half + g and inputs 32 chunk + 8 t. Outputs past the end are zeros; `inputs` is a multiple of 32, as the kernels need.
#[cfg(not(target_arch = "nvptx64"))]
pub fn pack(weight: &[Bf16], inputs: usize) -> std::vec::Vec<Bf16> {
    let outputs = weight.len().checked_div(inputs).unwrap_or(0);
    let tiles = outputs.div_ceil(OUTPUTS as usize);
    let mut packed = std::vec::Vec::with_capacity(tiles * OUTPUTS as usize * inputs);
    for first in (0..tiles).map(|tile| tile * OUTPUTS as usize) {
        for from in (0..inputs).step_by(CHUNK as usize) {
            for output in first..first + OUTPUTS as usize {
                match weight.get(output * inputs + from..output * inputs + from + CHUNK as usize) {
                    Some(inputs) => packed.extend_from_slice(inputs),
                    None => packed.extend([Bf16(0); CHUNK as usize]),
                }
            }
        }
    }
    packed
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
    use cuda_std::simulate::{Buffer, Simulator};
    use std::vec::Vec;

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

    fn run<T: Output>(instance: &Instance<T>, rows: u32, (inputs, outputs): (u32, u32)) -> Vec<T> {
        let mut generator = Random::new((inputs + outputs).into());
        let (w, x) = (random(&mut generator, inputs * outputs), random(&mut generator, rows * inputs));
        let (x, w) = (Buffer::input("x", &x), Buffer::input("weight", &pack(&w, inputs as usize)));
        let out = Buffer::<T>::poisoned("out", (rows * outputs) as usize);
        let arguments = (x.ptr(), w.ptr(), out.ptr_mut(), rows, inputs, outputs);
        Simulator::default().seed(rows.into()).launch(&instance.kernel, instance.shape(outputs), arguments).unwrap();
        out.to_vec()
    }

    #[test]
    fn every_instance_equals_the_scalar_product() {
        let mut failures = Failures::default();
        for instance in &F32 {
            let bound = instance.bound;
            for (i, (inputs, outputs)) in SHAPES.into_iter().enumerate() {
                let rows = [bound, bound / 2 + 1, if bound == 8 { 1 } else { bound - 3 }][i % 3];
                let mut generator = Random::new((inputs + outputs).into());
                let (w, x) = (random(&mut generator, inputs * outputs), random(&mut generator, rows * inputs));
                let found = run(instance, rows, (inputs, outputs));
                for (i, found) in found.iter().enumerate() {
                    let (row, output) = (i / outputs as usize, i % outputs as usize);
                    let x = &x[row * inputs as usize..][..inputs as usize];
                    let (exact, magnitude) = linear_reference(x, &w[output * inputs as usize..][..inputs as usize]);
                    let close = (f64::from(*found) - exact).abs() <= magnitude * 2f64.powi(-20);
                    let name = instance.kernel.name;
                    let case = std::format!("{name}: {rows} rows, {inputs} to {outputs}, ({row}, {output})");
                    failures.check(close, &case, &std::format!("{found}, expected {exact}"));
                }
            }
        }
        failures.report();
    }

    #[test]
    fn a_row_depends_neither_on_the_rows_beside_it_nor_on_the_instance() {
        let shape = (1056, 18);
        let one = run(&F32[0], 1, shape);
        for instance in &F32 {
            let rows = instance.bound - 1;
            assert_eq!(run(instance, rows, shape)[..18], one[..], "{}", instance.kernel.name);
        }
    }

    #[test]
    fn bf16_results_are_the_f32_results_rounded() {
        let shape = (544, 21);
        for (f32s, bf16s) in F32.iter().zip(&BF16) {
            let rows = f32s.bound - 2;
            let expected: Vec<Bf16> = run(f32s, rows, shape).into_iter().map(Bf16::from_f32).collect();
            assert_eq!(run(bf16s, rows, shape), expected, "{}", bf16s.kernel.name);
        }
    }

    #[test]
    fn the_instance_fits_rows_and_outputs() {
        for (rows, outputs, name) in [
            (1, 2048, "linear_bf16_8"),
            (9, 7168, "linear_bf16_16"),
            (32, 18_432, "linear_bf16_32_wide"),
            (64, 8192, "linear_bf16_64_wide"),
        ] {
            assert_eq!(choose(&BF16, rows, outputs).map(|instance| instance.kernel.name), Some(name));
        }
        assert!(choose(&BF16, 65, 1).is_none());
        // Shared memory of a block on sm_120.
        assert!(BF16.iter().all(|instance| instance.shape(1).shared_bytes <= 101_376));
    }
}
