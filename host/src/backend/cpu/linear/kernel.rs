//! The product of packed rows and stored weights: register blocks, and tiles of expanded weights for many rows.
//!
//! out[r, o] = sum over lanes of a[r, o], where lane j of the accumulator a[r, o] adds `w[o, c] * x[r, c]` for the columns
//! c that lie in lane j of the weight's [`Layout`](super::pack::Layout), in packed order. That order does not depend on
//! how rows and outputs are blocked: a row's result is the same, bit for bit, whatever rows are computed with it.

#![allow(unsafe_code)]

use std::ops::Range;

use super::pack::PackedRows;
use crate::backend::cpu::buffer::Buffer;
use crate::backend::cpu::pool::Slab;
use crate::backend::cpu::simd::{LANES, Simd};

/// Weights in their stored type, expanded to vectors of f32 in a register.
///
/// # Safety
/// `blocks` and `rest_blocks` are such that every block of every row in `0..rows` lies in the memory that the decoder
/// borrows.
pub(super) unsafe trait Decode<S: Simd>: Copy {
    /// Planes of a block, and of a block of the rest.
    const PLANES: usize;
    const REST_PLANES: usize;
    /// A block of one row as stored.
    type Block: Copy;
    /// A block of the rest as stored.
    type Rest: Copy;

    /// Blocks of a row, and blocks of its rest.
    fn blocks(&self) -> (usize, usize);
    /// # Safety
    /// `row` and `block` are in range.
    unsafe fn block(&self, s: S, row: usize, block: usize) -> Self::Block;
    /// Plane `I < PLANES`.
    fn plane<const I: usize>(s: S, block: Self::Block) -> S::F;
    /// # Safety
    /// `row` and `block` are in range.
    unsafe fn rest(&self, s: S, row: usize, block: usize) -> Self::Rest;
    /// Plane `I < REST_PLANES`.
    fn rest_plane<const I: usize>(s: S, block: Self::Rest) -> S::F;
}

/// Which of the packed rows are multiplied.
#[derive(Clone, Copy)]
pub(crate) struct Inputs<'a> {
    pub(crate) rows: PackedRows<'a>,
    /// The rows by number; `None`: all in order.
    pub(crate) index: Option<&'a [u32]>,
}

impl Inputs<'_> {
    fn row(&self, i: usize) -> &[f32] {
        self.rows.row(self.index.map_or(i, |index| index[i] as usize))
    }
}

/// Runs `$body` with `I` = 0, 1, .. below `$planes` (at most 8), unrolled: shifts by `I` become immediates.
macro_rules! for_planes {
    ($planes:expr, $I:ident => $body:block) => {
        for_planes!(@ $planes, $I => $body, 0 1 2 3 4 5 6 7)
    };
    (@ $planes:expr, $I:ident => $body:block, $($i:literal)*) => {
        $(if $i < $planes {
            const $I: usize = $i;
            $body
        })*
    };
}

/// Adds one vector of `O` weight rows times `R` packed rows, at `offset` of each, to the accumulators.
///
/// # Safety
/// Sixteen f32 are readable at `offset` of every row of `x`.
#[inline(always)]
unsafe fn accumulate<S: Simd, const R: usize, const O: usize>(
    s: S,
    acc: &mut [[S::F; O]; R],
    w: [S::F; O],
    x: [*const f32; R],
    offset: usize,
) {
    for r in 0..R {
        // SAFETY: the caller's promise.
        let x = unsafe { s.load(x[r].add(offset)) };
        for o in 0..O {
            acc[r][o] = s.mul_add(w[o], x, acc[r][o]);
        }
    }
}

