//! Latent attention in the absorbed form: set-up, the cache's layout, and the launches.

use coppice_gpu::attention::{HEAD_64_16, HEAD_512_64, Head, Plan};
use coppice_gpu::heads::{self, INSTANCES};
use coppice_gpu::linear::pack;
use coppice_gpu::rope;
use coppice_gpu::round::RowLayout;
use coppice_model::weight::Weight;
use cuda_std::{Bf16, Global, GlobalMut};

use super::super::{Memory, Place, error};
use super::linear::slices;
use super::scratch::{Needs, Scratch};
use super::tensors::RowSet;
use super::weights::{STEP, packed_len, round};
use crate::backend::{MlaSpec, RopeTable};
use crate::error::Result;

/// Elements between two cached rows: 16 bytes of padding keep tensor-core loads free of bank conflicts.
const CACHE_PADDING: usize = 8;

/// One layer's attention.
pub(super) struct Mla {
    pub spec: MlaSpec,
    /// Each head's W_k, transposed: `[heads]` of `[latent, nope]`.
    absorb: Memory<'static, Bf16>,
    /// Each head's W_v: `[heads]` of `[v, latent]`.
    project: Memory<'static, Bf16>,
    norm: Memory<'static, Bf16>,
    head: &'static Head,
}

impl std::fmt::Debug for Mla {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mla").field("spec", &self.spec).finish_non_exhaustive()
    }
}

/// Sizes of heads that there are attention kernels for.
static HEADS: [&Head; 2] = [&HEAD_512_64, &HEAD_64_16];

/// What a launch over a row set reads beside the layer's own.
pub(super) struct Visit<'a> {
    pub rows: &'a RowSet,
    /// Rows launched.
    pub count: usize,
    /// This layer's cache.
    pub cache: GlobalMut<Bf16>,
    pub turns: Global<[f32; 2]>,
    pub scratch: &'a Scratch,
}

impl Visit<'_> {
    fn layout(&self) -> RowLayout {
        RowLayout { capacity: self.count as u32 }
    }
}

impl Mla {
    pub fn new(
        place: Place<'static>,
        spec: MlaSpec,
        table: &RopeTable,
        kv_b: &Weight,
        kv_a_norm: &[f32],
    ) -> Result<Self> {
        let MlaSpec { heads, nope, rope, v, kv_lora: latent, .. } = spec;
        let Some(head) = HEADS.iter().find(|head| [head.latent, head.rope].map(|n| n as usize) == [latent, rope])
        else {
            let known: Vec<String> = HEADS.iter().map(|head| format!("{} + {}", head.latent, head.rope)).collect();
            let known = known.join(", ");
            return Err(error(format!(
                "there is no attention kernel for a latent of {latent} with a rotary part of {rope}, only for {known}: \
                 this model runs with --device cpu"
            )));
        };
        if !table.interleave {
            return Err(error(
                "rotary pairs in separate halves (rope_interleave false) are not known here: this model runs with \
                 --device cpu"
                    .to_owned(),
            ));
        }
        if !nope.is_multiple_of(STEP) {
            return Err(error(format!("heads have {nope} elements without position, expected a multiple of {STEP}")));
        }
        let expected = [heads * (nope + v), latent];
        if [kv_b.rows, kv_b.cols] != expected || kv_a_norm.len() != latent || table.inv_freq.len() * 2 != rope {
            let found = ([kv_b.rows, kv_b.cols], kv_a_norm.len(), table.inv_freq.len() * 2);
            return Err(error(format!(
                "{}, kv_a_norm and rotation have shapes {found:?}, expected {:?}",
                kv_b.name,
                (expected, latent, rope)
            )));
        }
        let row = |head: usize, element: usize| {
            let mut values = vec![0.0; latent];
            kv_b.expand_row(head * (nope + v) + element, &mut values);
            values
        };
        let absorb = place.input_of("W_k", heads * packed_len(latent, nope), || {
            let head = |head| {
                let rows: Vec<Vec<f32>> = (0..nope).map(|element| row(head, element)).collect();
                let transposed: Vec<f32> = (0..latent).flat_map(|o| rows.iter().map(move |row| row[o])).collect();
                pack(&round(&transposed), nope)
            };
            (0..heads).flat_map(head).collect()
        })?;
        let project = place.input_of("W_v", heads * packed_len(v, latent), || {
            let head = |head| {
                let rows: Vec<f32> = (0..v).flat_map(|element| row(head, nope + element)).collect();
                pack(&round(&rows), latent)
            };
            (0..heads).flat_map(head).collect()
        })?;
        let norm = place.input("kv_a_norm", &round(kv_a_norm))?;
        Ok(Self { spec, absorb, project, norm, head })
    }

    pub fn needs(&self) -> Needs {
        let MlaSpec { heads, rope, kv_lora, .. } = self.spec;
        Needs { query: heads * (kv_lora + rope), attended: heads * kv_lora, ..Needs::default() }
    }

