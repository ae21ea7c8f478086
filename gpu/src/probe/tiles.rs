//! Probes of `ldmatrix` and `mma.sync`.
use cuda_std::{prelude::*, shared};

/// Loads 8 x 8 tiles of 16-bit elements from shared memory in every form of `ldmatrix`.
///
/// `input` [32, 8] u16 (four tiles, one row a lane), `out` [14, 32] u32: x4, x4 transposed, x2, x2 transposed, x1, x1
/// transposed. One warp; 512 B of shared memory.
///
/// # Safety
/// The buffers have those sizes.
#[kernel(threads = 32)]
pub unsafe fn probe_ldmatrix(input: Global<[u16; 8]>, out: GlobalMut<u32>) {
    // SAFETY: all lanes of the warp come here together; one row of shared memory and one column of `out` a lane.
    unsafe {
        let lane = warp::lane_id();
        let row = shared::dynamic_shared_mem::<[u16; 8]>().add(lane);
        row.write(input.add(lane as usize).read());
        thread::sync_threads();
        let [a, b, c, d] = mma::ldmatrix_x4(row);
        let [e, f, g, h] = mma::ldmatrix_x4_trans(row);
        let [i, j] = mma::ldmatrix_x2(row);
        let [k, l] = mma::ldmatrix_x2_trans(row);
        let [m] = mma::ldmatrix_x1(row);
        let [n] = mma::ldmatrix_x1_trans(row);
        for (row, value) in [a, b, c, d, e, f, g, h, i, j, k, l, m, n].into_iter().enumerate() {
            out.add(row * 32 + lane as usize).write(value);
        }
    }
}

/// D = A x B + C on the tensor cores for one tile of each operand format.
///
/// `a` [32, 4] u32, `b` [32, 2] u32, `c` [32, 4] f32 fragments, `out` [2, 32, 4] f32 for bf16 (m16n8k16) and e4m3 (m16n8k32). One warp.
///
/// # Safety
/// The buffers have those sizes.
#[kernel(threads = 32)]
pub unsafe fn probe_mma(a: Global<[u32; 4]>, b: Global<[u32; 2]>, c: Global<[f32; 4]>, out: GlobalMut<[f32; 4]>) {
    // SAFETY: all lanes of the warp come here together.
    unsafe {
        let lane = warp::lane_id() as usize;
        let (a, b, c) = (a.add(lane).read(), b.add(lane).read(), c.add(lane).read());
        out.add(lane).write(mma::m16n8k16_bf16(a, b, c));
        out.add(32 + lane).write(mma::m16n8k32_e4m3(a, b, c));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use cuda_std::launch::LaunchShape;
    use cuda_std::simulate::{Buffer, launch};
    use std::vec::Vec;

    #[test]
    fn ldmatrix_hands_out_rows_or_columns() {
        for seed in 0..12 {
            check_ldmatrix(&mut Random::new(seed));
        }
    }

    fn check_ldmatrix(random: &mut Random) {
        let tiles: Vec<[u16; 8]> = (0..32).map(|_| core::array::from_fn(|_| random.below(1 << 16) as u16)).collect();
        let (input, out) = (Buffer::input("input", &tiles), Buffer::<u32>::poisoned("out", 14 * 32));
        let arguments = (input.ptr(), out.ptr_mut());
        launch(&probe_ldmatrix::KERNEL, LaunchShape::new(1, 32).shared(512), arguments).unwrap();
        let forms = [(0..4, false), (0..4, true), (0..2, false), (0..2, true), (0..1, false), (0..1, true)];
        let mut found = out.to_vec().into_iter();
        for (form, transposed) in forms {
            for tile in form {
                for lane in 0..32 {
                    let (g, t) = (lane / 4, lane % 4 * 2);
                    let at = |i: usize, j: usize| u32::from(tiles[8 * tile + i][j]);
                    let pair = if transposed { [at(t, g), at(t + 1, g)] } else { [at(g, t), at(g, t + 1)] };
                    assert_eq!(found.next(), Some(pair[0] | pair[1] << 16), "tile {tile} lane {lane} {transposed}");
                }
            }
        }
    }

    /// Checks D of one format against the definition; `element` decodes element `e` of a register.
    fn check(a: &[[u32; 4]], b: &[[u32; 2]], c: &[[f32; 4]], d: &[[f32; 4]], k: usize, element: fn(u32, usize) -> f64) {
        let per = k / 8;
        let a_at = |m: usize, i: usize| {
            let register = m / 8 + 2 * (i / (k / 2));
            element(a[m % 8 * 4 + i % (k / 2) / per][register], i % per)
        };
        let b_at = |i: usize, n: usize| element(b[n * 4 + i % (k / 2) / per][i / (k / 2)], i % per);
        for m in 0..16 {
            for n in 0..8 {
                let (lane, register) = (m % 8 * 4 + n / 2, m / 8 * 2 + n % 2);
                let terms: Vec<f64> = (0..k).map(|i| a_at(m, i) * b_at(i, n)).collect();
                let exact = terms.iter().sum::<f64>() + f64::from(c[lane][register]);
                let scale = terms.iter().map(|t| t.abs()).sum::<f64>() + 1.0;
                let found = f64::from(d[lane][register]);
                assert!((found - exact).abs() < 1e-6 * scale, "k {k}, ({m}, {n}): {found} {exact}");
            }
        }
    }

    #[test]
    fn products_equal_the_scalar_product() {
        for seed in 0..12 {
            check_products(&mut Random::new(seed));
        }
    }

    fn check_products(random: &mut Random) {
        // Bytes 0x30 to 0x4f are moderate positive numbers in both formats.
        let mut word = || {
            u32::from_le_bytes(core::array::from_fn(|_| {
                (0x30 + random.below(0x20)) as u8 | (random.below(2) * 0x80) as u8
            }))
        };
        let a: Vec<[u32; 4]> = (0..32).map(|_| core::array::from_fn(|_| word())).collect();
        let b: Vec<[u32; 2]> = (0..32).map(|_| core::array::from_fn(|_| word())).collect();
        let c: Vec<[f32; 4]> = (0..32).map(|i| core::array::from_fn(|j| (i * 4 + j) as f32 / 64.0)).collect();
        let buffers = (Buffer::input("a", &a), Buffer::input("b", &b), Buffer::input("c", &c));
        let out = Buffer::<[f32; 4]>::poisoned("out", 64);
        let arguments = (buffers.0.ptr(), buffers.1.ptr(), buffers.2.ptr(), out.ptr_mut());
        launch(&probe_mma::KERNEL, LaunchShape::new(1, 32), arguments).unwrap();
        let d = out.to_vec();
        check(&a, &b, &c, &d[..32], 16, |w, e| f32::from_bits(w >> (16 * e) << 16).into());
        check(&a, &b, &c, &d[32..], 32, |w, e| {
            let code = (w >> (8 * e)) & 0xff;
            let magnitude = (1.0 + f64::from(code & 7) / 8.0) * 2f64.powi((code >> 3 & 15) as i32 - 7);
            if code & 0x80 == 0 { magnitude } else { -magnitude }
        });
    }
}
