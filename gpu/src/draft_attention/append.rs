//! Per-head norms and rotary embedding of a drafter's queries and keys, and the new rows of its cache.
use super::PADDING;
use crate::round::RowLayout;
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{grid, prelude::*, unroll};

/// Warps of a block: one row.
const WARPS: u32 = 8;

/// Norms and rotates each row's queries and keys, and writes keys and values to the cache at the rows' slots.
///
/// With n(x, w) = x / sqrt(mean x^2 + eps) * w and r(x) the rotation by (c, s) = cos_sin[positions[t], j] of pair j, which is
/// (x[j], x[j + head_dim / 2]), or (x[2j], x[2j + 1]) where interleaved: (a, b) becomes (a c - b s, a s + b c).
/// query[t, h] = r(n(q[t, h], norms[0])); keys[g, slots[t]] = r(n(k[t, g], norms[1])); values[g, slots[t]] = v[t, g].
///
/// * Shapes: `rows` as [`RowLayout`] has it: count, positions and slots are read; `q` [rows, heads, head_dim], `k`, `v` [rows,
///   kv_heads, head_dim] f32; `norms` [2, head_dim] f32; `cos_sin` [positions, head_dim / 2, 2] f32, amplitude included;
///   `query` [rows, heads, head_dim] bf16; `keys`, `values` [kv_heads, cache_slots, head_dim + 8] bf16, whose last 8 elements
///   are left alone. With no heads neither `q` nor `query` is used: rows that became context.
/// * Work: grid `capacity`, 8 warps; a warp takes one vector at a time, a lane one or two pairs of it.
/// * Shared memory: none.
/// * Registers: under 48.
/// * Bytes: 4 read and 2 written an element; FLOPs: 7 an element.
/// * Alignment: `cos_sin` 8 B, the rest that of their elements. `head_dim` even, at most 128.
/// * Tolerance: 2^-8 relative to the pair's length, the rounding to bf16.
///
/// # Safety
/// The buffers have those shapes and alignments; positions and slots are in range, and no two rows share a slot.
#[kernel(threads = 256)]
pub unsafe fn draft_append(
    rows: Global<u32>,
    q: Global<f32>,
    k: Global<f32>,
    v: Global<f32>,
    norms: Global<f32>,
    cos_sin: Global<[f32; 2]>,
    query: GlobalMut<Bf16>,
    keys: GlobalMut<Bf16>,
    values: GlobalMut<Bf16>,
    capacity: u32,
    heads: u32,
    kv_heads: u32,
    head_dim: u32,
    cache_slots: u32,
    eps: f32,
    interleave: u32,
) {
    // SAFETY: one row a block, one vector a warp, inside the buffers by the contract; the loop is uniform in a warp.
    unsafe {
        grid::dependency_wait();
        let (row, layout) = (thread::block_idx_x(), RowLayout { capacity });
        if row < rows.add(RowLayout::COUNT as usize).read() {
            let position = rows.add((layout.positions() + row) as usize).read();
            let slot = rows.add((layout.slots() + row) as usize).read();
            let (lane, width) = (warp::lane_id(), head_dim as usize);
            let half = head_dim / 2;
            let angles = cos_sin.add(position as usize * half as usize);
            let cached =
                |head: u32| (head as usize * cache_slots as usize + slot as usize) * (width + PADDING as usize);
            let mut vector = thread::thread_idx_x() / 32;
            while vector < heads + 2 * kv_heads {
                // Queries, then keys, then values.
                let head = if vector < heads { vector } else { (vector - heads) % kv_heads };
                let own = (row as usize * kv_heads as usize + head as usize) * width;
                let (from, to, norm, turned) = if vector < heads {
                    let own = (row as usize * heads as usize + head as usize) * width;
                    (q.add(own), query.add(own), norms, true)
                } else if vector < heads + kv_heads {
                    (k.add(own), keys.add(cached(head)), norms.add(width), true)
                } else {
                    (v.add(own), values.add(cached(head)), norms, false)
                };
                let pair = |j: u32| if interleave == 0 { [j, j + half] } else { [2 * j, 2 * j + 1] };
                let mut held = [[0.0f32; 2]; 2];
                let mut squares = 0.0;
                unroll!(P in [0 1] {
                    let j = lane + 32 * P as u32;
                    if j < half {
                        let [a, b] = pair(j);
                        let (a, b) = (from.add(a as usize).read(), from.add(b as usize).read());
                        squares = math::fma(a, a, math::fma(b, b, squares));
                        held[P] = [a, b];
                    }
                });
                let mean = warp::warp_sum(squares) / head_dim as f32;
                let scale = 1.0 / math::sqrt(mean + eps);
                unroll!(P in [0 1] {
                    let j = lane + 32 * P as u32;
                    if j < half {
                        let ([low, high], [mut a, mut b]) = (pair(j), held[P]);
                        if turned {
                            let [c, s] = angles.add(j as usize).read_cached();
                            let x = a * scale * norm.add(low as usize).read_cached();
                            let y = b * scale * norm.add(high as usize).read_cached();
                            (a, b) = (x * c - y * s, x * s + y * c);
                        }
                        to.add(low as usize).write(Bf16::from_f32(a));
                        to.add(high as usize).write(Bf16::from_f32(b));
                    }
                });
                vector += WARPS;
            }
        }
        grid::dependency_launch();
    }
}

