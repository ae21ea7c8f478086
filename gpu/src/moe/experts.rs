//! The products of the active experts: gate and up with SwiGLU, then down. How weights lie in memory is told in `format`.
use super::format::{Bf16s, CHUNK, Format, Fp8, Inputs, Int4, OUTPUTS, Sums, fetch};
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{async_copy, grid, prelude::*, shared};

/// Warps of a block.
const WARPS: u32 = 8;

/// The rows of `TILES` tiles that a lane takes part in copying: column g of each.
struct Columns<const TILES: usize> {
    rows: [Global<Bf16>; TILES],
    present: [bool; TILES],
}

impl<const TILES: usize> Columns<TILES> {
    /// A lane's inputs of a record; zeros where there are none.
    #[inline(always)]
    unsafe fn load(&self, record: u32, inputs: u32) -> [Inputs; TILES] {
        // SAFETY: a row's inputs below `inputs`, a multiple of 32.
        unsafe {
            let from = record * CHUNK;
            let mut x = [[0u32; 8]; TILES];
            for (tile, x) in x.iter_mut().enumerate() {
                if self.present[tile] && from < inputs {
                    let at = self.rows[tile].add(from as usize).cast::<[u32; 4]>();
                    [x[0], x[1], x[2], x[3]] = at.read();
                    if from + 32 < inputs {
                        [x[4], x[5], x[6], x[7]] = at.add(4).read();
                    }
                }
            }
            x
        }
    }
}

/// Products of a pair of tiles with the columns over records `first`, `first + step`, ... of `records`. A ring of records in
/// shared memory, filled by cp.async, belongs to the warp.
#[inline(always)]
unsafe fn products<F: Format, const TILES: usize, const KEEP: u32>(
    ring: Shared<u8>,
    weights: Global<u8>,
    columns: &Columns<TILES>,
    (first, step, records): (u32, u32, u32),
    inputs: u32,
    lane: u32,
) -> Sums<TILES> {
    // SAFETY: all lanes come here; a slot is read after its copy was waited for by all lanes, and filled again after all have
    // read it.
    unsafe {
        let slot = |n: u32| ring.byte_add(n % F::STAGES * F::RECORD);
        let start = |n: u32| {
            let record = first + n * step;
            if record < records {
                fetch::<F>(slot(n), weights.byte_add(record as usize * F::RECORD as usize), lane);
            }
            async_copy::commit_group();
        };
        for n in 0..F::STAGES - 1 {
            start(n);
        }
        let mut sums = [[[0.0f32; 4]; TILES]; 2];
        let mut now = columns.load(first, inputs);
        let (mut n, mut record) = (0, first);
        while record < records {
            async_copy::wait_group::<KEEP>();
            warp::sync_warp(warp::FULL_MASK);
            start(n + F::STAGES - 1);
            let next = columns.load(record + step, inputs);
            F::multiply(slot(n), lane, &now, &mut sums);
            now = next;
            n += 1;
            record += step;
        }
        warp::sync_warp(warp::FULL_MASK);
        sums
    }
}

/// What both products take: the active experts with their choices, the expert's weights, its rows in tiles.
#[derive(Clone, Copy)]
struct Layer {
    x: Global<Bf16>,
    weights: Global<u8>,
    active: Global<[u32; 4]>,
    count: Global<u32>,
    choices: Global<u32>,
    inputs: u32,
    outputs: u32,
    /// Choices that share a row of x.
    share: u32,
}

impl Layer {
    /// Rows of a pass of this expert, from choice `first` on.
    #[inline(always)]
    unsafe fn columns<const TILES: usize>(
        &self,
        [_, place, count, _]: [u32; 4],
        first: u32,
        lane: u32,
    ) -> Columns<TILES> {
        let mut columns = Columns { rows: [self.x; TILES], present: [false; TILES] };
        for tile in 0..TILES {
            let column = first + 8 * tile as u32 + lane / 4;
            if column < count {
                // SAFETY: one of the expert's choices.
                let choice = unsafe { self.choices.add((place + column) as usize).read() };
                let row = (choice / self.share) as usize * self.inputs as usize;
                columns.rows[tile] = self.x.add(row + 8 * (lane % 4) as usize);
                columns.present[tile] = true;
            }
        }
        columns
    }
}

