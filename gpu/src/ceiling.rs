//! What the hardware can do at best, as this crate's code reaches it: copy, read, multiply. Other kernels' figures are
//! shares of these. Nothing here serves inference.
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{grid, prelude::*};

/// Threads of a block that copies or reads.
const THREADS: u32 = 512;
/// Vectors of 16 bytes that a thread has in flight when it reads.
const BATCH: u32 = 8;
/// The same when it copies.
const COPY_BATCH: u32 = 4;
/// Threads of a block that multiplies.
const MMA_THREADS: u32 = 256;
/// Independent products that a warp has in flight.
const CHAINS: usize = 8;

/// Copies `from` to `to`.
///
/// to[i] = from[i]
///
/// * Shapes: `from`, `to` [vectors] of 16 bytes.
/// * Work: any grid of 512 threads; a block takes 2048 neighbouring vectors at a time, a thread four of them, 512 apart.
/// * Shared memory: none.
/// * Registers: four vectors; under 64.
/// * Bytes: 32 a vector; FLOPs: none.
/// * Alignment: 16 B. Any number of vectors.
/// * Tolerance: exact.
///
/// # Safety
/// The buffers have that size and do not overlap.
#[kernel(threads = 512)]
pub unsafe fn ceiling_copy(from: Global<[u32; 4]>, to: GlobalMut<[u32; 4]>, vectors: u64) {
    // SAFETY: indices are below `vectors`.
    unsafe {
        grid::dependency_wait();
        let mut first = u64::from(thread::block_idx_x()) * u64::from(THREADS * COPY_BATCH);
        while first < vectors {
            let i = first + u64::from(thread::thread_idx_x());
            if first + u64::from(THREADS * COPY_BATCH) <= vectors {
                let mut held = [[0; 4]; COPY_BATCH as usize];
                for (j, held) in held.iter_mut().enumerate() {
                    *held = from.add(i as usize + j * THREADS as usize).read_cached();
                }
                for (j, held) in held.into_iter().enumerate() {
                    to.add(i as usize + j * THREADS as usize).write(held);
                }
            } else {
                let mut i = i;
                while i < vectors {
                    to.add(i as usize).write(from.add(i as usize).read_cached());
                    i += u64::from(THREADS);
                }
            }
            first += u64::from(thread::grid_dim_x()) * u64::from(THREADS * COPY_BATCH);
        }
        grid::dependency_launch();
    }
}

/// Reads everything and keeps next to nothing.
///
/// out[b, t] = xor of the words that thread t of block b has read; their xor is that of all words.
///
/// * Shapes: `from` [vectors] of 16 bytes; `out` [grid, 512] u32.
/// * Work: any grid of 512 threads; a block takes 4096 neighbouring vectors at a time, a thread eight of them, 512 apart.
/// * Shared memory: none.
/// * Registers: eight vectors; under 64.
/// * Bytes: 16 a vector; FLOPs: none.
/// * Alignment: `from` 16 B. Any number of vectors.
/// * Tolerance: exact.
///
/// # Safety
/// The buffers have those sizes.
#[kernel(threads = 512)]
pub unsafe fn ceiling_read(from: Global<[u32; 4]>, out: GlobalMut<u32>, vectors: u64) {
    // SAFETY: indices are below `vectors`; one word of `out` a thread.
    unsafe {
        grid::dependency_wait();
        let mut sum = 0;
        let mut first = u64::from(thread::block_idx_x()) * u64::from(THREADS * BATCH);
        while first < vectors {
            let i = first + u64::from(thread::thread_idx_x());
            if first + u64::from(THREADS * BATCH) <= vectors {
                let mut held = [[0; 4]; BATCH as usize];
                for (j, held) in held.iter_mut().enumerate() {
                    *held = from.add(i as usize + j * THREADS as usize).read_once();
                }
                for [a, b, c, d] in held {
                    sum ^= a ^ b ^ c ^ d;
                }
            } else {
                let mut i = i;
                while i < vectors {
                    let [a, b, c, d] = from.add(i as usize).read_once();
                    sum ^= a ^ b ^ c ^ d;
                    i += u64::from(THREADS);
                }
            }
            first += u64::from(thread::grid_dim_x()) * u64::from(THREADS * BATCH);
        }
        out.add(thread::index_1d() as usize).write(sum);
        grid::dependency_launch();
    }
}

