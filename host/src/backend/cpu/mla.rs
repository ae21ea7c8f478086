//! Multi-head latent attention (DeepSeek-V2, section 2.1): what a layer caches and how queries are brought to it.
//!
//! Two forms, equal but for rounding. **Absorbed**: the cache holds the normed latent and the rotated k_pe, shared by all
//! heads; queries are multiplied by W_k and outputs by W_v. **Expanded**: the cache holds each head's k_nope and v,
//! computed when a token is appended, beside the shared k_pe.

use coppice_model::weight::Weight;

use super::attention::{Batch, Cached, KeyPart, Keys, View, attend};
use super::cache::{KeyTiles, SlotRows};
use super::linear::kernel::Inputs;
use super::linear::pack::{Layout, Packed};
use super::linear::{linear, multiply};
use super::norm::{by_rows, rms_norm};
use super::pool::{Pool, Slab};
use super::rope::RopeCache;
use super::state::RowSet;
use super::vector::axpy;
use crate::backend::MlaSpec;
use crate::simd::Isa;

/// What a layer of latent attention caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MlaForm {
    /// The latent, shared by all heads.
    Absorbed,
    /// Each head's key and value.
    Expanded,
}

impl MlaForm {
    /// The form in which one decoded row spends less time on a cached key: multiply-adds at 16 and bytes at 8 a cycle,
    /// about what a core computes and what it reads of a cache that fits none of its own.
    pub fn cheaper(spec: &MlaSpec) -> Self {
        let MlaSpec { heads, nope, rope, v, kv_lora, .. } = *spec;
        let cycles = |multiply_adds: usize, floats: usize| multiply_adds / 16 + floats * size_of::<f32>() / 8;
        let absorbed = cycles(heads * (2 * kv_lora + rope), kv_lora + rope);
        let expanded = cycles(heads * (nope + rope + v), heads * (nope + v) + rope);
        if expanded < absorbed { Self::Expanded } else { Self::Absorbed }
    }
}

/// One layer's attention.
#[derive(Debug)]
pub(super) struct MlaLayer {
    pub(super) spec: MlaSpec,
    pub(super) kv_b: Weight,
    kv_a_norm: Vec<f32>,
    pub(super) form: MlaForm,
}

/// One layer's keys and values by slot.
#[derive(Debug)]
pub(super) struct MlaCache {
    /// Rotated k_pe.
    rope: KeyTiles,
    latent: Latent,
}

#[derive(Debug)]
enum Latent {
    /// The normed latent: the rest of the key, and the value.
    Shared(SlotRows),
    /// k_nope and v of each head.
    PerHead { nope: KeyTiles, values: SlotRows },
}

impl MlaCache {
    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.rope.bytes()
            + match &self.latent {
                Latent::Shared(latent) => latent.bytes(),
                Latent::PerHead { nope, values } => nope.bytes() + values.bytes(),
            }
    }

    /// Copies the entry of slot `from` to slot `to`.
    pub(super) fn copy_slot(&mut self, from: usize, to: usize) {
        self.rope.copy_slot(from, to);
        match &mut self.latent {
            Latent::Shared(latent) => latent.copy_slot(from, to),
            Latent::PerHead { nope, values } => {
                nope.copy_slot(from, to);
                values.copy_slot(from, to);
            }
        }
    }

    /// Entries of slots `0..len`: the latent, or each head's k_nope then v; then k_pe.
    pub(super) fn read(&self, len: usize) -> Vec<f32> {
        let mut entries = Vec::new();
        for slot in 0..len {
            match &self.latent {
                Latent::Shared(latent) => entries.extend(latent.row(0, slot)),
                Latent::PerHead { nope, values } => (0..nope.heads()).for_each(|head| {
                    entries.extend(nope.key(head, slot));
                    entries.extend(values.row(head, slot));
                }),
            }
            entries.extend(self.rope.key(0, slot));
        }
        entries
    }

    fn keys(&self) -> Keys<'_> {
        let (first, values) = match &self.latent {
            Latent::Shared(latent) => (KeyPart::Rows(latent), latent),
            Latent::PerHead { nope, values } => (KeyPart::Tiles(nope), values),
        };
        Keys { first, second: Some(&self.rope), values }
    }
}

