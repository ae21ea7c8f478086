//! Planted faults: each must be caught, and named with kernel, block and thread.
#![allow(missing_docs, clippy::missing_safety_doc, clippy::undocumented_unsafe_blocks)]
use cuda_std::launch::{Kernel, LaunchShape};
use cuda_std::prelude::*;
use cuda_std::simulate::{Buffer, Fault, FaultKind, Simulator};
use cuda_std::{async_copy, atomic, shared};

/// Which fault a test kernel commits.
fn fault<A: cuda_std::launch::Arguments>(kernel: &Kernel<A>, shape: LaunchShape, arguments: A) -> Fault {
    let faults: Vec<Fault> = (0..5)
        .map(|seed| match Simulator::default().seed(seed).launch(kernel, shape, arguments) {
            Ok(_) => panic!("{} was accepted under schedule {seed}", kernel.name),
            Err(fault) => fault,
        })
        .collect();
    for fault in &faults {
        assert_eq!(fault.kernel, kernel.name);
        let discriminants = [fault, &faults[0]].map(|f| std::mem::discriminant(&f.kind));
        assert_eq!(discriminants[0], discriminants[1], "{fault} / {}", faults[0]);
    }
    faults[0].clone()
}

/// Reverses a block's values through shared memory, with the barrier or without.
#[kernel(threads = 128)]
pub unsafe fn reverse(out: GlobalMut<u32>, barrier: u32) {
    let t = thread::thread_idx_x();
    let tile = shared::dynamic_shared_mem::<u32>();
    unsafe {
        tile.add(t).write(t);
        if barrier != 0 {
            thread::sync_threads();
        }
        let other = thread::block_dim_x() - 1 - t;
        out.add(t as usize).write(tile.add(other).read());
    }
}

#[test]
fn a_barrier_makes_the_exchange_sound() {
    let out = Buffer::<u32>::poisoned("out", 128);
    let shape = LaunchShape::new(1, 128).shared(512);
    cuda_std::simulate::launch(&reverse::KERNEL, shape, (out.ptr_mut(), 1)).unwrap();
    assert_eq!(out.to_vec(), (0..128).rev().collect::<Vec<_>>());
}

#[test]
fn a_missing_barrier_is_a_race_or_an_unwritten_read() {
    let out = Buffer::<u32>::poisoned("out", 128);
    for seed in 0..20 {
        let shape = LaunchShape::new(1, 128).shared(512);
        let fault = Simulator::default().seed(seed).launch(&reverse::KERNEL, shape, (out.ptr_mut(), 0)).unwrap_err();
        assert!(matches!(fault.kind, FaultKind::Race { .. } | FaultKind::Uninitialised { .. }), "{fault}");
        assert!(fault.to_string().contains("kernel reverse, block [0, 0, 0], thread ["), "{fault}");
        assert!(fault.to_string().contains("faults.rs:"), "{fault}");
    }
}

#[kernel]
pub unsafe fn write_after_read(out: GlobalMut<u32>) {
    let t = thread::thread_idx_x();
    let tile = shared::dynamic_shared_mem::<u32>();
    unsafe {
        tile.add(t).write(t);
        thread::sync_threads();
        let neighbour = tile.add((t + 33) % 64).read();
        tile.add(t).write(neighbour);
        out.add(t as usize).write(neighbour);
    }
}

#[test]
fn overwriting_what_others_still_read_is_a_race() {
    let out = Buffer::<u32>::poisoned("out", 64);
    let fault = fault(&write_after_read::KERNEL, LaunchShape::new(1, 64).shared(256), (out.ptr_mut(),));
    assert!(matches!(fault.kind, FaultKind::Race { .. }), "{fault}");
}

#[kernel]
pub unsafe fn two_writers(_unused: u32) {
    unsafe { shared::dynamic_shared_mem::<u32>().write(thread::thread_idx_x()) };
}

#[test]
fn two_writers_of_a_word_are_a_race() {
    let fault = fault(&two_writers::KERNEL, LaunchShape::new(1, 2).shared(4), (0,));
    assert!(matches!(fault.kind, FaultKind::Race { access: "a write to", other: "write", offset: 0, .. }), "{fault}");
}

#[kernel]
pub unsafe fn divergent_shuffle(out: GlobalMut<u32>, until: u32) {
    let t = thread::thread_idx_x();
    unsafe {
        if t < until {
            out.add(t as usize).write(warp::warp_shuffle_xor(warp::FULL_MASK, t, 1, 32));
        }
    }
}

#[test]
fn a_divergent_shuffle_is_named() {
    let out = Buffer::<u32>::poisoned("out", 32);
    let shape = LaunchShape::new(1, 32);
    cuda_std::simulate::launch(&divergent_shuffle::KERNEL, shape, (out.ptr_mut(), 32)).unwrap();
    let fault = fault(&divergent_shuffle::KERNEL, shape, (out.ptr_mut(), 31));
    assert!(fault.to_string().contains("lane 31 has exited"), "{fault}");
}

