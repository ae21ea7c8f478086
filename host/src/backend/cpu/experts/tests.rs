use super::*;
use crate::backend::cpu::testing::{Kind, Random, bits, swiglu_reference};
use crate::simd::Isa;

fn config(experts: usize, k: usize, inter: usize) -> MoeConfig {
    MoeConfig {
        n_routed_experts: experts,
        n_shared_experts: 1,
        moe_intermediate_size: inter,
        num_experts_per_tok: k,
        n_group: 1,
        topk_group: 1,
        norm_topk_prob: true,
        routed_scaling_factor: 1.0,
    }
}

/// Routed type, shared type, experts, k, hidden, inter, shared inter.
type Case = (Kind, Option<Kind>, usize, usize, usize, usize, usize);

const CASES: [Case; 5] = [
    (Kind::Int4(32), Some(Kind::Bf16), 16, 4, 256, 160, 160),
    (Kind::Bf16, None, 5, 2, 33, 17, 0),
    (Kind::Fp8([128, 128]), Some(Kind::Fp8([128, 128])), 7, 3, 160, 192, 384),
    (Kind::F32, Some(Kind::Int4(32)), 3, 3, 64, 31, 96),
    (Kind::Int4(24), Some(Kind::F16), 4, 1, 48, 24, 5),
];

fn layer(case: Case, random: &mut Random) -> MoeWeights {
    let (kind, shared, experts, _, hidden, inter, shared_inter) = case;
    MoeWeights {
        router: Kind::F32.weight(experts, hidden, random),
        bias: vec![0.0; experts],
        experts: (0..experts).map(|_| kind.swiglu(hidden, inter, random)).collect(),
        shared: shared.map(|kind| kind.swiglu(hidden, shared_inter, random)),
    }
}

/// `k` distinct random experts a row, with random weights.
fn random_routes(experts: usize, k: usize, rows: usize, random: &mut Random) -> RouteTable {
    let mut routes = RouteTable { k, ids: Vec::new(), weights: random.units(rows * k) };
    for _ in 0..rows {
        let mut ids: Vec<u32> = (0..experts as u32).collect();
        for i in 0..k {
            ids.swap(i, i + random.bits() as usize % (experts - i));
        }
        routes.ids.extend(&ids[..k]);
    }
    routes
}

fn apply(pool: &Pool, case: Case, layer: &MoeWeights, x: &[f32], routes: &RouteTable) -> Vec<f32> {
    let (_, _, experts_, k, hidden, inter, _) = case;
    let mut out = vec![f32::NAN; x.len()];
    experts(pool, &config(experts_, k, inter), layer, x, x.len() / hidden, routes, &mut Scratch::default(), &mut out);
    out
}

fn row(routes: &RouteTable, row: usize) -> RouteTable {
    let range = row * routes.k..(row + 1) * routes.k;
    RouteTable { k: routes.k, ids: routes.ids[range.clone()].to_vec(), weights: routes.weights[range].to_vec() }
}

#[test]
fn experts_agree_with_one_mlp_after_the_other_in_f64() {
    let mut random = Random(9);
    let mut failures = Vec::new();
    for case in CASES {
        let (_, _, count, k, hidden, ..) = case;
        let layer = layer(case, &mut random);
        let rows = 6;
        let x = random.units(rows * hidden);
        let routes = random_routes(count, k, rows, &mut random);
        let mut expected = vec![0.0; x.len()];
        // A rounding of the sum for each choice and the shared experts.
        let mut bound = vec![0.0; x.len()];
        for r in 0..rows {
            let chosen = (0..k).map(|c| (&layer.experts[routes.ids[r * k + c] as usize], routes.weights[r * k + c]));
            for (expert, weight) in chosen.chain(layer.shared.iter().map(|shared| (shared, 1.0))) {
                let (y, error) = swiglu_reference(expert, &x[r * hidden..(r + 1) * hidden]);
                for i in 0..hidden {
                    let term = f64::from(weight) * y[i];
                    expected[r * hidden + i] += term;
                    bound[r * hidden + i] +=
                        f64::from(weight).abs() * error[i] + (k + 2) as f64 * f64::from(f32::EPSILON) * term.abs();
                }
            }
        }
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let out = apply(&Pool::with_isa(2, isa), case, &layer, &x, &routes);
            for (i, &y) in out.iter().enumerate() {
                if (f64::from(y) - expected[i]).abs() > bound[i] {
                    failures.push(format!("{isa} {case:?} element {i}: {y}, expected {}", expected[i]));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn a_row_does_not_depend_on_the_rows_or_threads_beside_it() {
    let mut random = Random(10);
    let pools = [1, 2, 3].map(Pool::new);
    for case in CASES {
        let (_, _, count, k, hidden, ..) = case;
        let layer = layer(case, &mut random);
        let rows = 40;
        let x = random.units(rows * hidden);
        let mut routes = random_routes(count, k, rows, &mut random);
        // Some rows all on one expert, so that it has more rows than a register block.
        for r in 20..rows {
            routes.ids.copy_within(0..k, r * k);
        }
        let singly: Vec<f32> = (0..rows)
            .flat_map(|r| apply(&pools[0], case, &layer, &x[r * hidden..(r + 1) * hidden], &row(&routes, r)))
            .collect();
        for some in [1, 2, 3, 8, 9, 17, 40] {
            let part =
                RouteTable { k, ids: routes.ids[..some * k].to_vec(), weights: routes.weights[..some * k].to_vec() };
            let out = apply(&pools[some % 3], case, &layer, &x[..some * hidden], &part);
            assert_eq!(bits(&out), bits(&singly[..some * hidden]), "{case:?} {some} rows");
        }
    }
}

#[test]
fn no_rows_are_fine() {
    let mut random = Random(11);
    let case = CASES[0];
    let layer = layer(case, &mut random);
    let routes = RouteTable { k: 4, ids: vec![], weights: vec![] };
    assert!(apply(&Pool::new(2), case, &layer, &[], &routes).is_empty());
}
