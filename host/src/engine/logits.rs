//! Logits and hidden states of given tokens: the parity tool. One forward per chunk, nothing is generated.

use std::sync::Arc;

use coppice_model::TargetModel;

use crate::backend::{Accept, Backend, Op, RequestSpec, SequenceSpec, Tap};
use crate::error::{Error, NOT_A_NUMBER, Result};
use crate::layers::{Emit, Forward, Target};
use crate::sampling::Sampling;

/// What [`logits`] computes, f32.
#[derive(Debug, Clone, PartialEq)]
pub struct LogitsOutput {
    /// `[tokens, vocab]`.
    pub logits: Vec<f32>,
    /// Layer, and the residual stream after it `[tokens, hidden]`.
    pub hidden: Vec<(usize, Vec<f32>)>,
}

/// Logits of every token of `ids` in order, and the residual stream after each of the `hidden` layers, `chunk` tokens a
/// forward (which does not change the values).
///
/// # Errors
/// No ids, ids outside the vocabulary, layers the target lacks, values that are no finite numbers, or a device failure.
pub fn logits(
    backend: &mut dyn Backend,
    model: &TargetModel,
    ids: &[u32],
    hidden: &[usize],
    chunk: usize,
) -> Result<LogitsOutput> {
    let config = &model.config;
    let (width, vocab) = (config.hidden_size, config.vocab_size);
    if ids.is_empty() {
        return Err(Error::Request("there are no tokens to compute logits of".into()));
    }
    if let Some(id) = ids.iter().find(|id| **id as usize >= vocab) {
        return Err(Error::Request(format!("token {id} is not in the vocabulary of {vocab}")));
    }
    if let Some(layer) = hidden.iter().find(|layer| **layer >= config.num_hidden_layers) {
        let layers = config.num_hidden_layers;
        return Err(Error::Request(format!("--hidden {layer}: the model has layers 0 to {}", layers - 1)));
    }

    let max_rows = chunk.clamp(1, ids.len());
    let target = Target::load(backend, config, &model.weights, max_rows, |_| {})?;
    let sequence = backend.sequence(&SequenceSpec {
        context: ids.len(),
        max_rows,
        target: target.attention(),
        draft: Vec::new(),
    })?;
    let (rows, accepted) = (backend.rows(max_rows)?, backend.rows(max_rows)?);
    let chunk_logits = backend.tensor(max_rows, vocab)?;
    let taps = hidden
        .iter()
        .map(|layer| Ok((*layer, Tap { out: backend.tensor(max_rows, width)?, column: 0 })))
        .collect::<Result<Vec<_>>>()?;

    backend.submit(Op::Begin {
        sequence,
        request: RequestSpec { sampling: Sampling::GREEDY, max_new_tokens: 1, stop_ids: Arc::from([]) },
    });
    let mut output =
        LogitsOutput { logits: Vec::new(), hidden: hidden.iter().map(|layer| (*layer, Vec::new())).collect() };
    for part in ids.chunks(max_rows) {
        backend.submit(Op::PromptRows { sequence, rows, ids: Arc::from(part) });
        target.forward(backend, &Forward { sequence, rows, emit: Emit::All, logits: chunk_logits, taps: &taps });
        backend.submit(Op::Walk { sequence, rows, accept: Accept::Prompt { logits: None } });
        backend.submit(Op::Commit { sequence, rows, features: None, accepted });
        backend.poll(sequence)?;
        let done = output.logits.len() / vocab;
        for ((layer, values), (_, tap)) in output.hidden.iter_mut().zip(&taps) {
            let chunk = backend.read_tensor(tap.out, part.len())?;
            check_finite(backend, &format!("output of layer {layer}"), done, &chunk, width)?;
            values.extend(chunk);
        }
        let chunk = backend.read_tensor(chunk_logits, part.len())?;
        check_finite(backend, "logits", done, &chunk, vocab)?;
        output.logits.extend(chunk);
    }
    Ok(output)
}

/// Fails unless all `values` `[tokens, width]`, those of tokens from `first` on, are finite.
fn check_finite(backend: &dyn Backend, what: &str, first: usize, values: &[f32], width: usize) -> Result<()> {
    let Some(at) = values.iter().position(|value| !value.is_finite()) else { return Ok(()) };
    let (token, index, value) = (first + at / width, at % width, values[at]);
    let message = format!("{what}: token {token} has {value} at index {index}, expected a number; {NOT_A_NUMBER}");
    Err(Error::Backend { backend: backend.name(), message })
}
