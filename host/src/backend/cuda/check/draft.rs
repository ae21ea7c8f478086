//! Checks of drafter attention: append, attention in parts, merge.

use coppice_gpu::attention::attention_reference;
use coppice_gpu::draft_attention::{self as draft, PADDING, prepared_reference};
use coppice_gpu::round::{RowLayout, rows_reference};
use cuda_std::launch::{Kernel, LaunchShape};
use cuda_std::{Bf16, Global, GlobalMut};

use super::Run;
use super::rows::bf16s;
use crate::error::Result;

type Attend = Kernel<(
    Global<u32>,
    Global<Bf16>,
    Global<Bf16>,
    Global<Bf16>,
    GlobalMut<f32>,
    GlobalMut<f32>,
    u32,
    u32,
    u32,
    u32,
    u32,
    f32,
)>;
type Merge = Kernel<(Global<u32>, Global<f32>, Global<f32>, GlobalMut<Bf16>, u32, u32, u32, u32, u32)>;

/// The kernels of one width of head.
struct Instance {
    attend: Attend,
    attend_shape: fn(u32, u32, u32, u32) -> LaunchShape,
    merge: Merge,
    merge_shape: fn(u32, u32, u32) -> LaunchShape,
    head: usize,
}

/// Sizes of a case.
#[derive(Clone, Copy, Debug)]
struct Case {
    heads: usize,
    kv_heads: usize,
    count: usize,
    context: usize,
    window: usize,
    splits: u32,
}

const fn case(heads: usize, kv_heads: usize, count: usize, context: usize, window: usize, splits: u32) -> Case {
    Case { heads, kv_heads, count, context, window, splits }
}

/// A row set that holds a chain of `count` rows.
fn chain(count: usize, start: usize, capacity: usize) -> Vec<u32> {
    let parents: Vec<u32> = (0..count as u32).map(|row| row.wrapping_sub(1)).collect();
    rows_reference(&vec![1; count], &parents, start as u32, capacity as u32)
}

pub(super) fn append(run: &mut Run<'_>) -> Result<()> {
    let small = [(3usize, 4usize, 2usize, 64usize, false), (5, 8, 1, 128, true), (2, 0, 3, 34, false)];
    for (count, heads, kv_heads, head, interleave) in
        run.cases(&small, &[(16, 64, 8, 128, false), (512, 0, 8, 128, false)])
    {
        let (start, capacity) = (7, count + 1);
        let slots = start + capacity;
        let set = chain(count, start, capacity);
        let q = run.random.normals(count * heads * head);
        let [k, v] = [0; 2].map(|_| run.random.normals(count * kv_heads * head));
        let norms: Vec<f32> = run.random.normals(2 * head).iter().map(|x| 1.0 + x / 4.0).collect();
        let cos_sin: Vec<[f32; 2]> = (0..slots * head / 2)
            .map(|i| {
                let angle = (i / (head / 2)) as f32 * 0.7f32.powi((i % (head / 2)) as i32);
                [angle.cos(), angle.sin()]
            })
            .collect();
        let stride = head + PADDING as usize;
        let rows = run.place.input("rows", &set)?;
        let (queries, new_keys) = (run.place.input("q", &q)?, run.place.input("k", &k)?);
        let (new_values, weights) = (run.place.input("v", &v)?, run.place.input("norms", &norms)?);
        let angles = run.place.input("cos_sin", &cos_sin)?;
        let query = run.place.output::<Bf16>("query", q.len())?;
        let keys = run.place.output::<Bf16>("keys", kv_heads * slots * stride)?;
        let values = run.place.output::<Bf16>("values", kv_heads * slots * stride)?;
        let [c, h, g, d, s] = [capacity, heads, kv_heads, head, slots].map(|n| n as u32);
        let arguments = (
            rows.ptr(),
            queries.ptr(),
            new_keys.ptr(),
            new_values.ptr(),
            weights.ptr(),
            angles.ptr(),
            query.ptr_mut(),
            keys.ptr_mut(),
            values.ptr_mut(),
            c,
            h,
            g,
            d,
            s,
            1e-6,
            u32::from(interleave),
        );
        // SAFETY: the buffers are as large as these sizes say; no two rows share a slot.
        unsafe { run.place.launch(&draft::draft_append::KERNEL, draft::append_shape(c), arguments)? };
        let name = format!("draft_append {count} rows, {heads}/{kv_heads} heads of {head}");
        let positions = &set[RowLayout { capacity: c }.positions() as usize..];
        let prepared = |x: &[f32], row: usize, norm: &[f32]| {
            let angles = &cos_sin[positions[row] as usize * head / 2..][..head / 2];
            prepared_reference(x, norm, angles, 1e-6, interleave)
        };
        let mut compare = |case: &str, found: &[Bf16], expected: &[f32]| {
            // An element of a rotated pair may cancel.
            let largest = expected.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
            let found: Vec<f32> = found.iter().map(|x| x.to_f32()).collect();
            run.failures.compare(case, &found, expected, (1.01 / 256.0, largest * 1e-6));
        };
        for (i, (found, from)) in query.to_vec()?.chunks(head).zip(q.chunks(head)).enumerate() {
            compare(&format!("{name}, query {i}"), found, &prepared(from, i / heads, &norms[..head]));
        }
        let (keys, values) = (keys.to_vec()?, values.to_vec()?);
        for (i, (k, v)) in k.chunks(head).zip(v.chunks(head)).enumerate() {
            let at = (i % kv_heads * slots + start + i / kv_heads) * stride;
            compare(&format!("{name}, key {i}"), &keys[at..][..head], &prepared(k, i / kv_heads, &norms[head..]));
            compare(&format!("{name}, value {i}"), &values[at..][..head], v);
        }
        let written = [&keys, &values].map(|cache| cache.iter().filter(|x| x.0 != u16::MAX).count());
        run.failures.check(written == [count * kv_heads * head; 2], &name, "writes elsewhere in the cache");
    }
    Ok(())
}

