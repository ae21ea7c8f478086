//! Reads the sampling defaults of `generation_config.json`.

use super::GenerationDefaults;
use super::limits;
use super::section::Section;
use crate::error::Result;

/// Greedy unless `do_sample` is true, as for Hugging Face; then absent keys leave the distribution as it is.
pub(super) fn parse(config: &Section) -> Result<GenerationDefaults> {
    if !config.optional_flag("do_sample")?.unwrap_or(false) {
        return Ok(GenerationDefaults::default());
    }
    let temperature =
        config.optional_number("temperature", |t| (0.0..=100.0).contains(&t), "a number from 0 to 100")?;
    let top_p = config.optional_number("top_p", |p| p > 0.0 && p <= 1.0, "a number above 0, at most 1")?;
    let min_p = config.optional_number("min_p", |p| (0.0..=1.0).contains(&p), "a number from 0 to 1")?;
    Ok(GenerationDefaults {
        temperature: temperature.unwrap_or(1.0) as f32,
        top_k: config.optional_size("top_k", 0..=limits::VOCAB)?.unwrap_or(0),
        top_p: top_p.unwrap_or(1.0) as f32,
        min_p: min_p.unwrap_or(0.0) as f32,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};
    use std::path::Path;

    fn generation(value: &Value) -> Result<GenerationDefaults> {
        parse(&Section::root(Path::new("generation_config.json"), value.as_object().unwrap()))
    }

    #[test]
    fn greedy_unless_do_sample_is_true() {
        let greedy = GenerationDefaults { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0 };
        for value in
            [json!({}), json!({"temperature": 0.6}), json!({"do_sample": false, "temperature": 0.6, "top_k": 4})]
        {
            assert_eq!(generation(&value).unwrap(), greedy, "{value}");
        }
    }

    #[test]
    fn sampling_keys_are_read_and_absent_ones_are_off() {
        let all = json!({"do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.05});
        let expected = GenerationDefaults { temperature: 0.6, top_k: 20, top_p: 0.95, min_p: 0.05 };
        assert_eq!(generation(&all).unwrap(), expected);
        let off = GenerationDefaults { temperature: 1.0, top_k: 0, top_p: 1.0, min_p: 0.0 };
        assert_eq!(generation(&json!({"do_sample": true, "top_p": null})).unwrap(), off);
    }

    #[test]
    fn values_out_of_range_are_errors() {
        for (key, value) in [
            ("temperature", json!(-0.1)),
            ("temperature", json!("hot")),
            ("top_p", json!(0)),
            ("top_p", json!(1.5)),
            ("min_p", json!(2)),
            ("top_k", json!(-1)),
            ("top_k", json!(2.5)),
        ] {
            let message = generation(&json!({"do_sample": true, key: value})).unwrap_err().to_string();
            assert!(message.contains(&format!("{key} is {value}, expected")), "{message}");
        }
        assert!(generation(&json!({"do_sample": 1})).is_err());
    }
}
