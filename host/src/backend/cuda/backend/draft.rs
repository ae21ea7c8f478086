//! Drafter attention: set-up, the cache's layout, and the launches.

use coppice_gpu::draft_attention::{self as kernels, PADDING};
use cuda_std::launch::{Kernel, LaunchShape};
use cuda_std::{Bf16, Global, GlobalMut};

use super::super::{Memory, Place, error};
use super::scratch::{Needs, Scratch};
use super::tensors::RowSet;
use crate::backend::{DraftAttention, DraftAttentionSpec, RopeTable};
use crate::error::Result;

/// One layer's attention.
#[derive(Debug)]
pub(super) struct DraftLayer {
    pub spec: DraftAttentionSpec,
    /// Of queries, then of keys: `[2, head_dim]`.
    norms: Memory<'static, f32>,
    interleave: bool,
    head: &'static Head,
}

/// One layer's cache: keys and values `[kv_heads, slots, head_dim + padding]`.
#[derive(Debug)]
pub(super) struct DraftCache {
    pub layer: DraftAttention,
    pub keys: Memory<'static, Bf16>,
    pub values: Memory<'static, Bf16>,
}

impl DraftCache {
    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes()
    }
}

type Attend = Kernel<(
    Global<u32>,
    Global<Bf16>,
    Global<Bf16>,
    Global<Bf16>,
    GlobalMut<f32>,
    GlobalMut<f32>,
    u32,
    u32,
    u32,
    u32,
    u32,
    f32,
)>;
type Merge = Kernel<(Global<u32>, Global<f32>, Global<f32>, GlobalMut<Bf16>, u32, u32, u32, u32, u32)>;

/// A width of head that there are kernels for.
struct Head {
    width: usize,
    attend: Attend,
    attend_shape: fn(u32, u32, u32, u32) -> LaunchShape,
    merge: Merge,
    merge_shape: fn(u32, u32, u32) -> LaunchShape,
}

impl std::fmt::Debug for Head {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.attend.name)
    }
}

static HEADS: [Head; 2] = [
    Head {
        width: 64,
        attend: kernels::draft_attention_64::KERNEL,
        attend_shape: kernels::attention_shape_64,
        merge: kernels::draft_merge_64::KERNEL,
        merge_shape: kernels::merge_shape_64,
    },
    Head {
        width: 128,
        attend: kernels::draft_attention_128::KERNEL,
        attend_shape: kernels::attention_shape_128,
        merge: kernels::draft_merge_128::KERNEL,
        merge_shape: kernels::merge_shape_128,
    },
];

/// What a launch over a row set reads beside the layer's own.
pub(super) struct DraftVisit<'a> {
    pub rows: &'a RowSet,
    /// Rows launched.
    pub count: usize,
    pub cache: &'a DraftCache,
    /// Slots of a head's cache.
    pub slots: usize,
    pub turns: Global<[f32; 2]>,
    pub scratch: &'a Scratch,
}

impl DraftLayer {
    pub fn new(
        place: Place<'static>,
        spec: DraftAttentionSpec,
        table: &RopeTable,
        q_norm: &[f32],
        k_norm: &[f32],
    ) -> Result<Self> {
        let DraftAttentionSpec { heads, kv_heads, head_dim, .. } = spec;
        let Some(head) = HEADS.iter().find(|head| head.width == head_dim) else {
            let known: Vec<String> = HEADS.iter().map(|head| head.width.to_string()).collect();
            let known = known.join(" or ");
            return Err(error(format!(
                "there is no drafter attention for heads of {head_dim}, only of {known}: this drafter runs with --device cpu"
            )));
        };
        if kv_heads == 0 || !heads.is_multiple_of(kv_heads) {
            return Err(error(format!("{heads} query heads do not share {kv_heads} key heads evenly")));
        }
        let found = [q_norm.len(), k_norm.len(), table.inv_freq.len() * 2];
        if found != [head_dim; 3] {
            return Err(error(format!("q_norm, k_norm and rotation have widths {found:?}, expected {head_dim}")));
        }
        let norms = place.input("q_norm and k_norm", &[q_norm, k_norm].concat())?;
        Ok(Self { spec, norms, interleave: table.interleave, head })
    }

