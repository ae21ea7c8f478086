//! The backend under the simulator against the CPU backend, on small published layouts.

use std::path::Path;

use coppice_model::{Source, TargetModel};

use super::Cuda;
use crate::backend::Backend;
use crate::backend::cpu::Cpu;
use crate::engine;

/// Largest relative error of logits and hidden states: activations and weights are bf16.
const TOLERANCE: f64 = 2e-2;

fn fixture(name: &str) -> TargetModel {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
    TargetModel::load(&Source::Directory(folder.join(name))).unwrap()
}

/// Norm of the difference over the norm.
fn relative(found: &[f32], expected: &[f32]) -> f64 {
    let square = |x: f64| x * x;
    let difference: f64 = found.iter().zip(expected).map(|(f, e)| square(f64::from(f - e))).sum();
    let norm: f64 = expected.iter().map(|e| square(f64::from(*e))).sum();
    (difference / norm).sqrt()
}

fn ids(model: &TargetModel, count: usize) -> Vec<u32> {
    (0..count).map(|i| (i * 37 % model.config.vocab_size) as u32).collect()
}

fn check_logits(name: &str, tokens: usize, chunk: usize) {
    let model = fixture(name);
    let ids = ids(&model, tokens);
    let layers: Vec<usize> = (0..model.config.num_hidden_layers).collect();
    let on = |backend: &mut dyn Backend| engine::logits(backend, &model, &ids, &layers, chunk).unwrap();
    let (found, expected) = (on(&mut Cuda::simulated(1)), on(&mut Cpu::new(1)));
    for ((layer, found), (_, expected)) in found.hidden.iter().zip(&expected.hidden) {
        let error = relative(found, expected);
        assert!(error < TOLERANCE, "{name}: layer {layer} is {error} off");
    }
    let error = relative(&found.logits, &expected.logits);
    eprintln!("{name} {error}");
    assert!(found.logits.len() == expected.logits.len() && error < TOLERANCE, "{name}: logits are {error} off");
}

#[test]
fn logits_of_bf16_experts_are_the_cpus() {
    check_logits("v3-bf16-no-q-lora", 7, 4);
}

#[test]
fn logits_of_int4_experts_are_the_cpus() {
    check_logits("kimi-k25-int4-g32", 9, 9);
}

#[test]
fn logits_of_fp8_weights_are_the_cpus() {
    check_logits("v3-fp8-block128", 5, 2);
}

#[test]
fn logits_of_f32_weights_and_groups_of_experts_are_the_cpus() {
    check_logits("v3-f32-groups-yarn-sharded", 6, 5);
}
