//! Reads the target's `config.json`, and ids and sampling defaults of its `generation_config.json`.

use std::collections::BTreeSet;
use std::path::Path;

use serde_json::json;

use super::section::{Section, parse_object};
use super::{AttentionConfig, GenerationDefaults, ModelConfig, MoeConfig};
use super::{generation, limits, quantization, rope};
use crate::error::Result;

/// Model types whose keys stand at the top of the file.
const FLAT: [&str; 2] = ["deepseek_v3", "kimi_k2"];
/// The model type whose keys stand under `text_config`.
const NESTED: &str = "kimi_k25";

impl ModelConfig {
    /// Reads the bytes of `config.json` (its `path` is for messages) and, where there is one, of `generation_config.json`.
    /// Every size is checked, so that code that trusts the result neither divides by zero nor overflows.
    ///
    /// # Errors
    /// The JSON is malformed, the model type is not supported, a key is missing, or a value is one that this program
    /// cannot honour.
    pub fn parse(path: &Path, config: &[u8], generation: Option<(&Path, &[u8])>) -> Result<Self> {
        let object = parse_object(path, config)?;
        let outer = Section::root(path, &object);
        let model_type = supported_type(&outer)?;
        let text = match model_type {
            NESTED => outer.section("text_config")?.ok_or_else(|| outer.unexpected("text_config", "an object"))?,
            _ => outer.clone(),
        };
        if model_type == NESTED && text.has("model_type") && supported_type(&text)? == NESTED {
            return Err(text.unexpected("model_type", "deepseek_v3 or kimi_k2"));
        }
        // Wrappers state some keys of the language model inside, some outside.
        let stating = |key: &str| if text.has(key) { &text } else { &outer };

        text.require("hidden_act", &[json!("silu")])?;
        text.require("attention_bias", &[json!(false)])?;
        let vocab_size = text.size("vocab_size", 1..=limits::VOCAB)?;
        let num_hidden_layers = text.size("num_hidden_layers", 1..=limits::LAYERS)?;
        let max_position_embeddings = text.size("max_position_embeddings", 1..=limits::POSITIONS)?;
        let (first_k_dense_replace, moe) = moe(&text, num_hidden_layers)?;

        let mut bos_token_id = stating("bos_token_id").token_id("bos_token_id", vocab_size)?;
        let mut eos_token_ids = BTreeSet::from_iter(text.token_ids("eos_token_id", vocab_size)?);
        eos_token_ids.extend(outer.token_ids("eos_token_id", vocab_size)?);
        let mut defaults = GenerationDefaults::default();
        if let Some((path, bytes)) = generation {
            let object = parse_object(path, bytes)?;
            let section = Section::root(path, &object);
            let bos = section.token_id("bos_token_id", vocab_size)?;
            bos_token_id = bos_token_id.or(bos);
            eos_token_ids.extend(section.token_ids("eos_token_id", vocab_size)?);
            defaults = generation::parse(&section)?;
        }
        Ok(Self {
            model_type: model_type.to_owned(),
            vocab_size,
            hidden_size: text.size("hidden_size", 1..=limits::WIDTH)?,
            num_hidden_layers,
            intermediate_size: text.size("intermediate_size", 1..=limits::WIDTH)?,
            first_k_dense_replace,
            moe,
            attention: attention(&text)?,
            rms_norm_eps: text.norm_eps()?,
            rope: rope::parse(&text, text.optional_flag("rope_interleave")?.unwrap_or(true), max_position_embeddings)?,
            max_position_embeddings,
            tie_word_embeddings: stating("tie_word_embeddings").optional_flag("tie_word_embeddings")?.unwrap_or(false),
            bos_token_id,
            eos_token_ids: eos_token_ids.into_iter().collect(),
            quantization: quantization::parse(stating("quantization_config").section("quantization_config")?)?,
            generation: defaults,
        })
    }
}

fn supported_type<'a>(section: &Section<'a>) -> Result<&'a str> {
    let found = section.text("model_type")?;
    let supported = |name: &&str| FLAT.contains(name) || *name == NESTED;
    let expected = || section.unexpected("model_type", format_args!("one of {}, {NESTED}", FLAT.join(", ")));
    found.filter(supported).ok_or_else(expected)
}

fn attention(text: &Section) -> Result<AttentionConfig> {
    let rope = text.size("qk_rope_head_dim", 2..=limits::HEAD_WIDTH)?;
    if !rope.is_multiple_of(2) {
        return Err(text.unexpected("qk_rope_head_dim", "an even number"));
    }
    Ok(AttentionConfig {
        heads: text.size("num_attention_heads", 1..=limits::HEADS)?,
        q_lora_rank: text.optional_size("q_lora_rank", 1..=limits::RANK)?,
        kv_lora_rank: text.size("kv_lora_rank", 1..=limits::RANK)?,
        nope: text.size("qk_nope_head_dim", 1..=limits::HEAD_WIDTH)?,
        rope,
        v: text.size("v_head_dim", 1..=limits::HEAD_WIDTH)?,
    })
}

/// `first_k_dense_replace`, which is all layers where there are no experts, and the experts.
fn moe(text: &Section, layers: usize) -> Result<(usize, Option<MoeConfig>)> {
    let Some(experts) = text.optional_size("n_routed_experts", 1..=limits::EXPERTS)? else { return Ok((layers, None)) };
    let first_k = text.size("first_k_dense_replace", 0..=limits::LAYERS)?;
    if first_k >= layers {
        return Ok((layers, None));
    }
    text.require("scoring_func", &[json!("sigmoid")])?;
    text.require("topk_method", &[json!("noaux_tc")])?;
    text.require("moe_layer_freq", &[json!(1)])?;

    let n_group = text.optional_size("n_group", 0..=experts)?.unwrap_or(0).max(1);
    if !experts.is_multiple_of(n_group) {
        return Err(text.unexpected("n_group", format_args!("a divisor of n_routed_experts {experts}")));
    }
    let topk_group = match n_group {
        1 => text.optional_size("topk_group", 0..=1)?.unwrap_or(1).max(1),
        _ => text.size("topk_group", 1..=n_group)?,
    };
    let in_kept_groups = experts / n_group * topk_group;
    Ok((
        first_k,
        Some(MoeConfig {
            n_routed_experts: experts,
            n_shared_experts: text.optional_size("n_shared_experts", 0..=limits::SHARED_EXPERTS)?.unwrap_or(0),
            moe_intermediate_size: text.size("moe_intermediate_size", 1..=limits::WIDTH)?,
            num_experts_per_tok: text.size("num_experts_per_tok", 1..=in_kept_groups)?,
            n_group,
            topk_group,
            norm_topk_prob: text.optional_flag("norm_topk_prob")?.unwrap_or(true),
            routed_scaling_factor: text.number(
                "routed_scaling_factor",
                |factor| factor > 0.0 && factor <= 1e6,
                "a number above 0, at most 1e6",
            )? as f32,
        }),
    ))
}
