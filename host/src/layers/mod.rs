//! The target's forward pass over the [`Backend`] trait: MLA, MoE, norms. One forward serves prefill, plain decode,
//! chains and trees: they differ only in the row set.

mod attention;
mod feed_forward;
pub mod rope;
mod target;

pub use target::{Emit, Forward, Target};

use crate::backend::{Backend, Matrix, Op, Rows, Select, Sequence, Tap, Tensor, Vector};

/// A norm's weight and eps.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Norm {
    pub weight: Vector,
    pub eps: f32,
}

impl Norm {
    /// `out := norm(x)`, leaving `x` as it is.
    pub fn apply(self, backend: &mut dyn Backend, rows: Rows, x: Tensor, out: Tensor) {
        self.add(backend, rows, x, None, None, out);
    }

    /// `residual += delta`, `tap := residual`, `out := norm(residual)`.
    pub fn add(
        self,
        backend: &mut dyn Backend,
        rows: Rows,
        residual: Tensor,
        delta: Option<Tensor>,
        tap: Option<Tap>,
        out: Tensor,
    ) {
        let Self { weight, eps } = self;
        backend.submit(Op::AddNorm { rows, x: residual, delta, tap, weight, eps, out });
    }
}

/// `out := x W^T` for every row.
pub(crate) fn linear(backend: &mut dyn Backend, rows: Rows, x: Tensor, weight: Matrix, out: Tensor) {
    backend.submit(Op::Linear { rows, select: Select::All, x, weight, out });
}

/// The rows that pass a layer, and the cache they meet there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LayerRows {
    pub rows: Rows,
    pub sequence: Sequence,
    pub layer: usize,
}
