//! Operations on rows alone: embedding, norm, linear products, and what rows they take.

use coppice_model::bind::{MoeWeights, SwigluWeights};
use coppice_model::config::MoeConfig;

use super::*;
use crate::backend::cpu::pool::Pool;
use crate::backend::cpu::{experts, mlp, route};
use crate::backend::{Select, Tap};

/// Row sets of a sequence without caches.
fn chain(backend: &mut Cpu, ids: &[u32]) -> Rows {
    let spec = SequenceSpec { context: 64, max_rows: 64, target: vec![], draft: vec![] };
    let sequence = backend.sequence(&spec).unwrap();
    let rows = backend.rows(64).unwrap();
    backend.submit(Op::Begin { sequence, request: request(9, &[]) });
    backend.submit(Op::PromptRows { sequence, rows, ids: ids.into() });
    rows
}

#[test]
fn the_norm_adds_taps_and_norms_in_that_order() {
    let (width, ids) = (37, [3, 0, 7]);
    let mut cpu = Cpu::new(2);
    let rows = chain(&mut cpu, &ids);
    let [x_table, delta_table] = [1, 2].map(|seed| noise(seed, 8 * width));
    let gain = noise(3, width);
    let weight_vector = cpu.vector(&gain).unwrap();
    let tables = [&x_table, &delta_table].map(|table| cpu.matrix(&weight(8, width, table.clone())).unwrap());
    let [x, delta, out] = [(); 3].map(|()| cpu.tensor(5, width).unwrap());
    let taps = cpu.tensor(5, 2 * width).unwrap();
    for (table, out) in tables.into_iter().zip([x, delta]) {
        cpu.submit(Op::Embed { rows, table, out });
    }
    let tap = Some(Tap { out: taps, column: width });
    cpu.submit(Op::AddNorm { rows, x, delta: Some(delta), tap, weight: weight_vector, eps: 1e-5, out });
    let (found_x, found_taps) = (cpu.read_tensor(x, 3).unwrap(), cpu.read_tensor(taps, 3).unwrap());
    let found = cpu.read_tensor(out, 3).unwrap();
    for (row, id) in ids.into_iter().enumerate() {
        let at = |table: &[f32], i: usize| f64::from(table[id as usize * width + i]);
        let sum: Vec<f64> = (0..width).map(|i| at(&x_table, i) + at(&delta_table, i)).collect();
        let rms = (sum.iter().map(|x| x * x).sum::<f64>() / width as f64 + 1e-5).sqrt();
        let expected: Vec<f64> = sum.iter().zip(&gain).map(|(x, gain)| x / rms * f64::from(*gain)).collect();
        assert!(relative_error(&found_x[row * width..][..width], &sum) < 1e-7);
        assert!(relative_error(&found[row * width..][..width], &expected) < 1e-6);
        // S3: the tap is the residual stream itself.
        assert_eq!(found_taps[(2 * row + 1) * width..][..width], found_x[row * width..][..width]);
    }
    // Without a delta the stream stays, and the norm is the same.
    cpu.submit(Op::AddNorm { rows, x, delta: None, tap: None, weight: weight_vector, eps: 1e-5, out });
    assert_eq!((cpu.read_tensor(x, 3).unwrap(), cpu.read_tensor(out, 3).unwrap()), (found_x, found));
}