#[kernel]
pub unsafe fn different_collectives(out: GlobalMut<u32>) {
    let t = thread::thread_idx_x();
    unsafe {
        let any = if t < 16 {
            warp::warp_vote_any(warp::FULL_MASK, true)
        } else {
            warp::warp_vote_all(warp::FULL_MASK, true)
        };
        out.add(t as usize).write(any.into());
    }
}

#[test]
fn lanes_at_different_collectives_are_named() {
    let out = Buffer::<u32>::poisoned("out", 32);
    let fault = fault(&different_collectives::KERNEL, LaunchShape::new(1, 32), (out.ptr_mut(),));
    assert!(matches!(fault.kind, FaultKind::Divergence { .. }), "{fault}");
    assert!(fault.to_string().contains("VoteA"), "{fault}");
}

#[kernel]
pub unsafe fn half_a_barrier(_unused: u32) {
    if thread::thread_idx_x() < 64 {
        unsafe { thread::sync_threads() };
    }
}

#[test]
fn a_barrier_that_some_threads_skip_is_a_deadlock() {
    let fault = fault(&half_a_barrier::KERNEL, LaunchShape::new(2, 96), (0,));
    assert!(matches!(fault.kind, FaultKind::Deadlock { .. }), "{fault}");
    assert!(fault.to_string().contains("thread [64, 0, 0] has exited"), "{fault}");
}

#[kernel]
pub unsafe fn copy_global(from: Global<f32>, to: GlobalMut<f32>, shift: u32) {
    let t = thread::index_1d() as usize;
    unsafe { to.add(t).write(from.add(t + shift as usize).read()) };
}

#[test]
fn leaving_a_buffer_is_named() {
    let from = Buffer::input("from", &[1f32; 64]);
    let to = Buffer::<f32>::poisoned("to", 64);
    let shape = LaunchShape::new(2, 32);
    cuda_std::simulate::launch(&copy_global::KERNEL, shape, (from.ptr(), to.ptr_mut(), 0)).unwrap();
    let fault = fault(&copy_global::KERNEL, shape, (from.ptr(), to.ptr_mut(), 1));
    assert_eq!((fault.block, fault.thread), ([1, 0, 0], [31, 0, 0]));
    let kind = FaultKind::GlobalOutOfBounds { buffer: "from".into(), offset: 256, bytes: 4, size: 256 };
    assert_eq!(fault.kind, kind);
}

#[test]
fn writing_an_input_is_named() {
    let from = Buffer::input("from", &[1f32; 64]);
    let fault = fault(&copy_global::KERNEL, LaunchShape::new(1, 32), (from.ptr(), from.ptr_mut(), 0));
    assert!(matches!(fault.kind, FaultKind::ReadOnly { .. }), "{fault}");
}

#[test]
fn a_misaligned_global_access_is_named() {
    let from = Buffer::input("from", &[1f32; 64]);
    let to = Buffer::<f32>::poisoned("to", 64);
    let shape = LaunchShape::new(1, 32);
    let fault = fault(&copy_global::KERNEL, shape, (from.ptr().byte_add(2), to.ptr_mut(), 0));
    assert!(matches!(fault.kind, FaultKind::GlobalMisaligned { expected: 4, .. }), "{fault}");
}

#[kernel]
pub unsafe fn shared_at(offset: u32, write: u32) {
    let place = shared::dynamic_shared_mem::<[u32; 4]>().byte_add(offset);
    unsafe {
        if write != 0 {
            place.write([0; 4]);
        } else {
            place.read();
        }
    }
}

#[test]
fn shared_memory_is_bounded_aligned_and_not_zero_at_the_start() {
    let shape = LaunchShape::new(1, 1).shared(64);
    let kinds = [(60, 1), (64, 1), (8, 1), (u32::MAX - 15, 1), (0, 0)]
        .map(|arguments| fault(&shared_at::KERNEL, shape, arguments).kind);
    assert_eq!(
        kinds,
        [
            FaultKind::SharedOutOfBounds { offset: 60, bytes: 16, size: 64 },
            FaultKind::SharedOutOfBounds { offset: 64, bytes: 16, size: 64 },
            FaultKind::SharedMisaligned { offset: 8, bytes: 16, expected: 16 },
            FaultKind::SharedOutOfBounds { offset: -16, bytes: 16, size: 64 },
            FaultKind::Uninitialised { offset: 0, bytes: 16 },
        ]
    );
}

