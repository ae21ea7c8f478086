//! `logits`: logits and hidden states of given tokens to a safetensors file, for whoever doubts the model's arithmetic.

use std::collections::BTreeMap;
use std::path::PathBuf;

use coppice_model::config::ModelConfig;
use safetensors::tensor::{Dtype, TensorView};

use super::output::{self, ResultFile};
use super::validate::{LogitsArgs, Output};
use super::{Outcome, interrupt, model, prompt};
use crate::engine::{self, LogitsOutput};
use crate::error::{Error, Result};

/// Runs the command.
///
/// # Errors
/// Anything wrong with the files, the tokens, the layers or the device; values that are no numbers.
pub fn run(args: &LogitsArgs) -> Result<Outcome> {
    interrupt::install();
    let out = match &args.out {
        Output::Stdout => None,
        Output::File(path) => Some(ResultFile::open(path)?),
    };
    let ids = prompt::read_tokens(&args.tokens)?;
    let config = ModelConfig::load(&args.target)?;
    prompt::check(&ids, config.vocab_size)?;
    let (tokens, trained) = (ids.len(), config.max_position_embeddings);
    if tokens > trained {
        return Err(Error::Request(format!(
            "there are {tokens} tokens, expected at most the model's {trained} (max_position_embeddings): shorten them"
        )));
    }
    let target = model::target(&args.target)?;
    let mut backend = model::backend(args.device)?;
    let result = engine::logits(backend.as_mut(), &target, &ids, &args.hidden, model::PREFILL_CHUNK)
        .map_err(|error| error.of_model(&target.path))?;
    let file = serialize(args, tokens, &result)?;
    match out {
        Some(out) => out.write(&file)?,
        None => output::print_bytes(&file)?,
    }
    Ok(Outcome::Done)
}

fn serialize(args: &LogitsArgs, tokens: usize, result: &LogitsOutput) -> Result<Vec<u8>> {
    let unwritable = |error| Error::Content {
        path: match &args.out {
            Output::Stdout => PathBuf::from("standard output"),
            Output::File(path) => path.clone(),
        },
        message: format!("cannot be written as safetensors: {error}"),
    };
    let named = [("logits".to_owned(), &result.logits)]
        .into_iter()
        .chain(result.hidden.iter().map(|(layer, values)| (format!("hidden.{layer}"), values)));
    let tensors = named
        .map(|(name, values)| {
            let shape = vec![tokens, values.len() / tokens];
            TensorView::new(Dtype::F32, shape, bytemuck::cast_slice(values)).map(|view| (name, view))
        })
        .collect::<std::result::Result<BTreeMap<_, _>, _>>()
        .map_err(unwritable)?;
    safetensors::serialize(&tensors, None).map_err(unwritable)
}
