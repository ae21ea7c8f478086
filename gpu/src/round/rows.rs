//! Row sets: a chunk of the prompt, the drafter's block, a tree that the host made, and the last row of activations.
use super::state::{RowLayout, RowSet, SequenceState, State};
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{grid, prelude::*, shared};

/// Threads of the block that writes a row set.
pub(super) const THREADS: u32 = 128;

/// Row `row` of a chain of `count` rows from position `start` on; a harmless row past its end.
#[inline(always)]
unsafe fn write_chain_row(set: RowSet, row: u32, count: u32, start: u32, id: u32) {
    let RowSet { layout, .. } = set;
    let exists = row < count;
    // SAFETY: the caller gives a row below the capacity.
    unsafe {
        set.id(row).write(id);
        set.word(layout.positions() + row).write(start + row);
        set.parent(row).write(if exists { row.wrapping_sub(1) } else { u32::MAX });
        set.word(layout.slots() + row).write(start + row);
        let words = layout.mask_words();
        for word in 0..words {
            // Rows 0 to row, or row alone.
            let through = |row: u32| match row / 32 {
                own if word < own => u32::MAX,
                own if word == own => u32::MAX >> (31 - row % 32),
                _ => 0,
            };
            let before = if row == 0 || exists { 0 } else { through(row - 1) };
            set.word(layout.mask() + row * words + word).write(through(row) & !before);
        }
    }
}

/// Count and start of a row set. One thread does this.
#[inline(always)]
unsafe fn write_header(set: RowSet, count: u32, start: u32) {
    // SAFETY: the header belongs to the set.
    unsafe {
        set.count().write(count);
        set.word(RowLayout::START).write(start);
    }
}

/// A chunk of the prompt as rows after the context; none if the sequence is done.
///
/// count = chunk, or 0 where done; row t < count: id = ids[t], position = slot = len + t, parent = t - 1, seeing rows 0 to t.
///
/// * Shapes: `state` as [`SequenceState`]; `ids` [>= chunk] u32; `chunk` \[1\] u32, at most `capacity`; `rows` as
///   [`RowLayout`] has it.
/// * Work: one block of 128 threads, a row a thread, then steps by 128.
/// * Shared memory: none.
/// * Registers: under 40.
/// * Bytes: 4 x (5 + capacity / 32) written a row of the capacity; FLOPs: none.
/// * Alignment: 4 B. Any capacity.
/// * Tolerance: exact.
///
/// # Safety
/// The buffers have those shapes; len + capacity fits 32 bits.
#[kernel(threads = 128)]
pub unsafe fn prompt_rows(
    state: GlobalMut<SequenceState>,
    ids: Global<u32>,
    chunk: Global<u32>,
    rows: GlobalMut<u32>,
    capacity: u32,
) {
    // SAFETY: one row a thread, inside the buffers by the contract.
    unsafe {
        grid::dependency_wait();
        let (state, set) = (State(state), RowSet::new(rows, capacity));
        let start = state.len().read();
        let count = if state.done().read() == 0 { chunk.read() } else { 0 };
        let mut row = thread::thread_idx_x();
        if row == 0 {
            write_header(set, count, start);
        }
        while row < capacity {
            let id = if row < count { ids.add(row as usize).read() } else { 0 };
            write_chain_row(set, row, count, start, id);
            row += THREADS;
        }
        grid::dependency_launch();
    }
}

