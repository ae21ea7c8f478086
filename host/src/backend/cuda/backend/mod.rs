//! The GPU backend: operations are collected until their round is complete, then launched, all of them at once.
//!
//! The same launches run on a device and under the simulator. The host knows how many rows a launch is for; lengths,
//! positions, tokens and how a round ends lie in device memory, so that a round's launches repeat: on a device they are
//! recorded once and replayed by one call. Activations are f32 where they are added up and bf16 where products read them;
//! weights are bf16, those of routed experts as they are stored (int4 in groups of 32, fp8 in blocks of 128, bf16).

mod attention;
mod draft;
mod end;
mod feed_forward;
mod linear;
mod machine;
mod ops;
mod rounds;
mod scratch;
mod sequence;
mod tensors;
mod trees;
mod weights;

#[cfg(test)]
mod tests;

use std::mem::ManuallyDrop;

use coppice_model::bind::{MoeWeights, SwigluWeights};
use coppice_model::config::MoeConfig;
use coppice_model::weight::Weight;
use cuda_std::simulate::Registry;

use self::machine::Machine;
use super::{Device, Place, error};
use crate::backend::{
    Backend, CacheLayer, DraftAttention, DraftAttentionSpec, Matrix, MemoryUse, Mla, MlaSpec, Mlp, Moe, Op, Rope,
    RopeTable, Round, Routes, RowValues, Rows, Sequence, SequenceSpec, Tensor, Vector,
};
use crate::error::{Error, Result};
use crate::report::Bytes;

/// Rounds that are kept under way: while one ends, the next is there already.
const QUEUE_DEPTH: usize = 2;

/// What the driver takes for code, graphs and rounding up, bytes.
const OVERHEAD: usize = 256 << 20;

/// The GPU backend.
pub struct Cuda {
    /// Taken apart by `drop`, inside `host`.
    machine: ManuallyDrop<Machine>,
    host: Host,
    /// An operation failed: those after it are not run until the next [`Op::Begin`].
    failed: bool,
    failure: Option<Error>,
}

/// Fails unless `needed` fits `free` bytes.
fn refuse_beyond(name: &str, free: usize, total: usize, needed: &MemoryUse) -> Result<()> {
    let MemoryUse { weights, cache, buffers } = *needed;
    let all = weights + cache + buffers + OVERHEAD;
    if all <= free {
        return Ok(());
    }
    let [all, weights, cache, buffers, overhead, free, total] =
        [all, weights, cache, buffers, OVERHEAD, free, total].map(|bytes| Bytes(bytes as u64));
    Err(error(format!(
        "{name} has {free} of {total} free, the model needs {all}: {weights} of weights, {cache} of KV cache, {buffers} for \
         trees and activations, {overhead} for the driver; free memory, lower --ctx or --tree-budget, choose a GPU with \
         more, or --device cpu"
    )))
}

/// What the machine's memory needs of the calling thread.
struct Host {
    device: Option<OwnDevice>,
    /// The simulator's buffers, while no call is under way.
    registry: Registry,
}

/// Gives the thread its own buffers back when it leaves.
struct Visit<'a>(&'a mut Registry);

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        self.0.swap();
    }
}

impl Host {
    /// Puts the memory at the calling thread's hand.
    fn enter(&mut self) -> (Visit<'_>, Result<()>) {
        let entered = self.device.as_ref().map_or(Ok(()), |device| device.get().enter());
        self.registry.swap();
        (Visit(&mut self.registry), entered)
    }
}

/// A device on the heap, where the machine refers to it.
struct OwnDevice(*mut Device);

impl OwnDevice {
    fn get(&self) -> &Device {
        // SAFETY: it lives until `drop`; all references are shared.
        unsafe { &*self.0 }
    }
}

