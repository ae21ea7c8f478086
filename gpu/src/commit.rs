//! The end of a round: which path of the tree the target agrees with, and moving its rows to where the context goes on.
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{grid, prelude::*, unroll};

/// Threads of a block of [`compact_rows`].
const THREADS: u32 = 128;

/// Follows the tree from the root as long as a child holds the token chosen at its parent.
///
/// path[0] = 0; path[i + 1] = min { u : parents[u] = path[i], tokens[u] = choices[path[i]] } while there is one;
/// length = number of rows on the path; bonus = choices[last row of the path].
///
/// * Shapes: `parents`, `tokens`, `choices` [rows] u32: parent and token of each row, and the target's choice after it; row
///   0 is the root, whose parent and token are not read. `path` [rows] u32, of which the first `length` \[1\] u32 are
///   written; `bonus` \[1\] u32.
/// * Work: one warp; each lane looks at rows lane, lane + 32, ..., once a step of the path.
/// * Shared memory: none.
/// * Registers: under 32.
/// * Bytes: 8 x rows x path from L1; FLOPs: none.
/// * Alignment: 4 B. Any number of rows.
/// * Tolerance: exact.
///
/// # Safety
/// The buffers have those shapes and parents precede their children.
#[kernel(threads = 32)]
pub unsafe fn walk(
    parents: Global<u32>,
    tokens: Global<u32>,
    choices: Global<u32>,
    path: GlobalMut<u32>,
    length: GlobalMut<u32>,
    bonus: GlobalMut<u32>,
    rows: u32,
) {
    // SAFETY: rows are inside the buffers; the loop's bounds are the same in all lanes.
    unsafe {
        grid::dependency_wait();
        let lane = warp::lane_id();
        let (mut node, mut count) = (0, 0);
        loop {
            if lane == 0 {
                path.add(count as usize).write(node);
            }
            count += 1;
            let choice = choices.add(node as usize).read();
            let mut child = u32::MAX;
            // Children come after their parent.
            let mut row = node + 1 + lane;
            while row < rows && child == u32::MAX {
                if parents.add(row as usize).read() == node && tokens.add(row as usize).read() == choice {
                    child = row;
                }
                row += 32;
            }
            let next = warp::warp_reduce_min(warp::FULL_MASK, child);
            if next == u32::MAX {
                if lane == 0 {
                    length.write(count);
                    bonus.write(choice);
                }
                break;
            }
            node = next;
        }
        grid::dependency_launch();
    }
}

/// Moves the rows of the accepted path to the front of the round's rows, in each layer.
///
/// rows[layer, start + i] = rows[layer, start + path[i]] for i < length
///
/// * Shapes: `buffer` \[layers\]\[slots\]\[row\] bytes, layers `layer_bytes` apart, rows `row_bytes` apart; `start` \[1\] u32,
///   the slot of the round's row 0; `path`, `length` as [`walk`] leaves them.
/// * Work: grid (ceil(row_bytes / 2048), layers), 128 threads; a thread moves its 16 bytes of every row, in order, four rows
///   at a time. A row's source lies at or behind its destination, so nothing is overwritten before it has moved.
/// * Shared memory: none.
/// * Registers: under 48.
/// * Bytes: 2 x row_bytes a moved row and layer; rows already in place are skipped. FLOPs: none.
/// * Alignment: `buffer`, `row_bytes` and `layer_bytes` multiples of 16.
/// * Tolerance: exact.
///
/// # Safety
/// The buffers have those shapes and alignments; `path` rises strictly and starts at 0.
#[kernel(threads = 128)]
pub unsafe fn compact_rows(
    buffer: GlobalMut<u8>,
    start: Global<u32>,
    path: Global<u32>,
    length: Global<u32>,
    row_bytes: u32,
    layer_bytes: u64,
) {
    // SAFETY: each thread moves a column of its own, inside the buffer by the contract.
    unsafe {
        grid::dependency_wait();
        let column = thread::index_1d() * 16;
        if column < row_bytes {
            let layer = thread::block_idx_y() as usize * layer_bytes as usize;
            let first = buffer.byte_add(layer + start.read() as usize * row_bytes as usize + column as usize);
            let row = |i: u32| first.byte_add(i as usize * row_bytes as usize).cast::<[u32; 4]>();
            let (mut i, length) = (0, length.read());
            while i < length {
                // Sources rise and lie at or behind their destinations: four may be read before any is written.
                let (mut from, mut held) = ([0; 4], [[0u32; 4]; 4]);
                unroll!(J in [0 1 2 3] {
                    let to = i + J as u32;
                    from[J] = if to < length { path.add(to as usize).read() } else { to };
                });
                unroll!(J in [0 1 2 3] {
                    if from[J] != i + J as u32 {
                        held[J] = row(from[J]).read();
                    }
                });
                unroll!(J in [0 1 2 3] {
                    if from[J] != i + J as u32 {
                        row(i + J as u32).write(held[J]);
                    }
                });
                i += 4;
            }
        }
        grid::dependency_launch();
    }
}

/// Launch of [`walk`].
#[cfg(not(target_arch = "nvptx64"))]
pub fn walk_shape() -> LaunchShape {
    LaunchShape::new(1, 32)
}

/// Launch of [`compact_rows`].
#[cfg(not(target_arch = "nvptx64"))]
pub fn compact_shape(row_bytes: u32, layers: u32) -> LaunchShape {
    LaunchShape::new((row_bytes.div_ceil(THREADS * 16), layers), THREADS)
}

