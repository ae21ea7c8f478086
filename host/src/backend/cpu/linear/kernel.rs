//! The product of packed rows and stored weights: register blocks, and tiles of expanded weights for many rows.
//!
//! out[r, o] = sum over lanes of a[r, o], where lane j of the accumulator a[r, o] adds `w[o, c] * x[r, c]` for the columns
//! c that lie in lane j of the weight's [`Layout`](super::pack::Layout), in packed order. Where the columns of a block
//! share a scale a lane (int4, fp8), the block is summed unscaled and then added times its scale. That order does not
//! depend on how rows and outputs are blocked: a row's result is the same, bit for bit, whatever rows are computed with it.

#![allow(unsafe_code)]
use std::marker::PhantomData;
use std::ops::Range;

use super::pack::PackedRows;
use crate::backend::cpu::buffer::Buffer;
use crate::backend::cpu::pool::Slab;
use crate::simd::{LANES, Outlined, Simd};

/// Weights in their stored type, expanded to vectors of f32 in a register.
///
/// # Safety
/// `blocks` is such that every block of every row of the weight lies in the memory that the decoder borrows.
pub(super) unsafe trait Decode<S: Simd>: Copy {
    /// Planes of a block, and of a block of the rest.
    const PLANES: usize;
    const REST_PLANES: usize;
    /// The planes are to be multiplied by [`Decode::scale`].
    const SCALED: bool = false;
    /// Expanding costs so little that a register block may do it; otherwise rows always pass through a tile.
    const IN_REGISTERS: bool = true;
    /// A block of one row as stored.
    type Block: Copy;

    /// Blocks of a row, and blocks of its rest.
    fn blocks(&self) -> (usize, usize);
    /// # Safety
    /// `row` and `block` are in range.
    unsafe fn block(&self, s: S, row: usize, block: usize) -> Self::Block;
    /// # Safety
    /// `row` and `block` are in range.
    unsafe fn rest(&self, s: S, row: usize, block: usize) -> Self::Block;
    /// Plane `I` of a block.
    fn plane<const I: usize>(s: S, block: Self::Block) -> S::F;
    /// Plane `I` of a block of the rest.
    fn rest_plane<const I: usize>(s: S, block: Self::Block) -> S::F {
        Self::plane::<I>(s, block)
    }
    /// The factor of every plane of a block, of the rest or not.
    fn scale(s: S, _block: Self::Block) -> S::F {
        s.splat(1.0)
    }
}

/// Rows from the block that is read to the one that is prefetched: register blocks take up to four weight rows side by
/// side, and what the hardware prefetches by itself ends with each.
pub(super) const AHEAD: usize = 4;

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

/// Adds one plane of `O` weight rows times the vectors at `offset` of `R` packed rows to the accumulators.
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
    // By index: iterators over arrays of vectors keep those out of registers.
    for r in 0..R {
        // SAFETY: the caller's promise.
        let x = unsafe { s.load(x[r].add(offset)) };
        for o in 0..O {
            acc[r][o] = s.mul_add(w[o], x, acc[r][o]);
        }
    }
}

/// Adds the planes of a block of `O` weight rows, each read by `$stored`, times the inputs to `$acc`.
macro_rules! add_block {
    ($D:ident, $s:ident, $acc:ident, $x:ident, $offset:ident, $planes:expr, $plane:ident, |$o:ident| $stored:expr) => {
        // SAFETY: block and rows are in range; packed rows hold all blocks.
        unsafe {
            let $o = 0;
            let mut stored = [$stored; O];
            for $o in 1..O {
                stored[$o] = $stored;
            }
            let mut part = [[$s.splat(0.0); O]; R];
            for_planes!($planes, I => {
                let mut w = [$D::$plane::<I>($s, stored[0]); O];
                for o in 1..O {
                    w[o] = $D::$plane::<I>($s, stored[o]);
                }
                accumulate($s, if D::SCALED { &mut part } else { &mut $acc }, w, $x, $offset + I * LANES);
            });
            if D::SCALED {
                for o in 0..O {
                    let scale = $D::scale($s, stored[o]);
                    for r in 0..R {
                        $acc[r][o] = $s.mul_add(part[r][o], scale, $acc[r][o]);
                    }
                }
            }
            $offset += $planes * LANES;
        }
    };
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
        add_block!(D, s, acc, x, offset, D::PLANES, plane, |o| weights.block(s, output + o, b));
    }
    for b in 0..rest_blocks {
        add_block!(D, s, acc, x, offset, D::REST_PLANES, rest_plane, |o| weights.rest(s, output + o, b));
    }
    let mut sums = [[0.0; O]; R];
    if (R * O).is_multiple_of(4) {
        for i in (0..R * O).step_by(4) {
            let mut four = [acc[i / O][i % O]; 4];
            for j in 1..4 {
                four[j] = acc[(i + j) / O][(i + j) % O];
            }
            let four = s.sum4(four);
            for j in 0..4 {
                sums[(i + j) / O][(i + j) % O] = four[j];
            }
        }
    } else {
        for r in 0..R {
            for o in 0..O {
                sums[r][o] = s.sum(acc[r][o]);
            }
        }
    }
    sums
}

