//! The token after each row of a set: the argmax, or a draw by temperature, top-k, top-p, min-p and a counter-based random
//! number. How a row's running total is searched is in `select`.
use super::histogram::{Amount, SCRATCH, SHARED_BYTES, THREADS, at};
use super::philox::uniform_bits;
use super::row::{ONE, Row, id_of};
use crate::block::{Candidate, block_best};
use crate::round::{RowSet, SequenceState, State};
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{grid, prelude::*};

/// The token after each row, by the sequence's sampling parameters.
///
/// Greedy (temperature 0, or no logit above -inf): the largest logit, of equal ones the lowest id. Else, over tokens in the
/// order of logit descending, id ascending, with w = e^((logit - max) / temperature): top-k keeps the k first and what ties
/// with the last of them; top-p the first up to and with the one whose total reaches top_p x the weight top-k kept; min-p
/// those of w >= min_p; all three keep a prefix. choices[t] = the first token whose running total exceeds u x the weight
/// kept, u = Philox(seed, positions[t] + 1). A row that holds NaN gives `u32::MAX`.
///
/// * Shapes: `state` as [`SequenceState`]; `rows` as [`RowLayout`](crate::round::RowLayout) has it; `logits` [rows, vocab]
///   f32, rows `stride` elements apart; `choices` [rows] u32. With `last` not 0, `logits` is one row, that of the set's last
///   row, and `choices` one token. Rows past the count are left alone.
/// * Work: a block of 512 threads a row. One pass over the logits for the maximum, one for the histogram of weights, one for
///   each total that is searched: one, with top-p two, with top-k one more and one for the weight that ties add. Where more
///   than 1,024 tokens share a bin of width T / 62, up to eight passes more for that search.
/// * Shared memory: 44.6 KB: told values and scratch (0.5 KB), 2048 and 256 bins of 12 B, 1024 tokens of 16 B.
/// * Registers: up to 128: each search is inlined.
/// * Bytes: 4 a logit and pass, from L2 after the first; FLOPs: 18 in f64 a logit within 33 temperatures of the maximum, once.
/// * Alignment: `logits` 16 B, `stride` a multiple of 4. Vocabularies below 2^18.
/// * Tolerance: a weight is rounded to a multiple of 2^-46, and all sums are exact, so the result is the same in any order. It
///   differs from a draw by unrounded weights only where u x kept lies within vocab x 2^-47 (at 163,840 tokens 1.2e-9 of a
///   total of at least 1; 3e-12 is typical, as roundings cancel) of the edge of a token's interval, or top_p x kept of such
///   an edge, or where w equals min_p to 2^-51.
///
/// # Safety
/// The buffers have those shapes and alignments.
#[kernel(threads = 512, blocks_per_sm = 1)]
pub unsafe fn choose_tokens(
    state: GlobalMut<SequenceState>,
    rows: GlobalMut<u32>,
    logits: Global<f32>,
    choices: GlobalMut<u32>,
    capacity: u32,
    vocab: u32,
    stride: u32,
    last: u32,
) {
    // SAFETY: one row a block, inside the buffers by the contract; what a block branches on is the same in its threads.
    unsafe {
        grid::dependency_wait();
        let (state, set) = (State(state), RowSet::new(rows, capacity));
        let (block, count) = (thread::block_idx_x(), set.count().read());
        let row = if last == 0 { block } else { count.wrapping_sub(1) };
        if row < count {
            let logits = logits.add(block as usize * stride as usize);
            let position = set.word(set.layout.positions() + row).read() + 1;
            let token = choose(state, logits, vocab, position);
            if thread::thread_idx_x() == 0 {
                choices.add(block as usize).write(token);
            }
        }
        grid::dependency_launch();
    }
}

