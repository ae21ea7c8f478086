//! Everything that handles name on one place, and how it gets there. What operations do with it is told in `ops`.

use coppice_model::bind::{MoeWeights, SwigluWeights};
use coppice_model::config::MoeConfig;
use coppice_model::weight::Weight;
use cuda_std::Bf16;

use super::super::{Memory, Place, error};
use super::attention::{Mla, Rope};
use super::draft::DraftLayer;
use super::feed_forward::{Mlp, Moe, Routes};
use super::rounds::Rounds;
use super::scratch::{AttentionNeeds, Needs, Scratch};
use super::sequence::Sequence;
use super::tensors::{Activations, Form, Known, RowSet};
use super::trees::Candidates;
use super::weights::{Matrix, round};
use crate::backend::arena::Arena;
use crate::backend::{CacheLayer, DraftAttentionSpec, MemoryUse, MlaSpec, RopeTable, RowValues, SequenceSpec, Tensor};
use crate::error::Result;

/// Most splits of the context.
const MOST_SPLITS: u32 = 32;

/// Experts a row goes to where no layer has said.
const FEW_EXPERTS: usize = 8;

/// A place with all that was put there.
#[derive(Debug)]
pub(super) struct Machine {
    pub place: Place<'static>,
    pub matrices: Arena<Matrix>,
    pub vectors: Arena<Memory<'static, Bf16>>,
    pub mlps: Arena<Mlp>,
    pub moes: Arena<Moe>,
    pub ropes: Arena<Rope>,
    pub mlas: Arena<Mla>,
    pub draft_layers: Arena<DraftLayer>,
    pub tensors: Arena<Activations>,
    pub rows: Arena<RowSet>,
    pub routes: Arena<Routes>,
    pub sequences: Arena<Sequence>,
    pub known: Known,
    pub rounds: Rounds,
    pub candidates: Option<Candidates>,
    needs: Needs,
    most_rows: usize,
    scratch: Option<Scratch>,
    weight_bytes: usize,
}

/// Set-up.
impl Machine {
    pub fn new(place: Place<'static>) -> Self {
        Self {
            place,
            matrices: Arena::new("matrix"),
            vectors: Arena::new("vector"),
            mlps: Arena::new("mlp"),
            moes: Arena::new("moe"),
            ropes: Arena::new("rope"),
            mlas: Arena::new("mla"),
            draft_layers: Arena::new("draft attention"),
            tensors: Arena::new("tensor"),
            rows: Arena::new("row set"),
            routes: Arena::new("routes"),
            sequences: Arena::new("sequence"),
            known: Known::default(),
            rounds: Rounds::default(),
            candidates: None,
            needs: Needs::default(),
            most_rows: 0,
            scratch: None,
            weight_bytes: 0,
        }
    }

    pub fn matrix(&mut self, weight: &Weight) -> Result<usize> {
        let matrix = Matrix::new(self.place, weight)?;
        self.weight_bytes += matrix.packed.bytes();
        self.needs = self.needs.max(Needs { outputs: matrix.outputs, ..Needs::default() });
        Ok(self.matrices.push(matrix))
    }

    pub fn vector(&mut self, values: &[f32]) -> Result<usize> {
        let vector = self.place.input("vector", &round(values))?;
        self.weight_bytes += vector.bytes();
        Ok(self.vectors.push(vector))
    }

    pub fn mlp(&mut self, weights: &SwigluWeights) -> Result<usize> {
        let mlp = Mlp::new(self.place, weights)?;
        self.weight_bytes += mlp.bytes();
        self.needs = self.needs.max(mlp.needs());
        Ok(self.mlps.push(mlp))
    }

    pub fn moe(&mut self, config: &MoeConfig, weights: &MoeWeights) -> Result<usize> {
        let moe = Moe::new(self.place, config, weights)?;
        self.weight_bytes += moe.bytes();
        self.needs = self.needs.max(moe.needs());
        Ok(self.moes.push(moe))
    }

    pub fn rope(&mut self, table: &RopeTable) -> Result<usize> {
        Ok(self.ropes.push(Rope::new(self.place, table)?))
    }

