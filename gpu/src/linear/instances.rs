//! The linear kernels by rows, outputs and type of result, and the choice among them.
use super::kernel::linear;
#[cfg(not(target_arch = "nvptx64"))]
use super::{OUTPUTS, WARPS, stage_bytes};
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::{Kernel, LaunchShape};
use cuda_std::prelude::*;

/// Outputs from which on blocks of several tiles are enough to fill a large GPU.
#[cfg(not(target_arch = "nvptx64"))]
const WIDE: u32 = 8192;

/// A linear layer's kernel.
#[cfg(not(target_arch = "nvptx64"))]
pub type Linear<T> = Kernel<(Global<Bf16>, Global<Bf16>, GlobalMut<u32>, GlobalMut<T>, u32, u32, u32)>;

/// An instance with the sizes that its launch depends on.
#[cfg(not(target_arch = "nvptx64"))]
pub struct Instance<T> {
    /// The kernel.
    pub kernel: Linear<T>,
    /// Most rows.
    pub bound: u32,
    /// Whether it is for many outputs.
    pub wide: bool,
    /// Whether two blocks share an output, each with half the inputs.
    pub split: bool,
    /// Whether it gains from starting before the kernel in front of it has ended. Where every multiprocessor has one block,
    /// blocks that start early share multiprocessors while others stay idle.
    pub early: bool,
    /// Output tiles a block.
    height: u32,
    stages: u32,
}

#[cfg(not(target_arch = "nvptx64"))]
impl<T> Instance<T> {
    /// Its launch.
    pub fn shape(&self, outputs: u32) -> LaunchShape {
        let (tiles, width) = (self.bound / 8, OUTPUTS * self.height);
        let halves = if self.split { 1 } else { 2 };
        let partial = halves * WARPS * self.bound * width * 4;
        let ring = WARPS * self.stages * stage_bytes(tiles, self.height);
        let grid = (outputs.div_ceil(width), if self.split { 2 } else { 1 });
        LaunchShape::new(grid, WARPS * 32).shared(ring.max(partial))
    }

    /// Words of the exchange that it needs.
    pub fn exchange_words(&self, rows: u32, outputs: u32) -> u32 {
        if self.split { rows * outputs } else { 0 }
    }
}

macro_rules! instances {
    ($($list:ident: $output:ty, $output_name:literal {
        $($name:ident, $rows:literal rows, $tiles:literal tiles, $height:literal high, $stages:literal stages,
          wide $wide:literal, split $split:literal, early $early:literal;)*
    })*) => {
        $(
            $(
                #[doc = concat!("Linear layer of up to ", $rows, " rows with ", $output_name, " results, 16 x ", $height, " a block.")]
                ///
                /// out[t, o] = sum_i x[t, i] * weight[o, i]
                ///
                /// * Shapes: `x` [rows, inputs] bf16; `weight` [outputs, inputs] bf16, packed by [`pack`](super::pack);
                ///   `exchange` [rows, outputs] u32, all of them [`EMPTY`](super::EMPTY) before and after, not touched by
                ///   instances that do not split; `out` [rows, outputs].
                /// * Work: a block of 8 warps per 16 x height outputs, or two where it splits, the second for the second half
                ///   of the inputs; warp w takes chunks of 64 inputs w, w + 8, ..., in a ring filled by cp.async. One order of
                ///   addition an output, whatever the number of rows and the instance. Of two blocks, the one that comes to
                ///   the exchange second finds the first one's sum there, and writes the result.
                /// * Shared memory: 8 rings of 2 to 8 stages of 512 x (2 height + rows / 8) B; afterwards partial sums
                ///   [1 or 2 halves, 8, rows, 16 height].
                /// * Registers: 4 a row tile and output tile of sums, twice unless it splits, 8 of weights, 4 a row tile of x;
                ///   40 to 128.
                /// * Bytes: 2 x outputs x inputs, once; FLOPs: 2 x rows x outputs x inputs.
                /// * Alignment: `x` and `weight` 16 B; `inputs` a multiple of 32. Any number of outputs.
                /// * Tolerance: 2^-20 x sum_i |x w| for f32 accumulation, plus the rounding of a bf16 result.
                ///
                /// # Safety
                /// The buffers have those shapes and alignments, `rows` is from 1 to the bound, and neither `out` nor `exchange`
                /// overlaps anything. No kernel before it in the stream writes `weight`.
                #[kernel(threads = 256)]
                pub unsafe fn $name(
                    x: Global<Bf16>,
                    weight: Global<Bf16>,
                    exchange: GlobalMut<u32>,
                    out: GlobalMut<$output>,
                    rows: u32,
                    inputs: u32,
                    outputs: u32,
                ) {
                    // SAFETY: the contract is the same.
                    unsafe {
                        linear::<$tiles, $height, $stages, { $stages - 1 }, $split, $output>(
                            x, weight, exchange, out, rows, inputs, outputs,
                        );
                    }
                }
            )*

            #[doc = concat!("The instances with ", $output_name, " results: those for few outputs, then those for many, each by bound.")]
            #[cfg(not(target_arch = "nvptx64"))]
            pub const $list: &[Instance<$output>] = &[$(Instance {
                kernel: $name::KERNEL,
                bound: $rows,
                wide: $wide,
                split: $split,
                early: $early,
                height: $height,
                stages: $stages,
            }),*];
        )*
    };
}
instances! {
    F32: f32, "f32" {
        linear_f32_8, 8 rows, 1 tiles, 1 high, 8 stages, wide false, split false, early true;
        linear_f32_16, 16 rows, 2 tiles, 1 high, 6 stages, wide false, split false, early false;
        linear_f32_32, 32 rows, 4 tiles, 2 high, 3 stages, wide false, split true, early false;
        linear_f32_64, 64 rows, 8 tiles, 2 high, 2 stages, wide false, split true, early false;
        linear_f32_8_wide, 8 rows, 1 tiles, 2 high, 4 stages, wide true, split false, early true;
        linear_f32_16_wide, 16 rows, 2 tiles, 2 high, 4 stages, wide true, split false, early true;
        linear_f32_32_wide, 32 rows, 4 tiles, 4 high, 2 stages, wide true, split true, early true;
        linear_f32_64_wide, 64 rows, 8 tiles, 2 high, 2 stages, wide true, split true, early true;
    }
    BF16: Bf16, "bf16" {
        linear_bf16_8, 8 rows, 1 tiles, 1 high, 8 stages, wide false, split false, early true;
        linear_bf16_16, 16 rows, 2 tiles, 1 high, 6 stages, wide false, split false, early false;
        linear_bf16_32, 32 rows, 4 tiles, 2 high, 3 stages, wide false, split true, early false;
        linear_bf16_64, 64 rows, 8 tiles, 2 high, 2 stages, wide false, split true, early false;
        linear_bf16_8_wide, 8 rows, 1 tiles, 2 high, 4 stages, wide true, split false, early true;
        linear_bf16_16_wide, 16 rows, 2 tiles, 2 high, 4 stages, wide true, split false, early true;
        linear_bf16_32_wide, 32 rows, 4 tiles, 4 high, 2 stages, wide true, split true, early true;
        linear_bf16_64_wide, 64 rows, 8 tiles, 2 high, 2 stages, wide true, split true, early true;
    }
}

/// The instance for this many rows and outputs; `None` for more than 64 rows.
#[cfg(not(target_arch = "nvptx64"))]
pub fn choose<T>(instances: &[Instance<T>], rows: u32, outputs: u32) -> Option<&Instance<T>> {
    let wide = outputs >= WIDE;
    instances.iter().find(|instance| instance.bound >= rows && instance.wide == wide)
}
