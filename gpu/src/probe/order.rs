//! Probes of atomics, ordered accesses, named barriers, fences and the clock.
use cuda_std::prelude::*;
use cuda_std::{atomic, grid, shared};

/// Every atomic on global and shared memory, once a thread; the results do not depend on the order of threads.
///
/// `state` [9] u32: add, relaxed add, max, min, or, exchange, compare-exchange count, shared sum, relaxed exchange; `sum` [1] f32; `out`
/// [3] u32: shared maximum, shared bits, shared f32 sum as u32. Any grid; shared memory 16 B.
///
/// # Safety
/// The buffers have those sizes.
#[kernel]
pub unsafe fn probe_atomics(state: GlobalMut<u32>, sum: GlobalMut<f32>, out: GlobalMut<u32>) {
    // SAFETY: single words that are only touched atomically, or between barriers.
    unsafe {
        grid::dependency_wait();
        let tile = shared::dynamic_shared_mem::<u32>();
        let (i, t) = (thread::index_1d(), thread::thread_idx_x());
        if t == 0 {
            tile.cast::<[u32; 4]>().write([0; 4]);
        }
        thread::sync_threads();
        atomic::fetch_add(state, i);
        atomic::fetch_add_relaxed(state.add(1), 1);
        atomic::fetch_max(state.add(2), i * 7 % 31);
        atomic::fetch_min(state.add(3), 1000 - i);
        atomic::fetch_or(state.add(4), 1 << (i % 32));
        atomic::exchange(state.add(5), 77);
        atomic::exchange_relaxed(state.add(8), 78);
        while {
            let old = atomic::load_relaxed(state.add(6));
            atomic::compare_exchange(state.add(6), old, old + 2) != old
        } {}
        atomic::fetch_add_f32(sum, 0.5);
        atomic::shared_fetch_add(tile, t);
        atomic::shared_fetch_max(tile.add(1), t);
        atomic::shared_fetch_or(tile.add(2), 1 << (t % 32));
        atomic::shared_fetch_add_f32(tile.add(3).cast(), 1.0);
        thread::sync_threads();
        if t == 0 {
            atomic::fetch_add(state.add(7), tile.read());
            atomic::store_relaxed(out, tile.add(1).read());
            atomic::store_release(out.add(1), tile.add(2).read());
            atomic::store_release_system(out.add(2), tile.add(3).cast::<f32>().read() as u32);
        }
        grid::dependency_launch();
    }
}

/// Blocks pass a token: each waits for the one before, adds its index, and hands on.
///
/// `flag` [1] u32, starting at 0, counts the blocks that are done; `value` [1] u32; `time` [grid] u64 nanoseconds. One
/// thread a block works; all blocks must be resident.
///
/// # Safety
/// The buffers have those sizes.
#[kernel(threads = 32)]
pub unsafe fn probe_hand_over(flag: GlobalMut<u32>, value: GlobalMut<u32>, time: GlobalMut<u64>) {
    let block = thread::block_idx_x();
    if thread::thread_idx_x() == 0 {
        // SAFETY: the flag orders the accesses to `value`.
        unsafe {
            while atomic::load_acquire(flag) != block {
                thread::nanosleep(20);
            }
            value.write(value.read() * 3 + block);
            time.add(block as usize).write(grid::globaltimer());
            thread::device_fence();
            thread::block_fence();
            atomic::store_release(flag, block + 1);
            thread::system_fence();
            let _ = atomic::load_acquire_system(flag);
        }
    }
}

/// Two warp pairs exchange values through shared memory, each behind a named barrier of its own; a fifth warp only
/// arrives at a third barrier at which the first pair waits.
///
/// `out` [128] u32. 160 threads; shared memory 640 B.
///
/// # Safety
/// The buffer has that size.
#[kernel(threads = 160)]
pub unsafe fn probe_named_barriers(out: GlobalMut<u32>) {
    let t = thread::thread_idx_x();
    let tile = shared::dynamic_shared_mem::<u32>();
    // SAFETY: whole warps take part in each barrier, with one count each.
    unsafe {
        tile.add(t).write(t);
        if t < 64 {
            barrier::sync(1, 64);
            let mut sum = tile.add(63 - t).read();
            barrier::sync(3, 96);
            sum += tile.add(128 + t % 32).read();
            out.add(t as usize).write(sum);
        } else if t < 128 {
            barrier::sync(2, 64);
            out.add(t as usize).write(tile.add(191 - t).read());
        } else {
            barrier::arrive(3, 96);
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
    fn atomics_lose_no_update() {
        for (blocks, threads) in [
            (1, 1),
            (1, 2),
            (1, 31),
            (1, 32),
            (3, 33),
            (7, 17),
            (2, 63),
            (5, 64),
            (4, 65),
            (2, 100),
            (3, 127),
            (1, 255),
        ] {
            let n = blocks * threads;
            let state = Buffer::new("state", &[0, 0, 0, u32::MAX, 0, 0, 0, 0, 0]);
            let (sum, out) = (Buffer::new("sum", &[0f32]), Buffer::<u32>::poisoned("out", 3));
            let arguments = (state.ptr_mut(), sum.ptr_mut(), out.ptr_mut());
            let shape = LaunchShape::new(blocks, threads).shared(16);
            Simulator::default().seed(n.into()).launch(&probe_atomics::KERNEL, shape, arguments).unwrap();
            let bits = |n: u32| if n >= 32 { u32::MAX } else { (1 << n) - 1 };
            let maximum = (0..n).map(|i| i * 7 % 31).max().unwrap();
            let shared: u32 = blocks * (0..threads).sum::<u32>();
            assert_eq!(state.to_vec(), [(0..n).sum(), n, maximum, 1001 - n, bits(n), 77, 2 * n, shared, 78]);
            assert_eq!(sum.to_vec(), [n as f32 / 2.0]);
            assert_eq!(out.to_vec(), [threads - 1, bits(threads), threads]);
        }
    }

    #[test]
    fn blocks_that_spin_on_each_other_end() {
        for blocks in 1..=12 {
            let (flag, value) = (Buffer::new("flag", &[0u32]), Buffer::new("value", &[0u32]));
            let time = Buffer::<u64>::poisoned("time", blocks as usize);
            let arguments = (flag.ptr_mut(), value.ptr_mut(), time.ptr_mut());
            let simulator = Simulator::default().seed(blocks.into()).resident_blocks(blocks);
            simulator.launch(&probe_hand_over::KERNEL, LaunchShape::new(blocks, 32), arguments).unwrap();
            let expected = (0..blocks).fold(0u32, |v, i| v.wrapping_mul(3).wrapping_add(i));
            assert_eq!((flag.to_vec(), value.to_vec()), ([blocks].into(), [expected].into()));
            assert!(time.to_vec().is_sorted());
        }
    }

    #[test]
    fn named_barriers_order_those_who_take_part() {
        let expected: Vec<u32> = (0..64).map(|t| 63 - t + 128 + t % 32).chain((64..128).map(|t| 191 - t)).collect();
        for seed in 0..20 {
            let out = Buffer::<u32>::poisoned("out", 128);
            let shape = LaunchShape::new(1, 160).shared(640);
            Simulator::default().seed(seed).launch(&probe_named_barriers::KERNEL, shape, (out.ptr_mut(),)).unwrap();
            assert_eq!(out.to_vec(), expected);
        }
    }
}
