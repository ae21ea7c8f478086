//! Sums of plain f32 vectors.

#![allow(unsafe_code)]

use crate::simd::{LANES, Simd, kernel};

kernel! {
    /// `out += factor * x`, elementwise.
    pub(super) fn axpy(factor: f32, x: &[f32], out: &mut [f32]) = axpy_body
}

#[inline(always)]
fn axpy_body<S: Simd>(s: S, factor: f32, x: &[f32], out: &mut [f32]) {
    let factor = s.splat(factor);
    let (x, x_rest) = x.as_chunks();
    let (out, out_rest) = out.as_chunks_mut();
    for (x, out) in x.iter().zip(out) {
        *out = axpy_lanes(s, factor, x, out);
    }
    let sum = axpy_lanes(s, factor, &pad(x_rest), &pad(out_rest));
    out_rest.copy_from_slice(&sum[..out_rest.len()]);
}

#[inline(always)]
fn axpy_lanes<S: Simd>(s: S, factor: S::F, x: &[f32; LANES], y: &[f32; LANES]) -> [f32; LANES] {
    let mut sum = [0.0; LANES];
    // SAFETY: all are sixteen f32.
    unsafe { s.store(sum.as_mut_ptr(), s.mul_add(factor, s.load(x.as_ptr()), s.load(y.as_ptr()))) };
    sum
}

/// A vector of fewer elements, with zeros after them.
#[inline(always)]
fn pad(x: &[f32]) -> [f32; LANES] {
    let mut padded = [0.0; LANES];
    padded[..x.len()].copy_from_slice(x);
    padded
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simd::Isa;

    #[test]
    fn axpy_adds_at_every_length() {
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for len in [0, 1, 15, 16, 17, 33, 512] {
                let x: Vec<f32> = (0..len).map(|i| i as f32).collect();
                let mut out: Vec<f32> = (0..len).map(|i| 1.0 - i as f32).collect();
                axpy(isa, 2.0, &x, &mut out);
                assert!(out.iter().enumerate().all(|(i, out)| *out == 1.0 + i as f32), "{isa} {len}: {out:?}");
            }
        }
    }
}
