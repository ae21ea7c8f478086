//! Operations of the step as launches. How many rows a launch is for, the host knows; how many there are, and where they
//! lie, is read by the kernels: so a round's launches are the same from round to round.

use coppice_gpu::{columns, embed, norm, round};
use cuda_std::GlobalMut;

use super::super::error;
use super::attention::Visit;
use super::draft::{DraftLayer, DraftVisit};
use super::linear::linear;
use super::machine::Machine;
use super::tensors::{Activations, Form};
use crate::backend::{
    DraftAttention, DraftAttentionSpec, Mla, Op, RequestSpec, Rows, Select, Sequence, Tap, Tensor, Vector,
};
use crate::error::Result;

impl Machine {
    /// Starts a request, after everything submitted before.
    pub fn begin(&mut self, sequence: Sequence, request: &RequestSpec) -> Result<()> {
        self.sequences.get_mut(sequence.0).map_err(error)?.begin(request)
    }

    /// Writes what an operation brings from the host, before the launches that read it.
    pub fn upload(&mut self, op: &Op) -> Result<()> {
        match *op {
            Op::PromptRows { sequence, ref ids, .. } => {
                let sequence = self.sequences.get_mut(sequence.0).map_err(error)?;
                sequence.check_begun()?;
                sequence.take_prompt(ids)
            }
            Op::TreeRows { sequence, ref proposal, .. } => {
                self.sequences.get(sequence.0).map_err(error)?.check_begun()?;
                self.upload_tree(sequence, proposal)
            }
            _ => Ok(()),
        }
    }