/// `R` packed rows times weight rows `output..output + O`.
///
/// # Safety
/// The weight rows exist; the rows of `x` are packed for the decoder.
#[inline(always)]
unsafe fn block<S: Simd, D: Decode<S>, const R: usize, const O: usize>(
    s: S,
    weights: &D,
    output: usize,
    x: [*const f32; R],
) -> [[f32; O]; R] {
    let mut acc = [[s.splat(0.0); O]; R];
    let (blocks, rest_blocks) = weights.blocks();
    let mut offset = 0;
    for b in 0..blocks {
        // SAFETY: `b` is in range, the weight rows exist.
        let mut stored = [unsafe { weights.block(s, output, b) }; O];
        for o in 1..O {
            // SAFETY: as above.
            stored[o] = unsafe { weights.block(s, output + o, b) };
        }
        for_planes!(D::PLANES, I => {
            let mut w = [D::plane::<I>(s, stored[0]); O];
            for o in 1..O {
                w[o] = D::plane::<I>(s, stored[o]);
            }
            // SAFETY: packed rows hold all blocks.
            unsafe { accumulate(s, &mut acc, w, x, offset + I * LANES) };
        });
        offset += D::PLANES * LANES;
    }
    for b in 0..rest_blocks {
        // SAFETY: `b` is in range, the weight rows exist.
        let mut stored = [unsafe { weights.rest(s, output, b) }; O];
        for o in 1..O {
            // SAFETY: as above.
            stored[o] = unsafe { weights.rest(s, output + o, b) };
        }
        for_planes!(D::REST_PLANES, I => {
            let mut w = [D::rest_plane::<I>(s, stored[0]); O];
            for o in 1..O {
                w[o] = D::rest_plane::<I>(s, stored[o]);
            }
            // SAFETY: packed rows hold all blocks.
            unsafe { accumulate(s, &mut acc, w, x, offset + I * LANES) };
        });
        offset += D::REST_PLANES * LANES;
    }
    let mut sums = [[0.0; O]; R];
    for r in 0..R {
        for o in 0..O {
            sums[r][o] = s.sum(acc[r][o]);
        }
    }
    sums
}

/// Expands weight row `row` to f32, in packed order.
///
/// # Safety
/// The weight row exists; `out` is as long as a packed row.
#[inline(always)]
unsafe fn expand<S: Simd, D: Decode<S>>(s: S, weights: &D, row: usize, out: &mut [f32]) {
    let (blocks, rest_blocks) = weights.blocks();
    let mut out = out.as_mut_ptr();
    for b in 0..blocks {
        // SAFETY: block and row exist; `out` holds all blocks.
        unsafe {
            let stored = weights.block(s, row, b);
            for_planes!(D::PLANES, I => { s.store(out.add(I * LANES), D::plane::<I>(s, stored)); });
            out = out.add(D::PLANES * LANES);
        }
    }
    for b in 0..rest_blocks {
        // SAFETY: as above.
        unsafe {
            let stored = weights.rest(s, row, b);
            for_planes!(D::REST_PLANES, I => { s.store(out.add(I * LANES), D::rest_plane::<I>(s, stored)); });
            out = out.add(D::REST_PLANES * LANES);
        }
    }
}

/// Weight rows expanded to f32 in packed order, `[rows, len]`.
#[derive(Clone, Copy)]
struct Tile<'a> {
    values: &'a [f32],
    len: usize,
}

// SAFETY: rows are `len` long, a multiple of sixteen; `rows_product` is given rows within `values`.
unsafe impl<S: Simd> Decode<S> for Tile<'_> {
    const PLANES: usize = 1;
    const REST_PLANES: usize = 0;
    type Block = S::F;
    type Rest = ();

    #[inline(always)]
    fn blocks(&self) -> (usize, usize) {
        (self.len / LANES, 0)
    }
    #[inline(always)]
    unsafe fn block(&self, s: S, row: usize, block: usize) -> S::F {
        // SAFETY: in range by the caller's promise.
        unsafe { s.load(self.values.as_ptr().add(row * self.len + block * LANES)) }
    }
    #[inline(always)]
    fn plane<const I: usize>(_: S, block: S::F) -> S::F {
        block
    }
    #[inline(always)]
    unsafe fn rest(&self, _: S, _: usize, _: usize) {}
    #[inline(always)]
    fn rest_plane<const I: usize>(s: S, (): ()) -> S::F {
        s.splat(0.0)
    }
}

