//! The work on one tile of keys: partial scores, their exchange among a group's warps, weights, sums of values.
use super::element::Element;
use super::layout::{GROUP, Layout, MESSAGE};
use super::sums::scale;
use cuda_std::mma::{FragmentA, FragmentC, uniform};
use cuda_std::{convert, prelude::*, unroll};

/// By how much (log2) a score may exceed the maximum in use before that is raised: weights stay below 2^8, and what was
/// accumulated is rarely multiplied.
const SLACK: f32 = 8.0;
/// Fragments of keys on their way while products are formed.
const AHEAD: usize = 2;
/// Fragments of values likewise.
const VALUES_AHEAD: usize = if cfg!(coppice_sm = "120") { 1 } else { 2 };

/// A step's fragments of keys. Steps past the last meet zeros in the query.
#[inline(always)]
unsafe fn load_keys<E: Element, const STEPS: usize>(
    from: Shared<Bf16>,
    layout: Layout,
    slice: u32,
    step: usize,
) -> E::Loaded {
    let (first, step, bytes) = (slice * STEPS as u32, step as u32, 16 * E::KIND.bytes());
    // SAFETY: the callers' contract.
    unsafe {
        if GROUP * STEPS as u32 == layout.steps {
            E::load_keys(from.byte_add(first * bytes).byte_add(bytes * step))
        } else {
            E::load_keys(from.byte_add(bytes * (first + step).min(layout.steps - 1)))
        }
    }
}

/// Partial scores of a warp: a slice of the width, all rows of its group by the 16 keys of a tile.
#[inline(always)]
pub unsafe fn score<E: Element, const STEPS: usize, const TILES: usize, const PARKED: usize>(
    query: &[[FragmentA; STEPS]; TILES],
    parked: Shared<[u32; 4]>,
    from: Shared<Bf16>,
    layout: Layout,
    slice: u32,
) -> [[FragmentC; 2]; TILES] {
    let mut scores = [[[0.0; 4]; 2]; TILES];
    let mut keys = [E::NOTHING; STEPS];
    // SAFETY: whole warps come here; the tile is complete; each lane reads what it has parked.
    unsafe {
        for (step, keys) in keys.iter_mut().enumerate().take(AHEAD) {
            *keys = load_keys::<E, STEPS>(from, layout, slice, step);
        }
        unroll!(STEP in [0 1 2 3 4 5 6 7 8] {
            if STEP < STEPS {
                if STEP + AHEAD < STEPS {
                    keys[STEP + AHEAD] = load_keys::<E, STEPS>(from, layout, slice, STEP + AHEAD);
                }
                let [b0, b1, b2, b3] = E::keys(keys[STEP]);
                for (tile, (scores, query)) in scores.iter_mut().zip(query).enumerate() {
                    let query = if STEP + PARKED < STEPS {
                        query[STEP]
                    } else {
                        parked.add(32 * (tile * PARKED + STEP + PARKED - STEPS) as u32).read()
                    };
                    scores[0] = mma::m16n8k16_bf16(query, [b0, b1], scores[0]);
                    scores[1] = mma::m16n8k16_bf16(query, [b2, b3], scores[1]);
                }
            }
        });
    }
    scores
}

/// Leaves the partial scores of each 8-row block for the warp that does its softmax.
///
/// A message lies at (source ^ target) - 1, source: the writer's offsets are constants, and lanes write contiguously.
#[inline(always)]
pub unsafe fn send<const TILES: usize>(scores: &[[FragmentC; 2]; TILES], to: Shared<f32>, slice: u32) {
    let to = to.byte_add(slice * MESSAGE + thread::thread_idx_x() % 32 * 8);
    let blocks = 2 * TILES as u32;
    unroll!(BLOCK in [0 1 2 3] {
        let distance = slice / blocks * blocks + BLOCK as u32;
        if BLOCK < 2 * TILES && distance > 0 {
            let to = to.byte_add((distance - 1) * (GROUP * MESSAGE));
            for (column, part) in scores[BLOCK / 2].iter().enumerate() {
                let pair = if BLOCK.is_multiple_of(2) { [part[0], part[1]] } else { [part[2], part[3]] };
                // SAFETY: each warp writes its own messages, which nobody reads before they are announced.
                unsafe { to.byte_add(column as u32 * (MESSAGE / 2)).cast::<[f32; 2]>().write(pair) };
            }
        }
    });
}