/// The root, then mask tokens, at consecutive positions; none if the sequence is done. A block of one is the tree of plain
/// decode.
///
/// count = block, or 0 where done; row t < count: id = root where t = 0, else mask_token; the rest as in [`prompt_rows`].
///
/// * Shapes: `state` as [`SequenceState`]; `rows` as [`RowLayout`] has it; `block` at most `capacity`.
/// * Work, shared memory, registers, bytes: as [`prompt_rows`].
/// * Alignment: 4 B.
/// * Tolerance: exact.
///
/// # Safety
/// The buffers have those shapes; len + capacity fits 32 bits.
#[kernel(threads = 128)]
pub unsafe fn block_rows(
    state: GlobalMut<SequenceState>,
    rows: GlobalMut<u32>,
    capacity: u32,
    block: u32,
    mask_token: u32,
) {
    // SAFETY: one row a thread, inside the buffers by the contract.
    unsafe {
        grid::dependency_wait();
        let (state, set) = (State(state), RowSet::new(rows, capacity));
        let start = state.len().read();
        let count = if state.done().read() == 0 { block } else { 0 };
        let mut row = thread::thread_idx_x();
        if row == 0 {
            write_header(set, count, start);
        }
        while row < capacity {
            let id = match row {
                _ if row >= count => 0,
                0 => state.root().read(),
                _ => mask_token,
            };
            write_chain_row(set, row, count, start, id);
            row += THREADS;
        }
        grid::dependency_launch();
    }
}

/// Positions, slots and masks of a tree whose ids and parents are written; harmless rows past its end; the header.
///
/// `parents` [count] holds the parents in shared memory, visible to the block. All threads of the block come here.
#[inline(always)]
pub(super) unsafe fn lay_out(set: RowSet, parents: Shared<u32>, count: u32, start: u32) {
    let RowSet { layout, .. } = set;
    // SAFETY: one row a thread, inside the set; parents precede their children, so that the way up ends at row 0.
    unsafe {
        let mut row = thread::thread_idx_x();
        if row == 0 {
            write_header(set, count, start);
        }
        while row < layout.capacity {
            if row >= count {
                write_chain_row(set, row, count, start, 0);
            } else {
                let words = layout.mask_words();
                let mut depth = 0;
                for word in 0..words {
                    let (mut bits, mut node) = (0, row);
                    depth = 0;
                    loop {
                        if node / 32 == word {
                            bits |= 1 << (node % 32);
                        }
                        if node == 0 {
                            break;
                        }
                        node = parents.add(node).read();
                        depth += 1;
                    }
                    set.word(layout.mask() + row * words + word).write(bits);
                }
                set.word(layout.positions() + row).write(start + depth);
                set.word(layout.slots() + row).write(start + row);
            }
            row += THREADS;
        }
    }
}

/// The root and a tree that the host made; none if the sequence is done.
///
/// count = nodes + 1, or 0 where done; row 0 is the root; row t = i + 1: id = tokens[i], parent = parents[i], position =
/// len + depth, slot = len + t, seeing its ancestors and itself.
///
/// * Shapes: `state` as [`SequenceState`]; `tokens`, `parents` [nodes] u32, parents\[i\] <= i, the root being 0; `rows` as
///   [`RowLayout`] has it, of more than `nodes` rows.
/// * Work: one block of 128 threads; a thread a row walks up to the root, once a word of its mask.
/// * Shared memory: 4 B x (nodes + 1), the parents.
/// * Registers: under 40.
/// * Bytes: as [`prompt_rows`]; FLOPs: none.
/// * Alignment: 4 B.
/// * Tolerance: exact.
///
/// # Safety
/// The buffers have those shapes; len + capacity fits 32 bits; parents precede their children.
#[kernel(threads = 128)]
pub unsafe fn given_rows(
    state: GlobalMut<SequenceState>,
    tokens: Global<u32>,
    parents: Global<u32>,
    rows: GlobalMut<u32>,
    capacity: u32,
    nodes: u32,
) {
    // SAFETY: one row a thread, inside the buffers by the contract; barriers are reached by all.
    unsafe {
        grid::dependency_wait();
        let (state, set) = (State(state), RowSet::new(rows, capacity));
        let start = state.len().read();
        let count = if state.done().read() == 0 { nodes + 1 } else { 0 };
        let above = shared::dynamic_shared_mem::<u32>();
        let mut row = thread::thread_idx_x();
        while row < count {
            let (id, parent) = match row {
                0 => (state.root().read(), u32::MAX),
                _ => (tokens.add(row as usize - 1).read(), parents.add(row as usize - 1).read()),
            };
            set.id(row).write(id);
            set.parent(row).write(parent);
            above.add(row).write(parent);
            row += THREADS;
        }
        thread::sync_threads();
        lay_out(set, above, count, start);
        grid::dependency_launch();
    }
}