#[test]
fn a_product_takes_the_selected_rows() {
    let (inputs, outputs) = (19, 5);
    let table = noise(1, 8 * inputs);
    let matrix = noise(2, outputs * inputs);
    let mut cpu = Cpu::new(2);
    let handles =
        [weight(8, inputs, table.clone()), weight(outputs, inputs, matrix.clone())].map(|w| cpu.matrix(&w).unwrap());
    let (x, out) = (cpu.tensor(6, inputs).unwrap(), cpu.tensor(6, outputs).unwrap());
    let mut failed = Vec::new();
    for ids in [&[4u32][..], &[1, 6], &[7, 0, 2, 3, 5]] {
        let rows = chain(&mut cpu, ids);
        cpu.submit(Op::Embed { rows, table: handles[0], out: x });
        for (select, taken) in [
            (Select::All, ids),
            (Select::Last, &ids[ids.len() - 1..]),
            (Select::AfterFirst(usize::MAX), &ids[1..]),
            (Select::AfterFirst(1), &ids[1..ids.len().min(2)]),
        ] {
            cpu.submit(Op::Linear { rows, select, x, weight: handles[1], out });
            let found = cpu.read_tensor(out, taken.len()).unwrap();
            let dot = |id: u32, o: usize| -> f64 {
                (0..inputs)
                    .map(|i| f64::from(table[id as usize * inputs + i]) * f64::from(matrix[o * inputs + i]))
                    .sum()
            };
            let expected: Vec<f64> = taken.iter().flat_map(|id| (0..outputs).map(|o| dot(*id, o))).collect();
            if !expected.is_empty() && relative_error(&found, &expected) > 1e-6 {
                failed.push((ids, select));
            }
        }
    }
    assert!(failed.is_empty() && cpu.failure.is_none(), "{failed:?} {:?}", cpu.failure);
}

fn swiglu(seed: u64, hidden: usize, inter: usize) -> SwigluWeights {
    SwigluWeights {
        gate: weight(inter, hidden, noise(seed, inter * hidden)),
        up: weight(inter, hidden, noise(seed + 1, inter * hidden)),
        down: weight(hidden, inter, noise(seed + 2, inter * hidden)),
    }
}

const MOE: MoeConfig = MoeConfig {
    n_routed_experts: 5,
    n_shared_experts: 1,
    moe_intermediate_size: 8,
    num_experts_per_tok: 2,
    n_group: 1,
    topk_group: 1,
    norm_topk_prob: true,
    routed_scaling_factor: 1.5,
};

fn moe(hidden: usize, router: Vec<f32>) -> MoeWeights {
    MoeWeights {
        router: weight(MOE.n_routed_experts, hidden, router),
        bias: noise(4, MOE.n_routed_experts),
        experts: (0..MOE.n_routed_experts).map(|id| swiglu(20 + 3 * id as u64, hidden, 8)).collect(),
        shared: Some(swiglu(50, hidden, 8)),
    }
}

#[test]
fn mlp_and_experts_are_those_of_the_handles_and_rows() {
    let (hidden, ids) = (11, [3, 0, 7]);
    let table = noise(1, 8 * hidden);
    let (dense, sparse) = (swiglu(9, hidden, 13), moe(hidden, noise(3, 5 * hidden)));
    let mut cpu = Cpu::new(1);
    let rows = chain(&mut cpu, &ids);
    let table_handle = cpu.matrix(&weight(8, hidden, table.clone())).unwrap();
    let [x, mlp_out, moe_out] = [(); 3].map(|()| cpu.tensor(4, hidden).unwrap());
    let (mlp, moe, routes) = (cpu.mlp(&dense).unwrap(), cpu.moe(&MOE, &sparse).unwrap(), cpu.routes(4).unwrap());
    cpu.submit(Op::Embed { rows, table: table_handle, out: x });
    cpu.submit(Op::Mlp { rows, mlp, x, out: mlp_out });
    cpu.submit(Op::Route { rows, moe, x, routes });
    cpu.submit(Op::Experts { rows, moe, x, routes, out: moe_out });

    let pool = Pool::new(1);
    let inputs: Vec<f32> = ids.iter().flat_map(|id| &table[*id as usize * hidden..][..hidden]).copied().collect();
    let (mut expected, mut choices, mut scratch) =
        (vec![0.0; 3 * hidden], route::RouteTable::default(), mlp::Scratch::default());
    mlp::mlp(&pool, &dense, &inputs, 3, &mut scratch, &mut expected);
    assert_eq!(cpu.read_tensor(mlp_out, 3).unwrap(), expected);
    route::route(&pool, &MOE, &sparse.router, &sparse.bias, &inputs, 3, &mut choices).unwrap();
    experts::experts(&pool, &MOE, &sparse, &inputs, 3, &choices, &mut scratch, &mut expected);
    assert_eq!(cpu.read_tensor(moe_out, 3).unwrap(), expected);
    assert!(cpu.failure.is_none());
}

