//! The draft tree from ranked candidates of each depth: the most probable prefixes, or a chain of the best (of one rank).
use super::rows::{THREADS, lay_out};
use super::state::{RowSet, SequenceState, State};
use crate::exponential::exp;
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{grid, prelude::*, shared};

/// Most nodes of a tree, the root aside.
pub const MAX_NODES: u32 = 256;

/// Shared memory by row, as arrays of `limit + 1`: next child (16 B), log-probability, two running sums (8 B each), parent.
#[derive(Clone, Copy)]
struct Scratch {
    rows: u32,
}

impl Scratch {
    #[inline(always)]
    fn at<T>(self, offset: u32) -> Shared<T> {
        shared::dynamic_shared_mem::<u8>().byte_add(offset * self.rows).cast()
    }

    /// The best child of a row that is not taken: [`Child`], as words.
    #[inline(always)]
    fn children(self) -> Shared<[u32; 4]> {
        self.at(0)
    }

    /// Log-probability of a row's prefix.
    #[inline(always)]
    fn log_probs(self) -> Shared<f64> {
        self.at(16)
    }

    /// 1 + trust x the sum of the first rows' probabilities.
    #[inline(always)]
    fn tokens(self) -> Shared<f64> {
        self.at(24)
    }

    /// The sum of the first rows' probabilities.
    #[inline(always)]
    fn promised(self) -> Shared<f64> {
        self.at(32)
    }

    #[inline(always)]
    fn parents(self) -> Shared<u32> {
        self.at(40)
    }
}

/// Bytes of [`Scratch`] a row.
#[cfg(not(target_arch = "nvptx64"))]
const BYTES_A_ROW: u32 = 44;

/// A node within reach, as integers that order like (log-probability descending, depth, rank, parent ascending).
#[derive(Clone, Copy)]
struct Child {
    /// Greater for a greater number, as `f64::total_cmp` has it; 0: no node.
    score: u64,
    /// Depth, rank, parent: 8, 12, 12 bits.
    tie: u32,
}

impl Child {
    const NONE: Self = Self { score: 0, tie: u32::MAX };

    #[inline(always)]
    fn precedes(self, other: Self) -> bool {
        self.score > other.score || (self.score == other.score && self.tie < other.tie)
    }
}

/// An integer that orders like the number; never 0 for a number.
#[inline(always)]
fn order_of(x: f64) -> u64 {
    let bits = x.to_bits();
    if bits >> 63 == 0 { bits | 1 << 63 } else { !bits }
}

/// The number of an [`order_of`].
#[inline(always)]
fn number_of(order: u64) -> f64 {
    f64::from_bits(if order >> 63 == 1 { order & !(1 << 63) } else { !order })
}

/// The greatest `key` of the warp, and of those that have it the least `tie`.
#[inline(always)]
unsafe fn first_of_warp(key: u64, tie: u32) -> (u64, u32) {
    // SAFETY: the caller's contract: whole warps come here.
    unsafe {
        let own = (key >> 32) as u32;
        let high = warp::warp_reduce_max(warp::FULL_MASK, own);
        let low = warp::warp_reduce_max(warp::FULL_MASK, if own == high { key as u32 } else { 0 });
        let greatest = u64::from(high) << 32 | u64::from(low);
        (greatest, warp::warp_reduce_min(warp::FULL_MASK, if key == greatest { tie } else { u32::MAX }))
    }
}

/// Ranked candidates of each depth.
#[derive(Clone, Copy)]
struct Candidates {
    ids: Global<u32>,
    log_probs: Global<f32>,
    depths: u32,
    k: u32,
    ranks: u32,
}

impl Candidates {
    /// The candidate `rank` at `depth` below `parent`, whose prefix has `log_prob`.
    #[inline(always)]
    unsafe fn child(self, log_prob: f64, depth: u32, rank: u32, parent: u32) -> Child {
        if depth > self.depths || rank >= self.ranks {
            return Child::NONE;
        }
        // SAFETY: inside the candidates.
        let own = unsafe { self.log_probs.add(((depth - 1) * self.k + rank) as usize).read_cached() };
        // Neither NaN nor a token without probability.
        if own > f32::NEG_INFINITY {
            Child { score: order_of(log_prob + f64::from(own)), tie: depth << 24 | rank << 12 | parent }
        } else {
            Child::NONE
        }
    }
}

