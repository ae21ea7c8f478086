//! Random weights in every format, for tests and checks. Not part of a GPU build.
use super::format::Matrix;
use crate::testing::Random;
use cuda_std::Bf16;
use std::vec::Vec;

/// A matrix that owns its data.
pub enum Weights {
    /// int4, group 32.
    Int4(Vec<u32>, Vec<Bf16>),
    /// bf16.
    Bf16(Vec<Bf16>),
    /// fp8 in blocks of 128 x 128.
    Fp8(Vec<u8>, Vec<f32>),
}

impl Weights {
    /// Random weights `[outputs, inputs]`; `format` is 0 for int4, 1 for bf16, 2 for fp8.
    pub fn random(format: usize, random: &mut Random, outputs: u32, inputs: u32) -> Self {
        let n = outputs as usize * inputs as usize;
        match format {
            0 => {
                let words = (0..n / 8).map(|_| random.below(1 << 16) << 16 | random.below(1 << 16)).collect();
                Self::Int4(words, (0..n / 32).map(|_| Bf16::from_f32(random.uniform() + 0.5)).collect())
            }
            1 => Self::Bf16(random.normals(n).into_iter().map(Bf16::from_f32).collect()),
            _ => {
                // All but the two NaN.
                let bytes = (0..n).map(|_| (random.below(127) | random.below(2) << 7) as u8).collect();
                let blocks = outputs.div_ceil(128) * inputs.div_ceil(128);
                Self::Fp8(bytes, (0..blocks).map(|_| random.uniform() + 0.01).collect())
            }
        }
    }

    /// As packing takes it.
    pub fn matrix(&self) -> Matrix<'_> {
        match self {
            Self::Int4(words, scales) => Matrix::Int4 { words, scales },
            Self::Bf16(values) => Matrix::Bf16(values),
            Self::Fp8(bytes, scales) => Matrix::Fp8 { bytes, scales },
        }
    }
}
