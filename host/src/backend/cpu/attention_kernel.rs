//! The arithmetic of attention over one cut of the queries: scores by tiles of 32 keys, online softmax, weighted sum of
//! the values.
//!
//! Every score is one chain of multiply-adds over the key's elements in order, and every output element one chain over
//! the keys in order, so the company of other queries changes no bit.
//!
//! Vectors are handled in `for` loops and `#[inline(always)]` functions only: a closure that the compiler leaves on its own
//! is compiled without the instruction set.

#![allow(unsafe_code)]
// Iterators that hold vectors are left as calls, too.
#![allow(clippy::needless_range_loop)]

use super::attention::{Batch, KeyPart, Keys, whole_tiles};
use super::cache::TILE;
use crate::simd::{LANES, Simd, exp, kernel};

/// Vectors that hold one number for each key of a tile.
const VECTORS: usize = TILE / LANES;

/// A cut: consecutive queries of one key head.
#[derive(Debug)]
pub(super) struct Queries<'a> {
    /// The key head.
    pub(super) head: usize,
    /// Number of the first query among `[heads of the key head, rows]`.
    pub(super) first: usize,
    /// `[queries, key width]`.
    pub(super) q: &'a [f32],
    /// `[queries, value stride]`.
    pub(super) out: &'a mut [f32],
}

kernel! {
    /// Computes `queries.out`.
    pub(super) fn run(keys: &Keys<'_>, batch: &Batch<'_>, queries: &mut Queries<'_>) = run_body
}

#[inline(always)]
fn run_body<S: Simd>(s: S, keys: &Keys, batch: &Batch, queries: &mut Queries) {
    // Sums of R queries, two vectors each, and what they are summed from, stay in registers.
    if S::WIDE { run_by::<S, 4>(s, keys, batch, queries) } else { run_by::<S, 2>(s, keys, batch, queries) }
}

/// Tiles that are scored together where there are too few queries to keep the multipliers busy.
const GROUP: usize = 4;

/// `R` queries at a time.
#[inline(always)]
fn run_by<S: Simd, const R: usize>(s: S, keys: &Keys, batch: &Batch, queries: &mut Queries) {
    let (width, stride) = (keys.width(), keys.values.stride());
    let count = queries.q.len() / width;
    queries.out.fill(0.0);
    let Queries { head, first, q, ref mut out } = *queries;
    let softmax = vec![Softmax { max: f32::NEG_INFINITY, sums: [0.0; TILE] }; count];
    let mut cut = Cut { s, batch, head, first, q, out, width, stride, softmax };
    let mut transposed: [Vec<f32>; GROUP] = Default::default();
    let whole = count / R * R;

    // Tiles that hold context only: every query that sees them sees them alike.
    let base = whole_tiles(batch.context);
    let first = (0..count).map(|query| batch.first(cut.row(query))).min().unwrap_or(base);
    let tiles = first / TILE..base / TILE;
    for index in tiles.clone().step_by(GROUP) {
        let group = group(keys, head, index..tiles.end.min(index + GROUP), &mut transposed);
        for query in (0..whole).step_by(R) {
            for tile in group.iter().flatten() {
                cut.attend::<R, 1>(query, [tile]);
            }
        }
        for query in whole..count {
            if let [Some(a), Some(b), Some(c), Some(d)] = &group {
                cut.attend::<1, GROUP>(query, [a, b, c, d]);
            } else {
                for tile in group.iter().flatten() {
                    cut.attend::<1, 1>(query, [tile]);
                }
            }
        }
    }

    // The rest: scores by slot, then each query goes through its own keys by position.
    let end = (0..count).map(|query| batch.slots(cut.row(query))).max().unwrap_or(base);
    let tiles = (end - base).div_ceil(TILE);
    let mut scores = vec![[0.0; TILE]; count * tiles];
    for index in 0..tiles {
        let tile = KeyTile::new(keys, head, base / TILE + index, &mut transposed[0]);
        for query in (0..whole).step_by(R) {
            let part = cut.score::<R, 1>(query, [&tile]);
            for (r, [part]) in part.into_iter().enumerate() {
                scores[(query + r) * tiles + index] = part;
            }
        }
        for query in whole..count {
            [[scores[query * tiles + index]]] = cut.score::<1, 1>(query, [&tile]);
        }
    }
    let mut slots = Vec::new();
    for query in 0..count {
        batch.tail(cut.row(query), base, &mut slots);
        cut.attend_tail(query, base, &slots, &scores[query * tiles..(query + 1) * tiles], keys);
    }
}

/// At most [`GROUP`] tiles of `head`, the first ones.
#[inline(always)]
fn group<'a>(
    keys: &Keys<'a>,
    head: usize,
    tiles: std::ops::Range<usize>,
    transposed: &'a mut [Vec<f32>; GROUP],
) -> [Option<KeyTile<'a>>; GROUP] {
    let mut group = [const { None }; GROUP];
    for ((tile, index), transposed) in group.iter_mut().zip(tiles).zip(transposed) {
        *tile = Some(KeyTile::new(keys, head, index, transposed));
    }
    group
}

