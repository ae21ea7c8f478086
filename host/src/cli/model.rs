//! What the commands share about models and machines: the files around the weights, and backends.

use coppice_model::Source;
use coppice_model::chat::ChatTemplate;

use super::args::Device;
use super::validate::DeviceArgs;
use crate::backend::Backend;
use crate::backend::cpu::Cpu;
use crate::backend::deferred::Deferred;
use crate::error::Result;

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// Rounds that the deferred backend is asked to have under way: more than one, so that a step which needs a value of the
/// round before cannot work.
const DEFERRED_DEPTH: usize = 2;

/// Prompt tokens a forward pass takes: enough that reading the weights is no longer what it waits for, few enough that
/// Ctrl-C is heard in time.
pub const PREFILL_CHUNK: usize = 64;

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
    let cpu = Cpu::new(args.threads);
    Ok(match args.device {
        Device::Auto | Device::Cpu => Box::new(cpu),
        Device::Deferred => Box::new(Deferred::new(cpu, DEFERRED_DEPTH)),
    })
}
