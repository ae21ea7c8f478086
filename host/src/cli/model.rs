//! What the commands share about models and machines: the files around the weights, and backends.

use std::sync::Arc;

use coppice_model::chat::ChatTemplate;
use coppice_model::config::ModelConfig;
use coppice_model::tokenizer::Tokenizer;
use coppice_model::{DraftModel, Source, TargetModel};

use super::args::Device;
use super::messages;
use super::progress::Progress;
use super::validate::DeviceArgs;
use crate::backend::cpu::Cpu;
use crate::backend::cuda::{self, Cuda};
use crate::backend::deferred::Deferred;
use crate::backend::{Backend, MemoryUse, Meter};
use crate::engine::{Session, SessionOptions};
use crate::error::Result;

const TOKENIZER_CONFIG: &str = "tokenizer_config.json";

/// Rounds that the deferred backend is asked to have under way: more than one, so that a step which needs a value of the
/// round before cannot work.
const DEFERRED_DEPTH: usize = 2;

/// Schedule of the simulator.
const SIMULATOR_SEED: u64 = 0;

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

/// The backend asked for. `size` puts the model on a backend that only counts, and says what it counted: a GPU that has
/// not that much is refused before anything is loaded.
///
/// # Errors
/// The device cannot be used, or has too little memory.
pub fn backend(args: DeviceArgs, size: impl FnOnce(Box<dyn Backend>) -> Result<MemoryUse>) -> Result<Box<dyn Backend>> {
    on(args, Cpu::new(args.threads), size)
}

/// A session of `target` and `drafter` on the backend asked for, with a progress bar. `meter` takes note of its rounds, where
/// it runs on the CPU.
///
/// # Errors
/// Anything wrong with the files or the device.
pub fn session(
    args: DeviceArgs,
    meter: Option<Arc<Meter>>,
    target: &TargetModel,
    drafter: Option<&DraftModel>,
    options: SessionOptions,
) -> Result<Session> {
    let cpu = Cpu::new(args.threads);
    let cpu = match meter {
        Some(meter) => cpu.with_meter(meter),
        None => cpu,
    };
    let backend = on(args, cpu, |tally| Ok(Session::new(tally, target, drafter, options, |_, _| {})?.memory()))?;
    let mut bar = Progress::new("loading", "layers");
    Session::new(backend, target, drafter, options, |n, total| bar.set(n, total))
}

fn on(
    args: DeviceArgs,
    cpu: Cpu,
    size: impl FnOnce(Box<dyn Backend>) -> Result<MemoryUse>,
) -> Result<Box<dyn Backend>> {
    Ok(match args.device {
        Device::Auto | Device::Cpu => Box::new(cpu),
        Device::Deferred => Box::new(Deferred::new(cpu, DEFERRED_DEPTH)),
        Device::Simulator => Box::new(Cuda::simulated(SIMULATOR_SEED)),
        Device::Cuda(index) => {
            let cuda = Cuda::new(cuda::Device::open(index)?);
            cuda.preflight(&size(Box::new(cuda.tally()?))?)?;
            Box::new(cuda)
        }
    })
}