impl MlaLayer {
    /// Checks the shapes and takes the weights; the form is the cheaper one unless `form` names it.
    pub(super) fn new(
        spec: MlaSpec,
        rope: &RopeCache,
        kv_b: &Weight,
        kv_a_norm: &[f32],
        form: Option<MlaForm>,
    ) -> Result<Self, String> {
        if [spec.heads, spec.nope, spec.rope, spec.v, spec.kv_lora].contains(&0) {
            return Err(format!("a size of {spec:?} is 0"));
        }
        let expected = [spec.heads * (spec.nope + spec.v), spec.kv_lora];
        if [kv_b.rows, kv_b.cols] != expected {
            let found = [kv_b.rows, kv_b.cols];
            return Err(format!(
                "{} has shape {found:?}, expected {expected:?} (heads x (nope + v), kv_lora)",
                kv_b.name
            ));
        }
        if (kv_a_norm.len(), rope.width()) != (spec.kv_lora, spec.rope) {
            let (found, expected) = ((kv_a_norm.len(), rope.width()), (spec.kv_lora, spec.rope));
            return Err(format!("kv_a_norm and rotation have widths {found:?}, expected {expected:?} (kv_lora, rope)"));
        }
        let form = form.unwrap_or_else(|| MlaForm::cheaper(&spec));
        Ok(Self { spec, kv_b: kv_b.clone(), kv_a_norm: kv_a_norm.to_vec(), form })
    }

    /// A cache of `slots` slots.
    pub(super) fn cache(&self, slots: usize) -> MlaCache {
        let MlaSpec { heads, nope, rope, v, kv_lora, .. } = self.spec;
        let latent = match self.form {
            MlaForm::Absorbed => Latent::Shared(SlotRows::new(1, slots, kv_lora)),
            MlaForm::Expanded => {
                Latent::PerHead { nope: KeyTiles::new(heads, slots, nope), values: SlotRows::new(heads, slots, v) }
            }
        };
        MlaCache { rope: KeyTiles::new(1, slots, rope), latent }
    }

    /// Writes the entries of `kv_a` `[rows, kv_lora + rope]` at the slots from `start` on.
    pub(super) fn append(
        &self,
        pool: &Pool,
        (cache, rope): (&mut MlaCache, &RopeCache),
        start: usize,
        rows: &RowSet,
        kv_a: &[f32],
        scratch: &mut [Vec<f32>; 2],
    ) {
        let MlaSpec { heads, nope, rope: pe, v, kv_lora, norm_eps, .. } = self.spec;
        let [latents, expanded] = scratch;
        latents.resize(rows.len() * kv_lora, 0.0);
        let mut k_pe = vec![0.0; pe];
        for (row, (kv_a, position)) in kv_a.chunks_exact(kv_lora + pe).zip(&rows.values().positions).enumerate() {
            rms_norm(&kv_a[..kv_lora], &self.kv_a_norm, norm_eps, &mut latents[row * kv_lora..(row + 1) * kv_lora]);
            k_pe.copy_from_slice(&kv_a[kv_lora..]);
            rope.rotate(&mut k_pe, *position);
            cache.rope.write(0, start + row, &k_pe);
        }
        match &mut cache.latent {
            Latent::Shared(store) => {
                latents.chunks_exact(kv_lora).enumerate().for_each(|(row, latent)| store.write(0, start + row, latent));
            }
            Latent::PerHead { nope: keys, values } => {
                expanded.resize(rows.len() * heads * (nope + v), 0.0);
                linear(pool, &self.kv_b, latents, rows.len(), expanded);
                for (entry, kv) in expanded.chunks_exact(nope + v).enumerate() {
                    let (row, head) = (entry / heads, entry % heads);
                    keys.write(head, start + row, &kv[..nope]);
                    values.write(head, start + row, &kv[nope..]);
                }
            }
        }
    }