    pub fn mla(&mut self, spec: MlaSpec, kv_b: &Weight, kv_a_norm: &[f32]) -> Result<usize> {
        let rope = self.ropes.get(spec.table.0).map_err(error)?;
        let mla = Mla::new(self.place, spec, &rope.table, kv_b, kv_a_norm)?;
        self.weight_bytes += mla.bytes();
        self.needs = self.needs.max(mla.needs());
        Ok(self.mlas.push(mla))
    }

    pub fn draft_attention(&mut self, spec: DraftAttentionSpec, q_norm: &[f32], k_norm: &[f32]) -> Result<usize> {
        let rope = self.ropes.get(spec.table.0).map_err(error)?;
        let layer = DraftLayer::new(self.place, spec, &rope.table, q_norm, k_norm)?;
        self.weight_bytes += layer.bytes();
        self.needs = self.needs.max(layer.needs());
        Ok(self.draft_layers.push(layer))
    }

    pub fn tensor(&mut self, rows: usize, width: usize) -> Result<usize> {
        let tensor = Activations::new(self.place, rows, width)?;
        self.known.forms.push(Form::Full);
        Ok(self.tensors.push(tensor))
    }

    pub fn row_set(&mut self, capacity: usize) -> Result<usize> {
        self.most_rows = self.most_rows.max(capacity);
        self.known.rows.push(0);
        Ok(self.rows.push(RowSet::new(self.place, capacity)?))
    }

    pub fn routes(&mut self, rows: usize) -> Result<usize> {
        let chosen = if self.needs.chosen == 0 { FEW_EXPERTS } else { self.needs.chosen };
        Ok(self.routes.push(Routes::new(self.place, rows, chosen)?))
    }

    pub fn sequence(&mut self, spec: &SequenceSpec) -> Result<usize> {
        let mut stride = 0;
        for mla in &spec.target {
            let layer = self.mlas.get(mla.0).map_err(error)?;
            if stride != 0 && stride != layer.cache_stride() {
                return Err(error("the layers' latents differ in width".to_owned()));
            }
            stride = layer.cache_stride();
            let table = layer.spec.table;
            // Launches recorded so far hold the address of shorter rotations.
            self.rounds.forget();
            self.ropes.get_mut(table.0).map_err(error)?.grow(self.place, spec.context + spec.max_rows)?;
        }
        let slots = spec.context + spec.max_rows;
        let mut draft = Vec::with_capacity(spec.draft.len());
        for attention in &spec.draft {
            let layer = self.draft_layers.get(attention.0).map_err(error)?;
            self.ropes.get_mut(layer.spec.table.0).map_err(error)?.grow(self.place, slots)?;
            draft.push(layer.cache(self.place, *attention, slots)?);
        }
        let size = (spec.context, spec.max_rows);
        let sequence = Sequence::new(self.place, size, spec.target.clone(), stride, draft)?;
        self.most_rows = self.most_rows.max(spec.max_rows);
        Ok(self.sequences.push(sequence))
    }

    /// The memory that operations leave behind, large enough for any row set.
    pub fn scratch(&mut self) -> Result<&Scratch> {
        let size = (self.most_rows, self.needs);
        if self.scratch.as_ref().is_none_or(|scratch| scratch.size != size) {
            self.rounds.forget();
            self.scratch = None;
            self.scratch = Some(Scratch::new(self.place, size, self.splits()?, self.attention_needs()?)?);
        }
        self.scratch.as_ref().ok_or_else(|| error("there is no scratch memory".to_owned()))
    }

    /// As [`scratch`](Self::scratch), which has made it.
    pub fn scratch_now(&self) -> Result<&Scratch> {
        self.scratch.as_ref().ok_or_else(|| error("there is no scratch memory".to_owned()))
    }

    /// Splits of the context with which a block of the drafter's fills the place.
    fn splits(&self) -> Result<u32> {
        let most = self.draft_layers.iter().map(|layer| layer.spec.kv_heads).max().unwrap_or(1).max(1) as u32;
        Ok(self.place.limits()?.multiprocessors.div_ceil(most).clamp(1, MOST_SPLITS))
    }

