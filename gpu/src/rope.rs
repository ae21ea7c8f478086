//! What happens to a token's projections before attention: rotary embedding of the query, and the new row of the KV cache.
use crate::block::block_sum;
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{convert::bf16x2_from_f32, grid, prelude::*, shared};

/// Threads of a block: one token.
const THREADS: u32 = 256;

/// Rotates the rope part of each query head, and appends the token's normed latent and rotated key to the cache.
///
/// With (c, s) = cos_sin[positions[t], j], each adjacent pair (x, y) = (v[2j], v[2j+1]) becomes (x c - y s, x s + y c).
/// query[t, h, latent + i] = rope(q[t, h, nope + i]); cache[slots[t], i] = kv[t, i] / sqrt(mean kv[t, ..latent]^2 + eps) *
/// weight[i] for i < latent; cache[slots[t], latent + i] = rope(kv[t, latent + i]).
///
/// * Shapes: `q` [rows, heads, nope + rope] f32; `kv` [rows, latent + rope] f32; `weight` [latent] bf16; `cos_sin`
///   [positions, rope / 2, 2] f32, amplitude included; `positions`, `slots` [rows] u32; `query` [rows, heads, latent +
///   rope] bf16, whose latent part is left alone; `cache` [slots, row] bf16, rows `cache_stride` elements apart.
/// * Work: a block of 256 threads a token; a thread takes one pair at a time, of all heads, then of the cache row.
/// * Shared memory: 32 B, one partial sum a warp.
/// * Registers: under 48.
/// * Bytes: 4 a rope element of `q` and 2 written, 4 an element of `kv` read twice and 2 written; FLOPs: 3 an element.
/// * Alignment: `q`, `kv`, `cos_sin` 8 B, `weight`, `query`, `cache` 4 B; nope, rope, latent and `cache_stride` even.
/// * Tolerance: 2^-8 relative to the pair's length, the rounding to bf16.
///
/// # Safety
/// The buffers have those shapes and alignments; positions and slots are in range, and no two rows share a slot.
#[kernel(threads = 256)]
pub unsafe fn rope_append(
    q: Global<f32>,
    kv: Global<f32>,
    weight: Global<Bf16>,
    cos_sin: Global<[f32; 2]>,
    positions: Global<u32>,
    slots: Global<u32>,
    query: GlobalMut<Bf16>,
    cache: GlobalMut<Bf16>,
    heads: u32,
    nope: u32,
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
        let half = rope / 2;
        let cos_sin = cos_sin.add(positions.add(row).read() as usize * half as usize);

        let (from_head, to_head) = (nope + rope, latent + rope);
        let q = q.add(row * (heads * from_head) as usize + nope as usize);
        let query = query.add(row * (heads * to_head) as usize + latent as usize);
        let mut i = t;
        while i < heads * half {
            let (head, pair) = (i / half, i % half);
            let rotated = rotate(q.add((head * from_head + 2 * pair) as usize), cos_sin.add(pair as usize));
            query.add((head * to_head + 2 * pair) as usize).cast::<u32>().write(rotated);
            i += THREADS;
        }

        let kv = kv.add(row * to_head as usize);
        let cache = cache.add(slots.add(row).read() as usize * cache_stride as usize);
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
        while i < to_head {
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

/// Launch of [`rope_append`] over `rows` tokens.
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
    fn queries_turn_and_the_cache_grows() {
        let mut failures = Failures::default();
        // rows, heads, nope, rope, latent, stride of the cache
        for (rows, heads, nope, rope, latent, stride) in [
            (1, 1, 2, 2, 2, 4),
            (1, 3, 4, 2, 6, 10),
            (2, 1, 8, 4, 10, 14),
            (3, 5, 16, 8, 30, 40),
            (1, 7, 32, 16, 64, 80),
            (5, 2, 32, 16, 64, 88),
            (2, 6, 48, 16, 62, 78),
            (4, 3, 64, 32, 128, 160),
            (1, 16, 128, 64, 512, 584),
            (3, 8, 128, 64, 512, 584),
            (1, 64, 128, 64, 512, 584),
            (7, 1, 6, 10, 514, 524),
        ] {
            let mut random = Random::new((rows * stride + heads) as u64);
            let positions: Vec<u32> = (0..rows as u32).map(|i| i * 3 % 11).collect();
            let slots: Vec<u32> = (0..rows as u32).map(|i| (i + 2) % (rows as u32 + 3)).collect();
            let q = random.normals(rows * heads * (nope + rope));
            let kv = random.normals(rows * (latent + rope));
            let weight: Vec<Bf16> = random.normals(latent).into_iter().map(Bf16::from_f32).collect();
            let angle = |i: usize| ((i / (rope / 2)) as f32 * 0.7f32.powi((i % (rope / 2)) as i32)).sin_cos();
            let cos_sin: Vec<[f32; 2]> = (0..11 * rope / 2).map(angle).map(|(s, c)| [c, s]).collect();
            let query = Buffer::<Bf16>::poisoned("query", rows * heads * (latent + rope));
            let cache = Buffer::<Bf16>::poisoned("cache", (rows + 3) * stride);
            let inputs = (Buffer::input("q", &q), Buffer::input("kv", &kv), Buffer::input("weight", &weight));
            let angles = Buffer::input("cos_sin", &cos_sin);
            let (p, s) = (Buffer::input("positions", &positions), Buffer::input("slots", &slots));
            let sizes = [heads, nope, rope, latent, stride].map(|n| n as u32);
            let arguments = (
                inputs.0.ptr(),
                inputs.1.ptr(),
                inputs.2.ptr(),
                angles.ptr(),
                p.ptr(),
                s.ptr(),
                query.ptr_mut(),
                cache.ptr_mut(),
                sizes[0],
                sizes[1],
                sizes[2],
                sizes[3],
                sizes[4],
                1e-6,
            );
            let simulator = Simulator::default().seed(rows as u64);
            simulator.launch(&rope_append::KERNEL, shape(rows as u32), arguments).unwrap();

            let (query, cache) = (query.to_vec(), cache.to_vec());
            let mut untouched = std::vec![true; cache.len() / stride];
            for row in 0..rows {
                let case = std::format!("{rows} rows, {heads} heads, {nope}+{rope}, latent {latent}, row {row}");
                let angles = &cos_sin[positions[row] as usize * rope / 2..][..rope / 2];
                for head in 0..heads {
                    let from = &q[(row * heads + head) * (nope + rope) + nope..][..rope];
                    let found = &query[(row * heads + head) * (latent + rope)..][..latent + rope];
                    compare_pairs(&mut failures, &case, &found[latent..], &rope_reference(from, angles));
                    failures.check(found[..latent].iter().all(|x| x.0 == u16::MAX), &case, "writes the latent query");
                }
                let slot = slots[row] as usize;
                untouched[slot] = false;
                let (from, found) = (&kv[row * (latent + rope)..][..latent + rope], &cache[slot * stride..][..stride]);
                failures.compare_bf16(&case, &found[..latent], &rms_norm_reference(&from[..latent], &weight, 1e-6));
                let key = &found[latent..latent + rope];
                compare_pairs(&mut failures, &case, key, &rope_reference(&from[latent..], angles));
            }
            for slot in (0..untouched.len()).filter(|slot| untouched[*slot]) {
                let row = &cache[slot * stride..][..stride];
                failures.check(row.iter().all(|x| x.0 == u16::MAX), &std::format!("slot {slot}"), "was written");
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