/// [`walk`] by its formula: the path and the bonus token.
#[cfg(not(target_arch = "nvptx64"))]
pub fn walk_reference(parents: &[u32], tokens: &[u32], choices: &[u32]) -> (std::vec::Vec<u32>, u32) {
    let mut path = std::vec![0];
    let mut node = 0;
    let child =
        |node: usize| (node + 1..parents.len()).find(|u| parents[*u] as usize == node && tokens[*u] == choices[node]);
    while let Some(next) = child(node) {
        path.push(next as u32);
        node = next;
    }
    (path, choices[node])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use cuda_std::simulate::{Buffer, launch};
    use std::vec::Vec;

    fn run_walk(parents: &[u32], tokens: &[u32], choices: &[u32]) -> (Vec<u32>, u32) {
        let inputs = [("parents", parents), ("tokens", tokens), ("choices", choices)].map(|(n, d)| Buffer::input(n, d));
        let path = Buffer::<u32>::poisoned("path", parents.len());
        let (length, bonus) = (Buffer::<u32>::poisoned("length", 1), Buffer::<u32>::poisoned("bonus", 1));
        let [p, t, c] = inputs.each_ref().map(Buffer::ptr);
        let arguments = (p, t, c, path.ptr_mut(), length.ptr_mut(), bonus.ptr_mut(), parents.len() as u32);
        launch(&walk::KERNEL, walk_shape(), arguments).unwrap();
        let mut path = path.to_vec();
        let tail = path.split_off(length.to_vec()[0] as usize);
        assert!(tail.iter().all(|p| *p == u32::MAX), "writes past the path");
        (path, bonus.to_vec()[0])
    }

    #[test]
    fn the_walk_follows_the_chosen_tokens() {
        let mut deepest = 0;
        for rows in [1u32, 2, 3, 5, 8, 16, 31, 32, 33, 34, 63, 64, 65, 100, 257] {
            for seed in 0..4 {
                let mut random = Random::new((rows * 4 + seed).into());
                let parents: Vec<u32> =
                    (0..rows).map(|t| if t == 0 { u32::MAX } else { t - 1 - random.below(t.min(3)) }).collect();
                // Three tokens, so that paths are long and siblings may hold the same token: the lower row wins.
                let tokens: Vec<u32> = (0..rows).map(|_| random.below(3)).collect();
                let choices: Vec<u32> = (0..rows).map(|_| random.below(3)).collect();
                let expected = walk_reference(&parents, &tokens, &choices);
                deepest = deepest.max(expected.0.len());
                assert_eq!(run_walk(&parents, &tokens, &choices), expected, "{rows} rows, seed {seed}");
            }
        }
        assert!(deepest > 3);
    }

    #[test]
    fn a_chain_is_accepted_up_to_the_first_miss() {
        let parents: Vec<u32> = (0..40u32).map(|t| t.saturating_sub(1)).collect();
        let tokens: Vec<u32> = (100..140).collect();
        let mut choices: Vec<u32> = (101..141).collect();
        assert_eq!(run_walk(&parents, &tokens, &choices), ((0..40).collect(), 140));
        choices[17] = 7;
        assert_eq!(run_walk(&parents, &tokens, &choices), ((0..18).collect(), 7));
    }

    #[test]
    fn accepted_rows_move_to_the_front_and_nothing_else_does() {
        for (layers, row_bytes, start, rows, path) in [
            (1usize, 16usize, 0usize, 1usize, &[0u32][..]),
            (1, 16, 3, 4, &[0, 1, 2, 3]),
            (2, 32, 1, 4, &[0, 3]),
            (3, 48, 5, 8, &[0, 2, 3, 7]),
            (1, 176, 2, 16, &[0, 1, 4, 5, 15]),
            (2, 1168, 7, 16, &[0, 2, 4, 6, 8, 10]),
            (1, 2032, 1, 5, &[0, 4]),
            (1, 2048, 0, 5, &[0, 2, 3]),
            (2, 2064, 1, 5, &[0, 1, 4]),
            (1, 4112, 0, 3, &[0, 2]),
            (5, 64, 9, 64, &[0, 63]),
            (1, 96, 4, 7, &[0, 1, 2, 6]),
        ] {
            let slots = start + rows + 2;
            let mut random = Random::new((row_bytes + rows) as u64);
            let before: Vec<u8> = (0..layers * slots * row_bytes).map(|_| random.below(256) as u8).collect();
            let mut expected = before.clone();
            for layer in 0..layers {
                for (i, from) in path.iter().enumerate() {
                    let at = |row: usize| (layer * slots + start + row) * row_bytes;
                    expected[at(i)..][..row_bytes].copy_from_slice(&before[at(*from as usize)..][..row_bytes]);
                }
            }
            let buffer = Buffer::new("buffer", &before);
            let (s, p) = (Buffer::input("start", &[start as u32]), Buffer::input("path", path));
            let length = Buffer::input("length", &[path.len() as u32]);
            let layer_bytes = (slots * row_bytes) as u64;
            let arguments = (buffer.ptr_mut(), s.ptr(), p.ptr(), length.ptr(), row_bytes as u32, layer_bytes);
            launch(&compact_rows::KERNEL, compact_shape(row_bytes as u32, layers as u32), arguments).unwrap();
            assert!(buffer.to_vec() == expected, "{layers} layers of {row_bytes} bytes, path {path:?}");
        }
    }
}