#[test]
fn s9_faults_of_routing_are_errors() {
    let hidden = 6;
    let mut cpu = Cpu::new(1);
    let table = cpu.matrix(&weight(8, hidden, noise(1, 8 * hidden))).unwrap();
    let moes = [0.5, f32::NAN].map(|x| cpu.moe(&MOE, &moe(hidden, vec![x; 5 * hidden])).unwrap());
    let (x, out, routes) = (cpu.tensor(4, hidden).unwrap(), cpu.tensor(4, hidden).unwrap(), cpu.routes(2).unwrap());
    let mut fault = |ids: &[u32], ops: &[Op]| {
        let rows = chain(&mut cpu, ids);
        cpu.submit(Op::Embed { rows, table, out: x });
        for op in ops {
            cpu.submit(match op.clone() {
                Op::Route { moe, x, routes, .. } => Op::Route { rows, moe, x, routes },
                Op::Experts { moe, x, routes, out, .. } => Op::Experts { rows, moe, x, routes, out },
                op => op,
            });
        }
        cpu.failure.take().map(|error| error.to_string()).unwrap_or_default()
    };
    let rows = Rows(0);
    let route = |moe| Op::Route { rows, moe, x, routes };
    let experts = |moe| Op::Experts { rows, moe, x, routes, out };
    assert_eq!(fault(&[1, 2], &[route(moes[0]), experts(moes[0])]), "");
    let nan = fault(&[1, 2], &[route(moes[1])]);
    assert!(nan.starts_with("cpu backend: route: router w5x6 scores expert 0 for row 0 as NaN"), "{nan}");
    let many = fault(&[1, 2, 3], &[route(moes[0])]);
    assert_eq!(many, "cpu backend: route: routes have room for 2 rows, expected at least 3");
    assert_eq!(fault(&[1, 2], &[route(moes[0])]), "");
    let stale = fault(&[1], &[experts(moes[0])]);
    assert_eq!(stale, "cpu backend: experts: routes are not those of 1 rows under w5x6");
}

#[test]
fn weights_of_other_shapes_are_refused() {
    let mut cpu = Cpu::new(1);
    let wrong = SwigluWeights { up: weight(13, 10, noise(1, 130)), ..swiglu(1, 11, 13) };
    assert_eq!(
        cpu.mlp(&wrong).unwrap_err().to_string(),
        "cpu backend: mlp: w13x10 has shape [13, 10], expected [13, 11]"
    );
    let mut sparse = moe(6, noise(3, 30));
    sparse.experts.pop();
    let error = cpu.moe(&MOE, &sparse).unwrap_err().to_string();
    assert_eq!(error, "cpu backend: moe: w5x6 and its bias are for (5, 5) experts, expected 4");
}

#[test]
fn memory_counts_weights_caches_and_buffers() {
    let mut rig = Rig::new(ODD, MlaForm::Absorbed);
    let before = rig.backend.memory();
    rig.sequence(100, request(1, &[]));
    rig.backend.tensor(10, 10).unwrap();
    rig.backend.matrix(&weight(3, 7, noise(1, 21))).unwrap();
    let after = rig.backend.memory();
    assert_eq!((after.weights - before.weights, after.buffers - before.buffers), (84, 400));
    // 180 slots in six tiles of 32: two layers of a latent (9, stored as 32) and k_pe (6).
    assert_eq!(after.cache - before.cache, 2 * 192 * (32 + 6) * 4);
}
