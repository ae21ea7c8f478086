//! SwiGLU MLPs: down(silu(gate x) * up x).

use coppice_model::bind::SwigluWeights;

use super::buffer::Buffer;
use super::linear::kernel::Inputs;
use super::linear::pack::{Layout, Packed, pack_slab};
use super::linear::{multiply, slab_width};
use super::pool::{Pool, Slab};
use crate::simd::silu_mul;

/// Memory that [`mlp`] and [`experts`](super::experts::experts) keep between calls.
#[derive(Default)]
pub struct Scratch {
    /// The inputs, packed for each layout that some weight takes them in.
    pub(super) inputs: PackedInputs,
    /// silu(gate x) * up x, packed for `down`.
    pub(super) inner: Packed,
    /// The same of the shared experts.
    pub(super) shared: Packed,
}

/// The same inputs packed for several layouts.
#[derive(Default)]
pub(super) struct PackedInputs([Packed; Layout::ALL.len()]);

impl PackedInputs {
    /// Packs `x` `[rows, cols]` for each of the layouts.
    pub(super) fn pack(&mut self, pool: &Pool, layouts: impl Iterator<Item = Layout>, x: &[f32], cols: usize) {
        let mut wanted = [false; Layout::ALL.len()];
        for layout in layouts {
            wanted[layout as usize] = true;
        }
        for layout in Layout::ALL {
            if wanted[layout as usize] {
                self.0[layout as usize].pack(pool, layout, x, cols);
            }
        }
    }

    /// The inputs for `layout`, one of those packed last.
    fn of<'a>(&'a self, layout: Layout, cols: usize, index: Option<&'a [u32]>) -> Inputs<'a> {
        Inputs { rows: self.0[layout as usize].rows(0, layout, cols), index }
    }
}

/// Layouts that an MLP's inputs are multiplied in.
pub(super) fn input_layouts(weights: &SwigluWeights) -> [Layout; 2] {
    [Layout::of(&weights.gate), Layout::of(&weights.up)]
}

/// silu(gate x) * up x, packed for `down`: the columns of the slab, which are packed ones, from a multiple of the
/// layout's block to another or to the end. Input row i is the one numbered `index[i]`.
pub(super) fn gate_up(
    pool: &Pool,
    weights: &SwigluWeights,
    inputs: &PackedInputs,
    index: Option<&[u32]>,
    out: &mut Slab<'_>,
) {
    let (hidden, inter) = (weights.gate.cols, weights.gate.rows);
    let columns = out.columns().start..out.columns().end.min(inter);
    let len = out.rows() * columns.len();
    let mut buffer = Buffer::default();
    let (gate, up) = buffer.get(2 * len).split_at_mut(len);
    for (weight, out) in [(&weights.gate, &mut *gate), (&weights.up, &mut *up)] {
        let inputs = inputs.of(Layout::of(weight), hidden, index);
        multiply(pool, weight, inputs, &mut Slab::dense(out, columns.clone()));
    }
    silu_mul(pool.isa(), gate, up);
    pack_slab(pool.isa(), Layout::of(&weights.down), inter, gate, out);
}

/// out = down(silu(gate x) * up x).
///
/// `x` and `out` `[rows, hidden]`, row major, f32. A row of `out` depends on that row of `x` alone, bit for bit, whatever
/// `rows` and the number of threads.
///
/// # Panics
/// If a slice is not as long as its shape says.
pub fn mlp(pool: &Pool, weights: &SwigluWeights, x: &[f32], rows: usize, scratch: &mut Scratch, out: &mut [f32]) {
    let (hidden, inter) = (weights.gate.cols, weights.gate.rows);
    assert_eq!(x.len(), rows * hidden, "inputs of {}", weights.gate.name);
    assert_eq!(out.len(), rows * weights.down.rows, "outputs of {}", weights.down.name);
    let Scratch { inputs, inner, .. } = scratch;
    inputs.pack(pool, input_layouts(weights).into_iter(), x, hidden);

    let layout = Layout::of(&weights.down);
    let width = layout.packed_len(inter);
    let step = slab_width(pool, &weights.gate, 2 * rows).next_multiple_of(layout.block());
    pool.run_on_columns(inner.reset(rows, width), width, step, |mut slab| {
        gate_up(pool, weights, inputs, None, &mut slab);
    });

    let inner = Inputs { rows: inner.rows(0, layout, inter), index: None };
    pool.run_on_columns(out, weights.down.rows, slab_width(pool, &weights.down, rows), |mut slab| {
        multiply(pool, &weights.down, inner, &mut slab);
    });
}

#[cfg(test)]
mod tests;
