//! Weights on the way to a place: expanded to bf16 and packed as the kernels read them, or packed in their stored type.

use coppice_gpu::linear;
use coppice_gpu::moe::experts::{self, Instance};
use coppice_gpu::moe::format::{self, pack_down, pack_gate_up};
use coppice_model::bind::SwigluWeights;
use coppice_model::weight::{Storage, Weight};
use cuda_std::Bf16;

use super::super::{Memory, Place};
use crate::error::Result;

/// Inputs of a product are a multiple of this; the rest is zeros.
pub(super) const STEP: usize = 32;
/// Outputs of a tile.
const TILE: usize = 16;

/// A weight matrix `[outputs, inputs]`, bf16, packed for `linear`.
#[derive(Debug)]
pub(super) struct Matrix {
    pub name: String,
    pub outputs: usize,
    pub inputs: usize,
    pub packed: Memory<'static, Bf16>,
}

impl Matrix {
    pub fn new(place: Place<'static>, weight: &Weight) -> Result<Self> {
        Self::stacked(place, &[weight])
    }

    /// Matrices of the same inputs, one below the other.
    pub fn stacked(place: Place<'static>, weights: &[&Weight]) -> Result<Self> {
        let name = weights.iter().map(|weight| weight.name.as_str()).collect::<Vec<_>>().join(" and ");
        let (outputs, inputs) = (weights.iter().map(|w| w.rows).sum(), weights.first().map_or(0, |w| w.cols));
        let packed = place.input_of(&name, packed_len(outputs, inputs), || {
            let rows = weights.iter().flat_map(|weight| (0..weight.rows).map(move |row| (*weight, row)));
            let values: Vec<Bf16> = rows.flat_map(|(weight, row)| rounded_row(weight, row)).collect();
            linear::pack(&values, inputs.next_multiple_of(STEP))
        })?;
        Ok(Self { name, outputs, inputs, packed })
    }

    /// Inputs as they lie in memory.
    pub fn padded(&self) -> usize {
        self.inputs.next_multiple_of(STEP)
    }
}

/// Elements of a packed matrix.
pub(super) fn packed_len(outputs: usize, inputs: usize) -> usize {
    outputs.next_multiple_of(TILE) * inputs.next_multiple_of(STEP)
}

/// A row, rounded to bf16 and padded by zeros.
pub(super) fn rounded_row(weight: &Weight, row: usize) -> Vec<Bf16> {
    let mut values = vec![0.0; weight.cols.next_multiple_of(STEP)];
    weight.expand_row(row, &mut values[..weight.cols]);
    round(&values)
}

/// Values rounded to bf16.
pub(super) fn round(values: &[f32]) -> Vec<Bf16> {
    values.iter().map(|value| Bf16::from_f32(*value)).collect()
}

/// Routed experts of a layer, in the type they are stored in where there are kernels for it, else bf16.
#[derive(Debug)]
pub(super) struct Experts {
    pub format: Format,
    pub gate_up: Memory<'static, u8>,
    pub down: Memory<'static, u8>,
    pub count: usize,
    pub hidden: usize,
    pub inter: usize,
}

/// Types of weights that the experts' kernels read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Format {
    Int4,
    Fp8,
    Bf16,
}

impl Format {
    /// That of a stored matrix.
    fn of(weight: &Weight) -> Self {
        match &weight.storage {
            Storage::Int4Group { group: 32, .. } => Self::Int4,
            Storage::Fp8Block { block: [128, 128], .. } => Self::Fp8,
            _ => Self::Bf16,
        }
    }

    /// The kernels, by choices a pass.
    pub fn instances(self) -> &'static [Instance; 2] {
        match self {
            Self::Int4 => &experts::INT4,
            Self::Fp8 => &experts::FP8,
            Self::Bf16 => &experts::BF16,
        }
    }
}

impl Experts {
    pub fn new(place: Place<'static>, weights: &[SwigluWeights]) -> Result<Self> {
        let all = || weights.iter().flat_map(|expert| [&expert.gate, &expert.up, &expert.down]);
        let first = all().next().map_or(Format::Bf16, Format::of);
        let format = if all().all(|weight| Format::of(weight) == first) { first } else { Format::Bf16 };
        let (hidden, inter) = weights.first().map_or((0, 0), |expert| (expert.gate.cols, expert.gate.rows));
        let instance = &format.instances()[0];
        let bytes = |each: u64| weights.len() * each as usize;
        let [h, i] = [hidden, inter].map(|n| n as u32);
        let gate_up = place.input_of("gate and up of the experts", bytes(instance.gate_up_bytes(h, i)), || {
            let pack = |expert: &SwigluWeights| {
                let (gate, up) = (Held::new(&expert.gate, format), Held::new(&expert.up, format));
                pack_gate_up(gate.matrix(), up.matrix(), hidden)
            };
            weights.iter().flat_map(pack).collect()
        })?;
        let down = place.input_of("down of the experts", bytes(instance.down_bytes(i, h)), || {
            weights.iter().flat_map(|expert| pack_down(Held::new(&expert.down, format).matrix(), inter)).collect()
        })?;
        Ok(Self { format, gate_up, down, count: weights.len(), hidden, inter })
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.gate_up.bytes() + self.down.bytes()
    }
}

/// A matrix in the kernels' element types.
enum Held<'w> {
    Int4 { words: &'w [u32], scales: Vec<Bf16> },
    Fp8 { bytes: &'w [u8], scales: &'w [f32] },
    Bf16(Vec<Bf16>),
}

impl<'w> Held<'w> {
    fn new(weight: &'w Weight, format: Format) -> Self {
        match (&weight.storage, format) {
            (Storage::Int4Group { packed, scale, .. }, Format::Int4) => {
                Self::Int4 { words: packed, scales: scale.iter().map(|scale| Bf16(scale.to_bits())).collect() }
            }
            (Storage::Fp8Block { values, scale_inv, .. }, Format::Fp8) => {
                Self::Fp8 { bytes: values, scales: scale_inv }
            }
            _ => Self::Bf16((0..weight.rows).flat_map(|row| rounded_row(weight, row)).collect()),
        }
    }

    fn matrix(&self) -> format::Matrix<'_> {
        match self {
            Self::Int4 { words, scales } => format::Matrix::Int4 { words, scales },
            Self::Fp8 { bytes, scales } => format::Matrix::Fp8 { bytes, scales },
            Self::Bf16(values) => format::Matrix::Bf16(values),
        }
    }
}
