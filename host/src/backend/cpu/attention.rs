//! Attention of a batch of queries over cached keys and values, whatever these are: which keys a query sees, how the work
//! is cut, and the order in which it is summed. The arithmetic of a cut lives in `attention_kernel`.
//!
//! A query visits its keys **by position**: the context, then the rows of its own batch that it sees, itself last. Tiles
//! of 32 keys have their edges at absolute positions, and a tile is one step of an online softmax (Milakov and Gimelshein
//! 2018). So a query's result is the same bit for bit however the rows before it became context, and whatever else is
//! computed with it.

use std::sync::{Mutex, PoisonError};

use super::attention_kernel::{self, Queries};
use super::cache::{KeyTiles, SlotRows, TILE};
use super::pool::Pool;
use super::rope::RopeCache;
use crate::tree::path_to;

/// The part of a key that comes first.
#[derive(Debug, Clone, Copy)]
pub(super) enum KeyPart<'a> {
    /// Keys as the kernel wants them.
    Tiles(&'a KeyTiles),
    /// Keys that are values too: a tile of them is transposed when it is met.
    Rows(&'a SlotRows),
}

impl KeyPart<'_> {
    /// Elements of this part.
    pub(super) fn width(&self) -> usize {
        match self {
            Self::Tiles(tiles) => tiles.width(),
            Self::Rows(rows) => rows.width(),
        }
    }
}

/// Keys and values by slot. The context's slots are its positions; row i of the batch has slot `context + i`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Keys<'a> {
    /// First elements of a key.
    pub(super) first: KeyPart<'a>,
    /// The elements after them.
    pub(super) second: Option<&'a KeyTiles>,
    /// Values.
    pub(super) values: &'a SlotRows,
}

impl Keys<'_> {
    /// Elements of a key.
    pub(super) fn width(&self) -> usize {
        self.first.width() + self.second.map_or(0, KeyTiles::width)
    }
}

/// What a layer's attention reads besides its queries.
#[derive(Debug)]
pub(super) struct Cached<'a, C> {
    /// The layer's keys and values, those of the batch included.
    pub(super) cache: &'a C,
    /// Rotations, for the positions of the batch.
    pub(super) rope: &'a RopeCache,
    /// Tokens before the batch.
    pub(super) context: usize,
}

/// Which keys a row of the batch sees.
#[derive(Debug, Clone, Copy)]
pub(super) enum View<'a> {
    /// The context, its ancestors and itself.
    Tree {
        /// Parent row of each row; -1: the context.
        parents: &'a [i32],
    },
    /// The context and every row.
    Block {
        /// The row at position p sees context keys at positions > p - window.
        window: Option<usize>,
    },
}

/// Shape of a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Batch<'a> {
    /// Query heads.
    pub(super) heads: usize,
    /// Key heads; divides `heads`, consecutive query heads share one.
    pub(super) kv_heads: usize,
    /// Rows.
    pub(super) rows: usize,
    /// Cached tokens before them.
    pub(super) context: usize,
    /// What they see.
    pub(super) view: View<'a>,
}

impl Batch<'_> {
    /// First position that `row` sees.
    pub(super) fn first(&self, row: usize) -> usize {
        match self.view {
            View::Tree { .. } => 0,
            View::Block { window: None } => 0,
            View::Block { window: Some(window) } => (self.context + row + 1).saturating_sub(window).min(self.context),
        }
    }

    /// `slots` := slots of the keys that `row` sees at positions from `base` on; `base` is in the context or its end.
    pub(super) fn tail(&self, row: usize, base: usize, slots: &mut Vec<usize>) {
        match self.view {
            View::Tree { parents } => {
                path_to(parents, row, slots);
                slots.iter_mut().for_each(|slot| *slot += self.context);
                slots.splice(0..0, base..self.context);
            }
            View::Block { .. } => {
                slots.clear();
                slots.extend(base..self.context + self.rows);
            }
        }
    }

    /// Slots from 0 that rows up to `row` may see.
    pub(super) fn slots(&self, row: usize) -> usize {
        match self.view {
            View::Tree { .. } => self.context + row + 1,
            View::Block { .. } => self.context + self.rows,
        }
    }
}

/// Most queries of one cut: bounds its state to what stays in the cache of a core.
const MOST_QUERIES: usize = 64;

/// Cuts that a thread should get, so that threads end together.
const CUTS_A_THREAD: usize = 2;

/// `out[h, r] := sum over keys j that row r sees of softmax_j(q[h, r] . k_j) v_j`, f32.
///
/// `q` is `[heads, rows, key width]`, scale and rotation applied; `out` is `[heads, rows, value stride]`.
pub(super) fn attend(pool: &Pool, keys: &Keys, batch: &Batch, q: &[f32], out: &mut [f32]) {
    let (width, stride) = (keys.width(), keys.values.stride());
    let queries = batch.heads / batch.kv_heads * batch.rows;
    let cuts = (CUTS_A_THREAD * pool.threads()).div_ceil(batch.kv_heads);
    let size = queries.div_ceil(cuts).clamp(1, MOST_QUERIES);

    let mut work = Vec::with_capacity(batch.kv_heads * queries.div_ceil(size));
    let heads = q.chunks_exact(queries * width).zip(out.chunks_exact_mut(queries * stride));
    for (head, (q, out)) in heads.enumerate() {
        for (cut, (q, out)) in q.chunks(size * width).zip(out.chunks_mut(size * stride)).enumerate() {
            work.push(Mutex::new(Queries { head, first: cut * size, q, out }));
        }
    }
    pool.run(work.len(), |cut| {
        let mut queries = work[cut].lock().unwrap_or_else(PoisonError::into_inner);
        attention_kernel::run(pool.isa(), keys, batch, &mut queries);
    });
}

/// Positions below this one lie in tiles that hold context only.
pub(super) fn whole_tiles(context: usize) -> usize {
    context / TILE * TILE
}
