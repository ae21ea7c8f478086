//! The new rows of the latent KV cache: norm and rotary embedding. Queries are turned where they are absorbed, in `heads`.
use crate::block::block_sum;
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{convert::bf16x2_from_f32, grid, prelude::*, shared};

/// Threads of a block: one token.
const THREADS: u32 = 256;

/// Appends each token's normed latent and rotated key to the cache, in slots that follow each other.
///
/// With (c, s) = cos_sin[positions[t], j], each adjacent pair (x, y) = (v[2j], v[2j+1]) becomes (x c - y s, x s + y c).
/// cache[start + t, i] = kv[t, i] / sqrt(mean kv[t, ..latent]^2 + eps) * weight[i] for i < latent; cache[start + t, latent + i]
/// = rope(kv[t, latent + i]).
///
/// * Shapes: `kv` [rows, latent + rope] f32; `weight` [latent] bf16; `cos_sin` [positions, rope / 2, 2] f32, amplitude
///   included; `positions` [rows] u32; `start` \[1\] u32; `cache` [slots, row] bf16, rows `cache_stride` elements apart.
/// * Work: a block of 256 threads a token; a thread takes one pair at a time.
/// * Shared memory: 32 B, one partial sum a warp.
/// * Registers: under 40.
/// * Bytes: 4 an element of `kv`, read twice, and 2 written; FLOPs: 3 an element.
/// * Alignment: `kv`, `cos_sin` 8 B, `weight`, `cache` 4 B; rope, latent and `cache_stride` even.
/// * Tolerance: 2^-8 relative to the pair's length, the rounding to bf16.
///
/// # Safety
/// The buffers have those shapes and alignments; positions are in range and the cache has the slots.
#[kernel(threads = 256)]
pub unsafe fn append_latent(
    kv: Global<f32>,
    weight: Global<Bf16>,
    cos_sin: Global<[f32; 2]>,
    positions: Global<u32>,
    start: Global<u32>,
    cache: GlobalMut<Bf16>,
    rope: u32,
    latent: u32,
    cache_stride: u32,
    eps: f32,
) {
    // SAFETY: one token a block, inside the buffers by the contract.
    unsafe {
        grid::dependency_wait();
        let row = thread::block_idx_x() as usize;
        let t = thread::thread_idx_x();
        let cos_sin = cos_sin.add((positions.add(row).read() * (rope / 2)) as usize);
        let width = latent + rope;
        let kv = kv.add(row * width as usize);
        let cache = cache.add((start.read() as usize + row) * cache_stride as usize);
        let mut squares = 0.0;
        let mut i = t * 2;
        while i < latent {
            let [x, y] = kv.add(i as usize).cast::<[f32; 2]>().read();
            squares = math::fma(x, x, math::fma(y, y, squares));
            i += THREADS * 2;
        }
        let total = block_sum(squares, shared::dynamic_shared_mem());
        let scale = math::rsqrt(total / latent as f32 + eps);
        let mut i = t * 2;
        while i < width {
            let from = kv.add(i as usize);
            let value = if i < latent {
                let [x, y] = from.cast::<[f32; 2]>().read();
                let [u, v] = weight.add(i as usize).cast::<[Bf16; 2]>().read_cached();
                bf16x2_from_f32(x * scale * u.to_f32(), y * scale * v.to_f32())
            } else {
                rotate(from, cos_sin.add(((i - latent) / 2) as usize))
            };
            cache.add(i as usize).cast::<u32>().write(value);
            i += THREADS * 2;
        }
        grid::dependency_launch();
    }
}

/// An adjacent pair, rotated, as two bf16.
#[inline(always)]
unsafe fn rotate(pair: Global<f32>, cos_sin: Global<[f32; 2]>) -> u32 {
    // SAFETY: the caller gives addresses of a pair and of its angle.
    unsafe {
        let [x, y] = pair.cast::<[f32; 2]>().read();
        let [c, s] = cos_sin.read_cached();
        bf16x2_from_f32(x * c - y * s, x * s + y * c)
    }
}

/// Launch of [`append_latent`] over `rows` tokens.
#[cfg(not(target_arch = "nvptx64"))]
pub fn shape(rows: u32) -> LaunchShape {
    LaunchShape::new(rows, THREADS).shared(32)
}

