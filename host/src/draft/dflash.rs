//! The DFlash drafter: a small bidirectional decoder that fills a block of mask tokens in one forward, from the target's
//! residual streams.
//!
//! Context keys and values depend on a token's features and position alone, so they are written once, when the token
//! becomes context ([`Dflash::extend`]).

use coppice_model::bind::{DraftLayerWeights, DraftWeights};
use coppice_model::config::DraftConfig;

use crate::backend::{
    Backend, DraftAttention, DraftAttentionSpec, Matrix, Mlp, Op, Rope, Rows, Select, Sequence, Tap, Tensor,
};
use crate::error::Result;
use crate::layers::{Norm, Target, linear, rope};

/// What may be chosen about a drafter besides its files.
#[derive(Debug, Clone, Copy, Default)]
pub struct DflashOptions {
    /// Replaces the factor that YaRN puts on cos and sin.
    pub yarn_amplitude: Option<f64>,
}

/// A drafter's weights on a device, and the activations of its forward pass.
#[derive(Debug)]
pub struct Dflash {
    fc: Matrix,
    hidden_norm: Norm,
    layers: Vec<Layer>,
    norm: Norm,
    block: usize,
    mask_token: u32,
    taps: Vec<(usize, Tap)>,
    /// Tapped residual streams of the round's rows `[rows, taps x hidden]`.
    features: Tensor,
    block_rows: Rows,
    buffers: Buffers,
    /// `[block - 1, vocab]`.
    logits: Tensor,
}

#[derive(Debug)]
struct Layer {
    input_norm: Norm,
    q: Matrix,
    k: Matrix,
    v: Matrix,
    attention: DraftAttention,
    o: Matrix,
    post_norm: Norm,
    mlp: Mlp,
}

#[derive(Debug)]
struct Buffers {
    residual: Tensor,
    normed: Tensor,
    branch: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    heads: Tensor,
}

impl Dflash {
    /// Uploads the weights, and buffers for context of at most `max_rows` rows a round.
    ///
    /// # Errors
    /// The device's, for want of memory.
    pub fn load(
        backend: &mut dyn Backend,
        config: &DraftConfig,
        weights: &DraftWeights,
        options: DflashOptions,
        max_rows: usize,
    ) -> Result<Self> {
        let table = backend.rope(&rope::table(&config.rope, config.head_dim, options.yarn_amplitude))?;
        let layers = weights
            .layers
            .iter()
            .zip(&config.layer_windows)
            .map(|(layer, window)| Layer::load(backend, config, table, *window, layer))
            .collect::<Result<Vec<_>>>()?;
        let hidden = config.hidden_size;
        let features = backend.tensor(max_rows, config.target_layer_ids.len() * hidden)?;
        let rows = max_rows.max(config.block_size);
        let kv_width = config.kv_heads * config.head_dim;
        Ok(Self {
            fc: backend.matrix(&weights.fc)?,
            hidden_norm: Norm { weight: backend.vector(&weights.hidden_norm)?, eps: config.rms_norm_eps },
            layers,
            norm: Norm { weight: backend.vector(&weights.norm)?, eps: config.rms_norm_eps },
            block: config.block_size,
            mask_token: config.mask_token_id,
            taps: config
                .target_layer_ids
                .iter()
                .enumerate()
                .map(|(i, layer)| (*layer, Tap { out: features, column: i * hidden }))
                .collect(),
            features,
            block_rows: backend.rows(config.block_size)?,
            buffers: Buffers {
                residual: backend.tensor(rows, hidden)?,
                normed: backend.tensor(rows, hidden)?,
                branch: backend.tensor(rows, hidden)?,
                q: backend.tensor(config.block_size, config.heads * config.head_dim)?,
                k: backend.tensor(rows, kv_width)?,
                v: backend.tensor(rows, kv_width)?,
                heads: backend.tensor(config.block_size, config.heads * config.head_dim)?,
            },
            logits: backend.tensor(config.block_size.saturating_sub(1).max(1), config.vocab_size)?,
        })
    }

