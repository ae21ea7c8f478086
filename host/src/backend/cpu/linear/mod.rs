//! Linear layers: out = x W^T with weights in their stored type.
//!
//! Weights are expanded to f32 in registers (or a tile in the first-level cache), once for all rows of a call; inputs and
//! sums are f32. The pieces: [`pack`] orders the inputs, one decoder a stored type expands weights, [`kernel`] multiplies.

#![allow(unsafe_code)]

mod expand;
mod float;
mod fp8;
mod int4;
pub(crate) mod kernel;
pub(crate) mod pack;

use coppice_model::weight::{Storage, Weight};

use self::expand::ByDefinition;
#[cfg(test)]
pub(crate) use self::expand::element;
use self::float::Dense;
use self::fp8::Fp8;
use self::int4::Int4;
use self::kernel::{Inputs, product};
use self::pack::{Layout, Packed};
use super::pool::{Pool, Slab};
use crate::simd::{Simd, kernel};

/// out[r, o] = sum_i x[r, i] * w[o, i].
///
/// `x` `[rows, weight.cols]` and `out` `[rows, weight.rows]`, row major, f32. A row of `out` depends on that row of `x`
/// alone, bit for bit, whatever `rows` and the number of threads.
///
/// # Panics
/// If a slice is not as long as its shape says.
pub fn linear(pool: &Pool, weight: &Weight, x: &[f32], rows: usize, out: &mut [f32]) {
    assert_eq!(x.len(), rows * weight.cols, "inputs of {}", weight.name);
    assert_eq!(out.len(), rows * weight.rows, "outputs of {}", weight.name);
    let layout = Layout::of(weight);
    let mut packed = Packed::default();
    packed.pack(pool, layout, x, weight.cols);
    let inputs = Inputs { rows: packed.rows(0, layout, weight.cols), index: None };
    pool.run_on_columns(out, weight.rows, slab_width(pool, weight, rows), |mut slab| {
        multiply(pool, weight, inputs, &mut slab);
    });
}

/// Outputs of one task: a few tasks a thread, so that a thread that the system holds up is made up for; all outputs where
/// the work is not worth a second thread.
pub(crate) fn slab_width(pool: &Pool, weight: &Weight, rows: usize) -> usize {
    /// Multiply-adds that take about two microseconds.
    const WORTHWHILE: usize = 1 << 16;
    const TASKS_PER_THREAD: usize = 4;
    /// A multiple of the outputs of every register block, and a cache line.
    const STEP: usize = 16;
    if weight.rows * weight.cols * rows < WORTHWHILE {
        return weight.rows;
    }
    weight.rows.div_ceil(TASKS_PER_THREAD * pool.threads()).next_multiple_of(STEP)
}

/// The inputs times the weight rows of the slab's columns, on this thread.
pub(crate) fn multiply(pool: &Pool, weight: &Weight, inputs: Inputs<'_>, out: &mut Slab<'_>) {
    debug_assert_eq!(inputs.rows.layout, Layout::of(weight), "{}", weight.name);
    assert_eq!(inputs.rows.cols, weight.cols, "inputs of {}", weight.name);
    assert!(out.columns().end <= weight.rows, "outputs of {}", weight.name);
    multiply_on(pool.isa(), weight, inputs, out);
}

kernel! {
    fn multiply_on(weight: &Weight, inputs: Inputs<'_>, out: &mut Slab<'_>) = multiply_body
}

#[inline(always)]
fn multiply_body<S: Simd>(s: S, weight: &Weight, inputs: Inputs<'_>, out: &mut Slab<'_>) {
    let (rows, cols) = (weight.rows, weight.cols);
    // The decoders trust these lengths.
    let check = |found: usize, expected: usize| assert_eq!(found, expected, "stored elements of {}", weight.name);
    match &weight.storage {
        Storage::F32(values) => {
            check(values.len(), rows * cols);
            // SAFETY: the slab's columns are weight rows, and the storage is complete. So below.
            unsafe { product(s, &Dense { values: &values[..], cols }, &inputs, out) };
        }
        Storage::F16(values) => {
            check(values.len(), rows * cols);
            // SAFETY: as above.
            unsafe { product(s, &Dense { values: &values[..], cols }, &inputs, out) };
        }
        Storage::Bf16(values) => {
            check(values.len(), rows * cols);
            // SAFETY: as above.
            unsafe { product(s, &Dense { values: &values[..], cols }, &inputs, out) };
        }
        Storage::Fp8Block { values, scale_inv, block } if inputs.rows.layout == Layout::Quads => {
            check(values.len(), rows * cols);
            check(scale_inv.len(), rows.div_ceil(block[0]) * cols.div_ceil(block[1]));
            // SAFETY: as above.
            unsafe { product(s, &Fp8::new(values, scale_inv, cols, *block), &inputs, out) };
        }
        Storage::Int4Group { packed, scale, group } if inputs.rows.layout == Layout::Octets => {
            check(packed.len(), rows * (cols / 8));
            check(scale.len(), rows * (cols / group));
            // SAFETY: as above.
            unsafe { product(s, &Int4::new(packed, scale, cols, *group), &inputs, out) };
        }
        Storage::Fp8Block { .. } | Storage::Int4Group { .. } => {
            // SAFETY: as above.
            unsafe { product(s, &ByDefinition(weight), &inputs, out) };
        }
    }
}

#[cfg(test)]
mod tests;
