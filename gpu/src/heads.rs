//! Products head by head, which absorb MLA's `kv_b`: queries into the latent space, attended latents back to values.
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::{Kernel, LaunchShape};
use cuda_std::{convert::bf16x2_from_f32, grid, prelude::*, shared};

/// Warps of a block.
const WARPS: u32 = 4;
/// Outputs of a tile: the rows of one mma.
const OUTPUTS: u32 = 16;
/// Inputs of a step: two mma.
const CHUNK: u32 = 32;

/// Eight neighbouring inputs as an mma wants them.
trait Inputs: cuda_std::DeviceCopy {
    /// # Safety
    /// Eight elements lie there, aligned to 16 bytes.
    unsafe fn read8(at: Global<Self>) -> [u32; 4];
}
impl Inputs for Bf16 {
    #[inline(always)]
    unsafe fn read8(at: Global<Self>) -> [u32; 4] {
        // SAFETY: the caller's contract.
        unsafe { at.cast::<[u32; 4]>().read() }
    }
}
impl Inputs for f32 {
    #[inline(always)]
    unsafe fn read8(at: Global<Self>) -> [u32; 4] {
        // SAFETY: the caller's contract.
        let ([a, b, c, d], [e, f, g, h]) = unsafe { (at.cast::<[f32; 4]>().read(), at.cast().add(1).read()) };
        [bf16x2_from_f32(a, b), bf16x2_from_f32(c, d), bf16x2_from_f32(e, f), bf16x2_from_f32(g, h)]
    }
}

/// Adds the products of one output tile with up to 8 `TILES` rows over the chunks `first`, `first + step`, ...
///
/// Lane (g, t) takes inputs 8t..8t+8 of a chunk of outputs g and g + 8 and of row g: an mma may see its inputs in any order
/// as long as both operands agree.
#[inline(always)]
unsafe fn products<X: Inputs, const TILES: usize>(
    x: Global<X>,
    x_stride: usize,
    weight: Global<Bf16>,
    (first, step): (u32, u32),
    (rows, inputs): (u32, u32),
) -> [[f32; 4]; TILES] {
    // SAFETY: rows past the end are zeros; chunks past the end are not read.
    unsafe {
        let lane = thread::thread_idx_x() % 32;
        let (g, t) = (lane / 4, lane % 4);
        let chunks = inputs / CHUNK;
        let load = |chunk: u32| {
            let from = weight.add((chunk * OUTPUTS * CHUNK + 8 * lane) as usize).cast::<[u32; 4]>();
            if chunk < chunks { [from.read_once(), from.add(32).read_once()] } else { [[0; 4]; 2] }
        };
        let mut sums = [[0.0f32; 4]; TILES];
        let mut now = load(first);
        // Weights do not come from the kernel before.
        grid::dependency_wait();
        let mut chunk = first;
        while chunk < chunks {
            let next = load(chunk + step);
            let [low, high] = now;
            for (tile, sum) in sums.iter_mut().enumerate() {
                let row = tile as u32 * 8 + g;
                let mut b = [0u32; 4];
                if row < rows {
                    b = X::read8(x.add(row as usize * x_stride + (chunk * CHUNK + 8 * t) as usize));
                }
                *sum = mma::m16n8k16_bf16([low[0], high[0], low[1], high[1]], [b[0], b[1]], *sum);
                *sum = mma::m16n8k16_bf16([low[2], high[2], low[3], high[3]], [b[2], b[3]], *sum);
            }
            now = next;
            chunk += step;
        }
        sums
    }
}

