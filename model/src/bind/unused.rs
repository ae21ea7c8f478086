//! Tensors of a target's checkpoint that no role uses: what they are, and which of them hint at a mistake.

use std::collections::BTreeMap;

/// In every multi-token-prediction layer (`num_nextn_predict_layers` of DeepSeek-V3), and in no other.
const PREDICTION: &str = "eh_proj.weight";

/// Rotary frequencies, which old files store and every program computes.
const FREQUENCIES: &str = "rotary_emb.inv_freq";

/// A layer and the number of its tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LayerTensors {
    /// The layer.
    pub layer: usize,
    /// Its tensors.
    pub count: usize,
}

/// Unused tensors by what they are.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct UnusedTensors<'a> {
    /// Multi-token-prediction layers, which follow the decoder layers and are not needed.
    pub prediction_layers: Vec<LayerTensors>,
    /// Decoder layers beyond those of the configuration.
    pub surplus_layers: Vec<LayerTensors>,
    /// Tensors within the layers of the configuration that it has no use for.
    pub in_layers: Vec<&'a str>,
    /// All others: of the vision tower, say.
    pub others: Vec<&'a str>,
}

impl<'a> UnusedTensors<'a> {
    /// Of the tensors `names` and a configuration of `layers` decoder layers.
    pub fn new(names: &'a [String], layers: usize) -> Self {
        let mut unused = Self::default();
        let mut beyond = BTreeMap::<usize, (usize, bool)>::new();
        for name in names {
            match layer_of(name) {
                Some((layer, tensor)) if layer >= layers => {
                    let (count, predicts) = beyond.entry(layer).or_default();
                    *count += 1;
                    *predicts |= tensor == PREDICTION;
                }
                Some((_, tensor)) if !tensor.ends_with(FREQUENCIES) => unused.in_layers.push(name),
                Some(_) | None => unused.others.push(name),
            }
        }
        for (layer, (count, predicts)) in beyond {
            let kind = if predicts { &mut unused.prediction_layers } else { &mut unused.surplus_layers };
            kind.push(LayerTensors { layer, count });
        }
        unused
    }

    /// What of them hints that configuration and checkpoint do not belong together, a message each. `layers` is the
    /// configuration's `num_hidden_layers`, `model` names the checkpoint.
    pub fn suspicions(&self, model: impl std::fmt::Display, layers: usize) -> Vec<String> {
        let surplus = (!self.surplus_layers.is_empty()).then(|| {
            let what = described(&self.surplus_layers);
            format!(
                "{model} has num_hidden_layers {layers} in config.json but holds decoder layers beyond, which are not \
                 used: {what}; does config.json belong to this checkpoint?"
            )
        });
        let stray = match self.in_layers.as_slice() {
            [] => None,
            [first, rest @ ..] => {
                let more = if rest.is_empty() { String::new() } else { format!(" and {} more", rest.len()) };
                Some(format!(
                    "{model} holds tensors of decoder layers that config.json has no use for: {first}{more}; does \
                     config.json belong to this checkpoint?"
                ))
            }
        };
        surplus.into_iter().chain(stray).collect()
    }
}

/// `model.layers.61 (9 tensors)`, or a range of layers and the sum of their tensors.
pub(crate) fn described(layers: &[LayerTensors]) -> String {
    let count: usize = layers.iter().map(|layer| layer.count).sum();
    match layers {
        [] => String::new(),
        [one] => format!("model.layers.{} ({count} tensors)", one.layer),
        [first, .., last] => format!("model.layers.{} to model.layers.{} ({count} tensors)", first.layer, last.layer),
    }
}

/// The layer of a decoder layer's tensor, and its name within the layer.
fn layer_of(name: &str) -> Option<(usize, &str)> {
    let name = name.strip_prefix("language_model.").unwrap_or(name).strip_prefix("model.layers.")?;
    let (layer, tensor) = name.split_once('.')?;
    Some((layer.parse().ok()?, tensor))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(names: &[&str]) -> Vec<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn layers_beyond_the_configuration_are_counted_and_prediction_layers_told_apart() {
        let names = owned(&[
            "language_model.model.layers.5.mlp.gate_proj.weight",
            "language_model.model.layers.5.self_attn.o_proj.weight",
            "language_model.model.layers.6.input_layernorm.weight",
            "language_model.model.layers.7.eh_proj.weight",
            "language_model.model.layers.7.self_attn.o_proj.weight",
            "vision_tower.patch.weight",
        ]);
        let unused = UnusedTensors::new(&names, 5);
        assert_eq!(unused.surplus_layers, [LayerTensors { layer: 5, count: 2 }, LayerTensors { layer: 6, count: 1 }]);
        assert_eq!(unused.prediction_layers, [LayerTensors { layer: 7, count: 2 }]);
        assert_eq!(unused.others, ["vision_tower.patch.weight"]);
        let suspicions = unused.suspicions("dir", 5);
        assert_eq!(
            suspicions,
            ["dir has num_hidden_layers 5 in config.json but holds decoder layers beyond, which are not used: \
              model.layers.5 to model.layers.6 (3 tensors); does config.json belong to this checkpoint?"]
        );
    }

    #[test]
    fn what_every_checkpoint_may_hold_is_not_suspicious_and_what_a_layer_holds_in_vain_is() {
        let fine = owned(&[
            "model.layers.0.self_attn.rotary_emb.inv_freq",
            "model.layers.61.eh_proj.weight",
            "model.layers.61.embed_tokens.weight",
            "vision_tower.patch.weight",
        ]);
        assert_eq!(UnusedTensors::new(&fine, 61).suspicions("dir", 61), [""; 0]);
        let stray = owned(&["model.layers.0.self_attn.q_proj.bias", "model.layers.1.self_attn.q_proj.bias"]);
        let unused = UnusedTensors::new(&stray, 61);
        assert_eq!(unused.in_layers.len(), 2);
        let suspicions = unused.suspicions("dir", 61);
        assert_eq!(
            suspicions,
            ["dir holds tensors of decoder layers that config.json has no use for: \
              model.layers.0.self_attn.q_proj.bias and 1 more; does config.json belong to this checkpoint?"]
        );
    }
}
