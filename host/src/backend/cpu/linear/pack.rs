//! Activations packed for a weight's stored type: the order of columns in which the kernel's vectors meet them, rows
//! aligned to cache lines and padded with zeros. No arithmetic lives here.

use coppice_model::weight::{Storage, Weight};

use super::fp8::Fp8;
use super::int4::Int4;
use crate::backend::cpu::buffer::Buffer;
use crate::backend::cpu::pool::{Pool, Slab};
use crate::simd::{LANES, kernel};

/// The order of columns of packed rows.
///
/// A stored machine word holds several neighbouring columns: two bf16, four fp8, eight int4. Sixteen words expand to as
/// many vectors ("planes") as columns a word: vector i holds column i of each word. Packed activations follow: a block of
/// 16 P columns is P vectors, lane j of vector i being column `P j + i`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Layout {
    /// P = 1: f32, f16, and whatever is expanded beforehand.
    Plain,
    /// P = 2: bf16.
    Pairs,
    /// P = 4: fp8.
    Quads,
    /// P = 8: int4; what is left of a row after blocks of 128 columns is in blocks of 32, P = 2 (two columns a byte).
    Octets,
}

impl Layout {
    pub(crate) const ALL: [Layout; 4] = [Layout::Plain, Layout::Pairs, Layout::Quads, Layout::Octets];

    /// The layout that `weight` is multiplied in.
    pub(crate) fn of(weight: &Weight) -> Layout {
        match &weight.storage {
            Storage::F32(_) | Storage::F16(_) => Layout::Plain,
            Storage::Bf16(_) => Layout::Pairs,
            Storage::Fp8Block { block, .. } if Fp8::takes(*block) => Layout::Quads,
            Storage::Int4Group { group, .. } if Int4::takes(weight.cols, *group) => Layout::Octets,
            // Scales of other shapes: the rows are expanded beforehand.
            Storage::Fp8Block { .. } | Storage::Int4Group { .. } => Layout::Plain,
        }
    }

    /// Planes of a full block, and of a block of the rest.
    const fn planes(self) -> (usize, usize) {
        match self {
            Layout::Plain => (1, 1),
            Layout::Pairs => (2, 2),
            Layout::Quads => (4, 4),
            Layout::Octets => (8, 2),
        }
    }

    /// Full blocks and blocks of the rest (the last one ragged) of a row of `cols` columns.
    pub(crate) fn blocks(self, cols: usize) -> (usize, usize) {
        let (planes, rest_planes) = self.planes();
        let full = cols / (planes * LANES);
        (full, (cols - full * planes * LANES).div_ceil(rest_planes * LANES))
    }

    /// f32 a packed row takes.
    pub(crate) fn packed_len(self, cols: usize) -> usize {
        let (planes, rest_planes) = self.planes();
        let (full, rest) = self.blocks(cols);
        (full * planes + rest * rest_planes) * LANES
    }

    /// Columns of a full block. Columns from one multiple of it to another are packed to the same places as a whole.
    pub(crate) const fn block(self) -> usize {
        self.planes().0 * LANES
    }
}

/// Packs the columns of a row of `cols` columns from `first` on, a multiple of the block: all of `values`, which end at
/// another multiple or with the row.
#[inline(always)]
fn pack_columns(layout: Layout, cols: usize, first: usize, values: &[f32], out: &mut [f32]) {
    match layout {
        Layout::Plain => pack_blocks::<1>(values, out),
        Layout::Pairs => pack_blocks::<2>(values, out),
        Layout::Quads => pack_blocks::<4>(values, out),
        Layout::Octets => {
            let block = layout.block();
            let full = (cols / block * block).saturating_sub(first).min(values.len());
            pack_blocks::<8>(&values[..full], &mut out[..full]);
            pack_blocks::<2>(&values[full..], &mut out[full..]);
        }
    }
}

/// Packs into blocks of P vectors; the last one is padded with zeros.
#[inline(always)]
fn pack_blocks<const P: usize>(row: &[f32], out: &mut [f32]) {
    let mut blocks = row.chunks_exact(P * LANES);
    let mut outs = out.chunks_exact_mut(P * LANES);
    for (block, out) in (&mut blocks).zip(&mut outs) {
        for i in 0..P {
            for j in 0..LANES {
                out[i * LANES + j] = block[P * j + i];
            }
        }
    }
    if let Some(out) = outs.next() {
        out.fill(0.0);
        for (col, &x) in blocks.remainder().iter().enumerate() {
            out[col % P * LANES + col / P] = x;
        }
    }
}

#[inline(always)]
fn pack_slab_body<S>(_s: S, layout: Layout, cols: usize, x: &[f32], out: &mut Slab<'_>) {
    let packed = out.columns();
    let width = packed.end.min(cols) - packed.start;
    if width > 0 {
        for (r, x) in x.chunks_exact(width).enumerate() {
            pack_columns(layout, cols, packed.start, x, out.row(r));
        }
    }
}

kernel! {
    /// Packs columns of rows of `cols` columns. The slab's columns are packed ones, from a multiple of the layout's block
    /// to another or to the end; `x` `[rows, columns]` holds those columns alone.
    pub(crate) fn pack_slab(layout: Layout, cols: usize, x: &[f32], out: &mut Slab<'_>) = pack_slab_body
}

/// Rows of activations, each packed for some layout.
#[derive(Default)]
pub(crate) struct Packed {
    values: Buffer,
    stride: usize,
}

impl Packed {
    /// Packs `x` `[rows, cols]`.
    pub(crate) fn pack(&mut self, pool: &Pool, layout: Layout, x: &[f32], cols: usize) {
        /// Rows a task, and the size below which tasks are not worth their start.
        const ROWS: usize = 16;
        const WORTHWHILE: usize = 1 << 14;
        let rows = x.len().checked_div(cols).unwrap_or(0);
        let width = layout.packed_len(cols);
        let out = self.reset(rows, width);
        let step = if rows * cols < WORTHWHILE { rows } else { ROWS };
        pool.run_on_chunks(out, step * width, |i, out| {
            let x = &x[i * step * cols..rows.min((i + 1) * step) * cols];
            pack_slab(pool.isa(), layout, cols, x, &mut Slab::dense(out, 0..width));
        });
    }

    /// Makes room for rows of `stride` f32, at least the packed length, and returns it `[rows, stride]`, contents
    /// unspecified.
    pub(crate) fn reset(&mut self, rows: usize, stride: usize) -> &mut [f32] {
        self.stride = stride;
        self.values.get(rows * stride)
    }

    /// The rows from `first` on, of `cols` columns, which were packed for `layout`.
    pub(crate) fn rows(&self, first: usize, layout: Layout, cols: usize) -> PackedRows<'_> {
        PackedRows { layout, cols, stride: self.stride, values: &self.values.filled()[first * self.stride..] }
    }
}

/// A view of [`Packed`] rows.
#[derive(Clone, Copy)]
pub(crate) struct PackedRows<'a> {
    pub(crate) layout: Layout,
    pub(crate) cols: usize,
    stride: usize,
    /// `[rows, stride]`.
    values: &'a [f32],
}

impl PackedRows<'_> {
    /// The packed row `row`.
    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.stride..][..self.layout.packed_len(self.cols)]
    }
}
