//! The CPU backend: the reference that others must match, and the default without a GPU. Operations run when submitted.
//!
//! Here: what handles name, set-up, and which function does which operation. f32 activations, weights in their stored
//! type. Arithmetic lives in the files beside.

mod attention;
mod attention_kernel;
mod buffer;
mod cache;
mod draft_attention;
pub mod experts;
pub mod linear;
mod mla;
pub mod mlp;
mod norm;
mod ops;
pub mod pool;
mod rope;
pub mod route;
mod sequence;
mod state;
mod tally;
mod vector;
mod work;

#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::Instant;

use coppice_model::bind::{MoeWeights, SwigluWeights};
use coppice_model::config::MoeConfig;
use coppice_model::weight::Weight;

use self::draft_attention::DraftLayer;
use self::mla::MlaLayer;
use self::pool::Pool;
use self::rope::RopeCache;
use self::route::RouteTable;
use self::sequence::SequenceState;
use self::state::{Activations, Arena, Operand, RowSet};
use super::{
    Backend, CacheLayer, DraftAttention, DraftAttentionSpec, Matrix, MemoryUse, Meter, Mla, MlaSpec, Mlp, Moe, Op,
    Reads, Rope, RopeTable, Round, Routes, RowValues, Rows, Sequence, SequenceSpec, Tensor, Vector, enter,
};
use crate::error::{Error, Result};

pub use self::mla::MlaForm;
pub use self::tally::Tally;
pub use crate::simd::Isa;

/// The backend's name.
const NAME: &str = "cpu";

/// Choices about the CPU backend.
#[derive(Debug, Clone, Copy, Default)]
pub struct CpuOptions {
    /// Threads; 0: one for each core.
    pub threads: usize,
    /// What latent attention caches; `None`: the cheaper for each layer's shape.
    pub mla_form: Option<MlaForm>,
    /// Instruction set; `None`: the widest this CPU has.
    pub isa: Option<Isa>,
}

/// The CPU backend.
pub struct Cpu {
    pool: Pool,
    mla_form: Option<MlaForm>,
    matrices: Arena<Weight>,
    vectors: Arena<Vec<f32>>,
    mlps: Arena<SwigluWeights>,
    moes: Arena<(MoeConfig, MoeWeights)>,
    ropes: Arena<RopeCache>,
    mlas: Arena<MlaLayer>,
    draft_attentions: Arena<DraftLayer>,
    tensors: Arena<Activations>,
    rows: Arena<RowSet>,
    /// Room for rows, and the choices.
    routes: Arena<(usize, RouteTable)>,
    sequences: Arena<SequenceState>,
    mlp_scratch: mlp::Scratch,
    attention_scratch: [Vec<f32>; 2],
    weight_bytes: usize,
    meter: Option<Arc<Meter>>,
    /// An operation failed: those after it are not run until the next [`Op::Begin`].
    failed: bool,
    failure: Option<Error>,
}

impl Cpu {
    /// A backend of `threads` threads, 0: one for each core.
    pub fn new(threads: usize) -> Self {
        Self::with_options(CpuOptions { threads, ..CpuOptions::default() })
    }

    /// A backend with all choices stated.
    pub fn with_options(options: CpuOptions) -> Self {
        let cores = || std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if options.threads == 0 { cores() } else { options.threads };
        Self {
            pool: options.isa.map_or_else(|| Pool::new(threads), |isa| Pool::with_isa(threads, isa)),
            mla_form: options.mla_form,
            matrices: Arena::new("matrix"),
            vectors: Arena::new("vector"),
            mlps: Arena::new("mlp"),
            moes: Arena::new("moe"),
            ropes: Arena::new("rope"),
            mlas: Arena::new("mla"),
            draft_attentions: Arena::new("draft attention"),
            tensors: Arena::new("tensor"),
            rows: Arena::new("row set"),
            routes: Arena::new("routes"),
            sequences: Arena::new("sequence"),
            mlp_scratch: mlp::Scratch::default(),
            attention_scratch: Default::default(),
            weight_bytes: 0,
            meter: None,
            failed: false,
            failure: None,
        }
    }

