//! Multi-head latent attention (DeepSeek-V2, section 2.1) of one target layer.

use coppice_model::bind::{AttentionWeights, QueryWeights};
use coppice_model::config::{LATENT_NORM_EPS, ModelConfig};

use super::{LayerRows, Norm, linear, rope};
use crate::backend::{Backend, Matrix, Mla, MlaSpec, Op, Rope, Tensor};
use crate::error::Result;

/// One layer's projections and attention.
#[derive(Debug)]
pub(super) struct Attention {
    query: Query,
    kv_a: Matrix,
    pub mla: Mla,
    o: Matrix,
}

#[derive(Debug)]
enum Query {
    Full(Matrix),
    LowRank { a: Matrix, norm: Norm, b: Matrix },
}

/// Activations that every layer's attention reuses.
#[derive(Debug)]
pub(super) struct AttentionBuffers {
    q_latent: Tensor,
    q_normed: Tensor,
    q: Tensor,
    kv_a: Tensor,
    heads: Tensor,
}

impl AttentionBuffers {
    pub fn new(backend: &mut dyn Backend, config: &ModelConfig, rows: usize) -> Result<Self> {
        let a = &config.attention;
        Ok(Self {
            q_latent: backend.tensor(rows, a.q_lora_rank.unwrap_or(1))?,
            q_normed: backend.tensor(rows, a.q_lora_rank.unwrap_or(1))?,
            q: backend.tensor(rows, a.heads * (a.nope + a.rope))?,
            kv_a: backend.tensor(rows, a.kv_lora_rank + a.rope)?,
            heads: backend.tensor(rows, a.heads * a.v)?,
        })
    }
}

impl Attention {
    pub fn load(
        backend: &mut dyn Backend,
        config: &ModelConfig,
        table: Rope,
        weights: &AttentionWeights,
    ) -> Result<Self> {
        let a = &config.attention;
        let query = match &weights.q {
            QueryWeights::Full(q) => Query::Full(backend.matrix(q)?),
            QueryWeights::LowRank { a, norm, b } => Query::LowRank {
                a: backend.matrix(a)?,
                norm: Norm { weight: backend.vector(norm)?, eps: LATENT_NORM_EPS },
                b: backend.matrix(b)?,
            },
        };
        let spec = MlaSpec {
            heads: a.heads,
            nope: a.nope,
            rope: a.rope,
            v: a.v,
            kv_lora: a.kv_lora_rank,
            norm_eps: LATENT_NORM_EPS,
            softmax_scale: rope::softmax_scale(a, &config.rope),
            table,
        };
        Ok(Self {
            query,
            kv_a: backend.matrix(&weights.kv_a)?,
            mla: backend.mla(spec, &weights.kv_b, &weights.kv_a_norm)?,
            o: backend.matrix(&weights.o)?,
        })
    }

    /// Writes the rows' cache entries: all that later rows need of these.
    pub fn append(&self, backend: &mut dyn Backend, buffers: &AttentionBuffers, at: LayerRows, x: Tensor) {
        let LayerRows { rows, sequence, layer } = at;
        linear(backend, rows, x, self.kv_a, buffers.kv_a);
        backend.submit(Op::MlaAppend { rows, sequence, layer, mla: self.mla, kv_a: buffers.kv_a });
    }

    /// `out := attention(x)`; the rows' cache entries must have been appended.
    pub fn attend(&self, backend: &mut dyn Backend, buffers: &AttentionBuffers, at: LayerRows, x: Tensor, out: Tensor) {
        let LayerRows { rows, sequence, layer } = at;
        match &self.query {
            Query::Full(q) => linear(backend, rows, x, *q, buffers.q),
            Query::LowRank { a, norm, b } => {
                linear(backend, rows, x, *a, buffers.q_latent);
                norm.apply(backend, rows, buffers.q_latent, buffers.q_normed);
                linear(backend, rows, buffers.q_normed, *b, buffers.q);
            }
        }
        backend.submit(Op::MlaAttention { rows, sequence, layer, mla: self.mla, q: buffers.q, out: buffers.heads });
        linear(backend, rows, buffers.heads, self.o, out);
    }
}
