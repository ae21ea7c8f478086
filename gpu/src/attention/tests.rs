//! Every class against the formula, under the simulator.
use super::attention_reference;
use super::plan::{Class, HEAD_64_16, HEAD_64_16_E4M3, HEAD_512_64, HEAD_512_64_E4M3, Head, Limits};
use crate::testing::{Failures, Random};
use crate::tree::tree_layout_reference;
use cuda_std::prelude::*;
use cuda_std::simulate::{Buffer, Simulator};
use std::vec::Vec;

/// An H200, and an RTX PRO 6000.
const DEVICES: [Limits; 2] =
    [Limits { multiprocessors: 132, shared_bytes: 232_448 }, Limits { multiprocessors: 188, shared_bytes: 101_376 }];

#[derive(Clone, Copy)]
struct Case {
    heads: usize,
    tree_rows: usize,
    context: usize,
    splits: u32,
    chain: bool,
}

const fn tree(heads: usize, tree_rows: usize, context: usize, splits: u32) -> Case {
    Case { heads, tree_rows, context, splits, chain: false }
}

fn check(head: &Head, class: &Class, stages: u32, case: Case) -> Failures {
    let Case { heads, tree_rows, context, splits, chain } = case;
    let name = std::format!(
        "{} {heads} heads, {tree_rows} rows, context {context}, {splits} splits, {stages} stages, chain {chain}",
        class.kernel.name
    );
    let (latent, rows) = (head.latent as usize, heads * tree_rows);
    let width = latent + head.rope as usize;
    let mut random = Random::new((heads + tree_rows * 100 + context) as u64);
    let query: Vec<Bf16> = random.normals(rows * width).into_iter().map(Bf16::from_f32).collect();
    let rows_cached: Vec<Vec<u8>> = (0..context + tree_rows).map(|_| head.pack(&random.normals(width))).collect();
    let keys: Vec<Vec<f32>> = rows_cached.iter().map(|row| head.unpack(row)).collect();
    let mut cache = rows_cached.concat();
    // What lies past the end must not matter.
    cache.resize(cache.len() + head.row_bytes(), 0xff);
    let mut parent = |t: u32| {
        if t == 0 {
            0
        } else if chain {
            t - 1
        } else {
            random.below(t)
        }
    };
    let parents: Vec<u32> = (0..tree_rows as u32).map(&mut parent).collect();
    let (_, sees) = tree_layout_reference(&parents, context as u32);
    let words = tree_rows.div_ceil(32);
    let mut mask = std::vec![0u32; tree_rows * words];
    for (row, sees) in sees.iter().enumerate() {
        for node in (0..tree_rows).filter(|node| sees[*node]) {
            mask[row * words + node / 32] |= 1 << (node % 32);
        }
    }

    let plan = class.plan(rows as u32, splits, stages, DEVICES[0]);
    let inputs = (Buffer::input("query", &query), Buffer::input("cache", &cache), Buffer::input("mask", &mask));
    let length = Buffer::input("context", &[context as u32]);
    let values = Buffer::<[u32; 4]>::poisoned("values", plan.values);
    let log_sums = Buffer::<f32>::poisoned("log_sums", plan.log_sums);
    let arrivals = Buffer::new("arrivals", &std::vec![0u32; plan.arrivals]);
    let out = Buffer::<Bf16>::poisoned("out", rows * latent);
    let scale = (width as f32).powf(-0.5);
    let arguments = (
        inputs.0.ptr(),
        inputs.1.ptr(),
        if chain { Global::from_raw(std::ptr::null()) } else { inputs.2.ptr() },
        length.ptr(),
        values.ptr_mut(),
        log_sums.ptr_mut(),
        arrivals.ptr_mut(),
        out.ptr_mut(),
        heads as u32,
        tree_rows as u32,
        scale * math::LOG2_E,
        plan.stages,
        plan.mergers,
    );
    let simulator = Simulator::default().seed(context as u64).resident_blocks(plan.shape.grid.volume() as u32);
    // Plans for sm_120 do without the classes that need more than it has.
    let simulator = simulator.shared_bytes(DEVICES[0].shared_bytes);
    simulator.launch(plan.kernel, plan.shape, arguments).unwrap();

    let mut failures = Failures::default();
    failures.check(arrivals.to_vec().iter().all(|n| *n == 0), &name, "leaves a counter that is not 0");
    for (row, found) in out.to_vec().chunks(latent).enumerate() {
        let sees = &sees[row / heads];
        let visible = (0..context + tree_rows).filter(|k| *k < context || sees[*k - context]);
        let keys = visible.map(|k| &keys[k]);
        let expected = attention_reference(&query[row * width..][..width], keys, latent, scale.into());
        let found: Vec<f32> = found.iter().map(|x| x.to_f32()).collect();
        // Weights and result are bf16; values are of order 1.
        failures.compare(&std::format!("{name}, row {row}"), &found, &expected, (1.0 / 128.0, 1.0 / 128.0));
    }
    failures
}

