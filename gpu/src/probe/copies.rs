//! Probes of asynchronous copies: `cp.async` groups, bulk copies with mbarriers, warps that hand tiles to each other.
use cuda_std::barrier::{self, Mbarrier};
use cuda_std::prelude::*;
use cuda_std::{async_copy, shared};

/// Copies `tiles` tiles of 512 B through a ring of two `cp.async` stages, with chunks of 4, 8 and 16 bytes in turn.
///
/// `input`, `out` [tiles, 128] u32. One warp; shared memory: two stages of 512 B.
///
/// # Safety
/// The buffers have those sizes.
#[kernel(threads = 32)]
pub unsafe fn probe_copy_groups(input: Global<u32>, tiles: u32, out: GlobalMut<u32>) {
    let lane = warp::lane_id();
    let ring = shared::dynamic_shared_mem::<u32>();
    let start = |tile: u32| {
        // SAFETY: each lane fills its own 16 bytes of the stage, which was read before the last barrier.
        unsafe {
            if tile < tiles {
                let to = ring.add(tile % 2 * 128 + lane * 4);
                let from = input.add((tile * 128 + lane * 4) as usize);
                match tile % 3 {
                    0 => async_copy::copy_async::<[u32; 4]>(to.cast(), from.cast()),
                    1 => {
                        async_copy::copy_async::<[u32; 2]>(to.cast(), from.cast());
                        async_copy::copy_async::<[u32; 2]>(to.add(2).cast(), from.add(2).cast());
                    }
                    _ => {
                        for i in 0..4 {
                            async_copy::copy_async(to.add(i), from.add(i as usize));
                        }
                    }
                }
            }
            async_copy::commit_group();
        }
    };
    start(0);
    for tile in 0..tiles {
        start(tile + 1);
        async_copy::wait_group::<1>();
        // SAFETY: all threads come here together; the stage is complete, and read across lanes.
        unsafe {
            thread::sync_threads();
            for i in 0..4 {
                let at = i * 32 + lane;
                out.add((tile * 128 + at) as usize).write(ring.add(tile % 2 * 128 + at).read());
            }
            thread::sync_threads();
        }
    }
}

/// Sums tiles that one warp fetches by bulk copies and two warps consume, through a ring of three stages.
///
/// `input` [tiles, 64] u32, `out` [64] u32: the sum over the tiles. Three warps: the first produces. Shared memory: three
/// stages of 256 B, then full[3] and empty[3] mbarriers.
///
/// # Safety
/// The buffers have those sizes.
#[kernel(threads = 96)]
pub unsafe fn probe_copy_bulk(input: Global<u32>, tiles: u32, out: GlobalMut<u32>) {
    const STAGES: u32 = 3;
    let t = thread::thread_idx_x();
    let ring = shared::dynamic_shared_mem::<u32>();
    let barriers = ring.byte_add(STAGES * 256).cast::<u64>();
    let full = |tile: u32| Mbarrier::at(barriers.add(tile % STAGES));
    let empty = |tile: u32| Mbarrier::at(barriers.add(STAGES + tile % STAGES));
    // SAFETY: the ring protocol: a stage is filled when it is empty, and read when it is full.
    unsafe {
        if t == 0 {
            for stage in 0..STAGES {
                full(stage).init(1);
                empty(stage).init(64);
            }
            barrier::fence_init();
        }
        thread::sync_threads();
        if t < 32 {
            for tile in 0..tiles {
                if t == 0 {
                    empty(tile).wait((tile / STAGES + 1) % 2);
                    if tile % 2 == 0 {
                        full(tile).arrive_expect_tx(256);
                    } else {
                        full(tile).expect_tx(256);
                        full(tile).arrive();
                    }
                    barrier::fence_proxy_async();
                    let from = input.add((tile * 64) as usize);
                    async_copy::copy_bulk(ring.add(tile % STAGES * 64), from, 256, full(tile));
                }
                warp::sync_warp(warp::FULL_MASK);
            }
        } else {
            let mut sum = 0u32;
            for tile in 0..tiles {
                full(tile).wait(tile / STAGES % 2);
                sum = sum.wrapping_add(ring.add(tile % STAGES * 64 + t - 32).read());
                empty(tile).arrive();
            }
            out.add((t - 32) as usize).write(sum);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use cuda_std::launch::LaunchShape;
    use cuda_std::simulate::{Buffer, Simulator};
    use std::vec::Vec;

    #[test]
    fn grouped_copies_arrive_in_order() {
        for tiles in [0u32, 1, 2, 3, 4, 5, 6, 7, 9, 13, 16, 31] {
            let data: Vec<u32> = (0..tiles * 128).map(|i| i.wrapping_mul(2_654_435_761)).collect();
            let (input, out) = (Buffer::input("input", &data), Buffer::<u32>::poisoned("out", data.len()));
            let arguments = (input.ptr(), tiles, out.ptr_mut());
            let shape = LaunchShape::new(1, 32).shared(1024);
            Simulator::default().seed(tiles.into()).launch(&probe_copy_groups::KERNEL, shape, arguments).unwrap();
            assert_eq!(out.to_vec(), data, "{tiles} tiles");
        }
    }

    #[test]
    fn a_ring_of_bulk_copies_neither_loses_nor_races() {
        for tiles in [0u32, 1, 2, 3, 4, 5, 6, 7, 9, 13, 17, 22] {
            let data: Vec<u32> = (0..tiles * 64).map(|i| i.wrapping_mul(2_654_435_761)).collect();
            let expected: Vec<u32> =
                (0..64).map(|i| data.iter().skip(i).step_by(64).fold(0, |a: u32, b| a.wrapping_add(*b))).collect();
            for seed in 0..10 {
                let (input, out) = (Buffer::input("input", &data), Buffer::<u32>::poisoned("out", 64));
                let arguments = (input.ptr(), tiles, out.ptr_mut());
                let shape = LaunchShape::new(1, 96).shared(3 * 256 + 48);
                Simulator::default().seed(seed).launch(&probe_copy_bulk::KERNEL, shape, arguments).unwrap();
                assert_eq!(out.to_vec(), expected, "{tiles} tiles, schedule {seed}");
            }
        }
    }
}
