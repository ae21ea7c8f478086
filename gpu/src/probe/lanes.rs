//! Probes of indices, shuffles, votes and reductions.
use cuda_std::prelude::*;
use warp::FULL_MASK;

/// Writes, per thread of a three-dimensional launch, its 12 indices and extents and its lane.
///
/// `out` [threads, 13] u32. One thread a row.
///
/// # Safety
/// `out` holds 13 values a thread.
#[kernel]
pub unsafe fn probe_indices(out: GlobalMut<u32>) {
    let thread = (thread::thread_idx_z() * thread::block_dim_y() + thread::thread_idx_y()) * thread::block_dim_x()
        + thread::thread_idx_x();
    let block = (thread::block_idx_z() * thread::grid_dim_y() + thread::block_idx_y()) * thread::grid_dim_x()
        + thread::block_idx_x();
    let threads = thread::block_dim_x() * thread::block_dim_y() * thread::block_dim_z();
    let row = [
        thread::thread_idx_x(),
        thread::thread_idx_y(),
        thread::thread_idx_z(),
        thread::block_idx_x(),
        thread::block_idx_y(),
        thread::block_idx_z(),
        thread::block_dim_x(),
        thread::block_dim_y(),
        thread::block_dim_z(),
        thread::grid_dim_x(),
        thread::grid_dim_y(),
        thread::grid_dim_z(),
        warp::lane_id(),
    ];
    let base = (block * threads + thread) as usize * 13;
    for (i, value) in row.into_iter().enumerate() {
        // SAFETY: the row of this thread.
        unsafe { out.add(base + i).write(value) };
    }
}

