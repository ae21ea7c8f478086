//! Weights and inputs for the tests of this folder.

use coppice_model::bind::SwigluWeights;
use coppice_model::weight::{Slice, Storage, Weight};
use half::{bf16, f16};

use super::linear::element;

/// splitmix64 (Steele, Lea, Flood 2014).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Uniform in [-1, 1).
    pub(super) fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub(super) fn units(&mut self, count: usize) -> Vec<f32> {
        (0..count).map(|_| self.unit()).collect()
    }
}

/// A stored type, with the shape of its scales.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Kind {
    F32,
    F16,
    Bf16,
    Fp8([usize; 2]),
    Int4(usize),
}

impl Kind {
    pub(super) const ALL: [Kind; 10] = [
        Kind::F32,
        Kind::F16,
        Kind::Bf16,
        Kind::Fp8([128, 128]),
        Kind::Fp8([4, 64]),
        Kind::Fp8([3, 64]),
        Kind::Fp8([2, 5]),
        Kind::Int4(32),
        Kind::Int4(64),
        Kind::Int4(24),
    ];

    /// Columns must be a multiple of this.
    pub(super) fn step(self) -> usize {
        match self {
            Kind::Int4(group) => group,
            _ => 1,
        }
    }

    /// A random weight `[rows, cols]`.
    pub(super) fn weight(self, rows: usize, cols: usize, random: &mut Random) -> Weight {
        let mut values = random.units(rows * cols);
        for value in &mut values {
            *value *= 0.1;
        }
        let storage = match self {
            Kind::F32 => Storage::F32(Slice::from_vec(values)),
            Kind::F16 => Storage::F16(Slice::from_vec(values.into_iter().map(f16::from_f32).collect())),
            Kind::Bf16 => Storage::Bf16(Slice::from_vec(values.into_iter().map(bf16::from_f32).collect())),
            Kind::Fp8(block) => Storage::Fp8Block {
                // Every pattern but the two NaN.
                values: Slice::from_vec(
                    values.iter().map(|_| ((random.bits() % 127) | (random.bits() & 128)) as u8).collect(),
                ),
                scale_inv: Slice::from_vec(
                    (0..rows.div_ceil(block[0]) * cols.div_ceil(block[1]))
                        .map(|_| 1e-3 * (random.unit() + 1.5))
                        .collect(),
                ),
                block,
            },
            Kind::Int4(group) => Storage::Int4Group {
                packed: Slice::from_vec((0..rows * cols / 8).map(|_| random.bits() as u32).collect()),
                scale: Slice::from_vec(
                    (0..rows * cols / group).map(|_| bf16::from_f32(0.02 * (random.unit() + 1.5))).collect(),
                ),
                group,
            },
        };
        Weight { name: format!("{self:?} [{rows}, {cols}]"), rows, cols, storage }
    }

    /// A random MLP.
    pub(super) fn swiglu(self, hidden: usize, inter: usize, random: &mut Random) -> SwigluWeights {
        SwigluWeights {
            gate: self.weight(inter, hidden, random),
            up: self.weight(inter, hidden, random),
            down: self.weight(hidden, inter, random),
        }
    }
}

/// `x W^T` in f64, and the sum of the products' magnitudes: the scale of rounding errors.
pub(super) fn reference(weight: &Weight, x: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let mut sums = (Vec::new(), Vec::new());
    for x in x.chunks_exact(weight.cols) {
        for o in 0..weight.rows {
            let products = || x.iter().enumerate().map(|(i, x)| f64::from(element(weight, o, i)) * x);
            sums.0.push(products().sum());
            sums.1.push(products().map(f64::abs).sum());
        }
    }
    sums
}

/// The bits, for exact comparison.
pub(super) fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|x| x.to_bits()).collect()
}

/// An MLP in f64, and a bound on the error of f32 arithmetic: its products' relative errors, twice, and two units in the
/// last place for the activation.
pub(super) fn swiglu_reference(weights: &SwigluWeights, x: &[f32]) -> (Vec<f64>, Vec<f64>) {
    let wide: Vec<f64> = x.iter().map(|&x| x.into()).collect();
    let ulp = f64::from(f32::EPSILON);
    let rounding = |cols: usize| (cols as f64 / 16.0 + 14.0) * 0.5 * ulp;
    let (gate, gate_scale) = reference(&weights.gate, &wide);
    let (up, up_scale) = reference(&weights.up, &wide);
    let sigmoid = |g: f64| 1.0 / (1.0 + (-g).exp());
    let inner: Vec<f64> = gate.iter().zip(&up).map(|(&g, &u)| g * sigmoid(g) * u).collect();
    // |d silu / d g| <= 1.1.
    let error = rounding(weights.gate.cols);
    let errors: Vec<f64> = (0..inner.len())
        .map(|i| {
            let silu = (gate[i] * sigmoid(gate[i])).abs();
            1.1 * error * gate_scale[i] * up[i].abs() + silu * error * up_scale[i] + 4.0 * ulp * inner[i].abs()
        })
        .collect();
    let (out, out_scale) = reference(&weights.down, &inner);
    // |w| times the errors of the inner values.
    let carried = errors.chunks_exact(weights.down.cols).flat_map(|errors| {
        (0..weights.down.rows)
            .map(|o| {
                errors.iter().enumerate().map(|(i, e)| f64::from(element(&weights.down, o, i)).abs() * e).sum::<f64>()
            })
            .collect::<Vec<_>>()
    });
    let own = rounding(weights.down.cols);
    let bound = carried.zip(&out_scale).map(|(carried, scale)| carried + own * scale).collect();
    (out, bound)
}