/// Interleaved rotary embedding by its formula, unrounded: `cos_sin` holds one (cos, sin) a pair.
#[cfg(not(target_arch = "nvptx64"))]
pub fn rope_reference(values: &[f32], cos_sin: &[[f32; 2]]) -> std::vec::Vec<f32> {
    let pairs = values.chunks_exact(2).zip(cos_sin);
    pairs.flat_map(|(v, [c, s])| [v[0] * c - v[1] * s, v[0] * s + v[1] * c]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::norm::rms_norm_reference;
    use crate::testing::{Failures, Random};
    use cuda_std::simulate::{Buffer, Simulator};
    use std::vec::Vec;

    #[test]
    fn the_cache_grows_by_normed_latents_and_turned_keys() {
        let mut failures = Failures::default();
        // rows, rope, latent, stride of the cache
        for (rows, rope, latent, stride) in [
            (1, 2, 2, 4),
            (1, 2, 6, 10),
            (2, 4, 10, 14),
            (3, 8, 30, 40),
            (1, 16, 64, 80),
            (5, 16, 64, 88),
            (2, 16, 62, 78),
            (4, 32, 128, 160),
            (1, 64, 512, 584),
            (3, 64, 512, 584),
            (65, 64, 512, 584),
            (7, 10, 514, 524),
        ] {
            let mut random = Random::new((rows * stride) as u64);
            let positions: Vec<u32> = (0..rows as u32).map(|i| i * 3 % 11).collect();
            let (start, width) = (rows % 4, latent + rope);
            let kv = random.normals(rows * width);
            let weight: Vec<Bf16> = random.normals(latent).into_iter().map(Bf16::from_f32).collect();
            let angle = |i: usize| ((i / (rope / 2)) as f32 * 0.7f32.powi((i % (rope / 2)) as i32)).sin_cos();
            let cos_sin: Vec<[f32; 2]> = (0..11 * rope / 2).map(angle).map(|(s, c)| [c, s]).collect();
            let cache = Buffer::<Bf16>::poisoned("cache", (rows + 5) * stride);
            let inputs = (Buffer::input("kv", &kv), Buffer::input("weight", &weight));
            let (angles, p) = (Buffer::input("cos_sin", &cos_sin), Buffer::input("positions", &positions));
            let first = Buffer::input("start", &[start as u32]);
            let pointers = (inputs.0.ptr(), inputs.1.ptr(), angles.ptr(), p.ptr(), first.ptr(), cache.ptr_mut());
            let [r, l, s] = [rope, latent, stride].map(|n| n as u32);
            let arguments = (pointers.0, pointers.1, pointers.2, pointers.3, pointers.4, pointers.5, r, l, s, 1e-6);
            let simulator = Simulator::default().seed(rows as u64);
            simulator.launch(&append_latent::KERNEL, shape(rows as u32), arguments).unwrap();

            for (slot, found) in cache.to_vec().chunks(stride).enumerate() {
                let case = std::format!("{rows} rows, rope {rope}, latent {latent}, slot {slot}");
                if slot < start || slot >= start + rows {
                    failures.check(found.iter().all(|x| x.0 == u16::MAX), &case, "was written");
                    continue;
                }
                let from = &kv[(slot - start) * width..][..width];
                let angles = &cos_sin[positions[slot - start] as usize * rope / 2..][..rope / 2];
                failures.compare_bf16(&case, &found[..latent], &rms_norm_reference(&from[..latent], &weight, 1e-6));
                compare_pairs(&mut failures, &case, &found[latent..width], &rope_reference(&from[latent..], angles));
            }
        }
        failures.report();
    }

    /// An element of a rotated pair may cancel, so the bound is relative to the pair's length.
    fn compare_pairs(failures: &mut Failures, case: &str, found: &[Bf16], expected: &[f32]) {
        for (i, (f, e)) in found.chunks(2).zip(expected.chunks(2)).enumerate() {
            let length = e[0].hypot(e[1]);
            let close = (0..2).all(|j| (f[j].to_f32() - e[j]).abs() <= length / 256.0);
            failures.check(close, case, &std::format!("pair {i} is {f:?}, expected {e:?}"));
        }
    }
}