/// Calls every warp collective on one value a lane.
///
/// `input` [32] u32, `out` [17, 32] u32, in the order of the source. One warp.
///
/// # Safety
/// The buffers have those sizes.
#[kernel(threads = 32)]
pub unsafe fn probe_warp(input: Global<u32>, by: u32, width: u32, out: GlobalMut<u32>) {
    // SAFETY: all lanes of the warp come here together; one column of `out` a lane.
    unsafe {
        let lane = warp::lane_id();
        let x = input.add(lane as usize).read();
        let odd = 0xaaaa_aaaa;
        let results = [
            warp::warp_shuffle_idx(FULL_MASK, x, by, width),
            warp::warp_shuffle_xor(FULL_MASK, x, by, width),
            warp::warp_shuffle_up(FULL_MASK, x, by, width),
            warp::warp_shuffle_down(FULL_MASK, x, by, width),
            warp::warp_vote_all(FULL_MASK, x != 0).into(),
            warp::warp_vote_any(FULL_MASK, x == 7).into(),
            warp::warp_vote_ballot(FULL_MASK, x & 1 == 1),
            warp::warp_match_any(FULL_MASK, x % 5),
            warp::warp_reduce_add(FULL_MASK, x),
            warp::warp_reduce_min(FULL_MASK, x),
            warp::warp_reduce_max(FULL_MASK, x),
            warp::warp_reduce_and(FULL_MASK, x),
            warp::warp_reduce_or(FULL_MASK, x),
            warp::warp_reduce_xor(FULL_MASK, x),
            warp::warp_sum((x & 0xffff) as f32).to_bits(),
            warp::warp_max((x & 0xffff) as f32).to_bits(),
            if lane & 1 == 1 { warp::warp_reduce_add(odd, x) } else { 0 },
        ];
        warp::sync_warp(FULL_MASK);
        for (i, value) in results.into_iter().enumerate() {
            out.add(i * 32 + lane as usize).write(value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use cuda_std::launch::LaunchShape;
    use cuda_std::simulate::{Buffer, launch};
    use std::vec::Vec;

    #[test]
    fn indices_count_x_first() {
        let shapes: [([u32; 3], [u32; 3]); 12] = [
            ([1, 1, 1], [1, 1, 1]),
            ([1, 1, 1], [31, 1, 1]),
            ([3, 1, 1], [33, 1, 1]),
            ([1, 3, 1], [1, 17, 1]),
            ([1, 1, 5], [1, 1, 9]),
            ([2, 3, 2], [5, 4, 3]),
            ([3, 2, 1], [7, 5, 1]),
            ([1, 2, 3], [1, 7, 5]),
            ([2, 1, 2], [13, 1, 5]),
            ([5, 1, 1], [2, 2, 2]),
            ([1, 1, 2], [3, 3, 7]),
            ([2, 2, 2], [11, 3, 1]),
        ];
        for (grid, block) in shapes {
            let [blocks, threads] = [grid, block].map(|extent| extent.iter().product::<u32>());
            let out = Buffer::<u32>::poisoned("out", (blocks * threads * 13) as usize);
            let shape = LaunchShape::new((grid[0], grid[1], grid[2]), (block[0], block[1], block[2]));
            launch(&probe_indices::KERNEL, shape, (out.ptr_mut(),)).unwrap();
            let out = out.to_vec();
            let mut rows = out.chunks(13);
            let index =
                |i: u32, extent: [u32; 3]| [i % extent[0], i / extent[0] % extent[1], i / extent[0] / extent[1]];
            for b in 0..blocks {
                for t in 0..threads {
                    let expected = [index(t, block), index(b, grid), block, grid];
                    let row = rows.next().unwrap();
                    assert_eq!((&row[..12], row[12]), (expected.as_flattened(), t % 32), "{grid:?} {block:?}");
                }
            }
        }
    }

    /// The lane a shuffle reads, or the lane itself where that leaves its segment of `width` lanes.
    fn source(mode: usize, lane: usize, by: usize, width: usize) -> usize {
        let start = lane / width * width;
        let source = match mode {
            0 => start as isize + (by % width) as isize,
            1 => (lane ^ by) as isize,
            2 => lane as isize - by as isize,
            _ => lane as isize + by as isize,
        };
        // XOR may read a lower segment, never a higher one.
        let inside = source < (start + width) as isize && (mode == 1 || source >= start as isize);
        if inside { source as usize } else { lane }
    }

    #[test]
    fn collectives_equal_their_definition() {
        let mut random = Random::new(1);
        for (by, width) in
            [(0, 32), (1, 32), (16, 32), (31, 32), (3, 8), (9, 8), (1, 2), (5, 16), (15, 16), (0, 1), (1, 4), (7, 4)]
        {
            let x: Vec<u32> = (0..32).map(|_| random.below(1 << 20)).collect();
            let input = Buffer::input("input", &x);
            let out = Buffer::<u32>::poisoned("out", 17 * 32);
            let arguments = (input.ptr(), by, width, out.ptr_mut());
            launch(&probe_warp::KERNEL, LaunchShape::new(1, 32), arguments).unwrap();
            let floats = || x.iter().map(|v| (v & 0xffff) as f32);
            for lane in 0..32 {
                let shuffled = |mode| x[source(mode, lane, by as usize, width as usize)];
                let odd: u32 = x.iter().skip(1).step_by(2).sum();
                let expected = [
                    shuffled(0),
                    shuffled(1),
                    shuffled(2),
                    shuffled(3),
                    x.iter().all(|v| *v != 0).into(),
                    x.contains(&7).into(),
                    (0..32).map(|i| (x[i] & 1) << i).sum(),
                    (0..32).map(|i| u32::from(x[i] % 5 == x[lane] % 5) << i).sum(),
                    x.iter().sum(),
                    *x.iter().min().unwrap(),
                    *x.iter().max().unwrap(),
                    x.iter().fold(u32::MAX, |a, b| a & b),
                    x.iter().fold(0, |a, b| a | b),
                    x.iter().fold(0, |a, b| a ^ b),
                    floats().sum::<f32>().to_bits(),
                    floats().fold(0.0, f32::max).to_bits(),
                    if lane % 2 == 1 { odd } else { 0 },
                ];
                let found: Vec<u32> = out.to_vec()[lane..].iter().copied().step_by(32).collect();
                assert_eq!(found, expected, "lane {lane}, by {by}, width {width}");
            }
        }
    }
}