pub(super) fn attend_64(run: &mut Run<'_>) -> Result<()> {
    let instance = Instance {
        attend: draft::draft_attention_64::KERNEL,
        attend_shape: draft::attention_shape_64,
        merge: draft::draft_merge_64::KERNEL,
        merge_shape: draft::merge_shape_64,
        head: 64,
    };
    let small =
        [case(1, 1, 1, 0, 0, 1), case(4, 2, 8, 57, 0, 2), case(4, 2, 8, 200, 70, 3), case(12, 2, 13, 131, 0, 9)];
    let large = [case(4, 2, 8, 2040, 0, 32), case(32, 8, 16, 5001, 0, 16), case(8, 2, 16, 3000, 512, 24)];
    for case in run.cases(&small, &large) {
        check(run, &instance, case)?;
    }
    Ok(())
}

pub(super) fn attend_128(run: &mut Run<'_>) -> Result<()> {
    let instance = Instance {
        attend: draft::draft_attention_128::KERNEL,
        attend_shape: draft::attention_shape_128,
        merge: draft::draft_merge_128::KERNEL,
        merge_shape: draft::merge_shape_128,
        head: 128,
    };
    let small = [case(1, 1, 1, 40, 0, 1), case(8, 1, 8, 100, 0, 2), case(4, 2, 7, 150, 66, 2)];
    let large = [case(8, 1, 8, 9000, 0, 132), case(64, 8, 8, 4097, 0, 16), case(32, 8, 16, 1500, 1000, 16)];
    for case in run.cases(&small, &large) {
        check(run, &instance, case)?;
    }
    Ok(())
}

fn check(run: &mut Run<'_>, instance: &Instance, case: Case) -> Result<()> {
    let Case { heads, kv_heads, count, context, window, splits } = case;
    let (head, group, capacity) = (instance.head, heads / kv_heads, count + 1);
    let (stride, slots) = (head + PADDING as usize, context + capacity);
    let query = bf16s(run, capacity * heads * head);
    let [mut keys, mut values] = [0; 2].map(|_| bf16s(run, kv_heads * slots * stride));
    for row in keys.chunks_mut(stride).chain(values.chunks_mut(stride)) {
        row[head..].fill(Bf16(u16::MAX));
    }
    let place = run.place;
    let rows = place.input("rows", &chain(count, context, capacity))?;
    let (q, k, v) = (place.input("query", &query)?, place.input("keys", &keys)?, place.input("values", &values)?);
    let parts = splits as usize * kv_heads * capacity * group;
    let (partial, log_sums) = (place.output::<f32>("partial", parts * head)?, place.output::<f32>("log_sums", parts)?);
    let out = place.output::<Bf16>("out", capacity * heads * head)?;
    let scale = (head as f32).powf(-0.5);
    let [c, h, g, s, w] = [capacity, heads, kv_heads, slots, window].map(|n| n as u32);
    let pointers = (partial.ptr_mut(), log_sums.ptr_mut());
    let factor = scale * std::f32::consts::LOG2_E;
    let arguments = (rows.ptr(), q.ptr(), k.ptr(), v.ptr(), pointers.0, pointers.1, c, h, g, s, w, factor);
    // SAFETY: the buffers are as large as these sizes say.
    unsafe { place.launch(&instance.attend, (instance.attend_shape)(c, h, g, splits), arguments)? };
    let arguments = (rows.ptr(), partial.ptr(), log_sums.ptr(), out.ptr_mut(), c, h, g, splits, w);
    // SAFETY: as above.
    unsafe { place.launch(&instance.merge, (instance.merge_shape)(c, h, splits), arguments)? };
    let name = format!("{} {case:?}", instance.attend.name);
    let out = out.to_vec()?;
    for (i, found) in out.chunks(head).enumerate().take(count * heads) {
        let (slot, query_head) = (i / heads, i % heads);
        let first = query_head / group * slots;
        let sees = |key: &usize| window == 0 || *key >= context || key + window > context + slot;
        // The formula takes values from its keys' first elements: both side by side.
        let joined: Vec<Vec<Bf16>> = (0..context + count)
            .filter(sees)
            .map(|key| {
                let at = (first + key) * stride;
                [&values[at..at + head], &keys[at..at + head]].concat()
            })
            .collect();
        let padded = [&vec![Bf16(0); head][..], &query[i * head..(i + 1) * head]].concat();
        let joined = joined.iter().map(|key| key.iter().map(|x| x.to_f32()).collect::<Vec<f32>>());
        let expected = attention_reference(&padded, joined, head, scale.into());
        let found: Vec<f32> = found.iter().map(|x| x.to_f32()).collect();
        // Weights and result are bf16; values are of order 1.
        run.failures.compare(
            &format!("{name}, slot {slot}, head {query_head}"),
            &found,
            &expected,
            (1.0 / 128.0, 1.0 / 128.0),
        );
    }
    let past = out[count * heads * head..].iter().all(|x| x.0 == u16::MAX);
    run.failures.check(past, &name, "writes past the count");
    Ok(())
}