    /// With a meter that takes note of what rounds do while it is on.
    pub fn with_meter(self, meter: Arc<Meter>) -> Self {
        Self { meter: Some(meter), ..self }
    }

    /// Runs one operation, with the meter on.
    fn execute_metered(&mut self, meter: &Meter, op: Op) -> std::result::Result<(), String> {
        let Some(stage) = meter.enter(&op) else {
            return self.execute(op);
        };
        let idle = match rows_of(&op) {
            Some(rows) => self.rows.get(rows.0)?.len() == 0,
            None => false,
        };
        let reads = if idle { Reads::default() } else { self.reads(&op) };
        let ends_round = matches!(op, Op::Commit { .. });
        let started = Instant::now();
        let result = self.execute(op);
        meter.note(stage, started.elapsed(), reads, ends_round);
        result
    }

    /// Runs one operation.
    fn execute(&mut self, op: Op) -> std::result::Result<(), String> {
        if let Some(rows) = rows_of(&op)
            && self.rows.get(rows.0)?.len() == 0
        {
            return Ok(());
        }
        let _span = enter(&op);
        match op {
            Op::Begin { sequence, request } => self.begin(sequence, request),
            Op::PromptRows { sequence, rows, ids } => self.prompt_rows(sequence, rows, &ids),
            Op::BlockRows { sequence, rows, block, mask_token } => self.block_rows(sequence, rows, block, mask_token),
            Op::TreeRows { sequence, rows, proposal } => self.tree_rows(sequence, rows, &proposal),
            Op::Embed { rows, table, out } => self.embed(rows, table, out),
            Op::AddNorm { rows, x, delta, tap, weight, eps, out } => {
                self.add_norm(rows, x, delta, tap, (weight, eps), out)
            }
            Op::Linear { rows, select, x, weight, out } => self.linear(rows, select, x, weight, out),
            Op::Mlp { rows, mlp, x, out } => self.run_mlp(rows, mlp, x, out),
            Op::Route { rows, moe, x, routes } => self.route(rows, moe, x, routes),
            Op::Experts { rows, moe, x, routes, out } => self.experts(rows, moe, x, routes, out),
            Op::MlaAppend { rows, sequence, layer, mla, kv_a } => self.mla_append(rows, (sequence, layer, mla), kv_a),
            Op::MlaAttention { rows, sequence, layer, mla, q, out } => {
                self.mla_attend(rows, (sequence, layer, mla), q, out)
            }
            Op::DraftAppend { rows, sequence, layer, attention, k, v } => {
                self.draft_append(rows, (sequence, layer, attention), [k, v])
            }
            Op::DraftAttention { rows, sequence, layer, attention, q, k, v, out } => {
                self.draft_attend(rows, (sequence, layer, attention), [q, k, v], out)
            }
            Op::Walk { sequence, rows, accept } => self.walk(sequence, rows, accept),
            Op::Commit { sequence, rows, features, accepted } => self.commit(sequence, rows, features, accepted),
        }
    }
}

/// The row set without whose rows an operation does nothing.
fn rows_of(op: &Op) -> Option<Rows> {
    match op {
        Op::Begin { .. } | Op::PromptRows { .. } | Op::BlockRows { .. } | Op::TreeRows { .. } | Op::Commit { .. } => {
            None
        }
        Op::Embed { rows, .. }
        | Op::AddNorm { rows, .. }
        | Op::Linear { rows, .. }
        | Op::Mlp { rows, .. }
        | Op::Route { rows, .. }
        | Op::Experts { rows, .. }
        | Op::MlaAppend { rows, .. }
        | Op::MlaAttention { rows, .. }
        | Op::DraftAppend { rows, .. }
        | Op::DraftAttention { rows, .. }
        | Op::Walk { rows, .. } => Some(*rows),
    }
}

