//! Elementwise functions on [`Simd`] vectors.

#![allow(unsafe_code)]

use super::{LANES, Simd, kernel};

/// e^x to 2 units in the last place; x is clamped to [-87, 88], NaN stays NaN.
///
/// Cephes' `expf`: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial of degree 6 for e^r, times 2^n.
#[inline(always)]
pub(crate) fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    /// Adding it rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts; n times the first is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const POLYNOMIAL: [f32; 5] = [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 0.5];
    // Minimum and maximum give their second operand where one is NaN.
    let x = s.max(s.splat(-87.0), s.min(s.splat(88.0), x));
    let shifted = s.mul_add(x, s.splat(std::f32::consts::LOG2_E), s.splat(ROUND));
    let power = s.as_f(s.add_u(s.shl::<23>(s.as_u(shifted)), s.splat_u(1.0f32.to_bits())));
    let n = s.sub(shifted, s.splat(ROUND));
    let r = s.mul_add(n, s.splat(-LN2_HIGH), x);
    let r = s.mul_add(n, s.splat(-LN2_LOW), r);
    let mut p = s.splat(1.987_569_1e-4);
    for c in POLYNOMIAL {
        p = s.mul_add(p, r, s.splat(c));
    }
    s.mul(s.add(s.mul_add(p, s.mul(r, r), r), s.splat(1.0)), power)
}

/// silu(g) * u.
#[inline(always)]
fn silu_mul_lanes<S: Simd>(s: S, g: S::F, u: S::F) -> S::F {
    let e = exp(s, s.sub(s.splat(0.0), g));
    s.mul(s.div(g, s.add(s.splat(1.0), e)), u)
}

#[inline(always)]
fn silu_mul_body<S: Simd>(s: S, gate: &mut [f32], up: &[f32]) {
    let (gate, gate_rest) = gate.as_chunks_mut::<LANES>();
    let (up, up_rest) = up.as_chunks::<LANES>();
    for (g, u) in gate.iter_mut().zip(up) {
        // SAFETY: both are sixteen f32.
        unsafe { s.store(g.as_mut_ptr(), silu_mul_lanes(s, s.load(g.as_ptr()), s.load(u.as_ptr()))) };
    }
    let rest = gate_rest.len().min(up_rest.len());
    if rest > 0 {
        // Through a full vector too: a value must not depend on its place.
        let [mut g, mut u] = [[0.0; LANES]; 2];
        g[..rest].copy_from_slice(&gate_rest[..rest]);
        u[..rest].copy_from_slice(&up_rest[..rest]);
        // SAFETY: both are sixteen f32.
        unsafe { s.store(g.as_mut_ptr(), silu_mul_lanes(s, s.load(g.as_ptr()), s.load(u.as_ptr()))) };
        gate_rest[..rest].copy_from_slice(&g[..rest]);
    }
}

kernel! {
    /// `gate := silu(gate) * up`, elementwise; silu(g) = g / (1 + e^-g).
    pub(crate) fn silu_mul(gate: &mut [f32], up: &[f32]) = silu_mul_body
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Portable;

    #[test]
    fn exponentials_are_within_two_units_in_the_last_place() {
        let exp = |x: f32| exp(Portable, [x; LANES])[0];
        for x in (-86_999..88_000).map(|i| i as f32 * 1e-3) {
            let exact = f64::from(x).exp();
            let unit = f64::from(f32::EPSILON) * 2f64.powi(exact.log2().floor() as i32);
            assert!((f64::from(exp(x)) - exact).abs() <= 2.0 * unit, "e^{x}");
        }
        assert_eq!(exp(0.0), 1.0);
        assert!(exp(f32::NEG_INFINITY) < 2e-38 && exp(f32::NAN).is_nan());
    }
}
