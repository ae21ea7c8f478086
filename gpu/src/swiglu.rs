//! SwiGLU's elementwise half: SiLU of the gate times the up projection.
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{convert::bf16x2_from_f32, convert::bf16x2_to_f32, grid, prelude::*};

/// Threads of a block.
const THREADS: u32 = 256;
/// Elements a thread.
const PER_THREAD: u32 = 8;

/// SiLU of the gate times up.
///
/// out[t, i] = g / (1 + e^-g) * u, with g = gate_up[t, i] and u = gate_up[t, width + i]
///
/// * Shapes: `gate_up` [rows, 2 width] bf16, gate first; `out` [rows, width] bf16.
/// * Work: grid (ceil(width / 2048), rows), 256 threads; a thread takes eight neighbouring elements.
/// * Shared memory: none.
/// * Registers: under 40.
/// * Bytes: 6 an element; FLOPs: 5 an element.
/// * Alignment: both 16 B; `width` a multiple of 8.
/// * Tolerance: 2^-8 relative, the rounding to bf16; ex2 and rcp add 1e-6.
///
/// # Safety
/// The buffers have those shapes and alignments and do not overlap.
#[kernel(threads = 256)]
pub unsafe fn silu_mul(gate_up: Global<Bf16>, out: GlobalMut<Bf16>, width: u32) {
    // SAFETY: eight elements a thread, inside the buffers by the contract.
    unsafe {
        grid::dependency_wait();
        let i = thread::index_1d() * PER_THREAD;
        if i < width {
            let row = thread::block_idx_y() as usize * width as usize;
            let gate = gate_up.add(2 * row + i as usize);
            let [g0, g1, g2, g3] = gate.cast::<[u32; 4]>().read_once();
            let [u0, u1, u2, u3] = gate.add(width as usize).cast::<[u32; 4]>().read_once();
            let result = [pair(g0, u0), pair(g1, u1), pair(g2, u2), pair(g3, u3)];
            out.add(row + i as usize).cast::<[u32; 4]>().write(result);
        }
        grid::dependency_launch();
    }
}

#[inline(always)]
fn pair(gate: u32, up: u32) -> u32 {
    let ([g0, g1], [u0, u1]) = (bf16x2_to_f32(gate), bf16x2_to_f32(up));
    bf16x2_from_f32(math::silu(g0) * u0, math::silu(g1) * u1)
}

/// Launch of [`silu_mul`].
#[cfg(not(target_arch = "nvptx64"))]
pub fn shape(rows: u32, width: u32) -> LaunchShape {
    LaunchShape::new((width.div_ceil(THREADS * PER_THREAD), rows), THREADS)
}

/// One row of [`silu_mul`] by its formula, unrounded.
#[cfg(not(target_arch = "nvptx64"))]
pub fn silu_mul_reference(gate: &[Bf16], up: &[Bf16]) -> std::vec::Vec<f32> {
    let value = |(g, u): (&Bf16, &Bf16)| {
        let g = f64::from(g.to_f32());
        (g / (1.0 + (-g).exp()) * f64::from(u.to_f32())) as f32
    };
    gate.iter().zip(up).map(value).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Failures, Random};
    use cuda_std::simulate::{Buffer, launch};
    use std::vec::Vec;

    #[test]
    fn silu_mul_equals_its_formula() {
        let mut failures = Failures::default();
        for (rows, width) in [
            (1u32, 8u32),
            (2, 16),
            (3, 24),
            (1, 56),
            (5, 64),
            (2, 248),
            (1, 1000),
            (2, 2040),
            (2, 2048),
            (2, 2056),
            (1, 4104),
            (1, 18432),
        ] {
            let mut random = Random::new(width.into());
            // Wide enough that e^-g overflows on one side and vanishes on the other.
            let x: Vec<Bf16> =
                random.normals((rows * 2 * width) as usize).into_iter().map(|x| Bf16::from_f32(x * 30.0)).collect();
            let (input, out) = (Buffer::input("gate_up", &x), Buffer::<Bf16>::poisoned("out", (rows * width) as usize));
            launch(&silu_mul::KERNEL, shape(rows, width), (input.ptr(), out.ptr_mut(), width)).unwrap();
            for (row, (found, x)) in out.to_vec().chunks(width as usize).zip(x.chunks(2 * width as usize)).enumerate() {
                let (gate, up) = x.split_at(width as usize);
                let expected: Vec<f32> = silu_mul_reference(gate, up).iter().map(|x| flush(*x)).collect();
                failures.compare_bf16(&std::format!("{rows} x {width}, row {row}"), found, &expected);
            }
        }
        failures.report();
    }

    /// Results this small come from subnormal intermediate values, which count as zero.
    fn flush(x: f32) -> f32 {
        if x.abs() < 1e-34 { 0.0 } else { x }
    }
}
