//! The ceilings: the best of a few grids of the kernels that copy, read and multiply.

use coppice_gpu::ceiling;
use coppice_gpu::testing::Random;
use cuda_std::convert::bf16x2_from_f32;

use super::{Ceilings, time};
use crate::backend::cuda::{Device, DeviceBuffer};
use crate::error::Result;

/// Vectors of 16 bytes of a buffer: 2 GiB.
const VECTORS: u64 = 1 << 27;
/// Launches timed together.
const LAUNCHES: usize = 4;
/// Vectors that a block takes at a time.
const BLOCK_VECTORS: u64 = 4096;
/// Products that each chain of a warp does.
const ROUNDS: u32 = 8192;

/// Measures all three.
///
/// # Errors
/// The device failed, or has not 4 GiB free.
pub fn measure(device: &Device) -> Result<Ceilings> {
    let mut random = Random::new(1);
    let pattern: Vec<[u32; 4]> = (0..1 << 18).map(|_| std::array::from_fn(|_| random.below(u32::MAX))).collect();
    let from = DeviceBuffer::repeating(device, &pattern, VECTORS as usize)?;
    let to = DeviceBuffer::<[u32; 4]>::poisoned(device, VECTORS as usize)?;
    let all = (VECTORS / BLOCK_VECTORS) as u32;
    let resident = device.info().multiprocessors;
    let out = DeviceBuffer::<u32>::poisoned(device, 2 * all as usize * 512)?;
    let (mut copy, mut read) = (0.0f64, 0.0f64);
    for blocks in [2 * resident, 4 * resident, 16 * resident, all, 2 * all] {
        let shape = ceiling::memory_shape(blocks);
        let arguments = (from.ptr(), to.ptr_mut(), VECTORS);
        // SAFETY: both buffers hold `VECTORS` vectors.
        let copied =
            time(device, LAUNCHES, |_| unsafe { device.launch(&ceiling::ceiling_copy::KERNEL, shape, arguments) })?;
        copy = copy.max(32.0 * VECTORS as f64 / copied.median);
        let arguments = (from.ptr(), out.ptr_mut(), VECTORS);
        // SAFETY: `from` holds `VECTORS` vectors, `out` a word for each thread of the largest grid.
        let seen =
            time(device, LAUNCHES, |_| unsafe { device.launch(&ceiling::ceiling_read::KERNEL, shape, arguments) })?;
        read = read.max(16.0 * VECTORS as f64 / seen.median);
    }
    Ok(Ceilings { copy, read, mma: multiply(device, &mut random)? })
}

/// FLOPs a second of `mma.sync` on random data: zeros would run faster.
fn multiply(device: &Device, random: &mut Random) -> Result<f64> {
    let mut pair = || bf16x2_from_f32(random.normal(), random.normal());
    let a: Vec<[u32; 4]> = (0..32).map(|_| std::array::from_fn(|_| pair())).collect();
    let b: Vec<[u32; 2]> = (0..32).map(|_| std::array::from_fn(|_| pair())).collect();
    let (a, b) = (DeviceBuffer::new(device, &a)?, DeviceBuffer::new(device, &b)?);
    let mut best = 0.0f64;
    for blocks_per_sm in [1, 2, 4] {
        let blocks = device.info().multiprocessors * blocks_per_sm;
        let out = DeviceBuffer::<f32>::poisoned(device, blocks as usize * 256)?;
        let (shape, arguments) = (ceiling::mma_shape(blocks), (a.ptr(), b.ptr(), out.ptr_mut(), ROUNDS));
        // SAFETY: fragments of a warp, and a value of `out` a thread.
        let timing =
            time(device, LAUNCHES, |_| unsafe { device.launch(&ceiling::ceiling_mma::KERNEL, shape, arguments) })?;
        best = best.max(ceiling::mma_flops(blocks, ROUNDS) / timing.median);
    }
    Ok(best)
}
