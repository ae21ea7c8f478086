//! What the simulator costs: nanoseconds a lane switch, a tile product and a checked shared access.
#![allow(missing_docs, clippy::undocumented_unsafe_blocks, clippy::missing_safety_doc)]
use cuda_std::launch::{Arguments, Kernel, LaunchShape};
use cuda_std::prelude::*;
use cuda_std::simulate::{Buffer, launch};
use std::time::Instant;

#[kernel]
pub unsafe fn shuffles(out: GlobalMut<u32>, count: u32) {
    unsafe {
        let mut x = thread::thread_idx_x();
        for _ in 0..count {
            x = warp::warp_shuffle_xor(warp::FULL_MASK, x, 1, 32);
        }
        out.add(thread::thread_idx_x() as usize).write(x);
    }
}

#[kernel]
pub unsafe fn barriers(_out: GlobalMut<u32>, count: u32) {
    for _ in 0..count {
        unsafe { thread::sync_threads() };
    }
}

#[kernel]
pub unsafe fn products(out: GlobalMut<u32>, count: u32) {
    unsafe {
        let mut c = [0.0; 4];
        for i in 0..count {
            c = mma::m16n8k16_bf16([i; 4], [i; 2], c);
        }
        out.add(thread::thread_idx_x() as usize).write(c[0].to_bits());
    }
}

#[kernel]
pub unsafe fn accesses(out: GlobalMut<u32>, count: u32) {
    unsafe {
        let place = cuda_std::shared::dynamic_shared_mem::<[u32; 4]>().add(thread::thread_idx_x());
        place.write([1; 4]);
        let mut sum = 0;
        for _ in 0..count {
            sum += place.read()[0];
        }
        out.add(thread::thread_idx_x() as usize).write(sum);
    }
}

fn measure(name: &str, kernel: &Kernel<(GlobalMut<u32>, u32)>, per_thread: bool)
where
    (GlobalMut<u32>, u32): Arguments,
{
    const COUNT: u32 = 4000;
    const THREADS: u32 = 256;
    let out = Buffer::<u32>::poisoned("out", THREADS as usize);
    let shape = LaunchShape::new(1, THREADS).shared(THREADS * 16);
    let mut best = f64::INFINITY;
    for _ in 0..5 {
        let start = Instant::now();
        let report = launch(kernel, shape, (out.ptr_mut(), COUNT)).expect("the kernel is sound");
        let events = if per_thread { u64::from(COUNT * THREADS) } else { report.lane_switches };
        best = best.min(start.elapsed().as_nanos() as f64 / events as f64);
    }
    println!("{name:<28} {best:>7.1} ns");
}

fn main() {
    measure("lane switch at a shuffle", &shuffles::KERNEL, false);
    measure("lane switch at a barrier", &barriers::KERNEL, false);
    measure("lane switch at a product", &products::KERNEL, false);
    measure("16-byte shared read", &accesses::KERNEL, true);
}
