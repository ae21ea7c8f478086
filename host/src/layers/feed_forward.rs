//! What follows attention in a target layer: a dense SwiGLU MLP, or a mixture of experts.

use coppice_model::bind::MlpWeights;
use coppice_model::config::ModelConfig;

use crate::backend::{Backend, Mlp, Moe, Op, Routes, Rows, Tensor};
use crate::error::{Error, Result};

/// One layer's MLP or experts.
#[derive(Debug)]
pub(super) enum FeedForward {
    Dense(Mlp),
    Moe(Moe),
}

impl FeedForward {
    pub fn load(backend: &mut dyn Backend, config: &ModelConfig, weights: &MlpWeights) -> Result<Self> {
        match (weights, &config.moe) {
            (MlpWeights::Dense(mlp), _) => Ok(Self::Dense(backend.mlp(mlp)?)),
            (MlpWeights::Moe(moe), Some(shape)) => Ok(Self::Moe(backend.moe(shape, moe)?)),
            (MlpWeights::Moe(_), None) => {
                Err(Error::Request("the weights have experts, the configuration has none".into()))
            }
        }
    }

    /// `out := mlp(x)`.
    pub fn run(&self, backend: &mut dyn Backend, routes: Routes, rows: Rows, x: Tensor, out: Tensor) {
        match *self {
            Self::Dense(mlp) => backend.submit(Op::Mlp { rows, mlp, x, out }),
            Self::Moe(moe) => {
                backend.submit(Op::Route { rows, moe, x, routes });
                backend.submit(Op::Experts { rows, moe, x, routes, out });
            }
        }
    }
}
