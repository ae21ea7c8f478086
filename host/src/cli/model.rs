//! What the commands share about models and machines: the files around the weights, and backends.

use std::sync::Arc;

use coppice_model::chat::ChatTemplate;
use coppice_model::config::ModelConfig;
use coppice_model::tokenizer::Tokenizer;
use coppice_model::{Source, TargetModel};

use super::args::Device;
use super::messages;
use super::validate::DeviceArgs;
use crate::backend::cpu::Cpu;
use crate::backend::deferred::Deferred;
use crate::backend::{Backend, Meter};
use crate::error::Result;

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// Rounds that the deferred backend is asked to have under way: more than one, so that a step which needs a value of the
/// round before cannot work.
const DEFERRED_DEPTH: usize = 2;

/// Prompt tokens a forward pass takes: enough that reading the weights is no longer what it waits for, few enough that
/// Ctrl-C is heard in time.
pub const PREFILL_CHUNK: usize = 64;

/// The model and its weights, with a warning of what its checkpoint holds and its configuration does not know.
///
/// # Errors
/// Anything wrong with the files.
pub fn target(source: &Source) -> Result<TargetModel> {
    let model = TargetModel::load(source)?;
    model.suspicions().iter().for_each(|suspicion| messages::warning(suspicion));
    Ok(model)
}

/// The model's tokenizer, if it has one, with a warning if it has ids that the model does not know.
///
/// # Errors
/// Its files cannot be read or used.
pub fn tokenizer(source: &Source, config: &ModelConfig) -> Result<Option<Tokenizer>> {
    let tokenizer = Tokenizer::load(source)?;
    if let Some(tokenizer) = &tokenizer
        && let Some(mismatch) = tokenizer.beyond(config.vocab_size)
    {
        messages::warning(&mismatch);
    }
    Ok(tokenizer)
}

/// The model's chat template, if it has one.
///
/// # Errors
/// Its files cannot be read or used.
pub fn chat_template(source: &Source) -> Result<Option<ChatTemplate>> {
    let template = source.read("chat_template.jinja")?;
    let template = template.as_ref().map(|(path, bytes)| (path.as_path(), &**bytes));
    let config = source.read(TOKENIZER_CONFIG)?;
    let config = config.as_ref().map(|(path, bytes)| (path.as_path(), &**bytes));
    Ok(ChatTemplate::from_files(template, config)?)
}

/// The backend asked for.
///
/// # Errors
/// The device cannot be used.
pub fn backend(args: DeviceArgs) -> Result<Box<dyn Backend>> {
    Ok(on(args, Cpu::new(args.threads)))
}

/// The backend asked for, and what takes note of its rounds.
///
/// # Errors
/// The device cannot be used.
pub fn metered_backend(args: DeviceArgs, meter: Arc<Meter>) -> Result<Box<dyn Backend>> {
    Ok(on(args, Cpu::new(args.threads).with_meter(meter)))
}

fn on(args: DeviceArgs, cpu: Cpu) -> Box<dyn Backend> {
    match args.device {
        Device::Auto | Device::Cpu => Box::new(cpu),
        Device::Deferred => Box::new(Deferred::new(cpu, DEFERRED_DEPTH)),
    }
}
