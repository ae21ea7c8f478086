//! The [`Backend`] trait: state that lives on a device, and the fused operations that change it.
//!
//! The step is written once against this trait. Set-up calls (weights, buffers) happen at once; operations of the step
//! are [`Op`] values that a backend may run now (`cpu`) or later (`deferred`, a GPU stream): they take and write handles
//! and return nothing. What a step decided is learned from [`Backend::poll`] alone.

pub mod cpu;
pub mod cuda;
pub mod deferred;
mod handles;
mod meter;
mod op;
mod round;
mod span;

pub use handles::*;
pub use meter::{Meter, Reads, Stage, Work};
pub use op::*;
pub use round::*;
use span::enter;

use coppice_model::bind::{MoeWeights, SwigluWeights};
use coppice_model::config::MoeConfig;
use coppice_model::weight::Weight;

use crate::error::Result;

/// A device that holds a model's weights, its buffers and its sequences.
///
/// Numerical contract: the value of an output row depends on that row's inputs and the keys it sees, never on how many
/// rows are computed with it.
pub trait Backend: Send {
    /// `cpu`, `deferred` or `cuda`.
    fn name(&self) -> &'static str;

    /// Rounds that the host should keep submitted ahead of the one it polls; 1 where operations run at once.
    fn queue_depth(&self) -> usize;

    /// Uploads a weight matrix in its stored type.
    fn matrix(&mut self, weight: &Weight) -> Result<Matrix>;

    /// Uploads an f32 vector (norm weights).
    fn vector(&mut self, values: &[f32]) -> Result<Vector>;

    /// Uploads a SwiGLU MLP.
    fn mlp(&mut self, weights: &SwigluWeights) -> Result<Mlp>;

    /// Uploads a mixture-of-experts layer.
    fn moe(&mut self, config: &MoeConfig, weights: &MoeWeights) -> Result<Moe>;

    /// Uploads rotary frequencies.
    fn rope(&mut self, table: &RopeTable) -> Result<Rope>;

    /// Prepares latent attention of one layer. Whether the latent is attended to as it is (absorbed) or expanded to
    /// per-head keys and values is the backend's choice, fixed here.
    fn mla(&mut self, spec: MlaSpec, kv_b: &Weight, kv_a_norm: &[f32]) -> Result<Mla>;

    /// Prepares drafter attention of one layer.
    fn draft_attention(&mut self, spec: DraftAttentionSpec, q_norm: &[f32], k_norm: &[f32]) -> Result<DraftAttention>;

    /// A buffer `[rows, width]` f32 whose contents are unspecified.
    fn tensor(&mut self, rows: usize, width: usize) -> Result<Tensor>;

    /// An empty row set of at most `capacity` rows.
    fn rows(&mut self, capacity: usize) -> Result<Rows>;

    /// A buffer for the expert choices of at most `capacity` rows.
    fn routes(&mut self, capacity: usize) -> Result<Routes>;

    /// A sequence with its caches. It must be started by [`Op::Begin`].
    fn sequence(&mut self, spec: &SequenceSpec) -> Result<Sequence>;

    /// Runs `op`, or queues it behind those submitted before. A failure is reported by the next [`Backend::poll`].
    fn submit(&mut self, op: Op);

    /// Waits for the oldest submitted [`Op::Commit`] not yet reported, and returns every round that is complete, oldest
    /// first; empty when nothing is outstanding.
    ///
    /// # Errors
    /// The first failure of an operation since the last poll; the sequence must then be begun anew.
    fn poll(&mut self, sequence: Sequence) -> Result<Vec<Round>>;

    /// Debug: the first `rows` rows of a buffer, after everything submitted.
    fn read_tensor(&mut self, tensor: Tensor, rows: usize) -> Result<Vec<f32>>;

    /// Debug: a row set, after everything submitted.
    fn read_rows(&mut self, rows: Rows) -> Result<RowValues>;

    /// Debug: the committed entries `[len, width]` of one layer's cache, after everything submitted.
    fn read_cache(&mut self, sequence: Sequence, cache: CacheLayer) -> Result<Vec<f32>>;

    /// Bytes the device holds for weights, caches and buffers.
    fn memory(&self) -> MemoryUse;
}