/// Rows `first..first + R` of the inputs times weight rows `outputs`, into the slab at columns `column..`.
///
/// # Safety
/// The weight rows exist, and so do the columns of the slab.
#[inline(always)]
unsafe fn rows_product<S: Simd, D: Decode<S>, const R: usize, const O: usize>(
    s: S,
    weights: &D,
    outputs: Range<usize>,
    inputs: &Inputs<'_>,
    first: usize,
    out: &mut Slab<'_>,
    column: usize,
) {
    let mut x = [std::ptr::null(); R];
    for (r, x) in x.iter_mut().enumerate() {
        *x = inputs.row(first + r).as_ptr();
    }
    let mut done = 0;
    while done + O <= outputs.len() {
        // SAFETY: the caller's promise.
        let sums = unsafe { block::<S, D, R, O>(s, weights, outputs.start + done, x) };
        for (r, sums) in sums.iter().enumerate() {
            out.row(first + r)[column + done..column + done + O].copy_from_slice(sums);
        }
        done += O;
    }
    while done < outputs.len() {
        // SAFETY: the caller's promise.
        let sums = unsafe { block::<S, D, R, 1>(s, weights, outputs.start + done, x) };
        for (r, [sum]) in sums.iter().enumerate() {
            out.row(first + r)[column + done] = *sum;
        }
        done += 1;
    }
}

/// Most rows of a register block.
const fn block_rows<S: Simd>() -> usize {
    if S::WIDE { 8 } else { 4 }
}

/// `rows` (at most [`block_rows`]) rows of the inputs from `first` on, as [`rows_product`]. The accumulators, `rows` times
/// outputs of them, fill the registers but for weights and inputs.
///
/// # Safety
/// As for [`rows_product`].
#[inline(always)]
unsafe fn block_product<S: Simd, D: Decode<S>>(
    s: S,
    weights: &D,
    outputs: Range<usize>,
    inputs: &Inputs<'_>,
    (first, rows): (usize, usize),
    out: &mut Slab<'_>,
    column: usize,
) {
    macro_rules! run {
        ($r:literal x $o:literal) => {
            // SAFETY: the caller's promise.
            unsafe { rows_product::<S, D, $r, $o>(s, weights, outputs, inputs, first, out, column) }
        };
    }
    if S::WIDE {
        match rows {
            1 => run!(1 x 4),
            2 => run!(2 x 4),
            3 => run!(3 x 4),
            4 => run!(4 x 4),
            5 => run!(5 x 2),
            6 => run!(6 x 2),
            7 => run!(7 x 2),
            8 => run!(8 x 2),
            _ => {}
        }
    } else {
        match rows {
            1 => run!(1 x 4),
            2 => run!(2 x 2),
            3 => run!(3 x 1),
            4 => run!(4 x 1),
            _ => {}
        }
    }
}

/// Rows of the inputs in blocks of nearly equal height.
fn row_blocks<S: Simd>(rows: usize) -> impl Iterator<Item = (usize, usize)> {
    let blocks = rows.div_ceil(block_rows::<S>());
    (0..blocks).map(move |i| {
        let first = i * rows / blocks;
        (first, (i + 1) * rows / blocks - first)
    })
}

/// All inputs times the weight rows of the slab's columns. Up to [`block_rows`] rows, weights are expanded in registers;
/// beyond, a tile of weight rows is expanded once and used by every block of rows.
///
/// # Safety
/// The weight rows exist.
#[inline(always)]
pub(super) unsafe fn product<S: Simd, D: Decode<S>>(s: S, weights: &D, inputs: &Inputs<'_>, out: &mut Slab<'_>) {
    /// f32 of a tile that leaves room for a block of packed rows in the first-level cache.
    const TILE: usize = 4096;
    let (rows, outputs) = (out.rows(), out.columns());
    if rows <= block_rows::<S>() {
        // SAFETY: the caller's promise.
        unsafe { block_product(s, weights, outputs, inputs, (0, rows), out, 0) };
        return;
    }
    let (blocks, rest_blocks) = weights.blocks();
    let len = (blocks * D::PLANES + rest_blocks * D::REST_PLANES) * LANES;
    let tile_rows = (TILE / len.max(1)).next_multiple_of(4).max(4);
    let mut buffer = Buffer::default();
    let tile = buffer.get(tile_rows * len);
    for start in outputs.clone().step_by(tile_rows) {
        let count = tile_rows.min(outputs.end - start);
        for i in 0..count {
            // SAFETY: the caller's promise.
            unsafe { expand(s, weights, start + i, &mut tile[i * len..(i + 1) * len]) };
        }
        let weights = Tile { values: tile, len };
        for (first, height) in row_blocks::<S>(rows) {
            // SAFETY: the tile holds `count` rows, and the slab the columns from `start` on.
            unsafe { block_product(s, &weights, 0..count, inputs, (first, height), out, start - outputs.start) };
        }
    }
}