/// Launch of [`draft_append`].
#[cfg(not(target_arch = "nvptx64"))]
pub fn append_shape(capacity: u32) -> LaunchShape {
    LaunchShape::new(capacity, WARPS * 32)
}

/// A vector of [`draft_append`] normed and rotated by its formula, unrounded.
#[cfg(not(target_arch = "nvptx64"))]
pub fn prepared_reference(
    x: &[f32],
    norm: &[f32],
    cos_sin: &[[f32; 2]],
    eps: f32,
    interleave: bool,
) -> std::vec::Vec<f32> {
    let half = x.len() / 2;
    let mean = x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len() as f64;
    let scale = (mean + f64::from(eps)).powf(-0.5);
    let normed = |i: usize| f64::from(x[i]) * scale * f64::from(norm[i]);
    let mut turned = std::vec![0.0; x.len()];
    for (j, [c, s]) in cos_sin.iter().enumerate() {
        let [low, high] = if interleave { [2 * j, 2 * j + 1] } else { [j, j + half] };
        let (a, b, c, s) = (normed(low), normed(high), f64::from(*c), f64::from(*s));
        (turned[low], turned[high]) = ((a * c - b * s) as f32, (a * s + b * c) as f32);
    }
    turned
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::round::rows_reference;
    use crate::testing::{Failures, Random};
    use cuda_std::simulate::{Buffer, Simulator};
    use std::vec::Vec;

    #[test]
    fn queries_and_keys_are_normed_and_rotated_and_the_cache_is_written() {
        let mut failures = Failures::default();
        for (rows, capacity, heads, kv_heads, head_dim, interleave) in [
            (1u32, 1u32, 1u32, 1u32, 64usize, false),
            (1, 2, 4, 2, 64, false),
            (8, 8, 4, 2, 64, false),
            (3, 8, 4, 2, 64, true),
            (16, 16, 32, 8, 128, false),
            (5, 16, 8, 1, 128, false),
            (8, 8, 8, 1, 128, true),
            (2, 3, 3, 3, 32, false),
            (7, 7, 5, 1, 6, true),
            (6, 9, 2, 2, 66, false),
            (4, 4, 0, 2, 128, false),
            (33, 40, 0, 1, 64, true),
            (0, 4, 4, 2, 64, false),
        ] {
            let case = std::format!("{rows} rows, {heads}/{kv_heads} heads of {head_dim}, interleaved {interleave}");
            let mut random = Random::new(u64::from(rows * 100 + heads) + head_dim as u64);
            let (start, slots, count) = (5, capacity + 9, rows as usize);
            let parents: Vec<u32> = (0..rows).map(|row| row / 2).collect();
            let set = rows_reference(&std::vec![1; count], &parents, start, capacity);
            let q = random.normals(count * heads as usize * head_dim);
            let [k, v] = [0; 2].map(|_| random.normals(count * kv_heads as usize * head_dim));
            let norms: Vec<f32> = random.normals(2 * head_dim).iter().map(|x| 1.0 + x / 4.0).collect();
            let angle = |i: usize| ((i / (head_dim / 2)) as f32 * 0.7f32.powi((i % (head_dim / 2)) as i32)).sin_cos();
            let cos_sin: Vec<[f32; 2]> =
                (0..slots as usize * head_dim / 2).map(angle).map(|(s, c)| [c * 1.1, s * 1.1]).collect();
            let stride = head_dim + PADDING as usize;
            let query = Buffer::<Bf16>::poisoned("query", q.len());
            let cache = ["keys", "values"].map(|n| Buffer::<Bf16>::poisoned(n, (kv_heads * slots) as usize * stride));
            let inputs = [("q", &q), ("k", &k), ("v", &v), ("norms", &norms)].map(|(n, data)| Buffer::input(n, data));
            let (r, angles) = (Buffer::input("rows", &set), Buffer::input("cos_sin", &cos_sin));
            let arguments = (
                r.ptr(),
                inputs[0].ptr(),
                inputs[1].ptr(),
                inputs[2].ptr(),
                inputs[3].ptr(),
                angles.ptr(),
                query.ptr_mut(),
                cache[0].ptr_mut(),
                cache[1].ptr_mut(),
                capacity,
                heads,
                kv_heads,
                head_dim as u32,
                slots,
                1e-6,
                interleave.into(),
            );
            let simulator = Simulator::default().seed(rows.into());
            simulator.launch(&draft_append::KERNEL, append_shape(capacity), arguments).unwrap();

            let layout = RowLayout { capacity };
            let angles = |row: usize| {
                let position = set[layout.positions() as usize + row] as usize;
                &cos_sin[position * head_dim / 2..][..head_dim / 2]
            };
            let query = query.to_vec();
            for (i, (found, from)) in query.chunks(head_dim).zip(q.chunks(head_dim)).enumerate() {
                let row = i / heads as usize;
                let expected = prepared_reference(from, &norms[..head_dim], angles(row), 1e-6, interleave);
                compare(&mut failures, &std::format!("{case}, query {i}"), found, &expected);
            }
            let [keys, values] = cache.each_ref().map(Buffer::to_vec);
            let mut untouched = std::vec![true; (kv_heads * slots) as usize];
            for (i, (k, v)) in k.chunks(head_dim).zip(v.chunks(head_dim)).enumerate() {
                let (row, head) = (i / kv_heads as usize, i % kv_heads as usize);
                let place = head * slots as usize + start as usize + row;
                untouched[place] = false;
                let at = place * stride;
                let expected = prepared_reference(k, &norms[head_dim..], angles(row), 1e-6, interleave);
                compare(&mut failures, &std::format!("{case}, key {i}"), &keys[at..][..head_dim], &expected);
                failures.compare_bf16(&std::format!("{case}, value {i}"), &values[at..][..head_dim], v);
                let padding = keys[at + head_dim..at + stride].iter().chain(&values[at + head_dim..at + stride]);
                failures.check(padding.clone().all(|x| x.0 == u16::MAX), &case, "writes the padding");
            }
            for place in (0..untouched.len()).filter(|place| untouched[*place]) {
                let rows = keys[place * stride..][..stride].iter().chain(&values[place * stride..][..stride]);
                failures.check(rows.clone().all(|x| x.0 == u16::MAX), &case, &std::format!("slot {place} was written"));
            }
        }
        failures.report();
    }

    /// An element of a rotated pair may cancel, so the bound is relative to the vector's largest element.
    fn compare(failures: &mut Failures, case: &str, found: &[Bf16], expected: &[f32]) {
        let largest = expected.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
        let found: Vec<f32> = found.iter().map(|x| x.to_f32()).collect();
        failures.compare(case, &found, expected, (1.0 / 256.0, largest * 1e-6));
    }
}
