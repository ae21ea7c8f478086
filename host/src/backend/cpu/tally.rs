//! What a model would take on the CPU: a backend that counts bytes, holds none, and computes nothing.

use coppice_model::bind::{MoeWeights, SwigluWeights};
use coppice_model::config::MoeConfig;
use coppice_model::weight::Weight;

use super::cache::TILE;
use super::{MlaForm, swiglu_bytes};
use crate::backend::{
    Backend, CacheLayer, DraftAttention, DraftAttentionSpec, Matrix, MemoryUse, Mla, MlaSpec, Mlp, Moe, Op, Rope,
    RopeTable, Round, Routes, RowValues, Rows, Sequence, SequenceSpec, Tensor, Vector,
};
use crate::error::{Error, Result};

const NAME: &str = "tally";

/// Counts what [`super::Cpu`] would hold, so that a model can be sized whatever its context.
#[derive(Debug, Default)]
pub struct Tally {
    memory: MemoryUse,
    mlas: Vec<MlaSpec>,
    draft_attentions: Vec<DraftAttentionSpec>,
}

impl Tally {
    fn weights(&mut self, bytes: usize) {
        self.memory.weights += bytes;
    }

    fn computes_nothing<T>(&self) -> Result<T> {
        Err(Error::Backend { backend: NAME, message: "it sizes models and runs none".into() })
    }
}

/// Bytes of keys of `heads` heads in `slots` slots.
fn keys(heads: usize, slots: usize, width: usize) -> usize {
    heads * slots.next_multiple_of(TILE) * width * size_of::<f32>()
}

/// Bytes of rows of `heads` heads in `slots` slots.
fn rows(heads: usize, slots: usize, width: usize) -> usize {
    keys(heads, slots, width.next_multiple_of(TILE))
}

impl Backend for Tally {
    fn name(&self) -> &'static str {
        NAME
    }

    fn queue_depth(&self) -> usize {
        1
    }

    fn matrix(&mut self, weight: &Weight) -> Result<Matrix> {
        self.weights(weight.bytes());
        Ok(Matrix(0))
    }

    fn vector(&mut self, values: &[f32]) -> Result<Vector> {
        self.weights(size_of_val(values));
        Ok(Vector(0))
    }

    fn mlp(&mut self, weights: &SwigluWeights) -> Result<Mlp> {
        self.weights(swiglu_bytes(weights));
        Ok(Mlp(0))
    }

    fn moe(&mut self, _: &MoeConfig, weights: &MoeWeights) -> Result<Moe> {
        let experts = weights.experts.iter().chain(&weights.shared).map(swiglu_bytes).sum::<usize>();
        self.weights(experts + weights.router.bytes() + size_of_val(weights.bias.as_slice()));
        Ok(Moe(0))
    }

    fn rope(&mut self, _: &RopeTable) -> Result<Rope> {
        Ok(Rope(0))
    }

    fn mla(&mut self, spec: MlaSpec, kv_b: &Weight, kv_a_norm: &[f32]) -> Result<Mla> {
        self.weights(kv_b.bytes() + size_of_val(kv_a_norm));
        self.mlas.push(spec);
        Ok(Mla(self.mlas.len() - 1))
    }

    fn draft_attention(&mut self, spec: DraftAttentionSpec, q_norm: &[f32], k_norm: &[f32]) -> Result<DraftAttention> {
        self.weights(size_of_val(q_norm) + size_of_val(k_norm));
        self.draft_attentions.push(spec);
        Ok(DraftAttention(self.draft_attentions.len() - 1))
    }

    fn tensor(&mut self, rows: usize, width: usize) -> Result<Tensor> {
        self.memory.buffers += rows * width * size_of::<f32>();
        Ok(Tensor(0))
    }

    fn rows(&mut self, _: usize) -> Result<Rows> {
        Ok(Rows(0))
    }

    fn routes(&mut self, _: usize) -> Result<Routes> {
        Ok(Routes(0))
    }

    fn sequence(&mut self, spec: &SequenceSpec) -> Result<Sequence> {
        let slots = spec.context + spec.max_rows;
        let target = spec.target.iter().filter_map(|mla| self.mlas.get(mla.0)).map(|spec| {
            let MlaSpec { heads, nope, rope, v, kv_lora, .. } = *spec;
            keys(1, slots, rope)
                + match MlaForm::cheaper(spec) {
                    MlaForm::Absorbed => rows(1, slots, kv_lora),
                    MlaForm::Expanded => keys(heads, slots, nope) + rows(heads, slots, v),
                }
        });
        let draft = spec.draft.iter().filter_map(|attention| self.draft_attentions.get(attention.0)).map(|spec| {
            let DraftAttentionSpec { kv_heads, head_dim, .. } = *spec;
            keys(kv_heads, slots, head_dim) + rows(kv_heads, slots, head_dim)
        });
        self.memory.cache += target.chain(draft).sum::<usize>();
        Ok(Sequence(0))
    }

    fn submit(&mut self, _: Op) {}

    fn poll(&mut self, _: Sequence) -> Result<Vec<Round>> {
        self.computes_nothing()
    }

    fn read_tensor(&mut self, _: Tensor, _: usize) -> Result<Vec<f32>> {
        self.computes_nothing()
    }

    fn read_rows(&mut self, _: Rows) -> Result<RowValues> {
        self.computes_nothing()
    }

    fn read_cache(&mut self, _: Sequence, _: CacheLayer) -> Result<Vec<f32>> {
        self.computes_nothing()
    }

    fn memory(&self) -> MemoryUse {
        self.memory
    }
}

#[cfg(test)]
#[cfg(feature = "embedded-model")]
mod tests {
    use super::*;
    use crate::backend::cpu::Cpu;
    use crate::draft::DflashOptions;
    use crate::engine::{Session, SessionOptions};
    use coppice_model::{DraftModel, Source, TargetModel};
    use std::path::Path;

    #[test]
    fn it_counts_what_the_cpu_holds() {
        let embedded = (TargetModel::load(&Source::EmbeddedTarget).unwrap(), DraftModel::load(&Source::EmbeddedDraft));
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
        let fixture = |name: &str| TargetModel::load(&Source::Directory(folder.join(name))).unwrap();
        let models = [
            (embedded.0, Some(embedded.1.unwrap())),
            (fixture("kimi-k25-int4-g32"), None),
            (fixture("v3-bf16-no-q-lora"), None),
            (fixture("v3-f32-groups-yarn-sharded"), None),
            (fixture("v3-fp8-block128"), None),
        ];
        for (target, draft) in &models {
            for (context, prefill_chunk, max_budget) in [(1, 1, 0), (100, 64, 16), (333, 7, 40)] {
                let options = SessionOptions { context, prefill_chunk, max_budget, dflash: DflashOptions::default() };
                let memory = |backend: Box<dyn Backend>| {
                    Session::new(backend, target, draft.as_ref(), options, |_, _| {}).unwrap().memory()
                };
                let counted = memory(Box::<Tally>::default());
                assert_eq!(counted, memory(Box::new(Cpu::new(1))), "{} {options:?}", target.path.display());
            }
        }
    }
}
