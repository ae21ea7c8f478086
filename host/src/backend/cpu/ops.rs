//! Operations of the step on the CPU: from handles to slices of checked shapes. No arithmetic.

use super::attention::Cached;
use super::state::{Operand, RowSet};
use super::{Cpu, SequenceState, experts, linear, mlp, norm, route};
use crate::backend::{
    Accept, CacheLayer, DraftAttention, Matrix, Mla, Mlp, Moe, Proposal, RequestSpec, Routes, RowValues, Rows, Select,
    Sequence, SequenceSpec, Tap, Tensor, Vector,
};

type Result<T> = std::result::Result<T, String>;

/// Sequences and row sets.
impl Cpu {
    pub(super) fn new_sequence(&self, spec: &SequenceSpec) -> Result<SequenceState> {
        let slots = spec.context + spec.max_rows;
        let target = spec.target.iter().map(|mla| Ok((*mla, self.mlas.get(mla.0)?.cache(slots))));
        let draft = spec.draft.iter().map(|draft| Ok((*draft, self.draft_attentions.get(draft.0)?.cache(slots))));
        let (target, draft) = (target.collect::<Result<_>>()?, draft.collect::<Result<_>>()?);
        Ok(SequenceState::new(spec.context, spec.max_rows, target, draft))
    }

    pub(super) fn begin(&mut self, sequence: Sequence, request: RequestSpec) -> Result<()> {
        self.sequences.get_mut(sequence.0)?.begin(request);
        Ok(())
    }

    pub(super) fn prompt_rows(&mut self, sequence: Sequence, rows: Rows, ids: &[u32]) -> Result<()> {
        self.sequences.get_mut(sequence.0)?.prompt_rows(ids, self.rows.get_mut(rows.0)?)
    }

    pub(super) fn block_rows(&mut self, sequence: Sequence, rows: Rows, block: usize, mask_token: u32) -> Result<()> {
        self.sequences.get_mut(sequence.0)?.block_rows(block, mask_token, self.rows.get_mut(rows.0)?)
    }

    pub(super) fn tree_rows(&mut self, sequence: Sequence, rows: Rows, proposal: &Proposal) -> Result<()> {
        let (logits, vocab) = match proposal {
            Proposal::Chain { logits, depths, .. } | Proposal::BestFirst { logits, depths, .. } => {
                let vocab = self.tensors.get(logits.0)?.width();
                (self.tensors.read(Operand::new("logits", *logits, *depths, vocab))?, vocab)
            }
            Proposal::Empty | Proposal::Ngram { .. } | Proposal::Given { .. } => (&[][..], 0),
        };
        self.sequences.get_mut(sequence.0)?.tree_rows(proposal, logits, vocab, self.rows.get_mut(rows.0)?)
    }

    pub(super) fn walk(&mut self, sequence: Sequence, rows: Rows, accept: Accept) -> Result<()> {
        let (state, rows) = (self.sequences.get_mut(sequence.0)?, self.rows.get(rows.0)?);
        match accept {
            Accept::Prompt { logits: None } => state.walk_prompt(rows, None),
            Accept::Prompt { logits: Some(logits) } => {
                let vocab = self.tensors.get(logits.0)?.width();
                state.walk_prompt(rows, Some(self.tensors.read(Operand::new("logits", logits, 1, vocab))?))
            }
            Accept::Path { logits } => {
                let vocab = self.tensors.get(logits.0)?.width();
                let logits = self.tensors.read(Operand::new("logits", logits, rows.len(), vocab))?;
                state.walk_path(rows, logits, vocab)
            }
        }
    }

    pub(super) fn commit(
        &mut self,
        sequence: Sequence,
        rows: Rows,
        features: Option<Tensor>,
        accepted: Rows,
    ) -> Result<()> {
        // `accepted` is written while `rows` is read: out of the arena meanwhile.
        let mut chosen = std::mem::replace(self.rows.get_mut(accepted.0)?, RowSet::new(0));
        let result = self.commit_rows(sequence, rows, features, &mut chosen);
        *self.rows.get_mut(accepted.0)? = chosen;
        result
    }

    fn commit_rows(
        &mut self,
        sequence: Sequence,
        rows: Rows,
        features: Option<Tensor>,
        accepted: &mut RowSet,
    ) -> Result<()> {
        let state = self.sequences.get_mut(sequence.0)?;
        let start = state.len();
        let path = state.commit(self.rows.get(rows.0)?, accepted)?;
        for (to, from) in path.iter().enumerate().filter(|(to, from)| to != *from) {
            state.target.iter_mut().for_each(|(_, cache)| cache.copy_slot(start + from, start + to));
        }
        if let Some(features) = features {
            let features = self.tensors.get_mut(features.0)?;
            features.gather(&path)?;
        }
        Ok(())
    }

