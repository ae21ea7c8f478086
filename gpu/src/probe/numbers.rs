//! Probes of approximations and number formats.
use cuda_std::convert;
use cuda_std::prelude::*;

/// The approximations of one value a thread.
///
/// `x` [n] f32, `out` [8, n] f32: ex2, lg2, rsqrt, rcp, tanh, sqrt, fma(x, x, 1), silu. One thread a value.
///
/// # Safety
/// The buffers have those sizes.
#[kernel]
pub unsafe fn probe_math(x: Global<f32>, n: u32, out: GlobalMut<f32>) {
    let i = thread::index_1d();
    if i < n {
        // SAFETY: `i` is inside; one column of `out` a thread.
        unsafe {
            let x = x.add(i as usize).read();
            let results = [
                math::ex2(x),
                math::lg2(x),
                math::rsqrt(x),
                math::rcp(x),
                math::tanh(x),
                math::sqrt(x),
                math::fma(x, x, 1.0),
                math::silu(x),
            ];
            for (row, value) in results.into_iter().enumerate() {
                out.add(row * n as usize + i as usize).write(value);
            }
        }
    }
}

/// Conversions of one pair of values a thread.
///
/// `x` [n, 2] f32, `out` [11, n] u32: packed bf16, f16 and e4m3; the f16 that the e4m3 mean; the four bf16 pairs of the
/// int4 in the bits of the first value; bf16 and f16 one at a time, back in f32; b x b + b for the
/// packed bf16. One thread a pair.
///
/// # Safety
/// The buffers have those sizes.
#[kernel]
pub unsafe fn probe_convert(x: Global<[f32; 2]>, n: u32, out: GlobalMut<u32>) {
    let i = thread::index_1d();
    if i < n {
        // SAFETY: `i` is inside; one column of `out` a thread.
        unsafe {
            let [low, high] = x.add(i as usize).read_cached();
            let e4m3 = convert::e4m3x2_from_f32(low, high);
            let [n0, n1, n2, n3] = convert::int4x8_to_bf16x2(low.to_bits());
            let bf16 = convert::bf16x2_from_f32(low, high);
            let results = [
                bf16,
                convert::f16x2_from_f32(low, high),
                e4m3.into(),
                convert::e4m3x2_to_f16x2(e4m3),
                n0,
                n1,
                n2,
                n3,
                Bf16::from_f32(low).to_f32().to_bits(),
                F16::from_f32(high).to_f32().to_bits(),
                convert::bf16x2_fma(bf16, bf16, bf16),
            ];
            for (row, value) in results.into_iter().enumerate() {
                out.add(row * n as usize + i as usize).write_once(value);
            }
        }
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
    fn approximations_stay_within_their_error() {
        for n in [9, 10, 31, 33, 63, 64, 65, 100, 127, 129, 200, 209] {
            check_math(n);
        }
    }

    fn check_math(n: usize) {
        let mut random = Random::new(n as u64);
        let mut x = std::vec![0.0, -0.0, 1.0, -1.0, 1e-30, 1e30, 0.5, 126.0, -126.0];
        x.extend((x.len()..n).map(|_| random.normal() * 8.0));
        let (input, out) = (Buffer::input("x", &x), Buffer::<f32>::poisoned("out", 8 * n));
        let arguments = (input.ptr(), n as u32, out.ptr_mut());
        launch(&probe_math::KERNEL, LaunchShape::new(n.div_ceil(64) as u32, 64), arguments).unwrap();
        let functions: [fn(f64) -> f64; 8] = [
            f64::exp2,
            f64::log2,
            |x| 1.0 / x.sqrt(),
            |x| 1.0 / x,
            f64::tanh,
            f64::sqrt,
            |x| x * x + 1.0,
            |x| x / (1.0 + (-x).exp()),
        ];
        for (row, function) in functions.iter().enumerate() {
            for (i, x) in x.iter().enumerate() {
                let (found, exact) = (out.to_vec()[row * n + i], function((*x).into()) as f32);
                let close = (found - exact).abs() <= exact.abs().max(1e-36) * 2e-6;
                assert!(close || found == exact || found.is_nan() && exact.is_nan(), "row {row}, {x}: {found} {exact}");
            }
        }
    }

    /// The value of a small format nearest to `x`, ties to the even code, by trying all non-negative codes.
    fn nearest(x: f32, codes: u32, sign: u32, decode: impl Fn(u32) -> f64) -> u32 {
        let distance = |code: u32| (decode(code) - f64::from(x.abs())).abs();
        let best = (0..codes).min_by(|a, b| distance(*a).total_cmp(&distance(*b)).then((a & 1).cmp(&(b & 1)))).unwrap();
        best | if x.is_sign_negative() { sign } else { 0 }
    }

    fn minifloat(code: u32, mantissa_bits: u32, bias: i32) -> f64 {
        let (exponent, mantissa) = ((code >> mantissa_bits) as i32, f64::from(code % (1 << mantissa_bits)));
        let scale = f64::from(1 << mantissa_bits);
        if exponent == 0 {
            mantissa / scale * 2f64.powi(1 - bias)
        } else {
            (1.0 + mantissa / scale) * 2f64.powi(exponent - bias)
        }
    }

    #[test]
    fn conversions_round_to_nearest_even() {
        for n in [9, 11, 15, 16, 17, 23, 31, 32, 33, 47, 63, 69] {
            check_conversions(n);
        }
    }

    fn check_conversions(n: usize) {
        let mut x: Vec<[f32; 2]> = std::vec![
            [0.0, -0.0],
            [1.0 + 1.0 / 256.0, 1.0 + 3.0 / 256.0],
            [448.0, 464.0],
            [500.0, -1e6],
            [1.0625, -1.1875],
            [1e-3, 2f32.powi(-10)],
            [2f32.powi(-25), 3.0 * 2f32.powi(-25)],
            [65504.0, 65519.0],
            [0.0019, 0.003],
        ];
        let mut random = Random::new(n as u64);
        x.extend((x.len()..n).map(|_| [random.normal(), random.normal() * 100.0]));
        let (input, out) = (Buffer::input("x", &x), Buffer::<u32>::poisoned("out", 11 * n));
        let arguments = (input.ptr(), n as u32, out.ptr_mut());
        launch(&probe_convert::KERNEL, LaunchShape::new(n.div_ceil(32) as u32, 32), arguments).unwrap();
        let out = out.to_vec();
        for (i, pair) in x.iter().enumerate() {
            let found = |row: usize| out[row * n + i];
            let bf16 = pair.map(|x| nearest(x, 0x7f80, 0x8000, |c| minifloat(c, 7, 127)));
            let f16 = pair.map(|x| nearest(x, 0x7c01, 0x8000, |c| minifloat(c, 10, 15)));
            let e4m3 = pair.map(|x| nearest(x, 0x7f, 0x80, |c| minifloat(c, 3, 7)));
            assert_eq!(found(0), bf16[0] | bf16[1] << 16, "bf16 of {pair:?}");
            assert_eq!(found(1), f16[0] | f16[1] << 16, "f16 of {pair:?}");
            assert_eq!(found(2), e4m3[0] | e4m3[1] << 8, "e4m3 of {pair:?}");
            for (half, code) in e4m3.into_iter().enumerate() {
                let sign = if code & 0x80 == 0 { 1.0 } else { -1.0 };
                let value = F16((found(3) >> (16 * half)) as u16).to_f32();
                assert_eq!(f64::from(value), sign * minifloat(code & 0x7f, 3, 7), "f16 of e4m3 {code:#x}");
            }
            for nibble in 0..8 {
                let value = (pair[0].to_bits() >> (4 * nibble) & 15) as f32 - 8.0;
                let bf16 = convert::bf16x2_to_f32(found(4 + nibble % 4))[nibble / 4];
                assert_eq!(bf16, value, "nibble {nibble} of {:#x}", pair[0].to_bits());
            }
            for (half, code) in bf16.into_iter().enumerate() {
                let value = f64::from(f32::from_bits(code << 16));
                let exact = value * value + value;
                let value = f64::from(convert::bf16x2_to_f32(found(10))[half]);
                assert!((value - exact).abs() <= exact.abs() / 256.0, "{pair:?}: {value}, expected {exact}");
            }
            assert_eq!(found(8), bf16[0] << 16);
            let sign = if pair[1].is_sign_negative() { -1.0 } else { 1.0 };
            let back = f64::from(f32::from_bits(found(9)));
            let expected = minifloat(f16[1] & 0x7fff, 10, 15);
            assert!(back == sign * expected || expected == 65536.0 && back.is_infinite(), "{back} {expected}");
        }
    }
}