impl Drop for OwnDevice {
    fn drop(&mut self) {
        // SAFETY: made by `Box::into_raw`; `Cuda` has dropped the machine, and with it every reference.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

// SAFETY: nothing in here is shared with another backend, and a thread that enters makes the device its own first.
unsafe impl Send for Cuda {}

impl Cuda {
    /// On a GPU.
    pub fn new(device: Device) -> Self {
        let device = OwnDevice(Box::into_raw(Box::new(device)));
        // SAFETY: the device outlives the machine (see `drop`), and the machine's references never leave it.
        let place = Place::Device(unsafe { &*device.0 });
        Self::over(place, Some(device))
    }

    /// Under the simulator: the same kernels on the CPU, slowly. `seed` is that of its schedule.
    pub fn simulated(seed: u64) -> Self {
        Self::over(Place::Simulator(seed), None)
    }

    /// Nowhere: counts the bytes that a model would take here.
    ///
    /// # Errors
    /// The driver does not describe the GPU.
    pub fn tally(&self) -> Result<Self> {
        Ok(Self::over(Place::Tally(self.machine.place.limits()?), None))
    }

    /// Whether so much fits what is free.
    ///
    /// # Errors
    /// It does not: the message says what is needed for what, and what is free.
    pub fn preflight(&self, needed: &MemoryUse) -> Result<()> {
        let Some(device) = &self.host.device else { return Ok(()) };
        let device = device.get();
        device.enter()?;
        let (free, total) = device.memory()?;
        refuse_beyond(&device.info().name, free, total, needed)
    }

    fn over(place: Place<'static>, device: Option<OwnDevice>) -> Self {
        Self {
            machine: ManuallyDrop::new(Machine::new(place)),
            host: Host { device, registry: Registry::default() },
            failed: false,
            failure: None,
        }
    }

    /// Runs `work` with the machine's memory at the calling thread's hand.
    fn enter<R>(&mut self, work: impl FnOnce(&mut Machine) -> Result<R>) -> Result<R> {
        let (_visit, entered) = self.host.enter();
        entered?;
        work(&mut self.machine)
    }

    /// Launches what waits; a failure is kept for the next poll.
    fn settle(&mut self) -> Result<()> {
        match self.failure.take() {
            Some(failure) => Err(failure),
            None => self.enter(Machine::flush),
        }
    }

    fn execute(&mut self, op: Op) -> Result<()> {
        self.enter(|machine| match op {
            Op::Begin { sequence, ref request } => {
                machine.rounds.abandon();
                machine.place.synchronize()?;
                machine.begin(sequence, request)
            }
            Op::Commit { sequence, .. } => {
                machine.rounds.push(op);
                machine.flush()?;
                let place = machine.place;
                machine.sequences.get_mut(sequence.0).map_err(error)?.submitted(place)
            }
            op => {
                machine.rounds.push(op);
                Ok(())
            }
        })
    }
}

impl Drop for Cuda {
    fn drop(&mut self) {
        let (_visit, entered) = self.host.enter();
        let _ = entered.and_then(|()| self.machine.place.synchronize());
        // SAFETY: dropped nowhere else, and not used afterwards.
        unsafe { ManuallyDrop::drop(&mut self.machine) };
    }
}

impl Backend for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn queue_depth(&self) -> usize {
        QUEUE_DEPTH
    }

    fn matrix(&mut self, weight: &Weight) -> Result<Matrix> {
        self.enter(|machine| machine.matrix(weight).map(Matrix))
    }

    fn vector(&mut self, values: &[f32]) -> Result<Vector> {
        self.enter(|machine| machine.vector(values).map(Vector))
    }

    fn mlp(&mut self, weights: &SwigluWeights) -> Result<Mlp> {
        self.enter(|machine| machine.mlp(weights).map(Mlp))
    }

    fn moe(&mut self, config: &MoeConfig, weights: &MoeWeights) -> Result<Moe> {
        self.enter(|machine| machine.moe(config, weights).map(Moe))
    }

    fn rope(&mut self, table: &RopeTable) -> Result<Rope> {
        self.enter(|machine| machine.rope(table).map(Rope))
    }

    fn mla(&mut self, spec: MlaSpec, kv_b: &Weight, kv_a_norm: &[f32]) -> Result<Mla> {
        self.enter(|machine| machine.mla(spec, kv_b, kv_a_norm).map(Mla))
    }

    fn draft_attention(&mut self, spec: DraftAttentionSpec, q_norm: &[f32], k_norm: &[f32]) -> Result<DraftAttention> {
        self.enter(|machine| machine.draft_attention(spec, q_norm, k_norm).map(DraftAttention))
    }

    fn tensor(&mut self, rows: usize, width: usize) -> Result<Tensor> {
        self.enter(|machine| machine.tensor(rows, width).map(Tensor))
    }

    fn rows(&mut self, capacity: usize) -> Result<Rows> {
        self.enter(|machine| machine.row_set(capacity).map(Rows))
    }

    fn routes(&mut self, capacity: usize) -> Result<Routes> {
        self.enter(|machine| machine.routes(capacity).map(Routes))
    }

    fn sequence(&mut self, spec: &SequenceSpec) -> Result<Sequence> {
        self.enter(|machine| machine.sequence(spec).map(Sequence))
    }

    fn submit(&mut self, op: Op) {
        self.failed &= !matches!(op, Op::Begin { .. });
        if self.failed {
            return;
        }
        if let Err(failure) = self.execute(op) {
            self.failed = true;
            self.failure.get_or_insert(failure);
        }
    }

    fn poll(&mut self, sequence: Sequence) -> Result<Vec<Round>> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let rounds = self.enter(|machine| {
            let place = machine.place;
            machine.sequences.get_mut(sequence.0).map_err(error)?.take(place)
        });
        self.failed |= rounds.is_err();
        rounds
    }

    fn read_tensor(&mut self, tensor: Tensor, rows: usize) -> Result<Vec<f32>> {
        self.settle()?;
        self.enter(|machine| machine.read_tensor(tensor, rows))
    }

    fn read_rows(&mut self, rows: Rows) -> Result<RowValues> {
        self.settle()?;
        self.enter(|machine| machine.read_rows(rows))
    }

    fn read_cache(&mut self, sequence: Sequence, cache: CacheLayer) -> Result<Vec<f32>> {
        self.settle()?;
        self.enter(|machine| machine.read_cache(sequence, cache))
    }

    fn memory(&self) -> MemoryUse {
        self.machine.memory()
    }
}