/// One head's queries in the latent space, and their rotated part beside.
#[inline(always)]
unsafe fn absorb<const TILES: usize>(
    q: Global<f32>,
    weight: Global<Bf16>,
    cos_sin: Global<[f32; 2]>,
    positions: Global<u32>,
    query: GlobalMut<Bf16>,
    [rows, nope, rope, latent]: [u32; 4],
) {
    // SAFETY: one output tile a warp, skipped past the end; rows past the end are neither read nor written.
    unsafe {
        let (head, heads) = (thread::block_idx_y(), thread::grid_dim_y());
        let (thread, from_head, to_head) = (thread::thread_idx_x(), nope + rope, latent + rope);
        let (lane, tile) = (thread % 32, thread::block_idx_x() * WARPS + thread / 32);
        let (q, q_stride) = (q.add((head * from_head) as usize), (heads * from_head) as usize);
        let (query, query_stride) = (query.add((head * to_head) as usize), (heads * to_head) as usize);
        let tiles = latent / OUTPUTS;
        let at = (head * tiles + tile.min(tiles - 1)) * OUTPUTS * nope;
        let sums = products::<f32, TILES>(q, q_stride, weight.add(at as usize), (0, 1), (rows, nope));
        if tile < tiles {
            let to = query.add((tile * OUTPUTS + lane / 4) as usize);
            let put = |row: u32, low: f32, high: f32| {
                if row < rows {
                    let to = to.add(row as usize * query_stride);
                    to.write(Bf16::from_f32(low));
                    to.add(8).write(Bf16::from_f32(high));
                }
            };
            for (n, sum) in sums.iter().enumerate() {
                let row = 8 * n as u32 + 2 * (lane % 4);
                put(row, sum[0], sum[2]);
                put(row + 1, sum[1], sum[3]);
            }
        }
        // One block a head turns the part with position.
        if thread::block_idx_x() == 0 {
            let half = rope / 2;
            let mut i = thread;
            while i < rows * half {
                let (row, pair) = ((i / half) as usize, i % half);
                let [c, s] = cos_sin.add((positions.add(row).read() * half + pair) as usize).read_cached();
                let [x, y] = q.add(row * q_stride + (nope + 2 * pair) as usize).cast::<[f32; 2]>().read();
                let to = query.add(row * query_stride + (latent + 2 * pair) as usize);
                to.cast::<u32>().write(bf16x2_from_f32(x * c - y * s, x * s + y * c));
                i += WARPS * 32;
            }
        }
        grid::dependency_launch();
    }
}

/// One head's values from what it attended to.
#[inline(always)]
unsafe fn project<const TILES: usize>(
    attended: Global<Bf16>,
    weight: Global<Bf16>,
    out: GlobalMut<Bf16>,
    rows: u32,
    latent: u32,
    v: u32,
    out_stride: u32,
) {
    // SAFETY: one output tile a block; outputs and rows past the end are skipped; barriers are reached by all.
    unsafe {
        let (head, heads) = (thread::block_idx_y(), thread::grid_dim_y());
        let (thread, tile) = (thread::thread_idx_x(), thread::block_idx_x());
        let (lane, warp) = (thread % 32, thread / 32);
        let at = (head * v.div_ceil(OUTPUTS) + tile) * OUTPUTS * latent;
        let x = attended.add((head * latent) as usize);
        let stride = (heads * latent) as usize;
        let sums = products::<Bf16, TILES>(x, stride, weight.add(at as usize), (warp, WARPS), (rows, latent));

        // Partial sums [warp, row, output], added up in the order of warps.
        let partial = shared::dynamic_shared_mem::<f32>();
        let size = const { 8 * TILES as u32 * OUTPUTS };
        for (n, sum) in sums.iter().enumerate() {
            let to = partial.add(warp * size + (8 * n as u32 + 2 * (lane % 4)) * OUTPUTS + lane / 4);
            to.write(sum[0]);
            to.add(OUTPUTS).write(sum[1]);
            to.add(8).write(sum[2]);
            to.add(OUTPUTS + 8).write(sum[3]);
        }
        thread::sync_threads();
        let mut i = thread;
        while i < size {
            let (row, output) = (i / OUTPUTS, tile * OUTPUTS + i % OUTPUTS);
            if row < rows && output < v {
                let mut sum = 0.0;
                for warp in 0..WARPS {
                    sum += partial.add(warp * size + i).read();
                }
                out.add((row * out_stride + head * v + output) as usize).write(Bf16::from_f32(sum));
            }
            i += WARPS * 32;
        }
        grid::dependency_launch();
    }
}

/// The kernel that brings queries into the latent space.
#[cfg(not(target_arch = "nvptx64"))]
pub type Absorb =
    Kernel<(Global<f32>, Global<Bf16>, Global<[f32; 2]>, Global<u32>, GlobalMut<Bf16>, u32, u32, u32, u32)>;

/// The kernel that brings latents back to values.
#[cfg(not(target_arch = "nvptx64"))]
pub type Project = Kernel<(Global<Bf16>, Global<Bf16>, GlobalMut<Bf16>, u32, u32, u32, u32)>;

/// Both products for up to `bound` rows.
#[cfg(not(target_arch = "nvptx64"))]
pub struct Instance {
    /// Queries.
    pub absorb: Absorb,
    /// Values.
    pub project: Project,
    /// Most rows.
    pub bound: u32,
}

#[cfg(not(target_arch = "nvptx64"))]
impl Instance {
    /// Launch of `absorb`.
    pub fn absorb_shape(&self, heads: u32, latent: u32) -> LaunchShape {
        LaunchShape::new((latent.div_ceil(OUTPUTS * WARPS), heads), WARPS * 32)
    }

    /// Launch of `project`.
    pub fn project_shape(&self, heads: u32, v: u32) -> LaunchShape {
        LaunchShape::new((v.div_ceil(OUTPUTS), heads), WARPS * 32).shared(WARPS * self.bound * OUTPUTS * 4)
    }
}

