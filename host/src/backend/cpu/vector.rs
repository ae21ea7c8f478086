//! Sums and products of plain f32 vectors.

#![allow(unsafe_code)]

use super::simd::{Isa, LANES, Simd, kernel};

kernel! {
    /// `out += factor * x`, elementwise.
    pub(super) fn axpy(factor: f32, x: &[f32], out: &mut [f32]) = axpy_body
}

#[inline(always)]
fn axpy_body<S: Simd>(s: S, factor: f32, x: &[f32], out: &mut [f32]) {
    let factor = s.splat(factor);
    let (x, x_rest) = x.as_chunks::<LANES>();
    let (out, out_rest) = out.as_chunks_mut::<LANES>();
    let step = |x: &[f32; LANES], out: &mut [f32; LANES]| {
        // SAFETY: both are sixteen f32.
        unsafe { s.store(out.as_mut_ptr(), s.mul_add(factor, s.load(x.as_ptr()), s.load(out.as_ptr()))) };
    };
    x.iter().zip(out).for_each(|(x, out)| step(x, out));
    let (x, mut padded) = (pad(x_rest), pad(out_rest));
    step(&x, &mut padded);
    out_rest.copy_from_slice(&padded[..out_rest.len()]);
}

/// a . b
pub(super) fn dot(isa: Isa, a: &[f32], b: &[f32]) -> f32 {
    let mut product = 0.0;
    dot_into(isa, a, b, &mut product);
    product
}

kernel! {
    fn dot_into(a: &[f32], b: &[f32], out: &mut f32) = dot_body
}

#[inline(always)]
fn dot_body<S: Simd>(s: S, a: &[f32], b: &[f32], out: &mut f32) {
    let (a, a_rest) = a.as_chunks::<LANES>();
    let (b, b_rest) = b.as_chunks::<LANES>();
    let mut sums = s.splat(0.0);
    let mut step = |a: &[f32; LANES], b: &[f32; LANES]| {
        // SAFETY: both are sixteen f32.
        sums = unsafe { s.mul_add(s.load(a.as_ptr()), s.load(b.as_ptr()), sums) };
    };
    a.iter().zip(b).for_each(|(a, b)| step(a, b));
    step(&pad(a_rest), &pad(b_rest));
    *out = s.sum(sums);
}

/// A vector of fewer elements, with zeros after them.
#[inline(always)]
fn pad(x: &[f32]) -> [f32; LANES] {
    let mut padded = [0.0; LANES];
    padded[..x.len()].copy_from_slice(x);
    padded
}