/// Multiplies bf16 tiles in registers, over and over.
///
/// out[w, lane] = sum over chains c of `rounds` x (A B_c), the four values of the lane's fragment added up. A is the same
/// for all warps, B_c is B with its two registers exchanged where c is odd.
///
/// * Shapes: `a` [32, 4] u32 and `b` [32, 2] u32, fragments of bf16; `out` [grid x 8, 32] f32, w being the warp.
/// * Work: any grid of 256 threads; a warp does 8 x `rounds` products of 16 x 8 x 16.
/// * Shared memory: none.
/// * Registers: 32 of sums; under 64.
/// * Bytes: next to none; FLOPs: 4096 a product.
/// * Alignment: `a` 16 B, `b` 8 B.
/// * Tolerance: f32 accumulation, 2^-20 x rounds x the sum of magnitudes.
///
/// # Safety
/// The buffers have those sizes.
#[kernel(threads = 256, blocks_per_sm = 2)]
pub unsafe fn ceiling_mma(a: Global<[u32; 4]>, b: Global<[u32; 2]>, out: GlobalMut<f32>, rounds: u32) {
    // SAFETY: all lanes of a warp come here together; one value of `out` a thread.
    unsafe {
        grid::dependency_wait();
        let lane = warp::lane_id() as usize;
        let (a, [b0, b1]) = (a.add(lane).read(), b.add(lane).read());
        let mut sums = [[0.0f32; 4]; CHAINS];
        for _ in 0..rounds {
            for (chain, sum) in sums.iter_mut().enumerate() {
                *sum = mma::m16n8k16_bf16(a, if chain % 2 == 0 { [b0, b1] } else { [b1, b0] }, *sum);
            }
        }
        let mut total = 0.0;
        for [x, y, z, w] in sums {
            total += (x + y) + (z + w);
        }
        out.add(thread::index_1d() as usize).write(total);
        grid::dependency_launch();
    }
}

/// Launch of [`ceiling_copy`] and [`ceiling_read`] with this many blocks.
#[cfg(not(target_arch = "nvptx64"))]
pub fn memory_shape(blocks: u32) -> LaunchShape {
    LaunchShape::new(blocks, THREADS)
}

/// Launch of [`ceiling_mma`] with this many blocks.
#[cfg(not(target_arch = "nvptx64"))]
pub fn mma_shape(blocks: u32) -> LaunchShape {
    LaunchShape::new(blocks, MMA_THREADS)
}

/// FLOPs of [`ceiling_mma`].
#[cfg(not(target_arch = "nvptx64"))]
pub fn mma_flops(blocks: u32, rounds: u32) -> f64 {
    f64::from(blocks) * f64::from(MMA_THREADS / 32) * f64::from(rounds) * CHAINS as f64 * 4096.0
}