    /// `out` `[rows, heads x v]` := attention of `q` `[rows, heads x (nope + rope)]` over `context` cached tokens and the
    /// rows' ancestors, which [`MlaLayer::append`] has written.
    pub(super) fn attend(
        &self,
        pool: &Pool,
        Cached { cache, rope, context }: Cached<'_, MlaCache>,
        rows: &RowSet,
        q: &[f32],
        scratch: &mut [Vec<f32>; 2],
        out: &mut [f32],
    ) {
        let MlaSpec { heads, v, .. } = self.spec;
        let (count, keys, isa) = (rows.len(), cache.keys(), pool.isa());
        let [queries, attended] = scratch;
        queries.resize(heads * count * keys.width(), 0.0);
        let kv_heads = match self.form {
            MlaForm::Absorbed => {
                pool.run_on_chunks(queries, count * keys.width(), |head, part| {
                    self.absorb_queries(isa, rope, rows, q, head, part)
                });
                1
            }
            MlaForm::Expanded => {
                by_rows(pool, queries, count * keys.width(), |head, part| self.copy_queries(rope, rows, q, head, part));
                heads
            }
        };
        let (stride, view) = (keys.values.stride(), View::Tree { parents: &rows.values().parents });
        attended.resize(heads * count * stride, 0.0);
        attend(pool, &keys, &Batch { heads, kv_heads, rows: count, context, view }, queries, attended);

        let (values, stride) = match self.form {
            MlaForm::Absorbed => {
                queries.resize(heads * count * v, 0.0);
                pool.run_on_chunks(queries, count * v, |head, part| {
                    self.project_outputs(pool, attended, stride, head, part)
                });
                (queries, v)
            }
            MlaForm::Expanded => (attended, stride),
        };
        for (query, value) in values.chunks_exact(stride).enumerate() {
            let (head, row) = (query / count, query % count);
            out[(row * heads + head) * v..][..v].copy_from_slice(&value[..v]);
        }
    }

    /// Queries of one head as they are, rotated and scaled: `[rows, nope + rope]`.
    fn copy_queries(&self, rope: &RopeCache, rows: &RowSet, q: &[f32], head: usize, part: &mut [f32]) {
        let MlaSpec { nope, softmax_scale, .. } = self.spec;
        for (row, query) in part.chunks_exact_mut(nope + self.spec.rope).enumerate() {
            query.copy_from_slice(self.query(q, row, head));
            rope.rotate(&mut query[nope..], rows.values().positions[row]);
            query.iter_mut().for_each(|q| *q *= softmax_scale);
        }
    }

    /// Queries of one head times its W_k, then the rotated part, scaled: `[rows, kv_lora + rope]`.
    fn absorb_queries(&self, isa: Isa, rope: &RopeCache, rows: &RowSet, q: &[f32], head: usize, part: &mut [f32]) {
        let MlaSpec { nope, rope: pe, v, kv_lora, softmax_scale, .. } = self.spec;
        part.fill(0.0);
        let mut weights = vec![0.0; kv_lora];
        for element in 0..nope {
            self.kv_b.expand_row(head * (nope + v) + element, &mut weights);
            for (row, query) in part.chunks_exact_mut(kv_lora + pe).enumerate() {
                axpy(isa, self.query(q, row, head)[element], &weights, &mut query[..kv_lora]);
            }
        }
        for (row, query) in part.chunks_exact_mut(kv_lora + pe).enumerate() {
            query[kv_lora..].copy_from_slice(&self.query(q, row, head)[nope..]);
            rope.rotate(&mut query[kv_lora..], rows.values().positions[row]);
            query.iter_mut().for_each(|q| *q *= softmax_scale);
        }
    }

    /// Attended latents of one head, of `attended` `[heads, rows, stride]`, times its W_v: `[rows, v]`.
    fn project_outputs(&self, pool: &Pool, attended: &[f32], stride: usize, head: usize, part: &mut [f32]) {
        let MlaSpec { nope, v, kv_lora, .. } = self.spec;
        let rows = part.len() / v;
        let attended = attended[head * rows * stride..].chunks_exact(stride).take(rows);
        let latents: Vec<f32> = attended.flat_map(|latent| &latent[..kv_lora]).copied().collect();
        let (layout, mut packed) = (Layout::of(&self.kv_b), Packed::default());
        packed.pack(pool, layout, &latents, kv_lora);
        let first = head * (nope + v) + nope;
        let inputs = Inputs { rows: packed.rows(0, layout, kv_lora), index: None };
        multiply(pool, &self.kv_b, inputs, &mut Slab::dense(part, first..first + v));
    }

    /// Query of one row and head, of `q` `[rows, heads, nope + rope]`.
    fn query<'q>(&self, q: &'q [f32], row: usize, head: usize) -> &'q [f32] {
        let width = self.spec.nope + self.spec.rope;
        &q[(row * self.spec.heads + head) * width..][..width]
    }
}
