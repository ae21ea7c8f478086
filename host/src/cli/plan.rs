//! What a generation needs to know before a weight is read: configuration, prompt, context.

use coppice_model::Error as ModelError;
use coppice_model::Source;
use coppice_model::config::{DraftConfig, ModelConfig};
use coppice_model::tokenizer::Tokenizer;

use super::validate::{Length, RequestArgs};
use super::{messages, model, prompt};
use crate::draft::ngram;
use crate::engine::{Request, SessionOptions, Speculation};
use crate::error::{Error, Result};

/// A generation that has been found possible, as far as can be known without weights.
pub struct Plan {
    /// The target's tokenizer, if it has one.
    pub tokenizer: Option<Tokenizer>,
    /// Stop strings.
    pub stops: Vec<String>,
    /// What to generate.
    pub request: Request,
    /// Sizes of the session.
    pub options: SessionOptions,
    drafter: Option<DraftConfig>,
}

impl Plan {
    /// Reads everything but the weights.
    ///
    /// # Errors
    /// A file is absent or wrong, drafter and target do not fit, a flag is out of range, or the prompt does not fit the
    /// context.
    pub fn new(args: &RequestArgs) -> Result<Self> {
        args.idle.iter().for_each(|reason| messages::warning(reason));
        let config = ModelConfig::load(&args.target)?;
        let drafter = args.draft.as_ref().map(|source| drafter(source, &config)).transpose()?;
        let sampling = args.sampling.over(&config.generation)?;
        let tokenizer = model::tokenizer(&args.target, &config)?;
        if tokenizer.is_none() && !args.stops.is_empty() {
            let model = args.target.path().display();
            return Err(Error::Usage(format!("--stop needs text, but {model} has no tokenizer: leave it out")));
        }
        let prompt = prompt::ids(&args.prompt, &args.template, &args.target, tokenizer.as_ref())?;
        prompt::check(&prompt, config.vocab_size)?;
        let speculation = args.spec.resolve(drafter.as_ref());
        let max_tokens = match args.length {
            Length::Tokens(tokens) => tokens,
            // The prompt's last token gives the first one, outside all rounds.
            Length::Rounds(rounds) => {
                rounds.saturating_mul(deepest(speculation, drafter.as_ref()) + 1).saturating_add(1)
            }
        };
        let context = context(prompt.len(), max_tokens, args.ctx, config.max_position_embeddings)?;
        Ok(Self {
            tokenizer,
            stops: args.stops.clone(),
            request: Request {
                prompt,
                max_new_tokens: max_tokens,
                sampling,
                speculation,
                eos_ids: if args.ignore_eos { Vec::new() } else { config.eos_token_ids },
            },
            options: SessionOptions {
                context,
                prefill_chunk: model::PREFILL_CHUNK,
                max_budget: speculation.budget(),
                dflash: args.dflash,
            },
            drafter,
        })
    }

    /// The deepest tree that a drafter can make; 0 where the mode uses none.
    pub fn depths(&self) -> usize {
        block_depths(self.drafter.as_ref()).min(self.options.max_budget)
    }
}

/// Tokens that a block of the drafter predicts.
fn block_depths(drafter: Option<&DraftConfig>) -> usize {
    drafter.map_or(0, |drafter| drafter.block_size.saturating_sub(1))
}

/// The deepest tree that a round can have.
fn deepest(speculation: Speculation, drafter: Option<&DraftConfig>) -> usize {
    let depths = if speculation.needs_drafter() { block_depths(drafter) } else { ngram::MAX_DEPTH };
    depths.min(speculation.budget())
}

fn drafter(source: &Source, target: &ModelConfig) -> Result<DraftConfig> {
    let config = DraftConfig::load(source)?;
    config.check_against(target).map_err(|error| match error {
        ModelError::Config { message, .. } => ModelError::Config { path: source.path().join("config.json"), message },
        other => other,
    })?;
    Ok(config)
}

/// Tokens that prompt and answer may take together: what they need, within `--ctx` and what the model was trained for.
fn context(prompt: usize, max_tokens: usize, ctx: Option<usize>, trained: usize) -> Result<usize> {
    if let Some(ctx) = ctx.filter(|ctx| *ctx > trained) {
        return Err(Error::Request(format!(
            "--ctx is {ctx}, expected at most the model's {trained} (max_position_embeddings)"
        )));
    }
    let limit = ctx.unwrap_or(trained);
    if prompt >= limit {
        let remedy = if limit < trained { "shorten it or raise --ctx" } else { "shorten it" };
        return Err(Error::Request(format!(
            "the prompt has {prompt} tokens, expected fewer than the context of {limit}, so that there is room for an \
             answer: {remedy}"
        )));
    }
    Ok(prompt.saturating_add(max_tokens).min(limit))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_context_is_what_is_needed_within_the_limits() {
        let cases = [
            ((10, 20, None, 2048), Ok(30)),
            ((10, 4000, None, 2048), Ok(2048)),
            ((10, 20, Some(25), 2048), Ok(25)),
            ((10, 20, Some(2048), 2048), Ok(30)),
            ((10, usize::MAX, Some(11), 2048), Ok(11)),
            ((10, 20, Some(10), 2048), Err("the prompt has 10 tokens, expected fewer than the context of 10")),
            ((2048, 1, None, 2048), Err("the prompt has 2048 tokens, expected fewer than the context of 2048")),
            ((10, 20, Some(4096), 2048), Err("--ctx is 4096, expected at most the model's 2048")),
        ];
        let mut failed = Vec::new();
        for ((prompt, max_tokens, ctx, trained), want) in cases {
            let got = context(prompt, max_tokens, ctx, trained).map_err(|error| error.to_string());
            let right = match (&got, want) {
                (Ok(got), Ok(want)) => *got == want,
                (Err(got), Err(want)) => got.starts_with(want),
                _ => false,
            };
            if !right {
                failed.push(format!("{prompt} + {max_tokens} in {ctx:?} of {trained}: {got:?}, expected {want:?}"));
            }
        }
        assert!(failed.is_empty(), "{failed:#?}");
    }
}