    /// Attention of each layer, for the sequence's cache.
    pub fn attention(&self) -> Vec<DraftAttention> {
        self.layers.iter().map(|layer| layer.attention).collect()
    }

    /// The target layers to tap, and where their output goes.
    pub fn taps(&self) -> &[(usize, Tap)] {
        &self.taps
    }

    /// Tapped residual streams of the round's rows, to be compacted by the commit.
    pub fn features(&self) -> Tensor {
        self.features
    }

    /// Tokens a block predicts.
    pub fn depths(&self) -> usize {
        self.block - 1
    }

    /// Logits `[depths, vocab]` of the last [`Dflash::propose`].
    pub fn logits(&self) -> Tensor {
        self.logits
    }

    /// Writes context keys and values of rows that became context, from their features.
    pub fn extend(&self, backend: &mut dyn Backend, sequence: Sequence, rows: Rows) {
        let Buffers { normed, branch, k, v, .. } = self.buffers;
        linear(backend, rows, self.features, self.fc, branch);
        self.hidden_norm.apply(backend, rows, branch, normed);
        for (index, layer) in self.layers.iter().enumerate() {
            linear(backend, rows, normed, layer.k, k);
            linear(backend, rows, normed, layer.v, v);
            backend.submit(Op::DraftAppend { rows, sequence, layer: index, attention: layer.attention, k, v });
        }
    }

    /// Predicts the tokens after the root: logits of slot k are those of the token k after it, for k up to `depths`.
    pub fn propose(&self, backend: &mut dyn Backend, sequence: Sequence, target: &Target, depths: usize) {
        let rows = self.block_rows;
        let Buffers { residual, normed, branch, q, k, v, heads } = self.buffers;
        backend.submit(Op::BlockRows { sequence, rows, block: self.block, mask_token: self.mask_token });
        backend.submit(Op::Embed { rows, table: target.embed(), out: residual });
        for (index, layer) in self.layers.iter().enumerate() {
            layer.input_norm.add(backend, rows, residual, (index > 0).then_some(branch), None, normed);
            linear(backend, rows, normed, layer.q, q);
            linear(backend, rows, normed, layer.k, k);
            linear(backend, rows, normed, layer.v, v);
            backend.submit(Op::DraftAttention {
                rows,
                sequence,
                layer: index,
                attention: layer.attention,
                q,
                k,
                v,
                out: heads,
            });
            linear(backend, rows, heads, layer.o, branch);
            layer.post_norm.add(backend, rows, residual, Some(branch), None, normed);
            backend.submit(Op::Mlp { rows, mlp: layer.mlp, x: normed, out: branch });
        }
        let delta = (!self.layers.is_empty()).then_some(branch);
        self.norm.add(backend, rows, residual, delta, None, normed);
        backend.submit(Op::Linear {
            rows,
            select: Select::AfterFirst(depths),
            x: normed,
            weight: target.lm_head(),
            out: self.logits,
        });
    }
}

impl Layer {
    fn load(
        backend: &mut dyn Backend,
        config: &DraftConfig,
        table: Rope,
        window: Option<usize>,
        weights: &DraftLayerWeights,
    ) -> Result<Self> {
        let eps = config.rms_norm_eps;
        let spec = DraftAttentionSpec {
            heads: config.heads,
            kv_heads: config.kv_heads,
            head_dim: config.head_dim,
            norm_eps: eps,
            window,
            table,
        };
        Ok(Self {
            input_norm: Norm { weight: backend.vector(&weights.input_norm)?, eps },
            q: backend.matrix(&weights.q)?,
            k: backend.matrix(&weights.k)?,
            v: backend.matrix(&weights.v)?,
            attention: backend.draft_attention(spec, &weights.q_norm, &weights.k_norm)?,
            o: backend.matrix(&weights.o)?,
            post_norm: Norm { weight: backend.vector(&weights.post_norm)?, eps },
            mlp: backend.mlp(&weights.mlp)?,
        })
    }
}