/// What an operation is called in errors, with its layer where it has one.
fn describe(op: &Op) -> String {
    match op {
        Op::Begin { .. } => "begin".into(),
        Op::PromptRows { .. } => "prompt rows".into(),
        Op::BlockRows { .. } => "block rows".into(),
        Op::TreeRows { .. } => "tree rows".into(),
        Op::Embed { .. } => "embed".into(),
        Op::AddNorm { .. } => "norm".into(),
        Op::Linear { .. } => "linear".into(),
        Op::Mlp { .. } => "mlp".into(),
        Op::Route { .. } => "route".into(),
        Op::Experts { .. } => "experts".into(),
        Op::MlaAppend { layer, .. } => format!("mla append, layer {layer}"),
        Op::MlaAttention { layer, .. } => format!("mla attention, layer {layer}"),
        Op::DraftAppend { layer, .. } => format!("draft append, layer {layer}"),
        Op::DraftAttention { layer, .. } => format!("draft attention, layer {layer}"),
        Op::Walk { .. } => "walk".into(),
        Op::Commit { .. } => "commit".into(),
    }
}

/// An error of the set-up call or operation `what`.
fn error(what: &str, message: &str) -> Error {
    Error::Backend { backend: NAME, message: format!("{what}: {message}") }
}

impl Backend for Cpu {
    fn name(&self) -> &'static str {
        NAME
    }

    fn queue_depth(&self) -> usize {
        1
    }

    fn matrix(&mut self, weight: &Weight) -> Result<Matrix> {
        self.weight_bytes += weight.bytes();
        Ok(Matrix(self.matrices.push(weight.clone())))
    }

    fn vector(&mut self, values: &[f32]) -> Result<Vector> {
        self.weight_bytes += size_of_val(values);
        Ok(Vector(self.vectors.push(values.to_vec())))
    }

    fn mlp(&mut self, weights: &SwigluWeights) -> Result<Mlp> {
        check_swiglu(weights, weights.gate.cols).map_err(|message| error("mlp", &message))?;
        self.weight_bytes += swiglu_bytes(weights);
        Ok(Mlp(self.mlps.push(weights.clone())))
    }

    fn moe(&mut self, config: &MoeConfig, weights: &MoeWeights) -> Result<Moe> {
        check_moe(weights).map_err(|message| error("moe", &message))?;
        let experts = weights.experts.iter().chain(&weights.shared).map(swiglu_bytes).sum::<usize>();
        self.weight_bytes += experts + weights.router.bytes() + size_of_val(weights.bias.as_slice());
        Ok(Moe(self.moes.push((config.clone(), weights.clone()))))
    }

    fn rope(&mut self, table: &RopeTable) -> Result<Rope> {
        Ok(Rope(self.ropes.push(RopeCache::new(table))))
    }

    fn mla(&mut self, spec: MlaSpec, kv_b: &Weight, kv_a_norm: &[f32]) -> Result<Mla> {
        let rope = self.ropes.get(spec.table.0).map_err(|message| error("mla", &message))?;
        let layer =
            MlaLayer::new(spec, rope, kv_b, kv_a_norm, self.mla_form).map_err(|message| error("mla", &message))?;
        self.weight_bytes += kv_b.bytes() + size_of_val(kv_a_norm);
        Ok(Mla(self.mlas.push(layer)))
    }

    fn draft_attention(&mut self, spec: DraftAttentionSpec, q_norm: &[f32], k_norm: &[f32]) -> Result<DraftAttention> {
        let rope = self.ropes.get(spec.table.0).map_err(|message| error("draft attention", &message))?;
        let layer =
            DraftLayer::new(spec, rope, q_norm, k_norm).map_err(|message| error("draft attention", &message))?;
        self.weight_bytes += size_of_val(q_norm) + size_of_val(k_norm);
        Ok(DraftAttention(self.draft_attentions.push(layer)))
    }

    fn tensor(&mut self, rows: usize, width: usize) -> Result<Tensor> {
        Ok(Tensor(self.tensors.push(Activations::new(rows, width))))
    }

    fn rows(&mut self, capacity: usize) -> Result<Rows> {
        Ok(Rows(self.rows.push(RowSet::new(capacity))))
    }

    fn routes(&mut self, capacity: usize) -> Result<Routes> {
        Ok(Routes(self.routes.push((capacity, RouteTable::default()))))
    }

    fn sequence(&mut self, spec: &SequenceSpec) -> Result<Sequence> {
        let state = self.new_sequence(spec).map_err(|message| error("sequence", &message))?;
        Ok(Sequence(self.sequences.push(state)))
    }

    fn submit(&mut self, op: Op) {
        self.failed &= !matches!(op, Op::Begin { .. });
        if self.failed {
            return;
        }
        let what = describe(&op);
        let meter = self.meter.as_ref().filter(|meter| meter.is_on()).cloned();
        let result = match meter {
            Some(meter) => self.execute_metered(&meter, op),
            None => self.execute(op),
        };
        if let Err(message) = result {
            self.failed = true;
            self.failure.get_or_insert_with(|| error(&what, &message));
        }
    }

    fn poll(&mut self, sequence: Sequence) -> Result<Vec<Round>> {
        if let Some(failure) = self.failure.take() {
            return Err(failure);
        }
        let state = self.sequences.get_mut(sequence.0).map_err(|message| error("poll", &message))?;
        Ok(state.take_rounds())
    }

    fn read_tensor(&mut self, tensor: Tensor, rows: usize) -> Result<Vec<f32>> {
        let found = self.tensors.get(tensor.0).map_err(|message| error("read tensor", &message))?;
        let operand = Operand::new("tensor", tensor, rows, found.width());
        self.tensors.read(operand).map(<[f32]>::to_vec).map_err(|message| error("read tensor", &message))
    }

    fn read_rows(&mut self, rows: Rows) -> Result<RowValues> {
        self.rows.get(rows.0).map(|rows| rows.values().clone()).map_err(|message| error("read rows", &message))
    }

    fn read_cache(&mut self, sequence: Sequence, cache: CacheLayer) -> Result<Vec<f32>> {
        self.cache_entries(sequence, cache).map_err(|message| error("read cache", &message))
    }

    fn memory(&self) -> MemoryUse {
        MemoryUse {
            weights: self.weight_bytes,
            cache: self.sequences.iter().map(SequenceState::cache_bytes).sum(),
            buffers: self.tensors.iter().map(Activations::bytes).sum(),
        }
    }
}