/// Scores of the 8 rows whose softmax this warp does: own part and the others', in an order that does not depend on the warp.
/// Lane (g, t) has keys 2t, 2t + 1, 2t + 8, 2t + 9 of row g.
#[inline(always)]
pub unsafe fn receive(own: [f32; 4], from: Shared<f32>, slice: u32) -> [f32; 4] {
    let lane = thread::thread_idx_x() % 32;
    let read = |distance: u32| {
        let from = from.byte_add((distance - 1) * (GROUP * MESSAGE) + (slice ^ distance) * MESSAGE + lane * 8);
        // SAFETY: the message is complete.
        let ([a, b], [c, d]) =
            unsafe { (from.cast::<[f32; 2]>().read(), from.byte_add(MESSAGE / 2).cast::<[f32; 2]>().read()) };
        [a, b, c, d]
    };
    let (x, y, z) = (read(1), read(2), read(3));
    core::array::from_fn(|i| (own[i] + x[i]) + (y[i] + z[i]))
}

/// Running softmax of a row, spread over the quad of lanes that hold it. Base 2.
#[derive(Clone, Copy)]
pub struct Row {
    /// Maximum in use; finite, so that differences are never NaN.
    pub max: f32,
    /// Sum of this lane's weights relative to it.
    pub sum: f32,
}

impl Row {
    /// No key yet.
    pub const EMPTY: Self = Self { max: -1e30, sum: 0.0 };

    /// Takes four scores a lane in, -inf for masked ones: their weights, and the factor for what was accumulated before.
    #[inline(always)]
    pub unsafe fn add(&mut self, scores: [f32; 4], scale: f32) -> ([f32; 4], f32) {
        let mut max = scores[0].max(scores[1]).max(scores[2].max(scores[3]));
        // SAFETY: whole warps come here.
        unsafe {
            max = max.max(warp::warp_shuffle_xor(warp::FULL_MASK, max, 1, 32));
            max = max.max(warp::warp_shuffle_xor(warp::FULL_MASK, max, 2, 32));
        }
        max *= scale;
        let new = if max > self.max + SLACK { max } else { self.max };
        let factor = math::ex2(self.max - new);
        self.max = new;
        let weights = scores.map(|score| math::ex2(math::fma(score, scale, -new)));
        self.sum = math::fma(self.sum, factor, (weights[0] + weights[1]) + (weights[2] + weights[3]));
        (weights, factor)
    }
}

/// Stores a warp's weights as rows of 32 bytes, the two vectors of a row swapped in every other four rows: `ldmatrix` then meets
/// no bank conflict.
#[inline(always)]
pub unsafe fn store_weights(weights: [f32; 4], rows: Shared<Bf16>) {
    let lane = thread::thread_idx_x() % 32;
    let (g, t) = (lane / 4, lane % 4);
    let to = rows.byte_add(g * 32 + t * 4);
    let swap = g / 4 * 16;
    // SAFETY: each lane writes its own words, which nobody reads before they are announced.
    unsafe {
        to.byte_add(swap).cast().write(convert::bf16x2_from_f32(weights[0], weights[1]));
        to.byte_add(swap ^ 16).cast().write(convert::bf16x2_from_f32(weights[2], weights[3]));
    }
}

/// Where a lane reads weights from, relative to its team's.
#[inline(always)]
pub fn weights_offset() -> u32 {
    let lane = thread::thread_idx_x() % 32;
    lane % 16 * 32 + ((lane / 16 * 16) ^ (lane / 4 % 2 * 16))
}

/// Fragment of the weights of 16 rows.
#[inline(always)]
unsafe fn load_weights(from: Shared<Bf16>, tile: usize) -> FragmentA {
    // SAFETY: whole warps come here; the weights are complete.
    unsafe { uniform::ldmatrix_x4(from.byte_add(512 * tile as u32)) }
}

/// Offset of the factor of row g of an 8-row block among the factors of a team with 2 `HEIGHT` blocks.
#[inline(always)]
pub fn factor_offset<const HEIGHT: usize>(block: u32, g: u32) -> u32 {
    let together = if HEIGHT > 1 { 4 } else { 2 };
    block / together * (32 * together) + g * (4 * together) + block % together * 4
}

/// Multiplies the sums by the factors of their rows, if any is not 1.
#[inline(always)]
pub unsafe fn rescale<const HEIGHT: usize, const COLUMNS: usize>(
    sums: &mut [[FragmentC; COLUMNS]; HEIGHT],
    factors: Shared<f32>,
) {
    let g = thread::thread_idx_x() % 32 / 4;
    let mut rows = [[1.0f32; 2]; HEIGHT];
    // SAFETY: whole warps come here; the factors are complete.
    let changed = unsafe {
        if HEIGHT == 1 {
            rows[0] = factors.byte_add(factor_offset::<HEIGHT>(0, g)).cast().read();
        } else {
            for pair in 0..HEIGHT / 2 {
                let from = factors.byte_add(factor_offset::<HEIGHT>(4 * pair as u32, g));
                let [a, b, c, d] = from.cast::<[f32; 4]>().read();
                (rows[2 * pair], rows[2 * pair + 1]) = ([a, b], [c, d]);
            }
        }
        warp::warp_vote_any(warp::FULL_MASK, rows.iter().any(|[a, b]| *a != 1.0 || *b != 1.0))
    };
    if changed {
        scale(sums, rows);
    }
}

