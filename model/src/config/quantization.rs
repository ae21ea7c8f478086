//! Reads `quantization_config`: block fp8 as DeepSeek writes it, and group int4 as compressed-tensors does.

use serde_json::{Value, json};

use super::Quantization;
use super::limits;
use super::section::Section;
use crate::error::Result;

/// Words of packed int4 hold this many columns.
const COLUMNS_PER_WORD: usize = 8;

/// How the checkpoint that `config` (the value of `quantization_config`) describes is stored.
pub(super) fn parse(config: Option<Section>) -> Result<Quantization> {
    let Some(config) = config else { return Ok(Quantization::None) };
    match config.text("quant_method")? {
        Some("fp8") => fp8(&config),
        Some("compressed-tensors") => int4(&config),
        _ => Err(config.unexpected("quant_method", r#""fp8" or "compressed-tensors" (others are not supported)"#)),
    }
}

fn fp8(config: &Section) -> Result<Quantization> {
    config.require("fmt", &[json!("e4m3")])?;
    let expected = || config.unexpected("weight_block_size", "[rows, columns] of a block, each above 0");
    let sizes = config.array("weight_block_size")?.ok_or_else(expected)?;
    let size = |value: &Value| {
        let size = value.as_u64().and_then(|size| usize::try_from(size).ok());
        size.filter(|size| (1..=limits::WIDTH).contains(size)).ok_or_else(expected)
    };
    match sizes {
        [rows, columns] => Ok(Quantization::Fp8Block([size(rows)?, size(columns)?])),
        _ => Err(expected()),
    }
}

fn int4(config: &Section) -> Result<Quantization> {
    let groups = config.section("config_groups")?.map_or(Ok(Vec::new()), |groups| groups.sections())?;
    let mut found = None;
    for group in groups {
        let format = if group.has("format") { &group } else { config };
        if format.text("format")? != Some("pack-quantized") {
            return Err(format.unexpected("format", r#""pack-quantized" (others are not supported)"#));
        }
        if group.has("input_activations") {
            return Err(group.unexpected("input_activations", "null (quantized activations are not supported)"));
        }
        let weights = group.section("weights")?.ok_or_else(|| group.unexpected("weights", "an object"))?;
        for (key, supported) in
            [("num_bits", json!(4)), ("type", json!("int")), ("symmetric", json!(true)), ("strategy", json!("group"))]
        {
            if weights.get(key) != Some(&supported) {
                return Err(weights.unexpected(key, format_args!("{supported} (others are not supported)")));
            }
        }
        // Of the activation orders, only these keep the columns in place.
        weights.require("actorder", &[json!(false), json!("static"), json!("weight")])?;
        let size = weights.size("group_size", 1..=limits::WIDTH)?;
        if !size.is_multiple_of(COLUMNS_PER_WORD) {
            return Err(weights.unexpected("group_size", format_args!("a multiple of {COLUMNS_PER_WORD}")));
        }
        if found.is_some_and(|found| found != size) {
            return Err(weights.unexpected("group_size", "the same in all config_groups"));
        }
        found = Some(size);
    }
    found.map(Quantization::Int4Group).ok_or_else(|| config.unexpected("config_groups", "at least one group"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn quantization(value: &Value) -> Result<Quantization> {
        parse(Some(Section::root(Path::new("config.json"), value.as_object().unwrap())))
    }

    fn int4_config() -> Value {
        json!({"quant_method": "compressed-tensors", "format": "pack-quantized", "config_groups": {"group_0": {
            "targets": ["Linear"], "input_activations": null, "weights": {"num_bits": 4, "type": "int",
            "symmetric": true, "strategy": "group", "group_size": 32, "actorder": null}}}})
    }

    #[test]
    fn the_supported_forms_are_read() {
        assert_eq!(parse(None).unwrap(), Quantization::None);
        let fp8 = json!({"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [128, 64]});
        assert_eq!(quantization(&fp8).unwrap(), Quantization::Fp8Block([128, 64]));
        assert_eq!(quantization(&int4_config()).unwrap(), Quantization::Int4Group(32));
    }

    #[test]
    fn anything_else_is_an_error_that_names_what_was_found() {
        let changed = |pointer: &str, value: Value| {
            let mut config = int4_config();
            *config.pointer_mut(pointer).unwrap() = value;
            config
        };
        let cases = [
            (json!({"quant_method": "gptq"}), r#"quant_method is "gptq""#),
            (json!({}), "quant_method is missing"),
            (json!({"quant_method": "fp8"}), "weight_block_size is missing"),
            (json!({"quant_method": "fp8", "fmt": "e5m2", "weight_block_size": [1, 1]}), r#"fmt is "e5m2""#),
            (json!({"quant_method": "fp8", "weight_block_size": [128]}), "weight_block_size is [128]"),
            (json!({"quant_method": "fp8", "weight_block_size": [0, 128]}), "weight_block_size is [0,128]"),
            (changed("/format", json!("marlin-24")), r#"format is "marlin-24""#),
            (changed("/config_groups", json!({})), "config_groups is {}"),
            (changed("/config_groups/group_0/weights/num_bits", json!(8)), "group_0.weights.num_bits is 8, expected 4"),
            (changed("/config_groups/group_0/weights/type", json!("float")), r#"type is "float", expected "int""#),
            (changed("/config_groups/group_0/weights/symmetric", json!(false)), "symmetric is false"),
            (changed("/config_groups/group_0/weights/strategy", json!("channel")), r#"strategy is "channel""#),
            (changed("/config_groups/group_0/weights/actorder", json!("group")), r#"actorder is "group""#),
            (changed("/config_groups/group_0/weights/group_size", json!(0)), "group_size is 0"),
            (
                changed("/config_groups/group_0/weights/group_size", json!(20)),
                "group_size is 20, expected a multiple of 8",
            ),
            (changed("/config_groups/group_0/input_activations", json!({})), "input_activations is {}"),
            (changed("/config_groups/group_0/weights", json!(null)), "group_0.weights is missing"),
        ];
        for (value, expected) in cases {
            let message = quantization(&value).unwrap_err().to_string();
            assert!(message.contains(expected), "{value}: {message}");
        }
    }
}
