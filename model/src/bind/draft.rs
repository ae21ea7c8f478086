//! The tensors of a DFlash drafter by their published names, with or without `model.` before each.

use super::binder::{Binder, dim};
use super::{Binding, DraftLayerWeights, DraftWeights, SwigluWeights};
use crate::checkpoint::Checkpoint;
use crate::config::{DraftConfig, Quantization};
use crate::error::Result;

impl DraftWeights {
    /// Finds the tensors that `config` asks for and checks dtype and shape of each. Data is shared with the checkpoint,
    /// except for norms, which are expanded to f32.
    ///
    /// # Errors
    /// Tensors are missing, or one has another dtype or shape than the configuration asks for.
    pub fn bind(checkpoint: &Checkpoint, config: &DraftConfig) -> Result<Binding<Self>> {
        let mut binder = Binder::new(checkpoint, Quantization::None, "model.", "layers.");
        let hidden = dim(config.hidden_size, "hidden_size");
        let taps = dim(config.target_layer_ids.len() * config.hidden_size, "len(target_layer_ids) * hidden_size");
        let fc = binder.linear("fc", hidden, taps, "")?;
        let hidden_norm = binder.vector("hidden_norm.weight", hidden)?;
        let layers = (0..config.layer_windows.len()).map(|layer| bind_layer(&mut binder, config, layer));
        let layers = layers.collect::<Result<_>>()?;
        let norm = binder.vector("norm.weight", hidden)?;
        binder.finish(Self { fc, hidden_norm, layers, norm })
    }
}

fn bind_layer(binder: &mut Binder, config: &DraftConfig, layer: usize) -> Result<DraftLayerWeights> {
    let name = format!("layers.{layer}");
    let attention = format!("{name}.self_attn");
    let hidden = dim(config.hidden_size, "hidden_size");
    let inter = dim(config.intermediate_size, "intermediate_size");
    let head = dim(config.head_dim, "head_dim");
    let queries = dim(config.heads * config.head_dim, "num_attention_heads * head_dim");
    let keys = dim(config.kv_heads * config.head_dim, "num_key_value_heads * head_dim");
    Ok(DraftLayerWeights {
        input_norm: binder.vector(&format!("{name}.input_layernorm.weight"), hidden)?,
        q: binder.linear(&format!("{attention}.q_proj"), queries, hidden, "")?,
        k: binder.linear(&format!("{attention}.k_proj"), keys, hidden, "")?,
        v: binder.linear(&format!("{attention}.v_proj"), keys, hidden, "")?,
        q_norm: binder.vector(&format!("{attention}.q_norm.weight"), head)?,
        k_norm: binder.vector(&format!("{attention}.k_norm.weight"), head)?,
        o: binder.linear(&format!("{attention}.o_proj"), hidden, queries, "")?,
        post_norm: binder.vector(&format!("{name}.post_attention_layernorm.weight"), hidden)?,
        mlp: SwigluWeights::bind(binder, &format!("{name}.mlp"), hidden, inter)?,
    })
}
