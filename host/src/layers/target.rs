//! The target model: embedding, decoder layers, final norm, lm_head.

use coppice_model::bind::{LayerWeights, TargetWeights};
use coppice_model::config::ModelConfig;

use super::attention::{Attention, AttentionBuffers};
use super::feed_forward::FeedForward;
use super::{LayerRows, Norm, rope};
use crate::backend::{Backend, Matrix, Mla, Op, Rope, Routes, Rows, Select, Sequence, Tap, Tensor};
use crate::error::Result;

/// Which rows' logits a forward computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Emit {
    /// None: the rows only become context.
    None,
    /// The last row's, to row 0 of the logits.
    Last,
    /// Every row's.
    All,
}

/// What one forward reads and writes.
#[derive(Debug)]
pub struct Forward<'a> {
    /// The sequence whose cache is read and appended to.
    pub sequence: Sequence,
    /// Ids, positions and parents.
    pub rows: Rows,
    /// Logits wanted.
    pub emit: Emit,
    /// `[rows, vocab]`.
    pub logits: Tensor,
    /// Layers whose output (the residual stream after the layer) is copied.
    pub taps: &'a [(usize, Tap)],
}

/// The target's weights on a device, and the activations of its forward pass.
#[derive(Debug)]
pub struct Target {
    embed: Matrix,
    layers: Vec<Layer>,
    norm: Norm,
    lm_head: Matrix,
    buffers: Buffers,
}

#[derive(Debug)]
struct Layer {
    input_norm: Norm,
    attention: Attention,
    post_norm: Norm,
    feed_forward: FeedForward,
}

#[derive(Debug)]
struct Buffers {
    /// Residual stream `[rows, hidden]`.
    residual: Tensor,
    /// Normed input of a branch `[rows, hidden]`.
    normed: Tensor,
    /// Output of a branch `[rows, hidden]`, added to the residual stream by the next norm.
    branch: Tensor,
    routes: Routes,
    attention: AttentionBuffers,
}

impl Target {
    /// Uploads the weights, and buffers for forwards of at most `max_rows` rows. `loaded(n)` is called when n layers are
    /// there.
    ///
    /// # Errors
    /// The device's, for want of memory.
    pub fn load(
        backend: &mut dyn Backend,
        config: &ModelConfig,
        weights: &TargetWeights,
        max_rows: usize,
        mut loaded: impl FnMut(usize),
    ) -> Result<Self> {
        let eps = config.rms_norm_eps;
        let table = backend.rope(&rope::table(&config.rope, config.attention.rope, None))?;
        let mut layers = Vec::with_capacity(weights.layers.len());
        for layer in &weights.layers {
            layers.push(Layer::load(backend, config, table, layer)?);
            loaded(layers.len());
        }
        let hidden = config.hidden_size;
        Ok(Self {
            embed: backend.matrix(&weights.embed)?,
            layers,
            norm: Norm { weight: backend.vector(&weights.norm)?, eps },
            lm_head: backend.matrix(&weights.lm_head)?,
            buffers: Buffers {
                residual: backend.tensor(max_rows, hidden)?,
                normed: backend.tensor(max_rows, hidden)?,
                branch: backend.tensor(max_rows, hidden)?,
                routes: backend.routes(max_rows)?,
                attention: AttentionBuffers::new(backend, config, max_rows)?,
            },
        })
    }

    /// Attention of each layer, for the sequence's cache.
    pub fn attention(&self) -> Vec<Mla> {
        self.layers.iter().map(|layer| layer.attention.mla).collect()
    }

    /// The embedding table; the drafter shares it.
    pub fn embed(&self) -> Matrix {
        self.embed
    }

    /// The output head; the drafter shares it.
    pub fn lm_head(&self) -> Matrix {
        self.lm_head
    }

    /// Runs the rows through every layer, appending to the sequence's caches.
    pub fn forward(&self, backend: &mut dyn Backend, forward: &Forward<'_>) {
        let Forward { sequence, rows, emit, logits, taps } = *forward;
        let tap = |layer: Option<usize>| taps.iter().find(|(at, _)| Some(*at) == layer).map(|(_, tap)| *tap);
        let Buffers { residual, normed, branch, routes, attention } = &self.buffers;
        let (residual, normed, branch) = (*residual, *normed, *branch);

        backend.submit(Op::Embed { rows, table: self.embed, out: residual });
        for (index, layer) in self.layers.iter().enumerate() {
            let at = LayerRows { rows, sequence, layer: index };
            let before = index.checked_sub(1);
            let delta = before.map(|_| branch);
            layer.input_norm.add(backend, rows, residual, delta, tap(before), normed);
            layer.attention.append(backend, attention, at, normed);
            if emit == Emit::None && index + 1 == self.layers.len() && tap(Some(index)).is_none() {
                return; // nobody reads the last layer's output
            }
            layer.attention.attend(backend, attention, at, normed, branch);
            layer.post_norm.add(backend, rows, residual, Some(branch), None, normed);
            layer.feed_forward.run(backend, *routes, rows, normed, branch);
        }
        let last = self.layers.len().checked_sub(1);
        self.norm.add(backend, rows, residual, last.map(|_| branch), tap(last), normed);
        let select = match emit {
            Emit::None => return,
            Emit::Last => Select::Last,
            Emit::All => Select::All,
        };
        backend.submit(Op::Linear { rows, select, x: normed, weight: self.lm_head, out: logits });
    }
}

impl Layer {
    fn load(backend: &mut dyn Backend, config: &ModelConfig, table: Rope, weights: &LayerWeights) -> Result<Self> {
        let eps = config.rms_norm_eps;
        Ok(Self {
            input_norm: Norm { weight: backend.vector(&weights.input_norm)?, eps },
            attention: Attention::load(backend, config, table, &weights.attention)?,
            post_norm: Norm { weight: backend.vector(&weights.post_norm)?, eps },
            feed_forward: FeedForward::load(backend, config, &weights.mlp)?,
        })
    }
}