/// Rows `first..first + rows` of the inputs, at most `R`, times weight rows `outputs`, `O` at a time, into the slab at
/// `column..`. The weight rows exist, and so do the columns of the slab.
struct RowsProduct<'a, 'b, D, const R: usize, const O: usize> {
    weights: &'a D,
    outputs: Range<usize>,
    inputs: &'a Inputs<'a>,
    first: usize,
    rows: usize,
    out: &'a mut Slab<'b>,
    column: usize,
}

impl<S: Simd, D: Decode<S>, const R: usize, const O: usize> Outlined<S> for RowsProduct<'_, '_, D, R, O> {
    #[inline(always)]
    fn run(self, s: S) {
        let Self { weights, outputs, inputs, first, rows, out, column } = self;
        if outputs.len() < O {
            for row in first..first + rows {
                let x = [inputs.row(row).as_ptr()];
                for output in outputs.clone() {
                    // SAFETY: the weight row exists.
                    let [[sum]] = unsafe { block::<S, D, 1, 1>(s, weights, output, x) };
                    out.row(row)[column + output - outputs.start] = sum;
                }
            }
            return;
        }
        let mut x = [std::ptr::null(); R];
        for (r, x) in x.iter_mut().enumerate() {
            // Where there are fewer than `R`, the last one fills up.
            *x = inputs.row(first + r.min(rows - 1)).as_ptr();
        }
        let mut next = 0;
        while next < outputs.len() {
            // The last ones overlap those before.
            let start = next.min(outputs.len() - O);
            // SAFETY: the weight rows exist.
            let sums = unsafe { block::<S, D, R, O>(s, weights, outputs.start + start, x) };
            for (r, sums) in sums.iter().enumerate().take(rows) {
                out.row(first + r)[column + start..column + start + O].copy_from_slice(sums);
            }
            next = start + O;
        }
    }
}

/// Most rows of a register block.
const fn block_rows<S: Simd, D: Decode<S>>() -> usize {
    match (S::WIDE, D::SCALED) {
        (true, false) => 8,
        (true, true) => 6,
        (false, _) => 4,
    }
}

/// As [`RowsProduct`], for at most [`block_rows`] rows. The accumulators, rows times outputs of them (twice that where
/// blocks are scaled), fill the registers but for weights and inputs.
///
/// # Safety
/// The weight rows exist, and so do the columns of the slab.
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
            s.outlined(RowsProduct::<D, $r, $o> { weights, outputs, inputs, first, rows, out, column })
        };
    }
    // Tiles are for many rows, cut into blocks of at least four, or for decoders that need not be fast.
    match (S::WIDE, D::SCALED, rows) {
        (_, _, 0) => {}
        (true, _, 1) if D::IN_REGISTERS => run!(1 x 4),
        (true, _, 2) if D::IN_REGISTERS => run!(2 x 4),
        (true, false, 3) if D::IN_REGISTERS => run!(3 x 4),
        (true, true, 3) if D::IN_REGISTERS => run!(3 x 2),
        (true, false, ..=4) => run!(4 x 4),
        (true, true, ..=4) => run!(4 x 2),
        (true, false, ..=6) if !D::IN_REGISTERS => run!(6 x 4),
        (true, _, ..=6) => run!(6 x 2),
        (true, _, _) => run!(8 x 2),
        (false, false, 1) if D::IN_REGISTERS => run!(1 x 4),
        (false, true, 1) if D::IN_REGISTERS => run!(1 x 2),
        (false, _, ..=2) if D::IN_REGISTERS => run!(2 x 1),
        (false, _, _) => run!(4 x 1),
    }
}