/// A warp's results of [`ceiling_mma`] by its formula, in f64, each with the sum of its terms' magnitudes.
#[cfg(not(target_arch = "nvptx64"))]
pub fn ceiling_mma_reference(a: &[[u32; 4]], b: &[[u32; 2]], rounds: u32) -> std::vec::Vec<(f64, f64)> {
    let half = |word: u32, i: usize| f64::from(f32::from_bits(word >> (16 * i) << 16));
    // Row m of A and column n of B hold input 2 t + h of the low or the high half in lane 4 (m or n) + t.
    let a_at = |m: usize, i: usize| half(a[m % 8 * 4 + i % 8 / 2][m / 8 + 2 * (i / 8)], i % 2);
    let b_at = |swap: usize, i: usize, n: usize| half(b[n * 4 + i % 8 / 2][(i / 8) ^ swap], i % 2);
    let lane = |lane: usize| {
        let (g, t) = (lane / 4, lane % 4);
        let places = [(g, 2 * t), (g, 2 * t + 1), (g + 8, 2 * t), (g + 8, 2 * t + 1)];
        let terms = places.into_iter().flat_map(|(m, n)| (0..32).map(move |i| (m, n, i % 16, i / 16)));
        let scale = f64::from(rounds) * (CHAINS / 2) as f64;
        terms
            .map(|(m, n, i, swap)| scale * a_at(m, i) * b_at(swap, i, n))
            .fold((0.0, 0.0), |(sum, all), term| (sum + term, all + term.abs()))
    };
    (0..32).map(lane).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Failures, Random};
    use cuda_std::convert::bf16x2_from_f32;
    use cuda_std::simulate::{Buffer, launch};
    use std::vec::Vec;

    #[test]
    fn every_vector_is_copied_and_read() {
        for (blocks, vectors) in [
            (1, 0),
            (1, 1),
            (1, 511),
            (2, 512),
            (1, 513),
            (3, 1000),
            (1, 4095),
            (2, 4096),
            (1, 4097),
            (2, 8191),
            (1, 8192),
            (3, 9000),
        ] {
            let mut random = Random::new(vectors);
            let data: Vec<[u32; 4]> = (0..vectors).map(|_| core::array::from_fn(|_| random.below(u32::MAX))).collect();
            let from = Buffer::input("from", &data);
            let to = Buffer::<[u32; 4]>::poisoned("to", data.len());
            launch(&ceiling_copy::KERNEL, memory_shape(blocks), (from.ptr(), to.ptr_mut(), vectors)).unwrap();
            assert_eq!(to.to_vec(), data, "{blocks} blocks, {vectors} vectors");

            let out = Buffer::<u32>::poisoned("out", (blocks * THREADS) as usize);
            launch(&ceiling_read::KERNEL, memory_shape(blocks), (from.ptr(), out.ptr_mut(), vectors)).unwrap();
            let expected = data.iter().flatten().fold(0, |x, y| x ^ y);
            let found = out.to_vec().into_iter().fold(0, |x, y| x ^ y);
            assert_eq!(found, expected, "{blocks} blocks, {vectors} vectors");
        }
    }

    #[test]
    fn products_add_up() {
        let mut failures = Failures::default();
        for (blocks, rounds) in
            [(1, 0), (1, 1), (2, 2), (1, 3), (3, 4), (3, 5), (1, 7), (2, 9), (5, 1), (4, 13), (1, 17), (1, 40)]
        {
            let mut random = Random::new(rounds.into());
            let mut pair = || bf16x2_from_f32(random.normal(), random.normal());
            let a: Vec<[u32; 4]> = (0..32).map(|_| core::array::from_fn(|_| pair())).collect();
            let b: Vec<[u32; 2]> = (0..32).map(|_| core::array::from_fn(|_| pair())).collect();
            let (from_a, from_b) = (Buffer::input("a", &a), Buffer::input("b", &b));
            let out = Buffer::<f32>::poisoned("out", (blocks * MMA_THREADS) as usize);
            let arguments = (from_a.ptr(), from_b.ptr(), out.ptr_mut(), rounds);
            launch(&ceiling_mma::KERNEL, mma_shape(blocks), arguments).unwrap();
            let expected = ceiling_mma_reference(&a, &b, rounds);
            for (i, found) in out.to_vec().into_iter().enumerate() {
                let (exact, magnitude) = expected[i % 32];
                let close = (f64::from(found) - exact).abs() <= magnitude * 2f64.powi(-20);
                let case = std::format!("{blocks} blocks, {rounds} rounds, thread {i}");
                failures.check(close, &case, &std::format!("{found}, expected {exact}"));
            }
        }
        failures.report();
    }
}
