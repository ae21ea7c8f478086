//! The draft tree as attention needs it: positions and ancestor masks from parents.
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{grid, prelude::*};

/// Threads of a block.
const THREADS: u32 = 128;

/// Position and visible tree rows of each row of a round; row 0 is the root.
///
/// depth(0) = 0, depth(t) = depth(parents[t]) + 1; positions[t] = start + depth(t); bit u of mask[t] says whether u is t
/// or one of its ancestors.
///
/// * Shapes: `parents` [rows] u32, parents\[t\] < t, the root's is not read; `start` \[1\] u32; `positions` [rows] u32;
///   `mask` [rows, ceil(rows / 32)] u32, bit u % 32 of word u / 32.
/// * Work: a thread a row walks up to the root, once a word of its mask.
/// * Shared memory: none.
/// * Registers: under 32.
/// * Bytes: rows x depth x words reads from L1; FLOPs: none.
/// * Alignment: 4 B. Any number of rows.
/// * Tolerance: exact.
///
/// # Safety
/// The buffers have those shapes and parents precede their children.
#[kernel(threads = 128)]
pub unsafe fn tree_layout(
    parents: Global<u32>,
    start: Global<u32>,
    positions: GlobalMut<u32>,
    mask: GlobalMut<u32>,
    rows: u32,
) {
    // SAFETY: one row a thread, inside the buffers by the contract.
    unsafe {
        grid::dependency_wait();
        let row = thread::index_1d();
        if row < rows {
            let words = rows.div_ceil(32);
            let mut depth = 0;
            for word in 0..words {
                let mut bits = 0;
                depth = 0;
                let mut node = row;
                loop {
                    if node / 32 == word {
                        bits |= 1 << (node % 32);
                    }
                    if node == 0 {
                        break;
                    }
                    node = parents.add(node as usize).read();
                    depth += 1;
                }
                mask.add((row * words + word) as usize).write(bits);
            }
            positions.add(row as usize).write(start.read() + depth);
        }
        grid::dependency_launch();
    }
}

/// Launch of [`tree_layout`] over `rows` rows.
#[cfg(not(target_arch = "nvptx64"))]
pub fn shape(rows: u32) -> LaunchShape {
    LaunchShape::new(rows.div_ceil(THREADS), THREADS)
}

/// [`tree_layout`] by its formula: positions, and for each row which rows it sees.
#[cfg(not(target_arch = "nvptx64"))]
pub fn tree_layout_reference(parents: &[u32], start: u32) -> (std::vec::Vec<u32>, std::vec::Vec<std::vec::Vec<bool>>) {
    let mut positions = std::vec![start];
    let mut sees = std::vec![std::vec![false; parents.len()]];
    sees[0][0] = true;
    for (row, parent) in parents.iter().enumerate().skip(1) {
        positions.push(positions[*parent as usize] + 1);
        let mut visible = sees[*parent as usize].clone();
        visible[row] = true;
        sees.push(visible);
    }
    (positions, sees)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use cuda_std::simulate::{Buffer, launch};
    use std::vec::Vec;

    fn check(parents: &[u32], start: u32) {
        let rows = parents.len() as u32;
        let words = parents.len().div_ceil(32);
        let (p, s) = (Buffer::input("parents", parents), Buffer::input("start", &[start]));
        let positions = Buffer::<u32>::poisoned("positions", parents.len());
        let mask = Buffer::<u32>::poisoned("mask", parents.len() * words);
        let arguments = (p.ptr(), s.ptr(), positions.ptr_mut(), mask.ptr_mut(), rows);
        launch(&tree_layout::KERNEL, shape(rows), arguments).unwrap();
        let (expected, sees) = tree_layout_reference(parents, start);
        assert_eq!(positions.to_vec(), expected, "{parents:?}");
        for (row, (bits, sees)) in mask.to_vec().chunks(words).zip(sees).enumerate() {
            let found: Vec<bool> = (0..32 * words).map(|u| bits[u / 32] >> (u % 32) & 1 == 1).collect();
            assert_eq!(found[..rows as usize], sees, "row {row} of {parents:?}");
            assert!(!found[rows as usize..].contains(&true), "row {row} of {parents:?} sees rows that do not exist");
        }
    }

    #[test]
    fn random_trees_are_laid_out() {
        for rows in [1u32, 2, 3, 7, 8, 16, 31, 32, 33, 63, 64, 65, 100, 129, 257] {
            let mut random = Random::new(rows.into());
            // The root's parent must not matter.
            let parents: Vec<u32> = (0..rows).map(|t| if t == 0 { u32::MAX } else { random.below(t) }).collect();
            check(&parents, rows * 1000);
        }
    }

    #[test]
    fn chains_and_stars_are_trees() {
        check(&(0..64u32).map(|t| t.saturating_sub(1)).collect::<Vec<_>>(), 5);
        check(&[0; 64], 0);
    }
}