    pub(super) fn cache_entries(&self, sequence: Sequence, cache: CacheLayer) -> Result<Vec<f32>> {
        let state = self.sequences.get(sequence.0)?;
        let entries = match cache {
            CacheLayer::Target(layer) => state.target.get(layer).map(|(_, cache)| cache.read(state.len())),
            CacheLayer::Draft(layer) => state.draft.get(layer).map(|(_, cache)| cache.read(state.len())),
        };
        entries.ok_or_else(|| format!("the sequence has no layer {cache:?}"))
    }
}

/// Work on rows alone.
impl Cpu {
    pub(super) fn embed(&mut self, rows: Rows, table: Matrix, out: Tensor) -> Result<()> {
        let (rows, table) = (self.rows.get(rows.0)?, self.matrices.get(table.0)?);
        let RowValues { ids, .. } = rows.values();
        if let Some(row) = ids.iter().position(|id| *id as usize >= table.rows) {
            return Err(format!("token {} of row {row} is not among the {} of {}", ids[row], table.rows, table.name));
        }
        self.tensors.write(Operand::new("out", out, rows.len(), table.cols), |_, out| {
            out.chunks_exact_mut(table.cols).zip(ids).for_each(|(out, id)| table.expand_row(*id as usize, out));
            Ok(())
        })
    }

    pub(super) fn add_norm(
        &mut self,
        rows: Rows,
        x: Tensor,
        delta: Option<Tensor>,
        tap: Option<Tap>,
        (weight, eps): (Vector, f32),
        out: Tensor,
    ) -> Result<()> {
        let (rows, weight) = (self.rows.get(rows.0)?.len(), self.vectors.get(weight.0)?);
        let (pool, width) = (&self.pool, weight.len());
        let x = Operand::new("x", x, rows, width);
        if let Some(delta) = delta {
            self.tensors.write(x, |tensors, x| {
                norm::add_rows(pool, tensors.read(Operand::new("delta", delta, rows, width))?, width, x);
                Ok(())
            })?;
        }
        if let Some(Tap { out, column }) = tap {
            let taps = self.tensors.get(out.0)?.width();
            if column + width > taps {
                return Err(format!("tap has width {taps}, expected at least {} (column + width)", column + width));
            }
            self.tensors.write(Operand::new("tap", out, rows, taps), |tensors, out| {
                let x = tensors.read(x)?.chunks_exact(width);
                out.chunks_exact_mut(taps).zip(x).for_each(|(out, x)| out[column..column + width].copy_from_slice(x));
                Ok(())
            })?;
        }
        self.tensors.write(Operand::new("out", out, rows, width), |tensors, out| {
            norm::rms_norm_rows(pool, tensors.read(x)?, weight, eps, out);
            Ok(())
        })
    }

    pub(super) fn linear(&mut self, rows: Rows, select: Select, x: Tensor, weight: Matrix, out: Tensor) -> Result<()> {
        let (count, weight) = (self.rows.get(rows.0)?.len(), self.matrices.get(weight.0)?);
        let selected = match select {
            Select::All => 0..count,
            Select::Last => count.saturating_sub(1)..count,
            Select::AfterFirst(rows) => count.min(1)..count.min(rows.saturating_add(1)),
        };
        if selected.is_empty() {
            return Ok(());
        }
        let pool = &self.pool;
        self.tensors
            .write(Operand::new("out", out, selected.len(), weight.rows), |tensors, out| {
                let x = tensors.read(Operand::new("x", x, count, weight.cols))?;
                let x = &x[selected.start * weight.cols..selected.end * weight.cols];
                linear::linear(pool, weight, x, selected.len(), out);
                Ok(())
            })
            .map_err(|error| format!("{}: {error}", weight.name))
    }

    pub(super) fn run_mlp(&mut self, rows: Rows, mlp: Mlp, x: Tensor, out: Tensor) -> Result<()> {
        let (rows, weights) = (self.rows.get(rows.0)?.len(), self.mlps.get(mlp.0)?);
        let (pool, scratch) = (&self.pool, &mut self.mlp_scratch);
        self.tensors.write(Operand::new("out", out, rows, weights.down.rows), |tensors, out| {
            let x = tensors.read(Operand::new("x", x, rows, weights.gate.cols))?;
            mlp::mlp(pool, weights, x, rows, scratch, out);
            Ok(())
        })
    }

    pub(super) fn route(&mut self, rows: Rows, moe: Moe, x: Tensor, routes: Routes) -> Result<()> {
        let (rows, (config, weights)) = (self.rows.get(rows.0)?.len(), self.moes.get(moe.0)?);
        let x = self.tensors.read(Operand::new("x", x, rows, weights.router.cols))?;
        let (capacity, routes) = self.routes.get_mut(routes.0)?;
        if rows > *capacity {
            return Err(format!("routes have room for {capacity} rows, expected at least {rows}"));
        }
        route::route(&self.pool, config, &weights.router, &weights.bias, x, rows, routes)
    }

