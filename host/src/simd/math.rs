//! Elementwise functions on [`Simd`] vectors.

#![allow(unsafe_code)]

use super::{LANES, Simd, kernel};

/// e^x to 2 units in the last place; x is clamped to [-87, 88], NaN becomes 88.
///
/// Cephes' `expf`: x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial of degree 6 for e^r, n added to the exponent.
#[inline(always)]
fn exp<S: Simd>(s: S, x: S::F) -> S::F {
    /// Adding it rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // ln 2 in two parts; n times the first is exact.
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    const POLYNOMIAL: [f32; 5] = [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 1.666_666_6e-1, 0.5];
    let x = s.max(s.min(x, s.splat(88.0)), s.splat(-87.0));
    let shifted = s.mul_add(x, s.splat(std::f32::consts::LOG2_E), s.splat(ROUND));
    let n = s.sub(shifted, s.splat(ROUND));
    let r = s.mul_add(n, s.splat(-LN2_HIGH), x);
    let r = s.mul_add(n, s.splat(-LN2_LOW), r);
    let mut p = s.splat(1.987_569_1e-4);
    for c in POLYNOMIAL {
        p = s.mul_add(p, r, s.splat(c));
    }
    let p = s.add(s.mul_add(p, s.mul(r, r), r), s.splat(1.0));
    s.as_f(s.add_u(s.as_u(p), s.shl::<23>(s.as_u(shifted))))
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