/// silu(gate x) * up x for 16 outputs of an active expert.
#[inline(always)]
unsafe fn gate_up<F: Format, const TILES: usize, const KEEP: u32>(layer: Layer, out: GlobalMut<Bf16>) {
    // SAFETY: whole blocks leave or stay; after the barrier the rings hold partial sums, until the next one.
    unsafe {
        grid::dependency_wait();
        if thread::block_idx_y() >= layer.count.read() {
            return;
        }
        let thread = thread::thread_idx_x();
        let (lane, warp) = (thread % 32, thread / 32);
        let (g, t) = (lane / 4, lane % 4);
        let expert = layer.active.add(thread::block_idx_y() as usize).read();
        let (pair, records) = (thread::block_idx_x(), layer.inputs.div_ceil(CHUNK));
        let pairs = layer.outputs.div_ceil(OUTPUTS);
        let weights = layer.weights.byte_add((expert[0] * pairs + pair) as usize * (records * F::RECORD) as usize);
        let memory = shared::dynamic_shared_mem::<u8>();
        let mut first = 0;
        while first < expert[2] {
            let columns = layer.columns::<TILES>(expert, first, lane);
            let ring = memory.byte_add(warp * F::STAGES * F::RECORD);
            let span = (warp, WARPS, records);
            let sums = products::<F, TILES, KEEP>(ring, weights, &columns, span, layer.inputs, lane);

            // Partial sums [warp, tile of the pair, row, output], added up in the order of warps.
            thread::sync_threads();
            let partial = memory.cast::<f32>();
            let size = const { 8 * TILES as u32 * OUTPUTS };
            for (tile, sums) in sums.iter().enumerate() {
                for (n, sum) in sums.iter().enumerate() {
                    let row = 8 * n as u32 + 2 * t;
                    let to = partial.add((2 * warp + tile as u32) * size + row * OUTPUTS + g);
                    to.write(sum[0]);
                    to.add(OUTPUTS).write(sum[1]);
                    to.add(8).write(sum[2]);
                    to.add(OUTPUTS + 8).write(sum[3]);
                }
            }
            thread::sync_threads();
            let mut i = thread;
            while i < size {
                let (column, output) = (first + i / OUTPUTS, pair * OUTPUTS + i % OUTPUTS);
                if column < expert[2] && output < layer.outputs {
                    let (mut gate, mut up) = (0.0, 0.0);
                    for warp in 0..WARPS {
                        gate += partial.add(2 * warp * size + i).read();
                        up += partial.add((2 * warp + 1) * size + i).read();
                    }
                    let choice = layer.choices.add((expert[1] + column) as usize).read();
                    let to = out.add(choice as usize * layer.outputs as usize + output as usize);
                    to.write(Bf16::from_f32(math::silu(gate) * up));
                }
                i += WARPS * 32;
            }
            thread::sync_threads();
            first += const { 8 * TILES as u32 };
        }
    }
}