/// Fragments of values that are on their way before they are wanted: all where a warp has more rows than columns, since it then
/// keeps them for all rows; else those of the next few columns.
const fn values_ahead(height: usize, columns: usize) -> usize {
    let all = columns.div_ceil(2);
    // With the smaller architecture's scheduling, registers do not hold them all.
    if 2 * height < columns {
        VALUES_AHEAD
    } else if cfg!(coppice_sm = "120") && all > 2 {
        all - 1
    } else {
        all
    }
}

/// A pair of columns of values. Where a warp has one column, the other is a neighbour's and not used.
#[inline(always)]
unsafe fn load_values<E: Element>(from: Shared<Bf16>, pair: usize) -> E::Loaded {
    // SAFETY: the callers' contract.
    unsafe { E::load_values(from.byte_add(16 * E::KIND.bytes() * pair as u32)) }
}

/// The first value fragments of a tile, which need not wait for the weights.
#[inline(always)]
pub unsafe fn first_values<E: Element, const HEIGHT: usize, const COLUMNS: usize>(
    from: Shared<Bf16>,
) -> [E::Loaded; COLUMNS] {
    let mut values = [E::NOTHING; COLUMNS];
    for (pair, values) in values.iter_mut().enumerate().take(values_ahead(HEIGHT, COLUMNS)) {
        // SAFETY: whole warps come here; the tile is complete.
        *values = unsafe { load_values::<E>(from, pair) };
    }
    values
}

/// Adds the tile's values, weighted, to the sums of a warp: 16 `HEIGHT` rows by 8 `COLUMNS` elements.
#[inline(always)]
pub unsafe fn accumulate<E: Element, const HEIGHT: usize, const COLUMNS: usize>(
    sums: &mut [[FragmentC; COLUMNS]; HEIGHT],
    weights_from: Shared<Bf16>,
    values: &mut [E::Loaded; COLUMNS],
    from: Shared<Bf16>,
) {
    // SAFETY: whole warps come here; tile and weights are complete.
    unsafe {
        if 2 * HEIGHT >= COLUMNS {
            for (pair, values) in
                values.iter_mut().enumerate().take(COLUMNS.div_ceil(2)).skip(values_ahead(HEIGHT, COLUMNS))
            {
                *values = load_values::<E>(from, pair);
            }
            let mut weights = [[0; 4]; HEIGHT];
            weights[0] = load_weights(weights_from, 0);
            unroll!(TILE in [0 1 2 3] {
                if TILE < HEIGHT {
                    if TILE + 1 < HEIGHT {
                        weights[TILE + 1] = load_weights(weights_from, TILE + 1);
                    }
                    unroll!(COLUMN in [0 1 2 3 4 5 6 7] {
                        if COLUMN < COLUMNS {
                            let [b0, b1, b2, b3] = E::values(values[COLUMN / 2]);
                            let b = if COLUMN.is_multiple_of(2) { [b0, b1] } else { [b2, b3] };
                            sums[TILE][COLUMN] = mma::m16n8k16_bf16(weights[TILE], b, sums[TILE][COLUMN]);
                        }
                    });
                }
            });
        } else {
            let weights: [FragmentA; HEIGHT] = core::array::from_fn(|tile| load_weights(weights_from, tile));
            unroll!(PAIR in [0 1 2 3 4 5 6 7] {
                if PAIR < COLUMNS / 2 {
                    if PAIR + VALUES_AHEAD < COLUMNS / 2 {
                        values[PAIR + VALUES_AHEAD] = load_values::<E>(from, PAIR + VALUES_AHEAD);
                    }
                    let [b0, b1, b2, b3] = E::values(values[PAIR]);
                    for (sums, weights) in sums.iter_mut().zip(&weights) {
                        sums[2 * PAIR] = mma::m16n8k16_bf16(*weights, [b0, b1], sums[2 * PAIR]);
                        sums[2 * PAIR + 1] = mma::m16n8k16_bf16(*weights, [b2, b3], sums[2 * PAIR + 1]);
                    }
                }
            });
        }
    }
}