/// The token for `position`, in every thread.
#[inline(always)]
unsafe fn choose(state: State, logits: Global<f32>, vocab: u32, position: u32) -> u32 {
    // SAFETY: the caller's contract.
    unsafe {
        let temperature = state.temperature().read();
        let row = Row { logits, vocab, max: 0.0, scale: 1.0 / f64::from(temperature), all: false };
        let (mut best, mut broken) = (Candidate::NONE, false);
        row.each(|value, index| {
            best = best.better(Candidate { value, index });
            broken |= value.is_nan();
        });
        // Of the lanes' votes one word a warp is left.
        let broken = warp::warp_vote_any(warp::FULL_MASK, broken);
        let faults = at::<u32>(SCRATCH);
        if warp::lane_id() == 0 {
            faults.add(thread::thread_idx_x() / 32).write(broken.into());
        }
        let best = block_best(best, at(0));
        let mut broken = 0;
        for w in 0..THREADS / 32 {
            broken |= faults.add(w).read();
        }
        // Scratch may be written anew.
        thread::sync_threads();
        if broken != 0 || best.index == u32::MAX {
            return u32::MAX;
        }
        if temperature <= 0.0 || best.value == f32::NEG_INFINITY {
            return best.index;
        }
        draw(Row { max: best.value, ..row }, state, uniform_bits(state.seed().read(), position))
    }
}

/// The draw with u = `uniform` x 2^-64.
#[inline(always)]
unsafe fn draw(row: Row, state: State, uniform: u64) -> u32 {
    // SAFETY: the caller's contract.
    unsafe {
        let (top_k, top_p, min_p) = (state.top_k().read(), state.top_p().read(), state.min_p().read());
        let (total, likely) = row.fill(min_p.into());
        let mut kept = total.weight;
        if top_k > 0 && u64::from(top_k) < total.tokens {
            let (key, _) = row.locate(Amount::Tokens(u64::from(top_k) - 1));
            kept = row.weight_from(key);
        }
        if top_p < 1.0 {
            // The total reaches the nucleus where it exceeds one unit less.
            let nucleus = f64::from(top_p) * kept as f64;
            let whole = nucleus as u64;
            let reach = whole + u64::from((whole as f64) < nucleus);
            kept = row.locate(Amount::Weight(reach.clamp(1, kept) - 1)).1;
        }
        let kept = kept.min(likely).max(ONE);
        let target = (u128::from(uniform) * u128::from(kept)) >> 64;
        id_of(row.locate(Amount::Weight(target as u64)).0)
    }
}

/// Launch of [`choose_tokens`] over a set of `capacity` rows, or over its last one.
#[cfg(not(target_arch = "nvptx64"))]
pub fn choose_shape(capacity: u32, last: bool) -> LaunchShape {
    LaunchShape::new(if last { 1 } else { capacity }, THREADS).shared(SHARED_BYTES)
}

/// One row of [`choose_tokens`] by its rule, over a full sort and with unrounded weights in f64.
#[cfg(not(target_arch = "nvptx64"))]
pub fn choose_reference(logits: &[f32], state: &SequenceState, position: u32) -> u32 {
    let max = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if logits.is_empty() || logits.iter().any(|logit| logit.is_nan()) {
        return u32::MAX;
    }
    if state.temperature <= 0.0 || max == f32::NEG_INFINITY {
        return super::argmax_reference(logits);
    }
    let mut order: std::vec::Vec<u32> = (0..logits.len() as u32).collect();
    let logit = |id: u32| logits[id as usize] + 0.0;
    order.sort_by(|a, b| logit(*b).total_cmp(&logit(*a)).then(a.cmp(b)));
    let weight = |id: &u32| match logit(*id) {
        logit if logit == max => 1.0,
        logit => ((f64::from(logit) - f64::from(max)) / f64::from(state.temperature)).exp(),
    };
    if let Some(last) = (state.top_k as usize).checked_sub(1).and_then(|k| order.get(k).copied()) {
        order.retain(|id| logit(*id) >= logit(last));
    }
    let nucleus = f64::from(state.top_p) * order.iter().map(weight).sum::<f64>();
    let mut before = 0.0;
    let inside = |id: &&u32| {
        let keep = before == 0.0 || (state.top_p >= 1.0 || before < nucleus) && weight(id) >= f64::from(state.min_p);
        before += weight(id);
        keep
    };
    let kept = order.iter().take_while(inside).count();
    order.truncate(kept);
    let target = uniform_bits(state.seed, position) as f64 / 2f64.powi(64) * order.iter().map(weight).sum::<f64>();
    let (mut mass, mut token) = (0.0, 0);
    for id in order.iter().take_while(|id| weight(id) > 0.0) {
        (mass, token) = (mass + weight(id), *id);
        if mass > target {
            break;
        }
    }
    token
}

#[cfg(test)]
#[path = "draw_tests.rs"]
mod tests;