/// down h for 256 outputs of an active expert, 32 a warp.
#[inline(always)]
unsafe fn down<F: Format, const TILES: usize, const KEEP: u32>(layer: Layer, out: GlobalMut<f32>) {
    // SAFETY: whole warps leave or stay; nothing is shared between warps.
    unsafe {
        grid::dependency_wait();
        let thread = thread::thread_idx_x();
        let (lane, warp) = (thread % 32, thread / 32);
        let pair = thread::block_idx_x() * WARPS + warp;
        let pairs = layer.outputs.div_ceil(2 * OUTPUTS);
        if thread::block_idx_y() >= layer.count.read() || pair >= pairs {
            return;
        }
        let expert = layer.active.add(thread::block_idx_y() as usize).read();
        let records = layer.inputs.div_ceil(CHUNK);
        let weights = layer.weights.byte_add((expert[0] * pairs + pair) as usize * (records * F::RECORD) as usize);
        let ring = shared::dynamic_shared_mem::<u8>().byte_add(warp * F::STAGES * F::RECORD);
        let mut first = 0;
        while first < expert[2] {
            let columns = layer.columns::<TILES>(expert, first, lane);
            let sums = products::<F, TILES, KEEP>(ring, weights, &columns, (0, 1, records), layer.inputs, lane);
            let store = |column: u32, [a, b, c, d]: [f32; 4]| {
                if column < expert[2] {
                    let choice = layer.choices.add((expert[1] + column) as usize).read();
                    let out = out.add(choice as usize * layer.outputs as usize);
                    let first = pair * 2 * OUTPUTS + lane / 4;
                    let put = |output: u32, value: f32| {
                        if output < layer.outputs {
                            out.add(output as usize).write(value);
                        }
                    };
                    put(first, a);
                    put(first + 8, b);
                    put(first + 16, c);
                    put(first + 24, d);
                }
            };
            let [even, odd] = &sums;
            for (n, (a, b)) in even.iter().zip(odd).enumerate() {
                let column = first + 8 * n as u32 + 2 * (lane % 4);
                store(column, [a[0], a[2], b[0], b[2]]);
                store(column + 1, [a[1], a[3], b[1], b[3]]);
            }
            first += const { 8 * TILES as u32 };
        }
    }
}

/// A product's kernel.
#[cfg(not(target_arch = "nvptx64"))]
pub type Product<T> = cuda_std::launch::Kernel<(
    Global<Bf16>,
    Global<u8>,
    Global<[u32; 4]>,
    Global<u32>,
    Global<u32>,
    GlobalMut<T>,
    u32,
    u32,
    u32,
)>;

/// Both products in one format, with what their launches depend on.
#[cfg(not(target_arch = "nvptx64"))]
pub struct Instance {
    /// Gate and up.
    pub gate_up: Product<Bf16>,
    /// Down.
    pub down: Product<f32>,
    /// Choices of an expert that one pass over its weights serves.
    pub tile: u32,
    /// Bytes of a record.
    pub record: u32,
    stages: u32,
}

#[cfg(not(target_arch = "nvptx64"))]
impl Instance {
    /// Launch of `gate_up` for at most `active` active experts; blocks beyond their number leave at once.
    pub fn gate_up_shape(&self, outputs: u32, active: u32) -> LaunchShape {
        let ring = WARPS * self.stages * self.record;
        let partial = WARPS * 2 * self.tile * OUTPUTS * 4;
        LaunchShape::new((outputs.div_ceil(OUTPUTS), active), WARPS * 32).shared(ring.max(partial))
    }

    /// Launch of `down`, likewise.
    pub fn down_shape(&self, outputs: u32, active: u32) -> LaunchShape {
        let grid = (outputs.div_ceil(2 * OUTPUTS * WARPS), active);
        LaunchShape::new(grid, WARPS * 32).shared(WARPS * self.stages * self.record)
    }

    /// Bytes of an expert's packed gate and up, from `inputs` to `outputs`.
    pub fn gate_up_bytes(&self, inputs: u32, outputs: u32) -> u64 {
        u64::from(outputs.div_ceil(OUTPUTS)) * u64::from(inputs.div_ceil(CHUNK)) * u64::from(self.record)
    }

    /// Bytes of an expert's packed down, from `inputs` to `outputs`.
    pub fn down_bytes(&self, inputs: u32, outputs: u32) -> u64 {
        u64::from(outputs.div_ceil(2 * OUTPUTS)) * u64::from(inputs.div_ceil(CHUNK)) * u64::from(self.record)
    }
}