/// The last row of a set's activations, for the logits after a prompt.
///
/// out[i] = x[count - 1, i]; nothing where count = 0.
///
/// * Shapes: `count` \[1\] u32; `x` [>= count] rows of `row_bytes`; `out` one such row.
/// * Work: grid ceil(row_bytes / 2048), 128 threads; a thread copies 16 bytes.
/// * Shared memory: none.
/// * Registers: under 24.
/// * Bytes: 2 x row_bytes; FLOPs: none.
/// * Alignment: `x`, `out` and `row_bytes` 16 B.
/// * Tolerance: exact.
///
/// # Safety
/// The buffers have those shapes and alignments.
#[kernel(threads = 128)]
pub unsafe fn last_row(count: Global<u32>, x: Global<u8>, out: GlobalMut<u8>, row_bytes: u32) {
    // SAFETY: one vector a thread, inside the buffers by the contract.
    unsafe {
        grid::dependency_wait();
        let (column, count) = (thread::index_1d() * 16, count.read());
        if column < row_bytes && count > 0 {
            let from = x.byte_add((count - 1) as usize * row_bytes as usize + column as usize);
            out.byte_add(column as usize).cast::<[u32; 4]>().write(from.cast::<[u32; 4]>().read());
        }
        grid::dependency_launch();
    }
}

/// Launch of [`prompt_rows`] and [`block_rows`].
#[cfg(not(target_arch = "nvptx64"))]
pub fn chain_shape() -> LaunchShape {
    LaunchShape::new(1, THREADS)
}

/// Launch of [`given_rows`].
#[cfg(not(target_arch = "nvptx64"))]
pub fn given_shape(nodes: u32) -> LaunchShape {
    LaunchShape::new(1, THREADS).shared(4 * (nodes + 1))
}

/// Launch of [`last_row`].
#[cfg(not(target_arch = "nvptx64"))]
pub fn last_row_shape(row_bytes: u32) -> LaunchShape {
    LaunchShape::new(row_bytes.div_ceil(16 * THREADS), THREADS)
}

/// A row set by its rule: the words of a set of `ids` and `parents` (row 0's is ignored) after `start` context tokens.
#[cfg(not(target_arch = "nvptx64"))]
pub fn rows_reference(ids: &[u32], parents: &[u32], start: u32, capacity: u32) -> std::vec::Vec<u32> {
    let layout = RowLayout { capacity };
    let mut words = std::vec![u32::MAX; layout.words() as usize];
    (words[0], words[1]) = (ids.len() as u32, start);
    let mut depths = std::vec![0];
    for row in 0..capacity {
        let exists = (row as usize) < ids.len();
        let parent = if exists && row > 0 { parents[row as usize] } else { u32::MAX };
        let depth = if parent == u32::MAX { 0 } else { depths[parent as usize] + 1 };
        if row > 0 {
            depths.push(depth);
        }
        words[(RowLayout::IDS + row) as usize] = if exists { ids[row as usize] } else { 0 };
        words[(layout.positions() + row) as usize] = start + if exists { depth } else { row };
        words[(layout.parents() + row) as usize] = parent;
        words[(layout.slots() + row) as usize] = start + row;
        let mask = (layout.mask() + row * layout.mask_words()) as usize;
        words[mask..mask + layout.mask_words() as usize].fill(0);
        let mut node = row;
        loop {
            words[mask + (node / 32) as usize] |= 1 << (node % 32);
            let above = words[(layout.parents() + node) as usize];
            if above == u32::MAX {
                break;
            }
            node = above;
        }
    }
    words
}

#[cfg(test)]
#[path = "rows_tests.rs"]
mod tests;
