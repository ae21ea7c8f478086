//! The end of a round: the walk through the tree, what becomes context, whether the sequence goes on, and the report.
use super::rows::THREADS;
use super::state::{RECORD_WORDS, RoundRecord, RowLayout, RowSet, SequenceState, State, VerdictLayout};
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{atomic, grid, prelude::*, shared};

/// Which rows a round accepts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Accept {
    /// The path that the choices lead along.
    Path = 0,
    /// Every row: a chunk of the prompt after which no token was chosen.
    Chunk = 1,
    /// Every row: the last chunk of the prompt. `choices[0]` is the token after its last row.
    LastChunk = 2,
}

/// Shared memory before the path: what warp 0 tells the block.
const PATH: u32 = 4;

/// A round as decided, the same in all lanes of warp 0.
#[derive(Clone, Copy)]
struct Outcome {
    /// Accepted rows before anything is given up.
    length: u32,
    /// The token after them; `u32::MAX` for none, or for one that could not be chosen.
    next: u32,
    /// Not 0: `next` had to be chosen and could not.
    fault: bool,
}

/// Ends a round: walks the tree, appends the tokens, makes the accepted rows context, and reports.
///
/// Path: path[0] = 0; path[i + 1] = min { u : parents[u] = path[i], ids[u] = choices[path[i]] } while there is one; next =
/// choices[last of the path]. Chunk: the path is every row; next = choices\[0\] after the last chunk, else none.
/// tokens = ids[path[1..]] (none of a chunk), then next if there is one. They are cut after the first stop id, to the
/// tokens left, and, of a path, to the room in the context; the path is cut to as many rows as there are tokens (a chunk
/// is not cut). Then len += rows of the path, left -= tokens, root = last token, promised = 0; the sequence is done after a
/// stop id, or if a token was chosen and none is left or the context is full. Where a choice on the path is `u32::MAX`
/// (NaN logits) nothing is committed and the sequence is done with a fault. A set of no rows is an idle round.
///
/// * Shapes: `state` as [`SequenceState`]; `rows` as [`RowLayout`] has it, of `capacity` rows; `choices` [capacity] u32;
///   `accepted` likewise, of `accepted_capacity` rows: the path's rows as a chain from the old len on, its masks left alone;
///   `verdict` as [`VerdictLayout`] has it; `history` [context + 1] u32: committed tokens by position, the root last.
/// * More shapes: `ring` [slots, `slot_words`] u32: round r is written to slot r % slots, a [`RoundRecord`] then its tokens,
///   `number` last and released to the host; the host reads it before `slots` more rounds end. `accept` is an [`Accept`].
/// * Work: one block of 128 threads. Warp 0 walks: each lane looks at rows lane, lane + 32, ..., once a step of the path; the
///   block copies.
/// * Shared memory: 4 B x (4 + capacity): kept rows and old len, then the path.
/// * Registers: under 48.
/// * Bytes: 8 x count a step of the path from L1, 16 an accepted row; FLOPs: none.
/// * Alignment: 4 B.
/// * Tolerance: exact.
///
/// # Safety
/// The buffers have those shapes; parents precede their children; `accepted` holds the path and is not `rows`.
#[kernel(threads = 128)]
pub unsafe fn commit_round(
    state: GlobalMut<SequenceState>,
    rows: GlobalMut<u32>,
    choices: Global<u32>,
    accepted: GlobalMut<u32>,
    verdict: GlobalMut<u32>,
    history: GlobalMut<u32>,
    ring: GlobalMut<u32>,
    capacity: u32,
    accepted_capacity: u32,
    slots: u32,
    slot_words: u32,
    accept: u32,
) {
    // SAFETY: inside the buffers by the contract; what warp 0 branches on is the same in its lanes, and barriers are reached
    // by all.
    unsafe {
        grid::dependency_wait();
        let (state, set) = (State(state), RowSet::new(rows, capacity));
        let told = shared::dynamic_shared_mem::<u32>();
        let path = told.add(PATH);
        if thread::thread_idx_x() < 32 {
            let round = state.round().read();
            let record = ring.add((round % slots) as usize * slot_words as usize);
            let start = state.len().read();
            let kept = match set.count().read() {
                0 => report_idle(state, record),
                count => finish(state, set, choices, path, record, count, accept),
            };
            if thread::thread_idx_x() == 0 {
                state.round().write(round + 1);
                told.write(kept);
                told.add(1).write(start);
                // Who sees the number sees all that was written before it.
                atomic::store_release_system(record, round + 1);
            }
        }
        thread::sync_threads();
        let (kept, start) = (told.read(), told.add(1).read());
        let chosen = RowSet::new(accepted, accepted_capacity);
        let layout = chosen.layout;
        let mut i = thread::thread_idx_x();
        if i == 0 {
            chosen.count().write(kept);
            chosen.word(RowLayout::START).write(start);
            verdict.add(VerdictLayout::LENGTH as usize).write(kept);
            verdict.add(VerdictLayout::START as usize).write(start);
            verdict.add(VerdictLayout::ZERO as usize).write(0);
        }
        while i < accepted_capacity {
            let mut id = 0;
            if i < kept {
                let row = path.add(i).read();
                id = set.id(row).read();
                verdict.add((VerdictLayout::PATH + i) as usize).write(row);
                history.add((start + i) as usize).write(id);
            }
            chosen.id(i).write(id);
            chosen.word(layout.positions() + i).write(start + i);
            chosen.parent(i).write(if i < kept { i.wrapping_sub(1) } else { u32::MAX });
            chosen.word(layout.slots() + i).write(start + i);
            i += THREADS;
        }
        let root = state.root().read();
        if thread::thread_idx_x() == 0 && kept > 0 && root != u32::MAX {
            history.add((start + kept) as usize).write(root);
        }
        grid::dependency_launch();
    }
}