macro_rules! instances {
    ($($absorb:ident, $project:ident, $rows:literal rows, $tiles:literal tiles;)*) => {
        $(
            #[doc = concat!("Absorbed queries of up to ", $rows, " rows.")]
            ///
            /// query[t, h, o] = sum_i q[t, h, i] weight[h, o, i] for o < latent, i < nope; query[t, h, latent + 2j..] = the pair
            /// q[t, h, nope + 2j..] turned by cos_sin[positions[t], j].
            ///
            /// * Shapes: `q` [rows, heads, nope + rope] f32; `weight` [heads] of [latent, nope] bf16, each packed by
            ///   [`linear::pack`](crate::linear::pack); `cos_sin` [positions, rope / 2, 2] f32, amplitude included;
            ///   `positions` [rows] u32; `query` [rows, heads, latent + rope] bf16.
            /// * Work: grid (ceil(latent / 64), heads), 4 warps; a warp takes 16 outputs and all inputs. One order of addition,
            ///   whatever the rows. The first block of a head turns the rest.
            /// * Shared memory: none.
            /// * Registers: 4 a row tile of sums, 16 of weights, 12 of x; up to 96.
            /// * Bytes: 2 x heads x latent x nope, once; FLOPs: 2 x rows x heads x latent x nope.
            /// * Alignment: `q`, `weight` 16 B, `query` 4 B; `nope` a multiple of 32, `latent` of 16, `rope` of 4.
            /// * Tolerance: q is rounded to bf16 (2^-9), sums in f32, the result is bf16.
            ///
            /// # Safety
            /// The buffers have those shapes and alignments, positions are in range, `rows` is from 1 to the bound. No kernel
            /// before it in the stream writes `weight`.
            #[kernel(threads = 128)]
            pub unsafe fn $absorb(
                q: Global<f32>,
                weight: Global<Bf16>,
                cos_sin: Global<[f32; 2]>,
                positions: Global<u32>,
                query: GlobalMut<Bf16>,
                rows: u32,
                nope: u32,
                rope: u32,
                latent: u32,
            ) {
                // SAFETY: the contract is the same.
                unsafe { absorb::<$tiles>(q, weight, cos_sin, positions, query, [rows, nope, rope, latent]) }
            }

            #[doc = concat!("Values of up to ", $rows, " rows.")]
            ///
            /// out[t, h v + o] = sum_i attended[t, h, i] weight[h, o, i] for o < v, i < latent
            ///
            /// * Shapes: `attended` [rows, heads, latent] bf16; `weight` [heads] of [v, latent] bf16, each packed by
            ///   [`linear::pack`](crate::linear::pack); `out` [rows, heads v] bf16, rows `out_stride` elements apart.
            /// * Work: grid (ceil(v / 16), heads), 4 warps; warp w takes chunks of 32 inputs w, w + 4, ... One order of addition,
            ///   whatever the rows.
            /// * Shared memory: partial sums [4, 8 to 64 rows, 16] f32.
            /// * Registers: 4 a row tile of sums, 16 of weights, 4 of x; up to 80.
            /// * Bytes: 2 x heads x latent x v, once; FLOPs: 2 x rows x heads x latent x v.
            /// * Alignment: `attended`, `weight` 16 B; `latent` a multiple of 32. Any v.
            /// * Tolerance: 2^-20 x sum_i |x w|, and the rounding to bf16.
            ///
            /// # Safety
            /// The buffers have those shapes and alignments, `rows` is from 1 to the bound. No kernel before it in the stream
            /// writes `weight`.
            #[kernel(threads = 128)]
            pub unsafe fn $project(
                attended: Global<Bf16>,
                weight: Global<Bf16>,
                out: GlobalMut<Bf16>,
                rows: u32,
                latent: u32,
                v: u32,
                out_stride: u32,
            ) {
                // SAFETY: the contract is the same.
                unsafe { project::<$tiles>(attended, weight, out, rows, latent, v, out_stride) }
            }
        )*

        /// The instances, by bound.
        #[cfg(not(target_arch = "nvptx64"))]
        pub const INSTANCES: [Instance; 4] = [$(Instance {
            absorb: $absorb::KERNEL,
            project: $project::KERNEL,
            bound: $rows,
        }),*];
    };
}
instances! {
    absorb_query_8, project_values_8, 8 rows, 1 tiles;
    absorb_query_16, project_values_16, 16 rows, 2 tiles;
    absorb_query_32, project_values_32, 32 rows, 4 tiles;
    absorb_query_64, project_values_64, 64 rows, 8 tiles;
}

#[cfg(test)]
#[path = "heads_tests.rs"]
mod tests;