/// A tile of keys and values.
struct KeyTile<'a> {
    /// Position of the first key.
    position: usize,
    /// Elements of the keys `[width of the part, 32]`, in two parts.
    keys: [&'a [f32]; 2],
    /// Values, `stride` apart.
    values: &'a [f32],
}

impl<'a> KeyTile<'a> {
    /// Tile `index` of `head`; keys that are stored as rows are transposed into `transposed`.
    #[inline(always)]
    fn new(keys: &Keys<'a>, head: usize, index: usize, transposed: &'a mut Vec<f32>) -> Self {
        let position = index * TILE;
        let first = match keys.first {
            KeyPart::Tiles(tiles) => tiles.tile(head, index),
            KeyPart::Rows(rows) => {
                transposed.resize(rows.width() * TILE, 0.0);
                for (lane, row) in rows.from(head, position).chunks_exact(rows.stride()).take(TILE).enumerate() {
                    transposed[lane..].iter_mut().step_by(TILE).zip(row).for_each(|(to, from)| *to = *from);
                }
                transposed
            }
        };
        let second = keys.second.map_or(&[][..], |tiles| tiles.tile(head, index));
        Self { position, keys: [first, second], values: keys.values.from(head, position) }
    }
}

/// Running state of a query's softmax.
#[derive(Debug, Clone, Copy)]
struct Softmax {
    max: f32,
    /// Sums of exponentials by position modulo 32.
    sums: [f32; TILE],
}

/// A cut under way.
struct Cut<'a, S> {
    s: S,
    batch: &'a Batch<'a>,
    head: usize,
    first: usize,
    q: &'a [f32],
    out: &'a mut [f32],
    width: usize,
    stride: usize,
    softmax: Vec<Softmax>,
}

impl<S: Simd> Cut<'_, S> {
    /// The row of a query.
    #[inline(always)]
    fn row(&self, query: usize) -> usize {
        (self.first + query) % self.batch.rows
    }

    /// Scores of `R` queries from `query` on against `C` tiles.
    #[inline(always)]
    fn score<const R: usize, const C: usize>(&self, query: usize, tiles: [&KeyTile; C]) -> [[[f32; TILE]; C]; R] {
        let split = tiles[0].keys[0].len() / TILE;
        let q: [&[f32]; R] = std::array::from_fn(|r| &self.q[(query + r) * self.width..][..self.width]);
        let mut sums = [[[self.s.splat(0.0); VECTORS]; C]; R];
        panels(self.s, q.map(|q| &q[..split]), tiles.map(|tile| tile.keys[0]), TILE, &mut sums);
        panels(self.s, q.map(|q| &q[split..]), tiles.map(|tile| tile.keys[1]), TILE, &mut sums);
        let mut scores = [[[0.0; TILE]; C]; R];
        for r in 0..R {
            for c in 0..C {
                store(self.s, &mut scores[r][c], sums[r][c]);
            }
        }
        scores
    }

    /// Takes `C` tiles of context, one after another, into `R` queries.
    #[inline(always)]
    fn attend<const R: usize, const C: usize>(&mut self, query: usize, tiles: [&KeyTile; C]) {
        let mut scores = self.score::<R, C>(query, tiles);
        for c in 0..C {
            let mut weights = [[0.0; TILE]; R];
            for r in 0..R {
                let hidden = self.batch.first(self.row(query + r)).saturating_sub(tiles[c].position);
                self.weigh(query + r, hidden..TILE, &mut scores[r][c]);
                weights[r] = scores[r][c];
            }
            let weights = weights.each_ref().map(|weights| &weights[..]);
            let mut column = 0;
            if R == 1 {
                while column + GROUP * TILE <= self.stride {
                    self.add_values::<R, GROUP>(query, weights, tiles[c].values, column);
                    column += GROUP * TILE;
                }
                while column + 2 * TILE <= self.stride {
                    self.add_values::<R, 2>(query, weights, tiles[c].values, column);
                    column += 2 * TILE;
                }
            }
            while column < self.stride {
                self.add_values::<R, 1>(query, weights, tiles[c].values, column);
                column += TILE;
            }
        }
    }

    /// Adds a tile's weighted values to `C` panels of 32 columns, from `column` on, of `R` queries.
    #[inline(always)]
    fn add_values<const R: usize, const C: usize>(
        &mut self,
        query: usize,
        weights: [&[f32]; R],
        values: &[f32],
        column: usize,
    ) {
        let mut sums = [[[self.s.splat(0.0); VECTORS]; C]; R];
        let mut panel = [values; C];
        for c in 0..C {
            panel[c] = &values[column + c * TILE..];
            for r in 0..R {
                sums[r][c] = load(self.s, &self.out[(query + r) * self.stride + column + c * TILE..]);
            }
        }
        panels(self.s, weights, panel, self.stride, &mut sums);
        for r in 0..R {
            for c in 0..C {
                store(self.s, &mut self.out[(query + r) * self.stride + column + c * TILE..], sums[r][c]);
            }
        }
    }

    /// Takes the keys at positions from `base` on, which are in `slots`, into one query, and ends it.
    #[inline(always)]
    fn attend_tail(&mut self, query: usize, base: usize, slots: &[usize], scores: &[[f32; TILE]], keys: &Keys) {
        let (s, first) = (self.s, self.batch.first(self.row(query)));
        for (index, slots) in slots.chunks(TILE).enumerate() {
            let mut weights = [0.0; TILE];
            for (weight, slot) in weights.iter_mut().zip(slots) {
                *weight = scores[(slot - base) / TILE][slot % TILE];
            }
            let hidden = first.saturating_sub(base + index * TILE);
            self.weigh(query, hidden..slots.len(), &mut weights);
            for column in (0..self.stride).step_by(TILE) {
                let out = &mut self.out[query * self.stride + column..];
                let mut sums = load(s, out);
                for (weight, slot) in weights.iter().zip(slots) {
                    let value = load(s, &keys.values.from(self.head, *slot)[column..]);
                    sums = mul_add(s, s.splat(*weight), value, sums);
                }
                store(s, out, sums);
            }
        }
        let [a, b] = load(s, &self.softmax[query].sums);
        let total = s.sum(s.add(a, b));
        self.out[query * self.stride..][..self.stride].iter_mut().for_each(|out| *out /= total);
    }

    /// One step of the online softmax: scores become weights, 0 outside `visible`; what was summed before is scaled to
    /// the new maximum.
    #[inline(always)]
    fn weigh(&mut self, query: usize, visible: std::ops::Range<usize>, scores: &mut [f32; TILE]) {
        let (s, Softmax { max, sums }) = (self.s, &mut self.softmax[query]);
        let hide = |scores: &mut [f32; TILE], value: f32| {
            scores[..visible.start.min(TILE)].fill(value);
            scores[visible.end..].fill(value);
        };
        hide(scores, f32::NEG_INFINITY);
        let [a, b] = load(s, scores);
        let greatest = s.greatest(s.max(a, b));
        let larger = if greatest > *max { greatest } else { *max };
        // Nothing has been seen: there is no maximum to subtract.
        let shift = s.splat(if larger == f32::NEG_INFINITY { 0.0 } else { larger });
        store(s, scores, [exp(s, s.sub(a, shift)), exp(s, s.sub(b, shift))]);
        hide(scores, 0.0);
        let decay = exp(s, s.sub(s.splat(*max), shift));
        let sum = mul_add(s, decay, load(s, sums), load(s, scores));
        store(s, sums, sum);
        if larger != *max {
            for out in self.out[query * self.stride..][..self.stride].chunks_exact_mut(TILE) {
                let [a, b] = load(s, out);
                store(s, out, [s.mul(a, decay), s.mul(b, decay)]);
            }
        }
        *max = larger;
    }
}

