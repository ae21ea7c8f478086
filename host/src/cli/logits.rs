//! `logits`: logits and hidden states of given tokens to a safetensors file, for whoever doubts the model's arithmetic.

use std::collections::BTreeMap;

use coppice_model::TargetModel;
use coppice_model::config::ModelConfig;
use safetensors::tensor::{Dtype, TensorView};

use super::validate::LogitsArgs;
use super::{Outcome, model, output, prompt};
use crate::engine;
use crate::error::{Error, Result};

/// Runs the command.
///
/// # Errors
/// Anything wrong with the files, the tokens, the layers or the device.
pub fn run(args: &LogitsArgs) -> Result<Outcome> {
    let ids = prompt::read_tokens(&args.tokens)?;
    let config = ModelConfig::load(&args.target)?;
    prompt::check(&ids, config.vocab_size)?;
    let target = TargetModel::load(&args.target)?;
    let mut backend = model::backend(args.device)?;
    let result = engine::logits(backend.as_mut(), &target, &ids, &args.hidden, model::PREFILL_CHUNK)?;

    let named = [("logits".to_owned(), &result.logits)]
        .into_iter()
        .chain(result.hidden.iter().map(|(layer, values)| (format!("hidden.{layer}"), values)));
    let tensors = named
        .map(|(name, values)| {
            let shape = vec![ids.len(), values.len() / ids.len()];
            TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(values)).map(|view| (name, view))
        })
        .collect::<std::result::Result<BTreeMap<_, _>, _>>()
        .map_err(unwritable(args))?;
    let file = safetensors::serialize(&tensors, None).map_err(unwritable(args))?;
    output::write(&file, &args.out)?;
    Ok(Outcome::Done)
}

fn unwritable(args: &LogitsArgs) -> impl Fn(safetensors::SafeTensorError) -> Error {
    |error| Error::Content { path: args.out.clone(), message: format!("cannot be written as safetensors: {error}") }
}
