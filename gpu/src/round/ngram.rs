//! Prompt lookup: a tree from what followed earlier occurrences of the latest tokens. No model.
use super::rows::{THREADS as ROW_THREADS, lay_out};
use super::state::{RowSet, SequenceState, State};
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{grid, prelude::*, shared, unroll};

/// Threads of the block.
const THREADS: u32 = 512;
/// The longest continuation that is proposed, in tokens.
pub const DEPTH: u32 = 16;
/// Earlier occurrences that are merged at most.
const OCCURRENCES: u32 = 64;
/// The longest match that is looked for with a fixed budget, and with a chosen one.
const LONGEST: [u32; 2] = [3, 8];
/// Share of the past that a trial forgets.
const FORGET: f32 = 0.02;

/// What prompt lookup remembers of a sequence, in words: how often matches were right, and the match of the last round.
///
/// Cells [8 lengths, 2 places] of (right, trials) f32: of matches of a length (8: and longer), whether the first token was
/// right, and a later one given those before it.
pub struct NgramMemory;

impl NgramMemory {
    /// Number of the round that is to be learned from + 1; 0: none.
    const ROUND: u32 = 32;
    /// Length of its match.
    const LENGTH: u32 = 33;
    /// Tokens that followed the match.
    const COUNT: u32 = 34;
    /// Where in the history the first of them is predicted.
    const AT: u32 = 35;
    /// The tokens.
    const TOKENS: u32 = 36;
    /// All words.
    pub const WORDS: usize = (Self::TOKENS + DEPTH) as usize;

    /// What is believed before anything was seen: a longer match is righter, and what was right once goes on being so.
    pub fn initial() -> [u32; Self::WORDS] {
        let mut words = [0; Self::WORDS];
        for length in 0..8 {
            let first = 0.25 + 0.5 * length as f32 / 8.0;
            for (place, share) in [first, 0.5 + first / 2.0].into_iter().enumerate() {
                let cell = 4 * length + 2 * place;
                (words[cell], words[cell + 1]) = ((share * 4.0).to_bits(), 4f32.to_bits());
            }
        }
        words
    }
}

/// Shared memory, words: what is told to the block, then ids and parents of the tree's rows.
const TOLD: u32 = 0;
const MAXIMA: u32 = 4;
const TREE: u32 = MAXIMA + THREADS / 32;

/// The tree of prompt lookup below the root; none if the sequence is done.
///
/// An occurrence is a place in the history after which the text goes on, and before which the last tokens stand: at least 1
/// of them, up to 3 (with `auto` 8) are compared. Fixed budget: of up to 64 occurrences, longer matches first, then more
/// recent ones, the up to 16 tokens that follow are merged into one tree from the root down, until a node more than `limit`
/// would be needed. With `auto` not 0: the first occurrence's tokens as a chain, cut to the N <= `limit` that maximises (1 +
/// sum of the first N probabilities) / costs[N], the least of equals; the probability of N tokens is the product of the
/// memory's shares for a match of that length, after it has learned from the round before.
///
/// * Shapes: `state` as [`SequenceState`]; `history` [len + 1] u32: context and root; `memory` as [`NgramMemory`], read and
///   written with `auto` only, as `costs` [limit + 1] f32 is read; `rows` as [`RowLayout`](super::RowLayout) has it, of more
///   than `limit` rows.
/// * Work: one block of 512 threads. For each occurrence that is taken, one scan of the history and a block reduction; then
///   warp 0 adds its tokens, a search over the rows each. The block lays out.
/// * Shared memory: 80 B, and 8 B a row.
/// * Registers: up to 64.
/// * Bytes: 4 a token of the history and occurrence, from L2; FLOPs: 3 a node with `auto`.
/// * Alignment: 4 B. Histories below 2^28 tokens.
/// * Tolerance: exact.
///
/// # Safety
/// The buffers have those shapes; len + capacity fits 32 bits.
#[kernel(threads = 512)]
pub unsafe fn ngram_rows(
    state: GlobalMut<SequenceState>,
    history: Global<u32>,
    memory: GlobalMut<u32>,
    costs: Global<f32>,
    rows: GlobalMut<u32>,
    capacity: u32,
    limit: u32,
    auto: u32,
) {
    // SAFETY: inside the buffers by the contract; what is branched on before a barrier is the same in the whole block.
    unsafe {
        grid::dependency_wait();
        let (state, set) = (State(state), RowSet::new(rows, capacity));
        let thread = thread::thread_idx_x();
        let shared = shared::dynamic_shared_mem::<u32>();
        let start = state.len().read();
        let mut count = 0;
        if state.done().read() == 0 {
            let tree = Tree { ids: shared.add(TREE), parents: shared.add(TREE + limit + 1) };
            let longest = if auto == 0 { LONGEST[0] } else { LONGEST[1] };
            count = 1;
            if thread == 0 {
                tree.ids.write(history.add(start as usize).read());
                tree.parents.write(u32::MAX);
                if auto != 0 {
                    learn(memory, history, start, state.round().read());
                }
            }
            let mut last = u32::MAX;
            for _ in 0..if auto == 0 { OCCURRENCES } else { 1 } {
                last = next_occurrence(history, start + 1, longest, last, shared.add(MAXIMA));
                if last == 0 {
                    break;
                }
                let from = last & 0x0fff_ffff;
                let tokens = DEPTH.min(start + 1 - from);
                if thread < 32 {
                    let follows = history.add(from as usize);
                    let (count, full) = if auto == 0 {
                        tree.merge(follows, tokens, count, limit)
                    } else {
                        let length = last >> 28;
                        let kept =
                            remember(memory, costs, (length, follows, tokens, start, state.round().read()), limit);
                        tree.merge(follows, kept, count, limit)
                    };
                    if thread == 0 {
                        shared.add(TOLD).write(count);
                        shared.add(TOLD + 1).write(full.into());
                    }
                }
                thread::sync_threads();
                count = shared.add(TOLD).read();
                let full = shared.add(TOLD + 1).read();
                thread::sync_threads();
                if full != 0 {
                    break;
                }
            }
            let mut row = thread;
            while row < count {
                set.id(row).write(tree.ids.add(row).read());
                set.parent(row).write(tree.parents.add(row).read());
                row += THREADS;
            }
            if thread == 0 {
                state.promised().write(0.0);
            }
        }
        if thread < ROW_THREADS {
            lay_out(set, shared.add(TREE + limit + 1), count, start);
        }
        grid::dependency_launch();
    }
}