/// Expands weight row `row` to f32, in packed order: the planes of a block, then, where it has one, its scale.
///
/// # Safety
/// The weight row exists; `out` has the length of a row of [`Tile`].
#[inline(always)]
unsafe fn expand<S: Simd, D: Decode<S>>(s: S, weights: &D, row: usize, out: &mut [f32]) {
    let (blocks, rest_blocks) = weights.blocks();
    let mut out = out.as_mut_ptr();
    let mut put = |x: S::F| {
        // SAFETY: there is room for all vectors of the row.
        unsafe {
            s.store(out, x);
            out = out.add(LANES);
        }
    };
    for b in 0..blocks {
        // SAFETY: block and row are in range.
        let stored = unsafe { weights.block(s, row, b) };
        for_planes!(D::PLANES, I => { put(D::plane::<I>(s, stored)); });
        if D::SCALED {
            put(D::scale(s, stored));
        }
    }
    for b in 0..rest_blocks {
        // SAFETY: block and row are in range.
        let stored = unsafe { weights.rest(s, row, b) };
        for_planes!(D::REST_PLANES, I => { put(D::rest_plane::<I>(s, stored)); });
        if D::SCALED {
            put(D::scale(s, stored));
        }
    }
}

/// Weight rows as [`expand`] leaves them.
struct Tile<'a, D> {
    values: &'a [f32],
    blocks: (usize, usize),
    /// f32 of a row.
    len: usize,
    expanded_from: PhantomData<D>,
}

impl<D> Clone for Tile<'_, D> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<D> Copy for Tile<'_, D> {}

/// Vectors of an expanded block of `planes` planes.
const fn vectors<S: Simd, D: Decode<S>>(planes: usize) -> usize {
    planes + if D::SCALED { 1 } else { 0 }
}

// SAFETY: `product` makes `values` of rows of `len`, which all blocks fill, and asks for rows within it.
unsafe impl<S: Simd, D: Decode<S>> Decode<S> for Tile<'_, D> {
    const PLANES: usize = D::PLANES;
    const REST_PLANES: usize = D::REST_PLANES;
    const SCALED: bool = D::SCALED;
    const IN_REGISTERS: bool = false;
    /// The block's vectors, and its scale.
    type Block = (*const f32, S::F);

    #[inline(always)]
    fn blocks(&self) -> (usize, usize) {
        self.blocks
    }
    #[inline(always)]
    unsafe fn block(&self, s: S, row: usize, block: usize) -> Self::Block {
        // SAFETY: in range by the caller's promise.
        unsafe {
            let p = self.values.as_ptr().add(row * self.len + block * vectors::<S, D>(D::PLANES) * LANES);
            (p, if D::SCALED { s.load(p.add(D::PLANES * LANES)) } else { s.splat(1.0) })
        }
    }
    #[inline(always)]
    unsafe fn rest(&self, s: S, row: usize, block: usize) -> Self::Block {
        let before = self.blocks.0 * vectors::<S, D>(D::PLANES) + block * vectors::<S, D>(D::REST_PLANES);
        // SAFETY: in range by the caller's promise.
        unsafe {
            let p = self.values.as_ptr().add(row * self.len + before * LANES);
            (p, if D::SCALED { s.load(p.add(D::REST_PLANES * LANES)) } else { s.splat(1.0) })
        }
    }
    #[inline(always)]
    fn plane<const I: usize>(s: S, (p, _): Self::Block) -> S::F {
        // SAFETY: `block` and `rest` point to the planes of a block.
        unsafe { s.load(p.add(I * LANES)) }
    }
    #[inline(always)]
    fn scale(_: S, (_, scale): Self::Block) -> S::F {
        scale
    }
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
    let most = block_rows::<S, D>();
    if D::IN_REGISTERS && rows <= most {
        // SAFETY: the caller's promise.
        unsafe { block_product(s, weights, outputs, inputs, (0, rows), out, 0) };
        return;
    }
    let blocks = weights.blocks();
    let len = (blocks.0 * vectors::<S, D>(D::PLANES) + blocks.1 * vectors::<S, D>(D::REST_PLANES)) * LANES;
    let tile_rows = (TILE / len.max(1)).next_multiple_of(4).max(4);
    let row_blocks = rows.div_ceil(most);
    let mut buffer = Buffer::default();
    let values = buffer.get(tile_rows * len);
    for start in outputs.clone().step_by(tile_rows) {
        let count = tile_rows.min(outputs.end - start);
        for i in 0..count {
            // SAFETY: the caller's promise.
            unsafe { expand(s, weights, start + i, &mut values[i * len..(i + 1) * len]) };
        }
        let tile: Tile<'_, D> = Tile { values, blocks, len, expanded_from: PhantomData };
        for i in 0..row_blocks {
            // Of nearly equal height.
            let first = i * rows / row_blocks;
            let block = (first, (i + 1) * rows / row_blocks - first);
            // SAFETY: the tile holds `count` rows, and the slab the columns from `start` on.
            unsafe { block_product(s, &tile, 0..count, inputs, block, out, start - outputs.start) };
        }
    }
}
