use super::super::{draft_merge_64, draft_merge_128, merge_shape_64, merge_shape_128};
use super::*;
use crate::attention::attention_reference;
use crate::round::rows_reference;
use crate::testing::{Failures, Random};
use cuda_std::launch::Kernel;
use cuda_std::simulate::{Buffer, Simulator};
use std::vec::Vec;

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

struct Instance {
    attend: Attend,
    attend_shape: fn(u32, u32, u32, u32) -> LaunchShape,
    merge: Merge,
    merge_shape: fn(u32, u32, u32) -> LaunchShape,
    head: usize,
}

const SMALL: Instance = Instance {
    attend: draft_attention_64::KERNEL,
    attend_shape: attention_shape_64,
    merge: draft_merge_64::KERNEL,
    merge_shape: merge_shape_64,
    head: 64,
};
const LARGE: Instance = Instance {
    attend: draft_attention_128::KERNEL,
    attend_shape: attention_shape_128,
    merge: draft_merge_128::KERNEL,
    merge_shape: merge_shape_128,
    head: 128,
};

#[derive(Clone, Copy, Debug)]
struct Case {
    heads: usize,
    kv_heads: usize,
    count: usize,
    capacity: usize,
    context: usize,
    window: usize,
    splits: u32,
}

/// Runs both kernels and compares with the formula.
fn check(instance: &Instance, case: Case) {
    let Case { heads, kv_heads, count, capacity, context, window, splits } = case;
    let (head, group) = (instance.head, heads / kv_heads);
    let stride = head + PADDING as usize;
    let slots = context + capacity + 3;
    let mut random = Random::new((context * 31 + count * 7 + heads) as u64);
    let mut bf16s = |n: usize| random.normals(n).into_iter().map(Bf16::from_f32).collect::<Vec<_>>();
    let query = bf16s(capacity * heads * head);
    let [mut keys, mut values] = [0; 2].map(|_| bf16s(kv_heads * slots * stride));
    for cache in [&mut keys, &mut values] {
        // What lies past the block, and the padding, must not matter.
        for (i, row) in cache.chunks_mut(stride).enumerate() {
            row[head..].fill(Bf16(u16::MAX));
            if i % slots >= context + count {
                row.fill(Bf16(u16::MAX));
            }
        }
    }
    let ids = std::vec![1; count];
    let chain: Vec<u32> = (0..count as u32).map(|row| row.wrapping_sub(1)).collect();
    let set = rows_reference(&ids, &chain, context as u32, capacity as u32);
    let rows = Buffer::input("rows", &set);
    let inputs = [("query", &query), ("keys", &keys), ("values", &values)].map(|(n, data)| Buffer::input(n, data));
    let most_rows = capacity * group;
    let partial = Buffer::<f32>::poisoned("partial", splits as usize * kv_heads * most_rows * head);
    let log_sums = Buffer::<f32>::poisoned("log_sums", splits as usize * kv_heads * most_rows);
    let out = Buffer::<Bf16>::poisoned("out", capacity * heads * head);
    let scale = (head as f32).powf(-0.5);
    let [c, h, k, s, w] = [capacity, heads, kv_heads, slots, window].map(|n| n as u32);
    let simulator = Simulator::default().seed(context as u64);
    let [q, key, value] = inputs.each_ref().map(Buffer::ptr);
    let pointers = (partial.ptr_mut(), log_sums.ptr_mut());
    let arguments = (rows.ptr(), q, key, value, pointers.0, pointers.1, c, h, k, s, w, scale * math::LOG2_E);
    simulator.launch(&instance.attend, (instance.attend_shape)(c, h, k, splits), arguments).unwrap();
    let arguments = (rows.ptr(), partial.ptr(), log_sums.ptr(), out.ptr_mut(), c, h, k, splits, w);
    simulator.launch(&instance.merge, (instance.merge_shape)(c, h, splits), arguments).unwrap();

    let mut failures = Failures::default();
    for (i, found) in out.to_vec().chunks(head).enumerate() {
        let (slot, query_head) = (i / heads, i % heads);
        if slot >= count {
            failures.check(found.iter().all(|x| x.0 == u16::MAX), "rows past the count", "are written");
            continue;
        }
        let first = query_head / group * slots;
        let sees = |key: &usize| window == 0 || *key >= context || key + window > context + slot;
        let seen: Vec<usize> = (0..context + count).filter(sees).collect();
        // The formula takes values from its keys' first elements: both side by side.
        let joined: Vec<Vec<Bf16>> = seen
            .iter()
            .map(|key| {
                let at = (first + key) * stride;
                [&values[at..at + head], &keys[at..at + head]].concat()
            })
            .collect();
        let padded = [&std::vec![Bf16(0); head][..], &query[i * head..(i + 1) * head]].concat();
        let joined = joined.iter().map(|key| key.iter().map(|x| x.to_f32()).collect::<Vec<f32>>());
        let expected = attention_reference(&padded, joined, head, scale.into());
        let found: Vec<f32> = found.iter().map(|x| x.to_f32()).collect();
        // Weights and result are bf16; values are of order 1.
        failures.compare(
            &std::format!("{case:?}, slot {slot}, head {query_head}"),
            &found,
            &expected,
            (1.0 / 128.0, 1.0 / 128.0),
        );
    }
    failures.report();
}