#[kernel]
pub unsafe fn eager_reader(from: Global<u32>, out: GlobalMut<u32>, wait: u32) {
    let t = thread::thread_idx_x();
    let tile = shared::dynamic_shared_mem::<u32>();
    unsafe {
        async_copy::copy_async(tile.add(t), from.add(t as usize));
        async_copy::commit_group();
        if wait != 0 {
            async_copy::wait_group::<0>();
        } else {
            async_copy::wait_group::<1>();
        }
        thread::sync_threads();
        out.add(t as usize).write(tile.add(31 - t).read());
    }
}

#[test]
fn a_copy_that_is_not_waited_for_is_named() {
    let from = Buffer::input("from", &(0..32).collect::<Vec<u32>>());
    let out = Buffer::<u32>::poisoned("out", 32);
    let shape = LaunchShape::new(1, 32).shared(128);
    cuda_std::simulate::launch(&eager_reader::KERNEL, shape, (from.ptr(), out.ptr_mut(), 1)).unwrap();
    assert_eq!(out.to_vec(), (0..32).rev().collect::<Vec<_>>());
    let fault = fault(&eager_reader::KERNEL, shape, (from.ptr(), out.ptr_mut(), 0));
    assert!(matches!(fault.kind, FaultKind::CopyInFlight { .. }), "{fault}");
}

#[kernel]
pub unsafe fn wait_for_a_flag(flag: GlobalMut<u32>) {
    unsafe { while atomic::load_acquire(flag) == 0 {} }
}

#[test]
fn spinning_on_a_flag_that_nobody_sets_ends() {
    let flag = Buffer::new("flag", &[0u32]);
    let fault = cuda_std::simulate::launch(&wait_for_a_flag::KERNEL, LaunchShape::new(1, 32), (flag.ptr_mut(),));
    assert_eq!(fault.unwrap_err().kind, FaultKind::Livelock);
}

#[kernel]
pub unsafe fn panics(_unused: u32) {
    let t = thread::thread_idx_x() as usize;
    let table = [1, 2, 3];
    assert!(table[t] > 0, "unreachable");
}

#[test]
fn a_panic_is_a_fault_of_its_thread() {
    let fault = fault(&panics::KERNEL, LaunchShape::new(1, 4), (0,));
    assert_eq!(fault.thread, [3, 0, 0]);
    assert!(fault.to_string().contains("the len is 3 but the index is 3"), "{fault}");
}

#[test]
fn a_block_beyond_the_launch_bounds_is_refused() {
    let out = Buffer::<u32>::poisoned("out", 256);
    let fault = fault(&reverse::KERNEL, LaunchShape::new(1, 256).shared(1024), (out.ptr_mut(), 1));
    assert_eq!(fault.kind, FaultKind::LaunchBounds { found: 256, expected: 128 });
}

#[test]
fn more_shared_memory_than_sm_120_has_is_refused() {
    let out = Buffer::<u32>::poisoned("out", 128);
    let shape = |bytes| LaunchShape::new(1, 128).shared(bytes);
    cuda_std::simulate::launch(&reverse::KERNEL, shape(101_376), (out.ptr_mut(), 1)).unwrap();
    let fault = fault(&reverse::KERNEL, shape(101_380), (out.ptr_mut(), 1));
    assert_eq!(fault.kind, FaultKind::SharedTooLarge { found: 101_380, expected: 101_376 });
    let larger = Simulator::default().shared_bytes(232_448);
    larger.launch(&reverse::KERNEL, shape(232_448), (out.ptr_mut(), 1)).unwrap();
    assert!(fault.to_string().contains("kernel reverse"), "{fault}");
}

#[kernel]
pub unsafe fn barrier_counts(_unused: u32) {
    let count = if thread::thread_idx_x() < 32 { 64 } else { 32 };
    unsafe { barrier::sync(1, count) };
}

#[test]
fn a_named_barrier_with_two_counts_is_named() {
    for seed in 0..20 {
        match Simulator::default().seed(seed).launch(&barrier_counts::KERNEL, LaunchShape::new(1, 64), (0,)) {
            Err(Fault { kind: FaultKind::BarrierCount { id: 1, .. } | FaultKind::Deadlock { .. }, .. }) => {}
            other => panic!("{other:?}"),
        }
    }
}

#[kernel]
pub unsafe fn no_mbarrier(_unused: u32) {
    unsafe { barrier::Mbarrier::at(shared::dynamic_shared_mem()).wait(0) };
}

#[test]
fn an_mbarrier_must_be_initialised() {
    let fault = fault(&no_mbarrier::KERNEL, LaunchShape::new(1, 1).shared(8), (0,));
    assert_eq!(fault.kind, FaultKind::NoMbarrier { offset: 0 });
}

