use super::*;
use crate::backend::cpu::testing::{Kind, Random, bits, swiglu_reference};
use crate::simd::Isa;

/// (gate, up, down) types, hidden, inter.
const CASES: [(Kind, Kind, Kind, usize, usize); 6] = [
    (Kind::Bf16, Kind::Bf16, Kind::Bf16, 256, 768),
    (Kind::Int4(32), Kind::Int4(32), Kind::Int4(32), 256, 160),
    (Kind::F32, Kind::F16, Kind::Bf16, 33, 65),
    (Kind::Fp8([128, 128]), Kind::Fp8([128, 128]), Kind::Fp8([128, 128]), 160, 200),
    (Kind::Bf16, Kind::F32, Kind::Int4(32), 7, 288),
    (Kind::Int4(24), Kind::F16, Kind::F32, 48, 1),
];

fn weights(case: (Kind, Kind, Kind, usize, usize), random: &mut Random) -> SwigluWeights {
    let (gate, up, down, hidden, inter) = case;
    SwigluWeights {
        gate: gate.weight(inter, hidden, random),
        up: up.weight(inter, hidden, random),
        down: down.weight(hidden, inter, random),
    }
}

fn apply(pool: &Pool, weights: &SwigluWeights, x: &[f32]) -> Vec<f32> {
    let rows = x.len() / weights.gate.cols;
    let mut out = vec![f32::NAN; rows * weights.down.rows];
    mlp(pool, weights, x, rows, &mut Scratch::default(), &mut out);
    out
}

#[test]
fn an_mlp_agrees_with_f64_on_every_instruction_set() {
    let mut random = Random(6);
    let mut failures = Vec::new();
    for case in CASES {
        let weights = weights(case, &mut random);
        let x = random.units(3 * weights.gate.cols);
        let (expected, scale) = swiglu_reference(&weights, &x);
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let out = apply(&Pool::with_isa(2, isa), &weights, &x);
            for (i, &y) in out.iter().enumerate() {
                if (f64::from(y) - expected[i]).abs() > scale[i] {
                    failures.push(format!("{isa} {case:?} element {i}: {y}, expected {}", expected[i]));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn a_row_of_an_mlp_does_not_depend_on_the_rows_or_threads_beside_it() {
    let mut random = Random(7);
    let pools = [1, 2, 3].map(Pool::new);
    for case in CASES {
        let weights = weights(case, &mut random);
        let hidden = weights.gate.cols;
        let x = random.units(20 * hidden);
        let singly: Vec<f32> = x.chunks_exact(hidden).flat_map(|x| apply(&pools[0], &weights, x)).collect();
        for rows in 1..=20 {
            let out = apply(&pools[rows % 3], &weights, &x[..rows * hidden]);
            assert_eq!(bits(&out), bits(&singly[..rows * hidden]), "{case:?} {rows} rows");
        }
    }
}

#[test]
fn scratch_left_by_another_shape_does_not_show() {
    let mut random = Random(8);
    let pool = Pool::new(2);
    let mut scratch = Scratch::default();
    for case in CASES.into_iter().chain(CASES.into_iter().rev()) {
        let weights = weights(case, &mut random);
        let x = random.units(2 * weights.gate.cols);
        let mut out = vec![0.0; x.len()];
        mlp(&pool, &weights, &x, 2, &mut scratch, &mut out);
        assert_eq!(bits(&out), bits(&apply(&pool, &weights, &x)), "{case:?}");
    }
}
