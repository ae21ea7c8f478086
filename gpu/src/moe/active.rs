//! From the choices of all rows to the list of experts that have any, each with its choices.
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{atomic, grid, prelude::*, shared};

/// Threads of the block: at least as many as experts.
const THREADS: u32 = 512;
const WARPS: u32 = THREADS / 32;

/// The experts that some row chose, ascending, each with its choices in the order of rows.
///
/// A choice is row x k + slot. active[a] = (expert, first place, choices, 0) for the a-th expert chosen at all, a <
/// count; choices[first place..] = its choices, ascending.
///
/// * Shapes: `ids` [rows, k] u32, distinct in a row; `active` [experts] of four u32, of which `count` \[1\] are written;
///   `choices` [rows x k] u32.
/// * Work: one block of 512 threads: a bitmask of rows an expert, a prefix sum over experts, then each choice counts the rows
///   before its own.
/// * Shared memory: 4 B x experts x (1 + ceil(rows / 32)), and a word a warp.
/// * Registers: under 40.
/// * Bytes: 8 a choice; FLOPs: none.
/// * Alignment: `active` 16 B. Up to 512 experts.
/// * Tolerance: exact.
///
/// # Safety
/// The buffers have those shapes and alignments, and the ids are below `experts`.
#[kernel(threads = 512)]
pub unsafe fn active_experts(
    ids: Global<u32>,
    active: GlobalMut<[u32; 4]>,
    count: GlobalMut<u32>,
    choices: GlobalMut<u32>,
    rows: u32,
    k: u32,
    experts: u32,
) {
    // SAFETY: one expert or choice a thread, inside the buffers by the contract; barriers are reached by all.
    unsafe {
        grid::dependency_wait();
        let thread = thread::thread_idx_x();
        let (lane, warp) = (thread % 32, thread / 32);
        let words = rows.div_ceil(32);
        let totals = shared::dynamic_shared_mem::<u32>();
        let starts = totals.add(WARPS);
        let masks = starts.add(experts);
        let mut i = thread;
        while i < experts * words {
            masks.add(i).write(0);
            i += THREADS;
        }
        thread::sync_threads();
        let mut choice = thread;
        while choice < rows * k {
            let (row, expert) = (choice / k, ids.add(choice as usize).read());
            atomic::shared_fetch_or(masks.add(expert * words + row / 32), 1 << (row % 32));
            choice += THREADS;
        }
        thread::sync_threads();
        let mut own = 0;
        if thread < experts {
            for word in 0..words {
                own += masks.add(thread * words + word).read().count_ones();
            }
        }
        // Choices in the lower half, active experts in the upper.
        let packed = own | u32::from(own > 0) << 20;
        let mut before = packed;
        let mut step = 1;
        while step < 32 {
            let other = warp::warp_shuffle_up(warp::FULL_MASK, before, step, 32);
            if lane >= step {
                before += other;
            }
            step *= 2;
        }
        if lane == 31 {
            totals.add(warp).write(before);
        }
        thread::sync_threads();
        let mut base = 0;
        for other in 0..warp {
            base += totals.add(other).read();
        }
        let start = base + before - packed;
        if own > 0 {
            active.add((start >> 20) as usize).write([thread, start & 0xf_ffff, own, 0]);
        }
        if thread < experts {
            starts.add(thread).write(start & 0xf_ffff);
        }
        if thread == THREADS - 1 {
            count.write((base + before) >> 20);
        }
        thread::sync_threads();
        let mut choice = thread;
        while choice < rows * k {
            let (row, expert) = (choice / k, ids.add(choice as usize).read());
            let mut place = starts.add(expert).read();
            for word in 0..row / 32 {
                place += masks.add(expert * words + word).read().count_ones();
            }
            let below = (1 << (row % 32)) - 1;
            place += (masks.add(expert * words + row / 32).read() & below).count_ones();
            choices.add(place as usize).write(choice);
            choice += THREADS;
        }
        grid::dependency_launch();
    }
}

/// Launch of [`active_experts`].
#[cfg(not(target_arch = "nvptx64"))]
pub fn shape(rows: u32, experts: u32) -> LaunchShape {
    LaunchShape::new(1, THREADS).shared(4 * (WARPS + experts * (1 + rows.div_ceil(32))))
}

/// [`active_experts`] by its rule: (expert, its choices), ascending.
#[cfg(not(target_arch = "nvptx64"))]
pub fn active_reference(ids: &[u32], experts: u32) -> std::vec::Vec<(u32, std::vec::Vec<u32>)> {
    let chosen = |expert| (0..ids.len() as u32).filter(|c| ids[*c as usize] == expert).collect::<std::vec::Vec<u32>>();
    (0..experts).map(|expert| (expert, chosen(expert))).filter(|(_, choices)| !choices.is_empty()).collect()
}

/// Random choices of distinct experts `[rows, k]`, for tests and checks.
#[cfg(not(target_arch = "nvptx64"))]
pub fn random_choices(random: &mut crate::testing::Random, rows: u32, k: u32, experts: u32) -> std::vec::Vec<u32> {
    let mut ids = std::vec::Vec::new();
    for row in 0..rows as usize {
        let start = row * k as usize;
        while ids.len() < start + k as usize {
            let id = random.below(experts);
            if !ids[start..].contains(&id) {
                ids.push(id);
            }
        }
    }
    ids
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use cuda_std::simulate::{Buffer, Simulator};
    use std::vec::Vec;

    #[test]
    fn every_choice_is_listed_once_under_its_expert() {
        for (rows, k, experts) in [
            (1, 1, 1),
            (1, 8, 384),
            (2, 3, 5),
            (7, 8, 8),
            (8, 8, 384),
            (31, 4, 16),
            (32, 6, 33),
            (33, 5, 100),
            (64, 8, 384),
            (64, 8, 256),
            (65, 1, 3),
            (100, 7, 512),
            (200, 8, 384),
        ] {
            let mut random = Random::new((rows + experts).into());
            let ids = random_choices(&mut random, rows, k, experts);
            let input = Buffer::input("ids", &ids);
            let active = Buffer::<[u32; 4]>::poisoned("active", experts as usize);
            let (count, choices) = (Buffer::<u32>::poisoned("count", 1), Buffer::<u32>::poisoned("choices", ids.len()));
            let arguments = (input.ptr(), active.ptr_mut(), count.ptr_mut(), choices.ptr_mut(), rows, k, experts);
            Simulator::default()
                .seed(rows.into())
                .launch(&active_experts::KERNEL, shape(rows, experts), arguments)
                .unwrap();
            let expected = active_reference(&ids, experts);
            let (active, choices) = (active.to_vec(), choices.to_vec());
            assert_eq!(count.to_vec(), [expected.len() as u32], "{rows} x {k} of {experts}");
            let mut place = 0;
            for ((expert, own), found) in expected.iter().zip(&active) {
                assert_eq!(*found, [*expert, place, own.len() as u32, 0], "{rows} x {k} of {experts}");
                assert_eq!(choices[place as usize..][..own.len()], own[..], "expert {expert}");
                place += own.len() as u32;
            }
            let unused: Vec<_> = active.iter().skip(expected.len()).filter(|a| **a != [u32::MAX; 4]).collect();
            assert!(unused.is_empty(), "writes past the active experts");
        }
    }
}
