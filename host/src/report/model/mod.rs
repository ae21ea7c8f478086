//! A checkpoint as `inspect` describes it.

mod config;
mod memory;
mod parameters;
mod tensors;

use std::path::Path;

use coppice_model::bind::UnusedTensors;
use coppice_model::checkpoint::Checkpoint;
use coppice_model::config::{DraftConfig, ModelConfig};
use coppice_model::{DraftModel, TargetModel};
use serde::Serialize;
use serde_json::{Map, Value};

pub use memory::MemoryAtContext;
pub use parameters::Parameters;
pub use tensors::{Role, TensorGroup};

use crate::engine::SessionOptions;
use crate::error::Result;

/// One checkpoint.
#[derive(Debug, Clone, Serialize)]
pub struct ModelReport {
    /// Its folder, or the embedded model's name.
    pub path: String,
    /// `target` or `drafter`.
    pub kind: &'static str,
    /// Differs between checkpoints.
    pub fingerprint: String,
    /// Of all tensors' data.
    pub bytes: u64,
    /// How many there are; null where tensors are missing.
    pub parameters: Option<Parameters>,
    /// What it takes on the CPU; null where tensors are missing, and for a drafter whose context nobody named.
    pub memory: Option<MemoryAtContext>,
    /// What the configuration says, by the keys of config.json where they have one.
    pub config: Map<String, Value>,
    /// Tensors that differ in nothing but numbers in their names, in the order of their roles.
    pub tensors: Vec<TensorGroup>,
    /// Tensors that the model does not use.
    pub unused: Vec<String>,
    /// Layers for predicting further tokens (`num_nextn_predict_layers`), which the model does not use.
    pub unused_prediction_layers: Vec<usize>,
    /// Tensors that the configuration asks for and the checkpoint lacks.
    pub missing: Vec<String>,
    /// What hints at files that do not belong together.
    pub warnings: Vec<String>,
}

/// Tensors that were not found, and those that nothing asked for.
#[derive(Debug, Clone, Default)]
pub struct Unbound {
    /// Not found.
    pub missing: Vec<String>,
    /// Not asked for.
    pub unused: Vec<String>,
}

impl ModelReport {
    /// Of a target and the checkpoint it was bound from, in a session of the given sizes.
    ///
    /// # Errors
    /// None but faults of the program.
    pub fn target(model: &TargetModel, checkpoint: &Checkpoint, options: SessionOptions) -> Result<Self> {
        let unbound = Unbound { missing: Vec::new(), unused: model.unused.clone() };
        Ok(Self {
            parameters: Some(parameters::target_parameters(&model.weights, &model.config)),
            memory: Some(MemoryAtContext::of_target(model, options)?),
            warnings: model.suspicions(),
            ..Self::incomplete_target(&model.path, &model.config, checkpoint, unbound)
        })
    }

    /// Of a target that lacks tensors.
    pub fn incomplete_target(path: &Path, config: &ModelConfig, checkpoint: &Checkpoint, unbound: Unbound) -> Self {
        let layers = UnusedTensors::new(&unbound.unused, config.num_hidden_layers).prediction_layers;
        let unused_prediction_layers = layers.iter().map(|layer| layer.layer).collect();
        let config = config::target_config(config);
        Self { kind: "target", config, unused_prediction_layers, ..Self::unbound(path, checkpoint, unbound) }
    }

    /// Of a drafter and the checkpoint it was bound from, in a session of the given sizes if there is one.
    ///
    /// # Errors
    /// None but faults of the program.
    pub fn drafter(model: &DraftModel, checkpoint: &Checkpoint, options: Option<SessionOptions>) -> Result<Self> {
        let unbound = Unbound { missing: Vec::new(), unused: model.unused.clone() };
        Ok(Self {
            parameters: Some(parameters::draft_parameters(&model.weights)),
            memory: options.map(|options| MemoryAtContext::of_drafter(model, options)).transpose()?,
            ..Self::incomplete_drafter(&model.path, &model.config, checkpoint, unbound)
        })
    }

    /// Of a drafter that lacks tensors.
    pub fn incomplete_drafter(path: &Path, config: &DraftConfig, checkpoint: &Checkpoint, unbound: Unbound) -> Self {
        Self { kind: "drafter", config: config::draft_config(config), ..Self::unbound(path, checkpoint, unbound) }
    }

    /// What is known of any checkpoint.
    fn unbound(path: &Path, checkpoint: &Checkpoint, unbound: Unbound) -> Self {
        Self {
            path: path.display().to_string(),
            kind: "",
            fingerprint: checkpoint.fingerprint(),
            bytes: checkpoint.total_bytes(),
            parameters: None,
            memory: None,
            config: Map::new(),
            tensors: tensors::groups(checkpoint, &unbound.unused),
            unused: unbound.unused,
            unused_prediction_layers: Vec::new(),
            missing: unbound.missing,
            warnings: Vec::new(),
        }
    }
}

#[cfg(test)]
#[cfg(feature = "embedded-model")]
mod tests {
    use super::*;
    use crate::draft::DflashOptions;

    #[test]
    fn the_embedded_models_parameters_are_counted_once_each() {
        let source = coppice_model::Source::EmbeddedTarget;
        let model = TargetModel::load(&source).unwrap();
        let options =
            SessionOptions { context: 64, prefill_chunk: 64, max_budget: 16, dflash: DflashOptions::default() };
        let report = ModelReport::target(&model, &source.checkpoint().unwrap(), options).unwrap();
        // 5 MoE layers of 16 experts, 4 of them chosen, of 3 matrices 160 x 256.
        let idle = 5 * 12 * 3 * 160 * 256;
        let parameters = report.parameters.unwrap();
        assert_eq!(parameters.total - parameters.active, idle);
        let stored: u64 = report.tensors.iter().map(|group| group.bytes).sum();
        assert_eq!(stored, report.bytes);
        assert_eq!((report.unused.len(), report.missing.len(), report.warnings.len()), (0, 0, 0));
    }
}
