//! Drafter attention: grouped-query attention with per-head norms over the context and the whole block.

use super::attention::{Batch, Cached, KeyPart, Keys, View, attend};
use super::cache::{KeyTiles, SlotRows};
use super::norm::{by_rows, rms_norm};
use super::pool::Pool;
use super::rope::RopeCache;
use super::state::RowSet;
use crate::backend::DraftAttentionSpec;

/// One layer's attention.
#[derive(Debug)]
pub(super) struct DraftLayer {
    pub(super) spec: DraftAttentionSpec,
    q_norm: Vec<f32>,
    k_norm: Vec<f32>,
}

/// One layer's keys (normed and rotated) and values by position. The block's own lie past the context while it is
/// attended to.
#[derive(Debug)]
pub(super) struct DraftCache {
    keys: KeyTiles,
    values: SlotRows,
}

impl DraftCache {
    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        self.keys.bytes() + self.values.bytes()
    }

    /// Entries of slots `0..len`: keys of every head, then values of every head.
    pub(super) fn read(&self, len: usize) -> Vec<f32> {
        let mut entries = Vec::new();
        for slot in 0..len {
            (0..self.keys.heads()).for_each(|head| entries.extend(self.keys.key(head, slot)));
            (0..self.keys.heads()).for_each(|head| entries.extend(self.values.row(head, slot)));
        }
        entries
    }
}

impl DraftLayer {
    /// Checks the shapes and takes the norms.
    pub(super) fn new(
        spec: DraftAttentionSpec,
        rope: &RopeCache,
        q_norm: &[f32],
        k_norm: &[f32],
    ) -> Result<Self, String> {
        let DraftAttentionSpec { heads, kv_heads, head_dim, .. } = spec;
        if heads == 0 || kv_heads == 0 || head_dim == 0 || heads % kv_heads != 0 {
            return Err(format!("{heads} heads over {kv_heads} key heads of {head_dim}, expected a multiple of them"));
        }
        if [rope.width(), q_norm.len(), k_norm.len()] != [head_dim; 3] {
            let found = (rope.width(), q_norm.len(), k_norm.len());
            return Err(format!("rotation, q_norm and k_norm have widths {found:?}, expected {head_dim} (head_dim)"));
        }
        Ok(Self { spec, q_norm: q_norm.to_vec(), k_norm: k_norm.to_vec() })
    }

    /// A cache of `slots` slots.
    pub(super) fn cache(&self, slots: usize) -> DraftCache {
        let DraftAttentionSpec { kv_heads, head_dim, .. } = self.spec;
        DraftCache { keys: KeyTiles::new(kv_heads, slots, head_dim), values: SlotRows::new(kv_heads, slots, head_dim) }
    }

    /// Norms and rotates the rows' keys and writes them and the values at the rows' positions.
    pub(super) fn append(&self, cache: &mut DraftCache, rope: &RopeCache, rows: &RowSet, k: &[f32], v: &[f32]) {
        let DraftAttentionSpec { kv_heads, head_dim, norm_eps, .. } = self.spec;
        let mut key = vec![0.0; head_dim];
        let entries = k.chunks_exact(kv_heads * head_dim).zip(v.chunks_exact(kv_heads * head_dim));
        for ((k, v), position) in entries.zip(&rows.values().positions) {
            for (head, (k, v)) in k.chunks_exact(head_dim).zip(v.chunks_exact(head_dim)).enumerate() {
                rms_norm(k, &self.k_norm, norm_eps, &mut key);
                rope.rotate(&mut key, *position);
                cache.keys.write(head, *position, &key);
                cache.values.write(head, *position, v);
            }
        }
    }

    /// `out` `[rows, heads x head_dim]` := attention of a block whose keys and values [`DraftLayer::append`] has
    /// written after `context` tokens. `scratch` is what two buffers of the queries' size need.
    pub(super) fn attend(
        &self,
        pool: &Pool,
        Cached { cache, rope, context }: Cached<'_, DraftCache>,
        rows: &RowSet,
        q: &[f32],
        scratch: &mut [Vec<f32>; 2],
        out: &mut [f32],
    ) {
        let DraftAttentionSpec { heads, kv_heads, head_dim, norm_eps, window, .. } = self.spec;
        let (count, scale) = (rows.len(), (head_dim as f32).powf(-0.5));
        let [queries, attended] = scratch;
        queries.resize(heads * count * head_dim, 0.0);
        by_rows(pool, queries, head_dim, |query, out| {
            let (head, row) = (query / count, query % count);
            rms_norm(&q[(row * heads + head) * head_dim..][..head_dim], &self.q_norm, norm_eps, out);
            rope.rotate(out, rows.values().positions[row]);
            out.iter_mut().for_each(|q| *q *= scale);
        });
        let keys = Keys { first: KeyPart::Tiles(&cache.keys), second: None, values: &cache.values };
        let stride = cache.values.stride();
        attended.resize(heads * count * stride, 0.0);
        attend(
            pool,
            &keys,
            &Batch { heads, kv_heads, rows: count, context, view: View::Block { window } },
            queries,
            attended,
        );
        for (query, attended) in attended.chunks_exact(stride).enumerate() {
            let (head, row) = (query / count, query % count);
            out[(row * heads + head) * head_dim..][..head_dim].copy_from_slice(&attended[..head_dim]);
        }
    }
}