/// The greatest (matching tokens x 2^28 + place) below `last` of all places in the history of `len` tokens, in every thread;
/// 0 if no token matches.
#[inline(always)]
unsafe fn next_occurrence(history: Global<u32>, len: u32, longest: u32, last: u32, maxima: Shared<u32>) -> u32 {
    // SAFETY: the caller's contract: all threads come here; places are inside the history.
    unsafe {
        let thread = thread::thread_idx_x();
        let mut tail = [0u32; 8];
        unroll!(I in [0 1 2 3 4 5 6 7] {
            if (I as u32) < longest.min(len) {
                tail[I] = history.add((len - 1) as usize - I).read();
            }
        });
        let mut best = 0;
        let mut place = 1 + thread;
        while place < len {
            let (mut matching, mut going) = (0, true);
            unroll!(I in [0 1 2 3 4 5 6 7] {
                going = going && (I as u32) < longest.min(place);
                if going {
                    going = history.add((place - 1) as usize - I).read() == tail[I];
                    matching += u32::from(going);
                }
            });
            let key = matching << 28 | place;
            if matching > 0 && key < last {
                best = best.max(key);
            }
            place += THREADS;
        }
        let best = warp::warp_reduce_max(warp::FULL_MASK, best);
        if thread.is_multiple_of(32) {
            maxima.add(thread / 32).write(best);
        }
        thread::sync_threads();
        let mut best = 0;
        for w in 0..THREADS / 32 {
            best = best.max(maxima.add(w).read());
        }
        best
    }
}

/// A tree in shared memory.
#[derive(Clone, Copy)]
struct Tree {
    ids: Shared<u32>,
    parents: Shared<u32>,
}

impl Tree {
    /// Adds tokens from the root of `count` rows down, where they are not there already; the rows then, and whether one more
    /// than `limit` nodes was needed. Warp 0 does this.
    #[inline(always)]
    unsafe fn merge(self, follows: Global<u32>, tokens: u32, mut count: u32, limit: u32) -> (u32, bool) {
        // SAFETY: the caller's contract; loops have the same bounds in all lanes.
        unsafe {
            let lane = warp::lane_id();
            let mut node = 0;
            for i in 0..tokens {
                let token = follows.add(i as usize).read();
                warp::sync_warp(warp::FULL_MASK);
                let mut child = u32::MAX;
                let mut row = node + 1 + lane;
                while row < count && child == u32::MAX {
                    if self.parents.add(row).read() == node && self.ids.add(row).read() == token {
                        child = row;
                    }
                    row += 32;
                }
                let found = warp::warp_reduce_min(warp::FULL_MASK, child);
                if found != u32::MAX {
                    node = found;
                    continue;
                }
                if count > limit {
                    return (count, true);
                }
                if lane == 0 {
                    self.ids.add(count).write(token);
                    self.parents.add(count).write(node);
                }
                node = count;
                count += 1;
            }
            (count, false)
        }
    }
}

