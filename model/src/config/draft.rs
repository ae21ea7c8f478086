//! Reads a DFlash drafter's `config.json` and checks it against its target.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::section::{Section, parse_object};
use super::{DraftConfig, ModelConfig};
use super::{limits, rope};
use crate::error::{Error, Result};

impl DraftConfig {
    /// Reads the bytes of a drafter's `config.json`; its `path` is for messages. `block_size`, `mask_token_id` and
    /// `target_layer_ids` may stand under `dflash_config` or at the top.
    ///
    /// # Errors
    /// The JSON is malformed, a key is missing, or a value is one that this program cannot honour. Missing
    /// `target_layer_ids` are never guessed: a wrong guess loads and drafts badly.
    pub fn parse(path: &Path, config: &[u8]) -> Result<Self> {
        let object = parse_object(path, config)?;
        let root = Section::root(path, &object);
        let nested = root.section("dflash_config")?;
        let stating = |key: &str| match &nested {
            Some(nested) if nested.has(key) => match root.get(key) {
                Some(top) if nested.get(key) != Some(top) => {
                    Err(root.unexpected(key, format_args!("the same as dflash_config.{key}")))
                }
                _ => Ok(nested),
            },
            _ => Ok(&root),
        };

        root.require("hidden_act", &[json!("silu")])?;
        root.require("attention_bias", &[json!(false)])?;
        let vocab_size = root.size("vocab_size", 1..=limits::VOCAB)?;
        let heads = root.size("num_attention_heads", 1..=limits::HEADS)?;
        let kv_heads = root.size("num_key_value_heads", 1..=heads)?;
        if !heads.is_multiple_of(kv_heads) {
            return Err(
                root.unexpected("num_key_value_heads", format_args!("a divisor of num_attention_heads {heads}"))
            );
        }
        let head_dim = root.size("head_dim", 2..=limits::HEAD_WIDTH)?;
        if !head_dim.is_multiple_of(2) {
            return Err(root.unexpected("head_dim", "an even number"));
        }
        let mask = stating("mask_token_id")?;
        let mask_token_id = mask
            .token_id("mask_token_id", vocab_size)?
            .ok_or_else(|| mask.unexpected("mask_token_id", "the token of the slots to predict"))?;
        let max_position_embeddings = root.size("max_position_embeddings", 1..=limits::POSITIONS)?;
        Ok(Self {
            hidden_size: root.size("hidden_size", 1..=limits::WIDTH)?,
            vocab_size,
            intermediate_size: root.size("intermediate_size", 1..=limits::WIDTH)?,
            layer_windows: layer_windows(&root)?,
            heads,
            kv_heads,
            head_dim,
            rms_norm_eps: root.norm_eps()?,
            rope: rope::parse(&root, false, max_position_embeddings)?,
            block_size: stating("block_size")?.size("block_size", 2..=limits::BLOCK)?,
            mask_token_id,
            target_layer_ids: target_layer_ids(&root, stating("target_layer_ids")?)?,
        })
    }

    /// Fails unless the drafter can run on `target`: it uses the target's embedding and lm_head, and taps its layers.
    ///
    /// # Errors
    /// Vocabulary or hidden sizes differ, or a tapped layer is not there; the message has both sizes. The config knows no
    /// path any more, so the error's path is the word `drafter`.
    pub fn check_against(&self, target: &ModelConfig) -> Result<()> {
        let error = |message| Err(Error::Config { path: PathBuf::from("drafter"), message });
        for (key, ours, theirs) in
            [("vocab_size", self.vocab_size, target.vocab_size), ("hidden_size", self.hidden_size, target.hidden_size)]
        {
            if ours != theirs {
                return error(format!(
                    "{key} is {ours}, expected the target's {theirs}: it was trained for another model"
                ));
            }
        }
        let layers = target.num_hidden_layers;
        match self.target_layer_ids.iter().find(|&&id| id >= layers) {
            Some(id) => error(format!("target_layer_ids has {id}, expected ids below the target's {layers} layers")),
            None => Ok(()),
        }
    }
}

fn target_layer_ids(root: &Section, stating: &Section) -> Result<Vec<usize>> {
    let layers = root.optional_size("num_target_layers", 1..=limits::LAYERS)?;
    let below = layers.unwrap_or(limits::LAYERS);
    let expected = || {
        let origin = if layers.is_some() { " (num_target_layers)" } else { "" };
        stating.unexpected("target_layer_ids", format_args!("a list of target layers below {below}{origin}"))
    };
    let values = stating.array("target_layer_ids")?.filter(|ids| (1..=limits::LAYERS).contains(&ids.len()));
    let id = |value: &Value| value.as_u64().and_then(|id| usize::try_from(id).ok()).filter(|&id| id < below);
    values.ok_or_else(expected)?.iter().map(|value| id(value).ok_or_else(expected)).collect()
}

/// The sliding window of each layer, by Qwen3's rules.
fn layer_windows(root: &Section) -> Result<Vec<Option<usize>>> {
    let layers = root.size("num_hidden_layers", 1..=limits::LAYERS)?;
    let window = || root.size("sliding_window", 1..=limits::POSITIONS);
    if let Some(types) = root.array("layer_types")? {
        let expected = |what: &str| root.unexpected("layer_types", what);
        if types.len() != layers {
            return Err(expected(&format!("an entry for each of num_hidden_layers {layers}")));
        }
        let of_type = |layer: &Value| match layer.as_str() {
            Some("full_attention") => Ok(None),
            Some("sliding_attention") => window().map(Some),
            _ => Err(expected(r#"entries "full_attention" or "sliding_attention" (others are not supported)"#)),
        };
        return types.iter().map(of_type).collect();
    }
    if !root.optional_flag("use_sliding_window")?.unwrap_or(false) {
        return Ok(vec![None; layers]);
    }
    let first = root.size("max_window_layers", 0..=limits::LAYERS)?;
    let window = window()?;
    Ok((0..layers).map(|layer| (layer >= first).then_some(window)).collect())
}