/// The record of a round of no rows, but for its number.
#[inline(always)]
unsafe fn report_idle(state: State, record: GlobalMut<u32>) -> u32 {
    // SAFETY: the caller's contract.
    unsafe {
        let done = state.done().read() != 0;
        let flags = if done { RoundRecord::IDLE | RoundRecord::DONE } else { 0 };
        write_record(record, [0, 0, 0, 0f32.to_bits(), flags, state.len().read(), 0]);
        0
    }
}

/// Words 1 to 7 of a record. Lane 0 does this.
#[inline(always)]
unsafe fn write_record(record: GlobalMut<u32>, [tokens, prompt, nodes, promised, flags, len, row]: [u32; 7]) {
    if warp::lane_id() == 0 {
        // SAFETY: the caller's contract.
        unsafe {
            record.add(1).write(tokens);
            record.add(2).write(prompt);
            record.add(3).write(nodes);
            record.add(4).write(promised);
            record.add(5).write(flags);
            record.add(6).write(len);
            record.add(7).write(row);
        }
    }
}

/// Accepts every row, or walks. The path lies in shared memory, visible to the warp.
#[inline(always)]
unsafe fn decide(set: RowSet, choices: Global<u32>, path: Shared<u32>, count: u32, accept: u32) -> Outcome {
    let lane = warp::lane_id();
    // SAFETY: the caller's contract; loops have the same bounds in all lanes.
    unsafe {
        if accept != Accept::Path as u32 {
            let mut row = lane;
            while row < count {
                path.add(row).write(row);
                row += 32;
            }
            warp::sync_warp(warp::FULL_MASK);
            let chosen = accept == Accept::LastChunk as u32;
            let next = if chosen { choices.read() } else { u32::MAX };
            return Outcome { length: count, next, fault: chosen && next == u32::MAX };
        }
        let (mut node, mut length) = (0, 0);
        loop {
            if lane == 0 {
                path.add(length).write(node);
            }
            length += 1;
            let choice = choices.add(node as usize).read();
            let mut child = u32::MAX;
            // Children come after their parent.
            let mut row = node + 1 + lane;
            while row < count && child == u32::MAX {
                if set.parent(row).read() == node && set.id(row).read() == choice {
                    child = row;
                }
                row += 32;
            }
            let next = warp::warp_reduce_min(warp::FULL_MASK, child);
            if next == u32::MAX {
                warp::sync_warp(warp::FULL_MASK);
                return Outcome { length, next: choice, fault: choice == u32::MAX };
            }
            node = next;
        }
    }
}

/// What warp 0 does for a round of rows: decides, cuts, updates the state, writes the record but for its number. Returns how
/// many rows of the path become context.
#[inline(always)]
unsafe fn finish(
    state: State,
    set: RowSet,
    choices: Global<u32>,
    path: Shared<u32>,
    record: GlobalMut<u32>,
    count: u32,
    accept: u32,
) -> u32 {
    let lane = warp::lane_id();
    // SAFETY: the caller's contract; loops have the same bounds in all lanes.
    unsafe {
        let (len, left, context) = (state.len().read(), state.left().read(), state.context().read());
        let (promised, stops) = (state.promised().read().to_bits(), state.stops().read());
        let Outcome { length, next, fault } = decide(set, choices, path, count, accept);
        if fault {
            // Every lane has read the state before lane 0 changes it.
            warp::sync_warp(warp::FULL_MASK);
            let row = if accept == Accept::Path as u32 { path.add(length - 1).read() } else { count - 1 };
            write_record(record, [0, 0, 0, promised, RoundRecord::DONE | RoundRecord::FAULT, len, row]);
            if lane == 0 {
                state.done().write(1);
            }
            return 0;
        }
        let prompt = accept != Accept::Path as u32;
        let chosen = accept != Accept::Chunk as u32;
        let most = match prompt {
            true => chosen.into(),
            false => length,
        };
        let token = |i: u32| {
            if prompt || i + 1 == length { next } else { set.id(path.add(i + 1).read()).read() }
        };
        let mut stop = u32::MAX;
        let mut i = lane;
        while i < most && stop == u32::MAX {
            let token = token(i);
            for k in 0..stops {
                if state.stop_ids().add(k as usize).read() == token {
                    stop = i;
                }
            }
            i += 32;
        }
        let stop = warp::warp_reduce_min(warp::FULL_MASK, stop);
        // Plain decode never gets past the context's end: what drafting found there is given up.
        let room = if prompt { u32::MAX } else { context - len };
        let tokens = most.min(room).min(left).min(stop.saturating_add(1));
        let kept = if prompt { length } else { tokens };
        let full = left == tokens || len + kept >= context;
        let done = stop < tokens || chosen && full;
        let mut i = lane;
        while i < tokens {
            record.add(RECORD_WORDS + i as usize).write(token(i));
            i += 32;
        }
        let (prompt_tokens, nodes) = if prompt { (kept, 0) } else { (0, count - 1) };
        let flags = if done { RoundRecord::DONE } else { 0 };
        write_record(record, [tokens, prompt_tokens, nodes, promised, flags, len + kept, 0]);
        let root = if chosen && tokens > 0 { token(tokens - 1) } else { u32::MAX };
        warp::sync_warp(warp::FULL_MASK);
        if lane == 0 {
            state.len().write(len + kept);
            state.left().write(left - tokens);
            state.root().write(root);
            state.done().write(done.into());
            state.promised().write(0.0);
        }
        kept
    }
}