    /// Launches one operation.
    pub fn launch(&mut self, op: &Op) -> Result<()> {
        match *op {
            Op::Begin { .. } => Err(error("a request begins between rounds".to_owned())),
            Op::PromptRows { sequence, rows, ref ids } => self.prompt_rows(sequence, rows, ids.len()),
            Op::BlockRows { sequence, rows, block, mask_token } => self.block_rows(sequence, rows, block, mask_token),
            Op::TreeRows { sequence, rows, ref proposal } => self.tree_rows(sequence, rows, proposal),
            Op::Embed { rows, table, out } => self.embed(rows, table.0, out),
            Op::AddNorm { rows, x, delta, tap, weight, eps, out } => {
                self.add_norm(rows, x, delta, tap, (weight, eps), out)
            }
            Op::Linear { rows, select, x, weight, out } => self.product(rows, select, x, weight.0, out),
            Op::Mlp { rows, mlp, x, out } => {
                let count = self.count(rows)?;
                let layer = self.mlps.get(mlp.0).map_err(error)?;
                let (hidden, place) = (layer.hidden(), self.place);
                let (from, to) = (self.rounded(x, count, hidden)?, self.writable(out, count, hidden)?);
                let scratch = self.scratch_now()?;
                // SAFETY: both tensors hold the rows, as does the scratch.
                unsafe { self.mlps.get(mlp.0).map_err(error)?.run(place, scratch, from, to, count)? };
                self.set_form(out, Form::Full);
                Ok(())
            }
            Op::Route { rows, moe, x, routes } => {
                let (count, place) = (self.count(rows)?, self.place);
                let layer = self.moes.get(moe.0).map_err(error)?;
                let from = self.rounded(x, count, layer.hidden())?;
                let routes = self.routes_for(routes.0, count)?;
                // SAFETY: tensor, routes and scratch hold the rows.
                unsafe { layer.route(place, self.scratch_now()?, from, routes, count) }
            }
            Op::Experts { rows, moe, x, routes, out } => {
                let (count, place) = (self.count(rows)?, self.place);
                let layer = self.moes.get(moe.0).map_err(error)?;
                let hidden = layer.hidden();
                let (from, to) = (self.rounded(x, count, hidden)?, self.writable(out, count, hidden)?);
                let routes = self.routes_for(routes.0, count)?;
                // SAFETY: tensors, routes and scratch hold the rows; the routes come from the same layer's router.
                unsafe { layer.run(place, self.scratch_now()?, from, routes, to, count)? };
                self.set_form(out, Form::Full);
                Ok(())
            }
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

/// Row sets.
impl Machine {
    /// Rows that launches over a set are for.
    pub fn count(&self, rows: Rows) -> Result<usize> {
        match self.known.rows.get(rows.0) {
            Some(0) | None => Err(error("a row set is used before it is written".to_owned())),
            Some(count) => Ok(*count as usize),
        }
    }

    /// The memory of a set that is to get `count` rows.
    pub fn set_rows(&mut self, sequence: Sequence, rows: Rows, count: usize) -> Result<GlobalMut<u32>> {
        let most = self.sequences.get(sequence.0).map_err(error)?.max_rows;
        let set = self.rows.get(rows.0).map_err(error)?;
        if count > most.min(set.capacity) {
            let capacity = set.capacity;
            return Err(error(format!("{count} rows do not fit a row set of {capacity} and the sequence's {most}")));
        }
        let words = set.words.ptr_mut();
        self.known.rows[rows.0] = count as u32;
        Ok(words)
    }

    fn prompt_rows(&mut self, sequence: Sequence, rows: Rows, count: usize) -> Result<()> {
        let words = self.set_rows(sequence, rows, count)?;
        let state = self.sequences.get(sequence.0).map_err(error)?;
        let arguments = (state.state_ptr(), state.chunk.ptr(), state.chunk_len.ptr(), words, count as u32);
        // SAFETY: the chunk was uploaded, and the set has room for it.
        unsafe { self.place.queue(&round::prompt_rows::KERNEL, round::chain_shape(), arguments, true) }
    }

    pub fn block_rows(&mut self, sequence: Sequence, rows: Rows, block: usize, mask_token: u32) -> Result<()> {
        let words = self.set_rows(sequence, rows, block)?;
        let state = self.sequences.get(sequence.0).map_err(error)?;
        let arguments = (state.state_ptr(), words, block as u32, block as u32, mask_token);
        // SAFETY: the set has room for the block.
        unsafe { self.place.queue(&round::block_rows::KERNEL, round::chain_shape(), arguments, true) }
    }
}

/// Activations.
impl Machine {
    pub fn set_form(&mut self, tensor: Tensor, form: Form) {
        self.known.forms[tensor.0] = form;
    }

    fn checked(&self, role: &str, tensor: Tensor, rows: usize, width: usize) -> Result<&Activations> {
        let found = self.tensors.get(tensor.0).map_err(error)?;
        found.check(role, rows, width)?;
        Ok(found)
    }

    /// The rows of a tensor, for a kernel that reads f32.
    pub fn full(&self, role: &str, tensor: Tensor, rows: usize, width: usize) -> Result<&Activations> {
        let found = self.checked(role, tensor, rows, width)?;
        if self.known.forms[tensor.0] != Form::Full {
            return Err(error(format!("{role} was rounded for a product and is wanted in full")));
        }
        Ok(found)
    }

    /// The rows of a tensor, for a product: rounded now if they are not.
    fn rounded(&self, tensor: Tensor, rows: usize, width: usize) -> Result<cuda_std::Global<cuda_std::Bf16>> {
        let found = self.checked("x", tensor, rows, width)?;
        if self.known.forms[tensor.0] == Form::Full {
            found.round(self.place, rows)?;
        }
        Ok(found.rounded.ptr())
    }

    /// The rows of a tensor that gets f32.
    fn writable(&self, tensor: Tensor, rows: usize, width: usize) -> Result<GlobalMut<f32>> {
        Ok(self.checked("out", tensor, rows, width)?.full.ptr_mut())
    }

    fn embed(&mut self, rows: Rows, table: usize, out: Tensor) -> Result<()> {
        let count = self.count(rows)?;
        let table = self.matrices.get(table).map_err(error)?;
        if table.inputs != table.padded() {
            return Err(error(format!("{} has {} columns, expected a multiple of 32", table.name, table.inputs)));
        }
        let to = self.writable(out, count, table.inputs)?;
        let ids = self.rows.get(rows.0).map_err(error)?.field(round::RowLayout::IDS);
        let arguments = (ids, table.packed.ptr(), to, table.inputs as u32);
        // SAFETY: the tensor holds the rows; requests and drafters have ids of the vocabulary alone.
        unsafe { self.place.queue(&embed::embed::KERNEL, embed::shape(count as u32), arguments, true)? };
        self.set_form(out, Form::Full);
        Ok(())
    }

    fn add_norm(
        &mut self,
        rows: Rows,
        x: Tensor,
        delta: Option<Tensor>,
        tap: Option<Tap>,
        (weight, eps): (Vector, f32),
        out: Tensor,
    ) -> Result<()> {
        let (count, weight) = (self.count(rows)?, self.vectors.get(weight.0).map_err(error)?);
        let width = weight.len();
        let (from, to) = (self.full("x", x, count, width)?, self.checked("out", out, count, width)?);
        if !width.is_multiple_of(4) {
            return Err(error(format!("a norm is over {width} elements, expected a multiple of 4")));
        }
        let [n, w, stride] = [count, width, to.stride()].map(|n| n as u32);
        match delta {
            Some(_) if w != stride => {
                return Err(error(format!("a residual stream has width {width}, expected a multiple of 32")));
            }
            Some(delta) => {
                let delta = self.full("delta", delta, count, width)?.full.ptr();
                let arguments = (from.full.ptr_mut(), delta, weight.ptr(), to.rounded.ptr_mut(), w, w, eps);
                // SAFETY: the tensors are different ones and hold the rows.
                unsafe { self.place.queue(&norm::add_rms_norm::KERNEL, norm::shape(n), arguments, true)? };
            }
            None => {
                let arguments = (from.full.ptr(), weight.ptr(), to.rounded.ptr_mut(), w, w, stride, eps);
                // SAFETY: as above.
                unsafe { self.place.queue(&norm::rms_norm::KERNEL, norm::shape(n), arguments, true)? };
            }
        }
        if let Some(Tap { out, column }) = tap {
            let taps = self.tensors.get(out.0).map_err(error)?;
            if column + width > taps.width || !taps.width.is_multiple_of(4) || !column.is_multiple_of(4) {
                return Err(error(format!("{width} columns from {column} on do not fit taps of {}", taps.width)));
            }
            taps.check("tap", count, taps.width)?;
            let arguments = (from.full.ptr(), taps.full.ptr_mut().add(column), w, w, taps.width as u32);
            // SAFETY: the columns lie in the tensor, which holds the rows.
            unsafe { self.place.queue(&columns::copy_columns::KERNEL, columns::shape(n, w), arguments, true)? };
            self.set_form(out, Form::Full);
        }
        self.set_form(out, Form::Rounded);
        Ok(())
    }

    fn product(&mut self, rows: Rows, select: Select, x: Tensor, weight: usize, out: Tensor) -> Result<()> {
        let (count, weight) = (self.count(rows)?, self.matrices.get(weight).map_err(error)?);
        let selected = match select {
            Select::All => 0..count,
            Select::Last => count - 1..count,
            Select::AfterFirst(rows) => 1..count.min(rows.saturating_add(1)),
        };
        if selected.is_empty() {
            return Ok(());
        }
        let from = self.rounded(x, count, weight.inputs)?.add(selected.start * weight.padded());
        let to = self.writable(out, selected.len(), weight.outputs)?;
        // SAFETY: the tensors hold the rows.
        unsafe { linear(self.place, weight, self.scratch_now()?.exchange.ptr_mut(), from, to, selected.len())? };
        self.set_form(out, Form::Full);
        Ok(())
    }

    fn routes_for(&self, routes: usize, rows: usize) -> Result<&super::feed_forward::Routes> {
        let routes = self.routes.get(routes).map_err(error)?;
        if rows > routes.rows {
            return Err(error(format!("routes have room for {} rows, expected at least {rows}", routes.rows)));
        }
        Ok(routes)
    }
}

/// Attention.
impl Machine {
    fn visit(
        &self,
        rows: Rows,
        (sequence, index, mla): (Sequence, usize, Mla),
    ) -> Result<(&super::attention::Mla, Visit<'_>)> {
        let (count, layer) = (self.count(rows)?, self.mlas.get(mla.0).map_err(error)?);
        let state = self.sequences.get(sequence.0).map_err(error)?;
        match state.target.get(index) {
            Some(own) if *own == mla => {}
            Some(_) => return Err(error("the sequence was made for another attention here".to_owned())),
            None => return Err(error(format!("the sequence has {} target layers", state.target.len()))),
        }
        if count > state.max_rows {
            return Err(error(format!("{count} rows exceed the sequence's {}", state.max_rows)));
        }
        let turns = self.ropes.get(layer.spec.table.0).map_err(error)?.turns.ptr();
        let rows = self.rows.get(rows.0).map_err(error)?;
        Ok((layer, Visit { rows, count, cache: state.layer(index), turns, scratch: self.scratch_now()? }))
    }

    fn mla_append(&mut self, rows: Rows, at: (Sequence, usize, Mla), kv_a: Tensor) -> Result<()> {
        let (layer, visit) = self.visit(rows, at)?;
        let kv_a = self.full("kv_a", kv_a, visit.count, layer.spec.kv_lora + layer.spec.rope)?;
        // SAFETY: the tensor holds the rows; cache and rotations go `max_rows` beyond the context.
        unsafe { layer.append(self.place, &visit, kv_a.full.ptr()) }
    }

    fn mla_attend(&mut self, rows: Rows, at: (Sequence, usize, Mla), q: Tensor, out: Tensor) -> Result<()> {
        let (layer, visit) = self.visit(rows, at)?;
        let spec = layer.spec;
        let q = self.full("q", q, visit.count, spec.heads * (spec.nope + spec.rope))?;
        let to = self.checked("out", out, visit.count, spec.heads * spec.v)?;
        // SAFETY: as above; the scratch is for any row set.
        unsafe { layer.attend(self.place, &visit, q.full.ptr(), to.rounded.ptr_mut(), to.stride())? };
        self.set_form(out, Form::Rounded);
        Ok(())
    }
}

/// The drafter's attention.
impl Machine {
    fn draft_visit(
        &self,
        rows: Rows,
        (sequence, index, attention): (Sequence, usize, DraftAttention),
    ) -> Result<(&DraftLayer, DraftVisit<'_>)> {
        let (count, layer) = (self.count(rows)?, self.draft_layers.get(attention.0).map_err(error)?);
        let state = self.sequences.get(sequence.0).map_err(error)?;
        let cache = match state.draft.get(index) {
            Some(own) if own.layer == attention => own,
            Some(_) => return Err(error("the sequence was made for another attention here".to_owned())),
            None => return Err(error(format!("the sequence has {} drafter layers", state.draft.len()))),
        };
        let turns = self.ropes.get(layer.spec.table.0).map_err(error)?.turns.ptr();
        let rows = self.rows.get(rows.0).map_err(error)?;
        Ok((layer, DraftVisit { rows, count, cache, slots: state.slots, turns, scratch: self.scratch_now()? }))
    }

    fn draft_append(&mut self, rows: Rows, at: (Sequence, usize, DraftAttention), k_v: [Tensor; 2]) -> Result<()> {
        let (layer, visit) = self.draft_visit(rows, at)?;
        let width = layer.spec.kv_heads * layer.spec.head_dim;
        let [k, v] = k_v.map(|tensor| self.full("k or v", tensor, visit.count, width));
        // SAFETY: the tensors hold the rows; cache and rotations go `max_rows` beyond the context.
        unsafe { layer.append(self.place, &visit, None, [k?.full.ptr(), v?.full.ptr()]) }
    }

    fn draft_attend(
        &mut self,
        rows: Rows,
        at: (Sequence, usize, DraftAttention),
        [q, k, v]: [Tensor; 3],
        out: Tensor,
    ) -> Result<()> {
        let (layer, visit) = self.draft_visit(rows, at)?;
        let DraftAttentionSpec { heads, kv_heads, head_dim, .. } = layer.spec;
        let q = self.full("q", q, visit.count, heads * head_dim)?.full.ptr();
        let [k, v] = [k, v].map(|tensor| self.full("k or v", tensor, visit.count, kv_heads * head_dim));
        let to = self.checked("out", out, visit.count, heads * head_dim)?;
        if to.stride() != heads * head_dim {
            return Err(error(format!("the drafter's heads are {} wide, expected a multiple of 32", to.width)));
        }
        // SAFETY: as above; the scratch is for any row set.
        unsafe {
            layer.append(self.place, &visit, Some(q), [k?.full.ptr(), v?.full.ptr()])?;
            layer.attend(self.place, &visit, to.rounded.ptr_mut())?;
        }
        self.set_form(out, Form::Rounded);
        Ok(())
    }
}