/// A ring of one stage, refilled by bulk copies. A careful producer waits for the readers, another only for its own copy.
#[kernel(threads = 64)]
pub unsafe fn ring(from: Global<u32>, out: GlobalMut<u32>, careful: u32) {
    let t = thread::thread_idx_x();
    let stage = shared::dynamic_shared_mem::<u32>();
    let full = barrier::Mbarrier::at(stage.byte_add(256).cast());
    let empty = barrier::Mbarrier::at(stage.byte_add(264).cast());
    unsafe {
        if t == 0 {
            full.init(1);
            empty.init(32);
            barrier::fence_init();
        }
        thread::sync_threads();
        for round in 0..3 {
            if t == 0 {
                if careful != 0 {
                    empty.wait((round + 1) % 2);
                } else if round > 0 {
                    full.wait((round + 1) % 2);
                }
                full.arrive_expect_tx(128);
                async_copy::copy_bulk(stage, from.add(32 * round as usize), 128, full);
            }
            if t >= 32 {
                full.wait(round % 2);
                out.add((32 * round + t - 32) as usize).write(stage.add(t - 32).read());
                empty.arrive();
            }
        }
    }
}

#[test]
fn refilling_a_stage_that_is_still_read_is_a_race() {
    let data: Vec<u32> = (0..96).collect();
    let (from, out) = (Buffer::input("from", &data), Buffer::<u32>::poisoned("out", 96));
    let shape = LaunchShape::new(1, 64).shared(272);
    cuda_std::simulate::launch(&ring::KERNEL, shape, (from.ptr(), out.ptr_mut(), 1)).unwrap();
    assert_eq!(out.to_vec(), data);
    let mut races = 0;
    for seed in 0..20 {
        let arguments = (from.ptr(), out.ptr_mut(), 0);
        let fault = Simulator::default().seed(seed).launch(&ring::KERNEL, shape, arguments).unwrap_err();
        match fault.kind {
            FaultKind::Race { .. } => races += 1,
            // Under other schedules the producer laps a reader, who meets the next copy or waits for a phase that is over.
            FaultKind::CopyInFlight { .. } | FaultKind::Deadlock { .. } => {}
            _ => panic!("{fault}"),
        }
    }
    assert!(races > 0);
}

#[kernel]
pub unsafe fn exchange_in_a_warp(out: GlobalMut<u32>, sync: u32) {
    let lane = warp::lane_id();
    let tile = shared::dynamic_shared_mem::<u32>();
    unsafe {
        tile.add(lane).write(lane);
        // A shuffle brings the lanes together but orders no memory.
        let _ = warp::warp_shuffle_xor(warp::FULL_MASK, lane, 1, 32);
        if sync != 0 {
            warp::sync_warp(warp::FULL_MASK);
        }
        out.add(lane as usize).write(tile.add(31 - lane).read());
    }
}

#[test]
fn only_sync_warp_orders_the_memory_of_a_warp() {
    let out = Buffer::<u32>::poisoned("out", 32);
    let shape = LaunchShape::new(1, 32).shared(128);
    cuda_std::simulate::launch(&exchange_in_a_warp::KERNEL, shape, (out.ptr_mut(), 1)).unwrap();
    let fault = fault(&exchange_in_a_warp::KERNEL, shape, (out.ptr_mut(), 0));
    assert!(matches!(fault.kind, FaultKind::Race { .. }), "{fault}");
}

#[kernel]
pub unsafe fn forgets_its_copy(from: Global<u32>) {
    let stage = shared::dynamic_shared_mem::<u32>();
    let full = barrier::Mbarrier::at(stage.byte_add(128).cast());
    unsafe {
        full.init(1);
        full.arrive_expect_tx(128);
        async_copy::copy_bulk(stage, from, 128, full);
    }
}

#[test]
fn ending_with_a_bulk_copy_in_flight_is_named() {
    let from = Buffer::input("from", &[1u32; 32]);
    let fault = fault(&forgets_its_copy::KERNEL, LaunchShape::new(1, 1).shared(136), (from.ptr(),));
    assert_eq!(fault.kind, FaultKind::CopyAtExit { offset: 0 });
}

#[kernel]
pub unsafe fn shuffles_without_itself(out: GlobalMut<u32>) {
    let lane = warp::lane_id();
    unsafe { out.add(lane as usize).write(warp::warp_shuffle_idx(0x7fff_ffff, lane, 0, 32)) };
}

#[test]
fn a_mask_must_name_the_caller() {
    let out = Buffer::<u32>::poisoned("out", 32);
    let fault = fault(&shuffles_without_itself::KERNEL, LaunchShape::new(1, 32), (out.ptr_mut(),));
    assert_eq!(fault.thread, [31, 0, 0]);
    assert!(matches!(fault.kind, FaultKind::NotInMask { lane: 31, .. }), "{fault}");
}