    pub(super) fn experts(&mut self, rows: Rows, moe: Moe, x: Tensor, routes: Routes, out: Tensor) -> Result<()> {
        let (rows, (config, weights)) = (self.rows.get(rows.0)?.len(), self.moes.get(moe.0)?);
        let (pool, scratch, (_, routes)) = (&self.pool, &mut self.mlp_scratch, self.routes.get(routes.0)?);
        let hidden = weights.router.cols;
        if routes.ids.len() != rows * routes.k || routes.ids.iter().any(|id| *id as usize >= weights.experts.len()) {
            return Err(format!("routes are not those of {rows} rows under {}", weights.router.name));
        }
        self.tensors.write(Operand::new("out", out, rows, hidden), |tensors, out| {
            let x = tensors.read(Operand::new("x", x, rows, hidden))?;
            experts::experts(pool, config, weights, x, rows, routes, scratch, out);
            Ok(())
        })
    }
}

/// Attention.
impl Cpu {
    pub(super) fn mla_append(
        &mut self,
        rows: Rows,
        (sequence, index, mla): (Sequence, usize, Mla),
        kv_a: Tensor,
    ) -> Result<()> {
        let (rows, layer) = (self.rows.get(rows.0)?, self.mlas.get(mla.0)?);
        let rope = self.ropes.get_mut(layer.spec.table.0)?;
        rope.grow(rows.end());
        let kv_a = self.tensors.read(Operand::new("kv_a", kv_a, rows.len(), layer.spec.kv_lora + layer.spec.rope))?;
        let state = self.sequences.get_mut(sequence.0)?;
        let start = state.start_of(rows)?;
        let cache = state.target_layer(index, mla)?;
        layer.append(&self.pool, (cache, rope), start, rows, kv_a, &mut self.attention_scratch);
        Ok(())
    }

    pub(super) fn mla_attend(
        &mut self,
        rows: Rows,
        (sequence, index, mla): (Sequence, usize, Mla),
        q: Tensor,
        out: Tensor,
    ) -> Result<()> {
        let (rows, layer) = (self.rows.get(rows.0)?, self.mlas.get(mla.0)?);
        let rope = self.ropes.get_mut(layer.spec.table.0)?;
        rope.grow(rows.end());
        let state = self.sequences.get_mut(sequence.0)?;
        let context = state.start_of(rows)?;
        let cache = &*state.target_layer(index, mla)?;
        let (pool, scratch, spec) = (&self.pool, &mut self.attention_scratch, layer.spec);
        self.tensors.write(Operand::new("out", out, rows.len(), spec.heads * spec.v), |tensors, out| {
            let q = tensors.read(Operand::new("q", q, rows.len(), spec.heads * (spec.nope + spec.rope)))?;
            layer.attend(pool, Cached { cache, rope, context }, rows, q, scratch, out);
            Ok(())
        })
    }

    pub(super) fn draft_append(
        &mut self,
        rows: Rows,
        (sequence, index, attention): (Sequence, usize, DraftAttention),
        [k, v]: [Tensor; 2],
    ) -> Result<()> {
        let (rows, layer) = (self.rows.get(rows.0)?, self.draft_attentions.get(attention.0)?);
        let rope = self.ropes.get_mut(layer.spec.table.0)?;
        rope.grow(rows.end());
        let width = layer.spec.kv_heads * layer.spec.head_dim;
        let k = self.tensors.read(Operand::new("k", k, rows.len(), width))?;
        let v = self.tensors.read(Operand::new("v", v, rows.len(), width))?;
        let state = self.sequences.get_mut(sequence.0)?;
        state.check_positions(rows)?;
        layer.append(state.draft_layer(index, attention)?, rope, rows, k, v);
        Ok(())
    }

    pub(super) fn draft_attend(
        &mut self,
        rows: Rows,
        (sequence, index, attention): (Sequence, usize, DraftAttention),
        [q, k, v]: [Tensor; 3],
        out: Tensor,
    ) -> Result<()> {
        self.draft_append(rows, (sequence, index, attention), [k, v])?;
        let (rows, layer) = (self.rows.get(rows.0)?, self.draft_attentions.get(attention.0)?);
        let rope = self.ropes.get(layer.spec.table.0)?;
        let state = self.sequences.get_mut(sequence.0)?;
        let context = state.start_of(rows)?;
        let cache = &*state.draft_layer(index, attention)?;
        let (pool, scratch) = (&self.pool, &mut self.attention_scratch);
        let width = layer.spec.heads * layer.spec.head_dim;
        self.tensors.write(Operand::new("out", out, rows.len(), width), |tensors, out| {
            let q = tensors.read(Operand::new("q", q, rows.len(), width))?;
            layer.attend(pool, Cached { cache, rope, context }, rows, q, scratch, out);
            Ok(())
        })
    }
}