macro_rules! instances {
    ($($list:ident: $format:ty, $name:literal { $($gate_up:ident, $down:ident, $choices:literal choices, $tiles:literal tiles;)* })*) => {
        $(
            $(
                #[doc = concat!("Gate and up of the active experts with ", $name, " weights, ", $choices, " choices a pass.")]
                ///
                /// out[c, o] = silu(gate[e, o] . x[c / share]) * up[e, o] . x[c / share] for each choice c of each active expert e
                ///
                /// * Shapes: `x` [choices / share, inputs] bf16; `weights` [experts] of [`pack_gate_up`](super::format::pack_gate_up);
                ///   `active`, `count`, `choices` as [`active_experts`](super::active::active_experts) leaves them; `out`
                ///   [choices, outputs] bf16.
                /// * Work: grid (ceil(outputs / 16), most active experts), 8 warps; warp w takes records w, w + 8, ...; one order of
                ///   addition, whatever the rows. More choices than a pass serves are another pass over the weights.
                /// * Shared memory: a ring of records a warp, at most 101,376 B; then partial sums [8, 2, rows of a pass, 16] f32.
                /// * Registers: 16 a row tile of x, 8 of sums; up to 128.
                /// * Bytes: the active experts' weights, once a pass; FLOPs: 4 x choices x inputs x outputs.
                /// * Alignment: 16 B; `inputs` a multiple of 32. Any number of outputs.
                /// * Tolerance: 2^-19 x sum_i |w x| of either product, plus the rounding to bf16.
                ///
                /// # Safety
                /// The buffers have those shapes and alignments.
                #[kernel(threads = 256)]
                pub unsafe fn $gate_up(
                    x: Global<Bf16>,
                    weights: Global<u8>,
                    active: Global<[u32; 4]>,
                    count: Global<u32>,
                    choices: Global<u32>,
                    out: GlobalMut<Bf16>,
                    inputs: u32,
                    outputs: u32,
                    share: u32,
                ) {
                    let layer = Layer { x, weights, active, count, choices, inputs, outputs, share };
                    // SAFETY: the contract is the same.
                    unsafe { gate_up::<$format, $tiles, { <$format>::STAGES - 2 }>(layer, out) }
                }

                #[doc = concat!("Down of the active experts with ", $name, " weights, ", $choices, " choices a pass.")]
                ///
                /// out[c, o] = down[e, o] . x[c / share] for each choice c of each active expert e
                ///
                /// * Shapes: as of gate and up, but `weights` [experts] of [`pack_down`](super::format::pack_down), `out` [choices,
                ///   outputs] f32.
                /// * Work: grid (ceil(outputs / 256), most active experts), 8 warps; a warp takes 32 outputs and all records.
                /// * Shared memory, registers, bytes, alignment: as there; nothing is exchanged between warps.
                /// * Tolerance: 2^-19 x sum_i |w x|.
                ///
                /// # Safety
                /// The buffers have those shapes and alignments.
                #[kernel(threads = 256)]
                pub unsafe fn $down(
                    x: Global<Bf16>,
                    weights: Global<u8>,
                    active: Global<[u32; 4]>,
                    count: Global<u32>,
                    choices: Global<u32>,
                    out: GlobalMut<f32>,
                    inputs: u32,
                    outputs: u32,
                    share: u32,
                ) {
                    let layer = Layer { x, weights, active, count, choices, inputs, outputs, share };
                    // SAFETY: the contract is the same.
                    unsafe { down::<$format, $tiles, { <$format>::STAGES - 2 }>(layer, out) }
                }
            )*

            #[doc = concat!("The instances for ", $name, " weights, by choices a pass.")]
            #[cfg(not(target_arch = "nvptx64"))]
            pub const $list: [Instance; 2] = [$(Instance {
                gate_up: $gate_up::KERNEL,
                down: $down::KERNEL,
                tile: $choices,
                record: <$format>::RECORD,
                stages: <$format>::STAGES,
            }),*];
        )*
    };
}
instances! {
    INT4: Int4, "int4" {
        experts_gate_up_int4_8, experts_down_int4_8, 8 choices, 1 tiles;
        experts_gate_up_int4_32, experts_down_int4_32, 32 choices, 4 tiles;
    }
    FP8: Fp8, "fp8" {
        experts_gate_up_fp8_8, experts_down_fp8_8, 8 choices, 1 tiles;
        experts_gate_up_fp8_32, experts_down_fp8_32, 32 choices, 4 tiles;
    }
    BF16: Bf16s, "bf16" {
        experts_gate_up_bf16_8, experts_down_bf16_8, 8 choices, 1 tiles;
        experts_gate_up_bf16_32, experts_down_bf16_32, 32 choices, 4 tiles;
    }
}

#[cfg(test)]
#[path = "experts_tests.rs"]
mod tests;