/// A cell of the memory.
#[inline(always)]
fn cell(memory: GlobalMut<u32>, length: u32, place: u32) -> GlobalMut<[f32; 2]> {
    memory.add((4 * (length.min(8) - 1) + 2 * place.min(1)) as usize).cast()
}

/// Learns from the round before, if there was a match, by the tokens it committed. One thread does this.
#[inline(always)]
unsafe fn learn(memory: GlobalMut<u32>, history: Global<u32>, len: u32, round: u32) {
    let word = |index: u32| memory.add(index as usize);
    // SAFETY: the caller's contract.
    unsafe {
        let (before, at) = (word(NgramMemory::ROUND).read(), word(NgramMemory::AT).read());
        if before == round && before != 0 {
            let committed = (len + 1).saturating_sub(at);
            let length = word(NgramMemory::LENGTH).read();
            for place in 0..word(NgramMemory::COUNT).read().min(committed) {
                let promised = word(NgramMemory::TOKENS + place).read();
                let hit = promised == history.add((at + place) as usize).read();
                let cell = cell(memory, length, place);
                let [mut right, mut trials] = cell.read();
                trials += 1.0 - FORGET * trials;
                right += (if hit { 1.0 } else { 0.0 }) - FORGET * right;
                cell.write([right, trials]);
                if !hit {
                    break;
                }
            }
        }
        word(NgramMemory::ROUND).write(0);
    }
}

/// Keeps a match to learn from, and says how many of its tokens pay. Warp 0 does this.
#[inline(always)]
unsafe fn remember(
    memory: GlobalMut<u32>,
    costs: Global<f32>,
    (length, follows, tokens, len, round): (u32, Global<u32>, u32, u32, u32),
    limit: u32,
) -> u32 {
    let word = |index: u32| memory.add(index as usize);
    // SAFETY: the caller's contract; loops have the same bounds in all lanes.
    unsafe {
        let lane = warp::lane_id();
        if lane < tokens {
            word(NgramMemory::TOKENS + lane).write(follows.add(lane as usize).read());
        }
        let mut kept = 0;
        if lane == 0 {
            word(NgramMemory::ROUND).write(round + 1);
            word(NgramMemory::LENGTH).write(length);
            word(NgramMemory::COUNT).write(tokens);
            word(NgramMemory::AT).write(len + 1);
            let (mut rate, mut sum, mut all) = (0.0, 1.0, 1.0);
            for nodes in 0..tokens.min(limit) + 1 {
                let own = sum / f64::from(costs.add(nodes as usize).read());
                if own > rate {
                    (kept, rate) = (nodes, own);
                }
                let [right, trials] = cell(memory, length, nodes).read();
                all *= f64::from(right / trials);
                sum += all;
            }
        }
        warp::warp_shuffle_idx(warp::FULL_MASK, kept, 0, 32)
    }
}

/// Launch of [`ngram_rows`].
#[cfg(not(target_arch = "nvptx64"))]
pub fn ngram_shape(limit: u32) -> LaunchShape {
    LaunchShape::new(1, THREADS).shared(4 * (TREE + 2 * (limit + 1)))
}

/// The nodes of [`ngram_rows`] with a fixed budget by its rule: tokens and parents, the root first.
#[cfg(not(target_arch = "nvptx64"))]
pub fn ngram_reference(history: &[u32], limit: usize) -> (std::vec::Vec<u32>, std::vec::Vec<u32>) {
    let (mut ids, mut parents) = (std::vec![history[history.len() - 1]], std::vec![u32::MAX]);
    for (_, place) in occurrences(history, LONGEST[0] as usize).into_iter().take(OCCURRENCES as usize) {
        let mut node = 0;
        for token in history[place..].iter().take(DEPTH as usize) {
            node = match (1..ids.len()).find(|row| parents[*row] == node as u32 && ids[*row] == *token) {
                Some(row) => row,
                None if ids.len() > limit => return (ids, parents),
                None => {
                    ids.push(*token);
                    parents.push(node as u32);
                    ids.len() - 1
                }
            };
        }
    }
    (ids, parents)
}

/// (Matching tokens, place) of every occurrence, longer matches first, then more recent ones.
#[cfg(not(target_arch = "nvptx64"))]
fn occurrences(history: &[u32], longest: usize) -> std::vec::Vec<(usize, usize)> {
    let tail = || history.iter().rev();
    let matching =
        |place: usize| history[..place].iter().rev().zip(tail()).take(longest).take_while(|(a, b)| a == b).count();
    let mut found: std::vec::Vec<_> = (1..history.len()).map(|place| (matching(place), place)).collect();
    found.retain(|(matching, _)| *matching > 0);
    found.sort_unstable_by(|a, b| b.cmp(a));
    found
}

#[cfg(test)]
#[path = "ngram_tests.rs"]
mod tests;
