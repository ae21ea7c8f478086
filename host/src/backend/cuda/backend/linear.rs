//! Linear layers: the one place that knows their kernels.

use coppice_gpu::linear::{self, Instance};
use cuda_std::{Bf16, DeviceCopy, Global, GlobalMut};

use super::super::{Place, error};
use super::weights::Matrix;
use crate::error::Result;

/// Rows that one launch of a product takes.
pub(super) const ROWS: usize = 64;

/// Results that linear kernels give.
pub(super) trait Output: DeviceCopy {
    /// The kernels.
    const INSTANCES: &[Instance<Self>];
}
impl Output for f32 {
    const INSTANCES: &[Instance<Self>] = linear::F32;
}
impl Output for Bf16 {
    const INSTANCES: &[Instance<Self>] = linear::BF16;
}

/// First row and number of rows of each launch over `rows` rows.
pub(super) fn slices(rows: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..rows).step_by(ROWS).map(move |first| (first, ROWS.min(rows - first)))
}

/// `out` `[rows, outputs]` := `x` `[rows, inputs]` x the matrix, `inputs` padded to whole steps.
///
/// # Safety
/// Both hold `rows` rows, `exchange` is that of the scratch.
pub(super) unsafe fn linear<T: Output>(
    place: Place<'static>,
    matrix: &Matrix,
    exchange: GlobalMut<u32>,
    x: Global<Bf16>,
    out: GlobalMut<T>,
    rows: usize,
) -> Result<()> {
    let (inputs, outputs) = (matrix.padded(), matrix.outputs);
    for (first, rows) in slices(rows) {
        let [n, i, o] = [rows, inputs, outputs].map(|n| n as u32);
        let Some(instance) = linear::choose(T::INSTANCES, n, o) else {
            return Err(error(format!("{}: no kernel takes {rows} rows", matrix.name)));
        };
        let arguments = (x.add(first * inputs), matrix.packed.ptr(), exchange, out.add(first * outputs), n, i, o);
        // SAFETY: the caller's contract; the instance takes as many rows, and the matrix is packed for it.
        unsafe { place.queue(&instance.kernel, instance.shape(o), arguments, true)? };
    }
    Ok(())
}