#[test]
fn every_slot_attends_to_the_context_and_the_whole_block() {
    for (heads, kv_heads, count, capacity, context, splits) in [
        (1usize, 1usize, 1usize, 1usize, 0usize, 1u32),
        (2, 1, 3, 4, 0, 2),
        (4, 2, 8, 8, 1, 3),
        (4, 2, 8, 8, 55, 1),
        (4, 2, 8, 8, 56, 2),
        (4, 2, 5, 8, 57, 4),
        (4, 2, 8, 8, 64, 8),
        (4, 4, 7, 9, 200, 3),
        (8, 1, 8, 8, 127, 2),
        (8, 1, 16, 16, 300, 5),
        (12, 2, 16, 16, 131, 40),
        (3, 3, 33, 40, 65, 2),
        (4, 2, 0, 8, 90, 3),
        (2, 1, 8, 8, 1000, 7),
    ] {
        check(&SMALL, Case { heads, kv_heads, count, capacity, context, window: 0, splits });
    }
}

#[test]
fn heads_of_128_do_too() {
    for (heads, kv_heads, count, capacity, context, splits) in [
        (1usize, 1usize, 1usize, 1usize, 0usize, 1u32),
        (8, 1, 8, 8, 0, 1),
        (8, 1, 8, 8, 100, 2),
        (8, 2, 16, 16, 65, 3),
        (4, 1, 16, 16, 190, 2),
        (16, 2, 7, 8, 250, 6),
        (8, 1, 12, 16, 500, 3),
    ] {
        check(&LARGE, Case { heads, kv_heads, count, capacity, context, window: 0, splits });
    }
}

#[test]
fn a_window_hides_the_context_behind_it_and_nothing_of_the_block() {
    for (count, context, window, splits) in [
        (8usize, 100usize, 1usize, 2u32),
        (8, 100, 2, 1),
        (8, 100, 8, 3),
        (8, 100, 9, 1),
        (8, 100, 40, 2),
        (8, 200, 64, 2),
        (8, 200, 65, 3),
        (8, 300, 128, 4),
        (8, 300, 299, 4),
        (8, 300, 308, 2),
        (8, 300, 400, 2),
        (8, 0, 3, 2),
        (16, 500, 130, 5),
    ] {
        check(&SMALL, Case { heads: 4, kv_heads: 2, count, capacity: 16, context, window, splits });
    }
    check(&LARGE, Case { heads: 8, kv_heads: 1, count: 8, capacity: 8, context: 200, window: 70, splits: 3 });
}

#[test]
fn a_block_fits_the_shared_memory_of_sm_120() {
    assert!(attention_shape_128(16, 8, 1, 64).shared_bytes <= 101_376);
}