    pub fn needs(&self) -> Needs {
        let DraftAttentionSpec { heads, head_dim, .. } = self.spec;
        Needs { draft_query: heads * head_dim, draft_heads: heads, ..Needs::default() }
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.norms.bytes()
    }

    /// An empty cache.
    pub fn cache(&self, place: Place<'static>, layer: DraftAttention, slots: usize) -> Result<DraftCache> {
        let len = self.spec.kv_heads * slots * self.stride();
        Ok(DraftCache {
            layer,
            keys: place.zeroed("drafter's keys", len)?,
            values: place.zeroed("drafter's values", len)?,
        })
    }

    /// Elements from one cached row to the next.
    pub fn stride(&self) -> usize {
        self.spec.head_dim + PADDING as usize
    }

    /// Norms and rotates keys, and queries where there are any, and writes keys and values `[rows, kv_heads x head_dim]` to
    /// the cache.
    ///
    /// # Safety
    /// The buffers hold the rows, the cache has their slots, the rotations their positions.
    pub unsafe fn append(
        &self,
        place: Place<'static>,
        visit: &DraftVisit<'_>,
        q: Option<Global<f32>>,
        [k, v]: [Global<f32>; 2],
    ) -> Result<()> {
        let DraftAttentionSpec { heads, kv_heads, head_dim, norm_eps, .. } = self.spec;
        let heads = if q.is_some() { heads } else { 0 };
        let [n, h, g, w, slots] = [visit.count, heads, kv_heads, head_dim, visit.slots].map(|n| n as u32);
        let arguments = (
            visit.rows.words.ptr(),
            q.unwrap_or(k),
            k,
            v,
            self.norms.ptr(),
            visit.turns,
            visit.scratch.draft_query.ptr_mut(),
            visit.cache.keys.ptr_mut(),
            visit.cache.values.ptr_mut(),
            n,
            h,
            g,
            w,
            slots,
            norm_eps,
            self.interleave.into(),
        );
        // SAFETY: the caller's contract; rows of a set have slots of their own.
        unsafe { place.queue(&kernels::draft_append::KERNEL, kernels::append_shape(n), arguments, true) }
    }

    /// `out` `[rows, heads x head_dim]`: each slot attends to the whole context and the whole block.
    ///
    /// # Safety
    /// As for `append`, which has run for these rows with their queries; `out` and the scratch hold the rows.
    pub unsafe fn attend(&self, place: Place<'static>, visit: &DraftVisit<'_>, out: GlobalMut<Bf16>) -> Result<()> {
        let DraftAttentionSpec { heads, kv_heads, head_dim, window, .. } = self.spec;
        let [n, h, g, slots] = [visit.count, heads, kv_heads, visit.slots].map(|n| n as u32);
        let window = window.map_or(0, |window| u32::try_from(window).unwrap_or(u32::MAX));
        let (rows, scratch) = (visit.rows.words.ptr(), visit.scratch);
        let (partial, log_sums, splits) = (&scratch.draft_partial, &scratch.draft_log_sums, scratch.splits);
        let arguments = (
            rows,
            scratch.draft_query.ptr(),
            visit.cache.keys.ptr(),
            visit.cache.values.ptr(),
            partial.ptr_mut(),
            log_sums.ptr_mut(),
            n,
            h,
            g,
            slots,
            window,
            (head_dim as f32).powf(-0.5) * std::f32::consts::LOG2_E,
        );
        // SAFETY: the caller's contract; the scratch is for as many splits.
        unsafe {
            place.queue(&self.head.attend, (self.head.attend_shape)(n, h, g, splits), arguments, true)?;
            let arguments = (rows, partial.ptr(), log_sums.ptr(), out, n, h, g, splits, window);
            place.queue(&self.head.merge, (self.head.merge_shape)(n, h, splits), arguments, true)
        }
    }
}
