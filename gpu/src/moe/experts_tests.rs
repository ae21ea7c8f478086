use super::super::active::{active_reference, random_choices};
use super::super::format::{Matrix, pack_down, pack_gate_up};
use super::super::testing::Weights;
use super::*;
use crate::testing::{Failures, Random};
use cuda_std::simulate::{Buffer, Simulator};
use std::vec::Vec;

/// rows, k, experts, inputs, outputs
type Case = (u32, u32, u32, u32, u32);

const CASES: [Case; 12] = [
    (1, 1, 1, 32, 1),
    (1, 2, 4, 64, 16),
    (3, 2, 5, 96, 17),
    (8, 1, 2, 160, 33),
    (9, 3, 4, 32, 48),
    (2, 2, 3, 544, 31),
    (17, 1, 2, 128, 8),
    (33, 2, 3, 224, 20),
    (5, 4, 16, 256, 40),
    (64, 1, 1, 96, 16),
    (1, 3, 8, 1056, 5),
    (7, 2, 6, 64, 300),
];

struct Found {
    gate_up: Vec<Bf16>,
    down: Vec<f32>,
}

struct Data {
    x: Vec<Bf16>,
    gate: Vec<Weights>,
    up: Vec<Weights>,
    ids: Vec<u32>,
}

impl Data {
    fn new(format: usize, (rows, k, experts, inputs, outputs): Case) -> Self {
        let mut random = Random::new((rows + inputs + outputs).into());
        let mut matrices = || (0..experts).map(|_| Weights::random(format, &mut random, outputs, inputs)).collect();
        let (gate, up) = (matrices(), matrices());
        let x = random.normals((rows * inputs) as usize).into_iter().map(Bf16::from_f32).collect();
        Self { x, gate, up, ids: random_choices(&mut random, rows, k, experts) }
    }

    /// Runs both kernels; `down` takes the gate's matrices.
    fn run(&self, instance: &Instance, (rows, k, experts, inputs, outputs): Case, spare: u32) -> Found {
        let n = inputs as usize;
        let pairs = self.gate.iter().zip(&self.up);
        let gate_up: Vec<u8> = pairs.flat_map(|(g, u)| pack_gate_up(g.matrix(), u.matrix(), n)).collect();
        let down: Vec<u8> = self.gate.iter().flat_map(|w| pack_down(w.matrix(), n)).collect();
        assert_eq!(gate_up.len() as u64, u64::from(experts) * instance.gate_up_bytes(inputs, outputs));
        assert_eq!(down.len() as u64, u64::from(experts) * instance.down_bytes(inputs, outputs));
        let (mut active, mut choices) = (Vec::new(), Vec::new());
        for (expert, own) in active_reference(&self.ids, experts) {
            active.push([expert, choices.len() as u32, own.len() as u32, 0]);
            choices.extend(own);
        }
        let most = active.len() as u32 + spare;
        let list = Buffer::input("active", &active);
        let (count, choices) = (Buffer::input("count", &[active.len() as u32]), Buffer::input("choices", &choices));
        let x = Buffer::input("x", &self.x);
        let size = (rows * k * outputs) as usize;
        let (h, y) = (Buffer::<Bf16>::poisoned("h", size), Buffer::<f32>::poisoned("y", size));
        let weights = (Buffer::input("gate_up", &gate_up), Buffer::input("down", &down));
        let simulator = Simulator::default().seed(rows.into());
        let lists = (list.ptr(), count.ptr(), choices.ptr());
        let arguments = (x.ptr(), weights.0.ptr(), lists.0, lists.1, lists.2, h.ptr_mut(), inputs, outputs, k);
        simulator.launch(&instance.gate_up, instance.gate_up_shape(outputs, most), arguments).unwrap();
        let arguments = (x.ptr(), weights.1.ptr(), lists.0, lists.1, lists.2, y.ptr_mut(), inputs, outputs, k);
        simulator.launch(&instance.down, instance.down_shape(outputs, most), arguments).unwrap();
        Found { gate_up: h.to_vec(), down: y.to_vec() }
    }
}

/// A product in f64 and the sum of its terms' magnitudes.
fn dot(matrix: Matrix<'_>, output: usize, x: &[Bf16]) -> (f64, f64) {
    let terms = x.iter().enumerate().map(|(i, value)| matrix.value(output, i, x.len()) * f64::from(value.to_f32()));
    terms.fold((0.0, 0.0), |(sum, size), term| (sum + term, size + term.abs()))
}

fn check(format: usize, instances: &[Instance]) {
    let mut failures = Failures::default();
    for instance in instances {
        for case in CASES {
            let (_, k, _, inputs, outputs) = case;
            let data = Data::new(format, case);
            let found = data.run(instance, case, 2);
            for (at, (h, y)) in found.gate_up.iter().zip(&found.down).enumerate() {
                let (choice, output) = (at / outputs as usize, at % outputs as usize);
                let expert = data.ids[choice] as usize;
                let x = &data.x[choice / k as usize * inputs as usize..][..inputs as usize];
                let (gate, gate_size) = dot(data.gate[expert].matrix(), output, x);
                let (up, up_size) = dot(data.up[expert].matrix(), output, x);
                let name = || std::format!("{} {case:?}, choice {choice}, output {output}", instance.gate_up.name);
                let unit = 2f64.powi(-19);
                let good = (f64::from(*y) - gate).abs() <= gate_size * unit;
                failures.check(good, &name(), &std::format!("down {y}, expected {gate}"));
                let exact = gate / (1.0 + (-gate).exp()) * up;
                // silu's slope is at most 1.1.
                let bound =
                    1.1 * gate_size * unit * up.abs() + up_size * unit * gate.abs() + exact.abs() * 1.01 / 256.0;
                let good = (f64::from(h.to_f32()) - exact).abs() <= bound + 1e-30;
                failures.check(good, &name(), &std::format!("gate and up {h:?}, expected {exact}"));
            }
        }
    }
    failures.report();
}

#[test]
fn int4_experts_equal_the_scalar_products() {
    check(0, &INT4);
}

#[test]
fn bf16_experts_equal_the_scalar_products() {
    check(1, &BF16);
}

#[test]
fn fp8_experts_equal_the_scalar_products() {
    check(2, &FP8);
}

#[test]
fn a_choice_depends_neither_on_the_rows_beside_it_nor_on_the_instance() {
    let case = (20, 1, 1, 544, 37);
    let data = Data::new(0, case);
    let all = data.run(&INT4[0], case, 0);
    let wide = data.run(&INT4[1], case, 3);
    assert_eq!((all.gate_up, &all.down), (wide.gate_up, &wide.down));
    let one = Data { x: data.x[..544].to_vec(), ids: std::vec![0], ..data };
    assert_eq!(one.run(&INT4[0], (1, 1, 1, 544, 37), 0).down, all.down[..37]);
}

#[test]
fn a_block_fits_the_shared_memory_of_sm_120() {
    for instance in INT4.iter().chain(&FP8).chain(&BF16) {
        assert!(instance.gate_up_shape(2048, 1).shared_bytes <= 101_376, "{}", instance.gate_up.name);
    }
}