/// Launch of [`commit_round`].
#[cfg(not(target_arch = "nvptx64"))]
pub fn commit_shape(capacity: u32) -> LaunchShape {
    LaunchShape::new(1, THREADS).shared(4 * (PATH + capacity))
}

/// What [`commit_round_reference`] finds.
#[cfg(not(target_arch = "nvptx64"))]
#[derive(Clone, Debug, PartialEq)]
pub struct Ended {
    /// The state afterwards.
    pub state: SequenceState,
    /// Rows that became context.
    pub path: std::vec::Vec<u32>,
    /// The record.
    pub record: RoundRecord,
    /// Its tokens.
    pub tokens: std::vec::Vec<u32>,
}

/// [`commit_round`] by its rule, on a row set's ids and parents.
#[cfg(not(target_arch = "nvptx64"))]
pub fn commit_round_reference(
    before: SequenceState,
    ids: &[u32],
    parents: &[u32],
    choices: &[u32],
    accept: Accept,
) -> Ended {
    let mut state = SequenceState { round: before.round + 1, ..before };
    let record = RoundRecord {
        number: state.round,
        tokens: 0,
        prompt_tokens: 0,
        nodes: 0,
        promised: 0.0,
        flags: 0,
        len: before.len,
        row: 0,
    };
    if ids.is_empty() {
        let flags = if before.done != 0 { RoundRecord::IDLE | RoundRecord::DONE } else { 0 };
        let record = RoundRecord { flags, ..record };
        return Ended { state, path: std::vec![], record, tokens: std::vec![] };
    }
    let (mut path, next) = match accept {
        Accept::Path => {
            let (path, bonus) = crate::commit::walk_reference(parents, ids, choices);
            (path, Some(bonus))
        }
        Accept::Chunk => ((0..ids.len() as u32).collect(), None),
        Accept::LastChunk => ((0..ids.len() as u32).collect(), Some(choices[0])),
    };
    let record = RoundRecord { promised: before.promised, ..record };
    if next == Some(u32::MAX) {
        state.done = 1;
        let (flags, row) = (RoundRecord::DONE | RoundRecord::FAULT, path[path.len() - 1]);
        return Ended { state, path: std::vec![], record: RoundRecord { flags, row, ..record }, tokens: std::vec![] };
    }
    let prompt = accept != Accept::Path;
    let drafted = if prompt { &[][..] } else { &path[1..] };
    let mut tokens: std::vec::Vec<u32> = drafted.iter().map(|row| ids[*row as usize]).chain(next).collect();
    let room = if prompt { usize::MAX } else { (before.context - before.len) as usize };
    let stops = &before.stop_ids[..before.stops as usize];
    let stop = tokens.iter().position(|token| stops.contains(token));
    tokens.truncate(room.min(before.left as usize).min(stop.map_or(usize::MAX, |at| at + 1)));
    if !prompt {
        path.truncate(tokens.len());
    }
    state.len += path.len() as u32;
    state.left -= tokens.len() as u32;
    state.root = next.and(tokens.last().copied()).unwrap_or(u32::MAX);
    let full = state.left == 0 || state.len >= state.context;
    state.done = (stop.is_some_and(|at| at < tokens.len()) || next.is_some() && full).into();
    state.promised = 0.0;
    let record = RoundRecord {
        tokens: tokens.len() as u32,
        prompt_tokens: if prompt { path.len() as u32 } else { 0 },
        nodes: if prompt { 0 } else { ids.len() as u32 - 1 },
        flags: state.done * RoundRecord::DONE,
        len: state.len,
        ..record
    };
    Ended { state, path, record, tokens }
}

#[cfg(test)]
#[path = "end_tests.rs"]
mod tests;