/// The round's tree; none if the sequence is done.
///
/// Depths are independent, so a prefix is as probable as the product of its tokens. Nodes are taken in the order of
/// log-probability (the direct sum, in f64) descending, then depth, rank and parent ascending; taking one brings its next
/// sibling and its first child within reach. The tree is the first N: N = `limit`, or as many as there are; with `auto` not 0
/// the N <= limit that maximises (1 + trust x sum of the first N probabilities) / costs[N], the least of equals, and
/// state.promised = that sum. Row 0 is the root, the n-th node row n; positions, slots and masks as in
/// [`given_rows`](super::given_rows).
///
/// * Shapes: `state` as [`SequenceState`]; `ids`, `log_probs` [depths, k] u32 and f32, descending, as
///   [`top_k_merge`](crate::top_k::top_k_merge) leaves them, of which the first `ranks` are used: with one rank the tree is a
///   chain (DFlash), with `limit` ranks or the whole vocabulary the best tree of all (DDTree); `rows` as
///   [`RowLayout`](super::RowLayout) has it, of more than `limit` rows. With `auto`: `costs` [limit + 1] f32, `trust` \[1\]
///   f32; else neither is read.
/// * Work: one block of 128 threads. Warp 0 takes the nodes: each row has one child within reach, a lane keeps the best of
///   rows lane, lane + 32, ..., and three reductions find the best of all. The block lays out.
/// * Shared memory: 44 B a row.
/// * Registers: up to 64.
/// * Bytes: 8 a candidate that is looked at, and the row set; FLOPs: an f64 addition a candidate, and with `auto` 22 a node.
/// * Alignment: 4 B. `limit` up to 256, depths up to 255, ranks up to 4096.
/// * Tolerance: exact for the given candidates; with `auto`, N may differ from that of exact probabilities where two rates
///   agree to 2^-50.
///
/// # Safety
/// The buffers have those shapes; len + capacity fits 32 bits.
#[kernel(threads = 128)]
pub unsafe fn tree_rows(
    state: GlobalMut<SequenceState>,
    ids: Global<u32>,
    log_probs: Global<f32>,
    costs: Global<f32>,
    trust: Global<f32>,
    rows: GlobalMut<u32>,
    capacity: u32,
    depths: u32,
    k: u32,
    ranks: u32,
    limit: u32,
    auto: u32,
) {
    // SAFETY: inside the buffers by the contract; what warp 0 branches on is the same in its lanes, and barriers are reached
    // by all.
    unsafe {
        grid::dependency_wait();
        let (state, set) = (State(state), RowSet::new(rows, capacity));
        let scratch = Scratch { rows: limit + 1 };
        let start = state.len().read();
        let going = state.done().read() == 0;
        if thread::thread_idx_x() < 32 {
            let mut count = 0;
            if going {
                let candidates = Candidates { ids, log_probs, depths, k, ranks };
                let root = state.root().read();
                let nodes = take(candidates, set, scratch, root, limit);
                let (kept, promised) = if auto == 0 { (nodes, 0.0) } else { budget(scratch, costs, trust, nodes) };
                if warp::lane_id() == 0 {
                    state.promised().write(promised);
                }
                count = kept + 1;
            }
            if warp::lane_id() == 0 {
                // Nothing reads the children any more.
                scratch.children().cast::<u32>().write(count);
            }
        }
        thread::sync_threads();
        let count = scratch.children().cast::<u32>().read();
        lay_out(set, scratch.parents(), count, start);
        grid::dependency_launch();
    }
}

/// Takes up to `limit` nodes; how many there were. Writes ids and parents of the set, and the scratch.
#[inline(always)]
unsafe fn take(candidates: Candidates, set: RowSet, scratch: Scratch, root: u32, limit: u32) -> u32 {
    // SAFETY: the caller's contract. A lane reads and writes children and log-probabilities of its own rows only.
    unsafe {
        let lane = warp::lane_id();
        let mut best = Child::NONE;
        let write = |row: u32, token: u32, parent: u32| {
            set.id(row).write(token);
            set.parent(row).write(parent);
            scratch.parents().add(row).write(parent);
        };
        let put = |row: u32, Child { score, tie }: Child| {
            scratch.children().add(row).write([score as u32, (score >> 32) as u32, tie, 0]);
        };
        if lane == 0 {
            write(0, root, u32::MAX);
            best = candidates.child(0.0, 1, 0, 0);
            scratch.log_probs().write(0.0);
            put(0, best);
        }
        let mut row = 1;
        while row <= limit {
            let (score, tie) = first_of_warp(best.score, best.tie);
            if score == 0 {
                break;
            }
            let (depth, rank, parent) = (tie >> 24, tie >> 12 & 0xfff, tie & 0xfff);
            if lane == 0 {
                let token = candidates.ids.add(((depth - 1) * candidates.k + rank) as usize).read_cached();
                write(row, token, parent);
            }
            let (above, own) = (parent % 32 == lane, row % 32 == lane);
            if above {
                let log_prob = scratch.log_probs().add(parent).read();
                put(parent, candidates.child(log_prob, depth, rank + 1, parent));
            }
            if own {
                let log_prob = number_of(score);
                scratch.log_probs().add(row).write(log_prob);
                put(row, candidates.child(log_prob, depth + 1, 0, row));
            }
            if above || own {
                best = Child::NONE;
                let mut other = lane;
                while other <= row {
                    let [low, high, tie, _] = scratch.children().add(other).read();
                    let child = Child { score: u64::from(high) << 32 | u64::from(low), tie };
                    if child.precedes(best) {
                        best = child;
                    }
                    other += 32;
                }
            }
            row += 1;
        }
        warp::sync_warp(warp::FULL_MASK);
        row - 1
    }
}

