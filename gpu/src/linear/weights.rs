//! Weights as the linear kernels read them, and the layers' reference. Only on the host.
#![cfg(not(target_arch = "nvptx64"))]
use super::{CHUNK, OUTPUTS};
use cuda_std::Bf16;
use std::vec::Vec;

/// Weights [outputs, inputs] in the order the kernels read them: [output tile, chunk, half, g, t, 8], for outputs 16 tile + 8
/// half + g and inputs 32 chunk + 8 t. Outputs past the end are zeros; `inputs` is a multiple of 32, as the kernels need.
pub fn pack(weight: &[Bf16], inputs: usize) -> Vec<Bf16> {
    let outputs = weight.len().checked_div(inputs).unwrap_or(0);
    let tiles = outputs.div_ceil(OUTPUTS as usize);
    let mut packed = Vec::with_capacity(tiles * OUTPUTS as usize * inputs);
    for first in (0..tiles).map(|tile| tile * OUTPUTS as usize) {
        for from in (0..inputs).step_by(CHUNK as usize) {
            for output in first..first + OUTPUTS as usize {
                match weight.get(output * inputs + from..output * inputs + from + CHUNK as usize) {
                    Some(inputs) => packed.extend_from_slice(inputs),
                    None => packed.extend([Bf16(0); CHUNK as usize]),
                }
            }
        }
    }
    packed
}

/// One output of a linear layer by its formula, in f64, and the sum of the terms' magnitudes.
pub fn linear_reference(x: &[Bf16], weight: &[Bf16]) -> (f64, f64) {
    let terms = x.iter().zip(weight).map(|(x, w)| f64::from(x.to_f32()) * f64::from(w.to_f32()));
    terms.fold((0.0, 0.0), |(sum, magnitude), term| (sum + term, magnitude + term.abs()))
}