/// `sums[r][c] += sum over k of a[r][k] * b[c][k * stride ..][..32]`, k ascending.
#[inline(always)]
fn panels<S: Simd, const R: usize, const C: usize>(
    s: S,
    a: [&[f32]; R],
    b: [&[f32]; C],
    stride: usize,
    sums: &mut [[[S::F; VECTORS]; C]; R],
) {
    let count = a.first().map_or(0, |a| a.len());
    assert!(a.iter().all(|a| a.len() == count));
    assert!(count == 0 || b.iter().all(|b| b.len() >= (count - 1) * stride + TILE));
    let mut local = *sums;
    for k in 0..count {
        for c in 0..C {
            // SAFETY: the last row starts at (count - 1) * stride and 32 elements follow, as asserted.
            let row = unsafe { load_at(s, b[c].as_ptr().add(k * stride)) };
            for r in 0..R {
                local[r][c] = mul_add(s, s.splat(a[r][k]), row, local[r][c]);
            }
        }
    }
    *sums = local;
}

/// `a * b + c`.
#[inline(always)]
fn mul_add<S: Simd>(s: S, a: S::F, b: [S::F; VECTORS], c: [S::F; VECTORS]) -> [S::F; VECTORS] {
    [s.mul_add(a, b[0], c[0]), s.mul_add(a, b[1], c[1])]
}

/// The first 32 elements.
#[inline(always)]
fn load<S: Simd>(s: S, x: &[f32]) -> [S::F; VECTORS] {
    // SAFETY: a slice of 32 f32.
    unsafe { load_at(s, x[..TILE].as_ptr()) }
}

/// # Safety
/// 32 f32 are readable at `p`.
#[inline(always)]
unsafe fn load_at<S: Simd>(s: S, p: *const f32) -> [S::F; VECTORS] {
    // SAFETY: the caller's promise.
    unsafe { [s.load(p), s.load(p.add(LANES))] }
}

/// Writes the first 32 elements.
#[inline(always)]
fn store<S: Simd>(s: S, x: &mut [f32], [a, b]: [S::F; VECTORS]) {
    let p = x[..TILE].as_mut_ptr();
    // SAFETY: a slice of 32 f32.
    unsafe {
        s.store(p, a);
        s.store(p.add(LANES), b);
    }
}