/// How many of the nodes promise the most tokens a unit of cost, and what their probabilities add up to.
#[inline(always)]
unsafe fn budget(scratch: Scratch, costs: Global<f32>, trust: Global<f32>, nodes: u32) -> (u32, f32) {
    // SAFETY: the caller's contract; loops have the same bounds in all lanes.
    unsafe {
        let lane = warp::lane_id();
        let mut row = 1 + lane;
        while row <= nodes {
            scratch.promised().add(row).write(exp(scratch.log_probs().add(row).read()));
            row += 32;
        }
        warp::sync_warp(warp::FULL_MASK);
        if lane == 0 {
            // In the order of nodes: the sums are those of a loop over them.
            let trust = f64::from(trust.read());
            let (mut tokens, mut promised) = (1.0, 0.0);
            scratch.tokens().write(tokens);
            scratch.promised().write(promised);
            for row in 1..nodes + 1 {
                let probability = scratch.promised().add(row).read();
                tokens += probability * trust;
                promised += probability;
                scratch.tokens().add(row).write(tokens);
                scratch.promised().add(row).write(promised);
            }
        }
        warp::sync_warp(warp::FULL_MASK);
        let (mut rate, mut kept) = (0.0, 0);
        let mut row = lane;
        while row <= nodes {
            let own = scratch.tokens().add(row).read() / f64::from(costs.add(row as usize).read());
            if own > rate {
                (rate, kept) = (own, row);
            }
            row += 32;
        }
        let key = if rate > 0.0 { order_of(rate) } else { 0 };
        let (greatest, kept) = first_of_warp(key, kept);
        let kept = if greatest == 0 { 0 } else { kept };
        (kept, scratch.promised().add(kept).read() as f32)
    }
}

/// Launch of [`tree_rows`].
#[cfg(not(target_arch = "nvptx64"))]
pub fn tree_shape(limit: u32) -> LaunchShape {
    LaunchShape::new(1, THREADS).shared(BYTES_A_ROW * (limit + 1))
}

/// The nodes of [`tree_rows`] by its rule: (token, parent, log-probability) in order, at most `limit`. `candidates` holds
/// (id, log-probability) of each depth.
#[cfg(not(target_arch = "nvptx64"))]
pub fn best_first_reference(candidates: &[&[(u32, f32)]], limit: usize) -> std::vec::Vec<(u32, u32, f64)> {
    // Depth, rank, parent, log-probability; all that are within reach.
    let mut open = std::vec![];
    let mut taken: std::vec::Vec<(u32, u32, f64)> = std::vec![];
    let child = |depth: usize, rank: usize, parent: usize, above: f64| {
        let (_, own) = candidates.get(depth - 1)?.get(rank).filter(|(_, own)| *own > f32::NEG_INFINITY)?;
        Some((depth, rank, parent, above + f64::from(*own)))
    };
    open.extend(child(1, 0, 0, 0.0));
    while taken.len() < limit {
        let order = |a: &&(usize, usize, usize, f64), b: &&(usize, usize, usize, f64)| {
            b.3.total_cmp(&a.3).then_with(|| (a.0, a.1, a.2).cmp(&(b.0, b.1, b.2)))
        };
        let Some(next) = open.iter().min_by(order).copied() else { break };
        open.retain(|other| *other != next);
        let (depth, rank, parent, log_prob) = next;
        taken.push((candidates[depth - 1][rank].0, parent as u32, log_prob));
        let above = if parent == 0 { 0.0 } else { taken[parent - 1].2 };
        open.extend(child(depth, rank + 1, parent, above));
        open.extend(child(depth + 1, 0, taken.len(), log_prob));
    }
    taken
}

#[cfg(test)]
#[path = "best_first_tests.rs"]
mod tests;