    /// What verify attention needs for up to `most_rows` rows.
    fn attention_needs(&self) -> Result<AttentionNeeds> {
        let mut needs = AttentionNeeds::default();
        let mut seen: Vec<(usize, usize)> = Vec::new();
        for mla in self.mlas.iter() {
            let kind = (mla.spec.heads, mla.spec.kv_lora);
            if !seen.contains(&kind) {
                seen.push(kind);
                for rows in 1..=self.most_rows {
                    needs = needs.with(&mla.plan(self.place, rows)?);
                }
            }
        }
        Ok(needs)
    }

    /// Bytes that operations will leave behind.
    fn scratch_bytes(&self) -> Result<usize> {
        let (size, nowhere) = ((self.most_rows, self.needs), Place::Tally(self.place.limits()?));
        Ok(Scratch::new(nowhere, size, self.splits()?, self.attention_needs()?)?.bytes())
    }

    /// Bytes by purpose, those included that operations will leave behind.
    pub fn memory(&self) -> MemoryUse {
        let tensors: usize = self.tensors.iter().map(Activations::bytes).sum();
        let rows: usize = self.rows.iter().map(|rows| rows.words.bytes()).sum();
        let routes: usize = self.routes.iter().map(Routes::bytes).sum();
        let turns: usize = self.ropes.iter().map(|rope| rope.turns.bytes()).sum();
        let scratch = self.scratch_bytes().unwrap_or(0);
        MemoryUse {
            weights: self.weight_bytes,
            cache: self.sequences.iter().map(Sequence::cache_bytes).sum(),
            buffers: tensors
                + rows
                + routes
                + turns
                + scratch
                + self.sequences.iter().map(Sequence::buffer_bytes).sum::<usize>(),
        }
    }
}

/// Reading back.
impl Machine {
    pub fn read_tensor(&self, tensor: Tensor, rows: usize) -> Result<Vec<f32>> {
        let form = self.known.forms.get(tensor.0).copied().unwrap_or(Form::Full);
        self.tensors.get(tensor.0).map_err(error)?.read(form, rows)
    }

    pub fn read_rows(&self, rows: crate::backend::Rows) -> Result<RowValues> {
        let launched = self.known.rows.get(rows.0).copied().unwrap_or(0);
        self.rows.get(rows.0).map_err(error)?.read(launched)
    }

    pub fn read_cache(&self, sequence: crate::backend::Sequence, layer: CacheLayer) -> Result<Vec<f32>> {
        let sequence = self.sequences.get(sequence.0).map_err(error)?;
        let len = sequence.len()?;
        match layer {
            CacheLayer::Target(layer) => {
                let Some(mla) = sequence.target.get(layer) else {
                    return Err(error(format!("the sequence has {} target layers", sequence.target.len())));
                };
                let spec = self.mlas.get(mla.0).map_err(error)?.spec;
                let values = sequence.cache.to_vec()?;
                let rows = values.chunks(sequence.stride.max(1)).skip(layer * sequence.slots).take(len);
                let width = spec.kv_lora + spec.rope;
                Ok(rows.flat_map(|row| row[..width].iter().map(|value| value.to_f32())).collect())
            }
            CacheLayer::Draft(layer) => {
                let Some(cache) = sequence.draft.get(layer) else {
                    return Err(error(format!("the sequence has {} drafter layers", sequence.draft.len())));
                };
                let layer = self.draft_layers.get(cache.layer.0).map_err(error)?;
                let (stride, width, heads) = (layer.stride(), layer.spec.head_dim, layer.spec.kv_heads);
                let both = [cache.keys.to_vec()?, cache.values.to_vec()?];
                let mut entries = Vec::with_capacity(2 * len * heads * width);
                for slot in 0..len {
                    for half in &both {
                        for head in 0..heads {
                            let row = &half[(head * sequence.slots + slot) * stride..][..width];
                            entries.extend(row.iter().map(|value| value.to_f32()));
                        }
                    }
                }
                Ok(entries)
            }
        }
    }
}