    /// The attention of so many rows.
    pub fn plan(&self, place: Place<'static>, rows: usize) -> Result<Plan> {
        Ok(self.head.plan((self.spec.heads * rows) as u32, place.limits()?))
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.absorb.bytes() + self.project.bytes() + self.norm.bytes()
    }

    /// Elements from one cached row to the next.
    pub fn cache_stride(&self) -> usize {
        self.spec.kv_lora + self.spec.rope + CACHE_PADDING
    }

    /// Appends `kv_a` `[rows, latent + rope]` to the cache, after the context.
    ///
    /// # Safety
    /// The buffers hold the rows, the cache has their slots, the rotations their positions.
    pub unsafe fn append(&self, place: Place<'static>, visit: &Visit<'_>, kv_a: Global<f32>) -> Result<()> {
        let MlaSpec { rope, kv_lora, norm_eps, .. } = self.spec;
        let [r, l, stride] = [rope, kv_lora, self.cache_stride()].map(|n| n as u32);
        let (positions, start) = (visit.rows.field(visit.layout().positions()), visit.rows.field(RowLayout::START));
        let arguments = (kv_a, self.norm.ptr(), visit.turns, positions, start, visit.cache, r, l, stride, norm_eps);
        // SAFETY: the caller's contract.
        unsafe { place.queue(&rope::append_latent::KERNEL, rope::shape(visit.count as u32), arguments, true) }
    }

    /// `out` `[rows, heads x v]`, rows `stride` elements apart, from `q` `[rows, heads x (nope + rope)]`.
    ///
    /// # Safety
    /// As for `append`, which has run for these rows; the scratch is for as many.
    pub unsafe fn attend(
        &self,
        place: Place<'static>,
        visit: &Visit<'_>,
        q: Global<f32>,
        out: GlobalMut<Bf16>,
        stride: usize,
    ) -> Result<()> {
        let MlaSpec { heads, nope, rope, v, kv_lora: latent, softmax_scale, .. } = self.spec;
        let [h, n, r, w, l] = [heads, nope, rope, v, latent].map(|n| n as u32);
        let Visit { rows, count, scratch, .. } = *visit;
        let layout = visit.layout();
        let (query, attended) = (&scratch.query, &scratch.attended);
        for (first, count) in slices(count) {
            let instance = instance(count)?;
            let arguments = (
                q.add(first * heads * (nope + rope)),
                self.absorb.ptr(),
                visit.turns,
                rows.field(layout.positions() + first as u32),
                query.ptr_mut().add(first * heads * (latent + rope)),
                count as u32,
                n,
                r,
                l,
            );
            // SAFETY: the caller's contract; the instance takes as many rows.
            unsafe { place.queue(&instance.absorb, instance.absorb_shape(h, l), arguments, true)? };
        }
        let plan = self.plan(place, count)?;
        let arguments = (
            query.ptr(),
            visit.cache.as_const().cast(),
            rows.field(layout.mask()),
            rows.field(RowLayout::START),
            scratch.partial.ptr_mut(),
            scratch.log_sums.ptr_mut(),
            scratch.arrivals.ptr_mut(),
            attended.ptr_mut(),
            h,
            count as u32,
            softmax_scale * std::f32::consts::LOG2_E,
            plan.stages,
            plan.mergers,
        );
        // SAFETY: the caller's contract; every row of a set sees itself; the scratch is for any plan.
        unsafe { place.queue(plan.kernel, plan.shape, arguments, true)? };
        for (first, count) in slices(count) {
            let instance = instance(count)?;
            let from = attended.ptr().add(first * heads * latent);
            let arguments = (from, self.project.ptr(), out.add(first * stride), count as u32, l, w, stride as u32);
            // SAFETY: as above.
            unsafe { place.queue(&instance.project, instance.project_shape(h, w), arguments, true)? };
        }
        Ok(())
    }
}

/// The head by head products for so many rows.
fn instance(rows: usize) -> Result<&'static heads::Instance> {
    let found = INSTANCES.iter().find(|instance| instance.bound as usize >= rows);
    found.ok_or_else(|| error(format!("no head by head product takes {rows} rows")))
}

/// Cosines and sines of a rotary table, as far as sequences need them.
#[derive(Debug)]
pub(super) struct Rope {
    pub table: RopeTable,
    /// `[positions, pairs]`.
    pub turns: Memory<'static, [f32; 2]>,
}

impl Rope {
    pub fn new(place: Place<'static>, table: &RopeTable) -> Result<Self> {
        Ok(Self { table: table.clone(), turns: place.input("rotations", &[])? })
    }

    /// Makes positions `0..end` available.
    pub fn grow(&mut self, place: Place<'static>, end: usize) -> Result<()> {
        let RopeTable { inv_freq, amplitude, .. } = &self.table;
        if self.turns.len() < end * inv_freq.len() {
            self.turns = place.input_of("rotations", end * inv_freq.len(), || {
                // Angle, cosine and sine in f32, as the published models compute them.
                let angles = (0..end).flat_map(|position| inv_freq.iter().map(move |f| position as f32 * f));
                angles.map(|angle| [angle.cos() * amplitude, angle.sin() * amplitude]).collect()
            })?;
        }
        Ok(())
    }
}
