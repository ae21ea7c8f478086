//! The linear kernels under the simulator.
use super::*;
use crate::testing::{Failures, Random};
use cuda_std::simulate::{Buffer, Simulator};
use std::vec::Vec;

const SHAPES: [(u32, u32); 13] = [
    (32, 1),
    (32, 16),
    (64, 17),
    (96, 5),
    (128, 33),
    (480, 7),
    (512, 16),
    (544, 19),
    (768, 31),
    (1024, 8),
    (1056, 15),
    (1536, 2),
    (7168, 3),
];

fn random(random: &mut Random, n: u32) -> Vec<Bf16> {
    random.normals(n as usize).into_iter().map(Bf16::from_f32).collect()
}

fn run<T: Output>(instance: &Instance<T>, rows: u32, (inputs, outputs): (u32, u32)) -> Vec<T> {
    let mut generator = Random::new((inputs + outputs).into());
    let (w, x) = (random(&mut generator, inputs * outputs), random(&mut generator, rows * inputs));
    let (x, w) = (Buffer::input("x", &x), Buffer::input("weight", &pack(&w, inputs as usize)));
    let exchange = Buffer::new("exchange", &std::vec![EMPTY; instance.exchange_words(rows, outputs) as usize]);
    let out = Buffer::<T>::poisoned("out", (rows * outputs) as usize);
    let arguments = (x.ptr(), w.ptr(), exchange.ptr_mut(), out.ptr_mut(), rows, inputs, outputs);
    Simulator::default().seed(rows.into()).launch(&instance.kernel, instance.shape(outputs), arguments).unwrap();
    assert!(exchange.to_vec().iter().all(|word| *word == EMPTY), "{} leaves the exchange in use", instance.kernel.name);
    out.to_vec()
}

#[test]
fn every_instance_equals_the_scalar_product() {
    let mut failures = Failures::default();
    for instance in F32 {
        let bound = instance.bound;
        for (i, (inputs, outputs)) in SHAPES.into_iter().enumerate() {
            let rows = [bound, bound / 2 + 1, if bound == 8 { 1 } else { bound - 3 }][i % 3];
            let mut generator = Random::new((inputs + outputs).into());
            let (w, x) = (random(&mut generator, inputs * outputs), random(&mut generator, rows * inputs));
            let found = run(instance, rows, (inputs, outputs));
            for (i, found) in found.iter().enumerate() {
                let (row, output) = (i / outputs as usize, i % outputs as usize);
                let x = &x[row * inputs as usize..][..inputs as usize];
                let (exact, magnitude) = linear_reference(x, &w[output * inputs as usize..][..inputs as usize]);
                let close = (f64::from(*found) - exact).abs() <= magnitude * 2f64.powi(-20);
                let name = instance.kernel.name;
                let case = std::format!("{name}: {rows} rows, {inputs} to {outputs}, ({row}, {output})");
                failures.check(close, &case, &std::format!("{found}, expected {exact}"));
            }
        }
    }
    failures.report();
}

#[test]
fn a_row_depends_neither_on_the_rows_beside_it_nor_on_the_instance() {
    let shape = (1056, 18);
    let one = run(&F32[0], 1, shape);
    for instance in F32 {
        let rows = instance.bound - 1;
        assert_eq!(run(instance, rows, shape)[..18], one[..], "{}", instance.kernel.name);
    }
    let one: Vec<Bf16> = one.into_iter().map(Bf16::from_f32).collect();
    for instance in BF16 {
        let rows = instance.bound - 1;
        assert_eq!(run(instance, rows, shape)[..18], one[..], "{}", instance.kernel.name);
    }
}

#[test]
fn bf16_results_are_the_f32_results_rounded() {
    // As many shapes as above but for the widest, which tells nothing more about rounding.
    let narrow = SHAPES.into_iter().filter(|shape| shape.0 <= 1536);
    for (i, shape) in narrow.enumerate() {
        for (f32s, bf16s) in F32.iter().zip(BF16) {
            let rows = f32s.bound - i as u32 % 3;
            let expected: Vec<Bf16> = run(f32s, rows, shape).into_iter().map(Bf16::from_f32).collect();
            assert_eq!(run(bf16s, rows, shape), expected, "{} of {shape:?}", bf16s.kernel.name);
        }
    }
}

#[test]
fn the_instance_fits_rows_and_outputs() {
    for (rows, outputs, name) in [
        (1, 2048, "linear_bf16_8"),
        (9, 7168, "linear_bf16_16"),
        (32, 18_432, "linear_bf16_32_wide"),
        (64, 8192, "linear_bf16_64_wide"),
    ] {
        assert_eq!(choose(BF16, rows, outputs).map(|instance| instance.kernel.name), Some(name));
    }
    assert!(choose(BF16, 65, 1).is_none());
    // Shared memory of a block on sm_120.
    assert!(BF16.iter().all(|instance| instance.shape(1).shared_bytes <= 101_376));
}