#[test]
fn small_heads_agree_with_the_formula() {
    let heads = [&HEAD_64_16, &HEAD_64_16_E4M3];
    for (head, (class, stages)) in
        heads.into_iter().flat_map(|head| head.classes.iter().zip([3, 4, 5]).map(move |class| (head, class)))
    {
        for case in [
            tree(1, 1, 0, 1),
            tree(1, 1, 1, 1),
            tree(1, 2, 15, 1),
            tree(3, 5, 27, 1),
            tree(4, 4, 16, 2),
            tree(2, 8, 33, 1),
            tree(5, 7, 63, 2),
            tree(8, 16, 100, 3),
            tree(1, 33, 50, 2),
            tree(7, 3, 129, 5),
            tree(2, 64, 65, 2),
            tree(3, 31, 200, 4),
            tree(16, 1, 257, 9),
            tree(1, 17, 5, 7),
            Case { chain: true, ..tree(3, 19, 75, 3) },
        ] {
            check(head, class, stages, case).report();
        }
    }
}

#[test]
fn full_heads_agree_with_the_formula() {
    for (head, class) in [&HEAD_512_64, &HEAD_512_64_E4M3]
        .into_iter()
        .flat_map(|head| head.classes.iter().map(move |class| (head, class)))
    {
        for case in [
            tree(1, 1, 0, 1),
            tree(1, 1, 40, 1),
            tree(2, 3, 15, 1),
            tree(16, 1, 17, 1),
            tree(1, 5, 33, 3),
            tree(3, 7, 61, 2),
            tree(5, 3, 64, 2),
            tree(8, 2, 97, 2),
            tree(1, 33, 131, 2),
            tree(1, 16, 1, 2),
            tree(7, 2, 47, 5),
            tree(17, 1, 5, 1),
        ] {
            check(head, class, 3, case).report();
        }
    }
}

#[test]
fn many_splits_are_merged_by_several_warps() {
    for splits in [18, 40] {
        check(&HEAD_64_16, &HEAD_64_16.classes[0], 3, tree(2, 3, 2700, splits)).report();
        check(&HEAD_64_16, &HEAD_64_16.classes[2], 3, tree(3, 3, 1300, splits)).report();
    }
}

#[test]
fn plans_fit_the_devices() {
    for (device, fewest) in DEVICES.into_iter().zip([4, 3]) {
        for head in [&HEAD_64_16, &HEAD_512_64, &HEAD_64_16_E4M3, &HEAD_512_64_E4M3] {
            for rows in [1, 8, 16, 17, 33, 64, 65, 512, 1024, 6144, 16_384] {
                let plan = head.plan(rows, device);
                let [tiles, splits, _] = plan.shape.grid.0;
                assert!(plan.shape.shared_bytes <= device.shared_bytes && plan.stages >= fewest, "{rows} rows");
                assert!(
                    u64::from(tiles) * u64::from(splits) * 100 > u64::from(device.multiprocessors) * 70,
                    "{rows} rows"
                );
            }
        }
    }
}
