//! A target or a drafter as a whole: configuration and bound weights from one source. Running it lives elsewhere.

use std::path::PathBuf;

use crate::bind::{Binding, DraftWeights, TargetWeights, UnusedTensors};
use crate::config::{DraftConfig, ModelConfig};
use crate::error::Result;
use crate::source::Source;

/// A model that generates text.
#[derive(Debug, Clone)]
pub struct TargetModel {
    /// Hyperparameters.
    pub config: ModelConfig,
    /// Weights by role.
    pub weights: TargetWeights,
    /// Tensors of the checkpoint that no role uses, ascending.
    pub unused: Vec<String>,
    /// Bytes of all tensors' data, the unused ones included.
    pub bytes: u64,
    /// [`crate::checkpoint::Checkpoint::fingerprint`].
    pub fingerprint: String,
    /// [`Source::path`].
    pub path: PathBuf,
}

/// A DFlash drafter.
#[derive(Debug, Clone)]
pub struct DraftModel {
    /// Hyperparameters.
    pub config: DraftConfig,
    /// Weights by role.
    pub weights: DraftWeights,
    /// Tensors of the checkpoint that no role uses, ascending.
    pub unused: Vec<String>,
    /// Bytes of all tensors' data, the unused ones included.
    pub bytes: u64,
    /// [`crate::checkpoint::Checkpoint::fingerprint`].
    pub fingerprint: String,
    /// [`Source::path`].
    pub path: PathBuf,
}

impl ModelConfig {
    /// Reads `config.json` and, where there is one, `generation_config.json`; no weights.
    ///
    /// # Errors
    /// A file is absent, unreadable, or fails [`ModelConfig::parse`].
    pub fn load(source: &Source) -> Result<Self> {
        let (path, config) = source.read_required("config.json")?;
        let generation = source.read("generation_config.json")?;
        Self::parse(&path, &config, generation.as_ref().map(|(path, bytes)| (path.as_path(), &**bytes)))
    }
}

impl DraftConfig {
    /// Reads `config.json`; no weights.
    ///
    /// # Errors
    /// The file is absent, unreadable, or fails [`DraftConfig::parse`].
    pub fn load(source: &Source) -> Result<Self> {
        let (path, config) = source.read_required("config.json")?;
        Self::parse(&path, &config)
    }
}

impl TargetModel {
    /// Reads the configuration and binds the weights, which stay in the files until they are touched.
    ///
    /// # Errors
    /// Anything wrong with the files, named in the message.
    pub fn load(source: &Source) -> Result<Self> {
        let config = ModelConfig::load(source)?;
        let checkpoint = source.checkpoint()?;
        let Binding { weights, unused } = TargetWeights::bind(&checkpoint, &config)?;
        let (bytes, fingerprint) = (checkpoint.total_bytes(), checkpoint.fingerprint());
        Ok(Self { config, weights, unused, bytes, fingerprint, path: source.path().to_owned() })
    }

    /// What hints that configuration and checkpoint do not belong together, a message each.
    pub fn suspicions(&self) -> Vec<String> {
        self.unused_tensors().suspicions(self.path.display(), self.config.num_hidden_layers)
    }

    /// What the tensors that no role uses are.
    pub fn unused_tensors(&self) -> UnusedTensors<'_> {
        UnusedTensors::new(&self.unused, self.config.num_hidden_layers)
    }
}

impl DraftModel {
    /// Reads the configuration and binds the weights. Whether it fits a target is [`DraftConfig::check_against`].
    ///
    /// # Errors
    /// Anything wrong with the files, named in the message.
    pub fn load(source: &Source) -> Result<Self> {
        let config = DraftConfig::load(source)?;
        let checkpoint = source.checkpoint()?;
        let Binding { weights, unused } = DraftWeights::bind(&checkpoint, &config)?;
        let (bytes, fingerprint) = (checkpoint.total_bytes(), checkpoint.fingerprint());
        Ok(Self { config, weights, unused, bytes, fingerprint, path: source.path().to_owned() })
    }
}