fn swiglu_bytes(weights: &SwigluWeights) -> usize {
    weights.gate.bytes() + weights.up.bytes() + weights.down.bytes()
}

/// Checks an MLP over `hidden` inputs and outputs.
fn check_swiglu(weights: &SwigluWeights, hidden: usize) -> std::result::Result<(), String> {
    let inter = weights.gate.rows;
    let shapes = [(&weights.gate, [inter, hidden]), (&weights.up, [inter, hidden]), (&weights.down, [hidden, inter])];
    match shapes.into_iter().find(|(weight, shape)| [weight.rows, weight.cols] != *shape) {
        Some((weight, shape)) => {
            Err(format!("{} has shape {:?}, expected {shape:?}", weight.name, [weight.rows, weight.cols]))
        }
        None => Ok(()),
    }
}

/// Checks a mixture-of-experts layer.
fn check_moe(weights: &MoeWeights) -> std::result::Result<(), String> {
    let (router, experts) = (&weights.router, weights.experts.len());
    if [router.rows, weights.bias.len()] != [experts; 2] {
        let found = (router.rows, weights.bias.len());
        return Err(format!("{} and its bias are for {found:?} experts, expected {experts}", router.name));
    }
    weights.experts.iter().chain(&weights.shared).try_for_each(|expert| check_swiglu(expert, router.cols))
}
