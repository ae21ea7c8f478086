//! Reads the rotary embedding's keys, in the spelling `rope_parameters` and the older `rope_theta` with `rope_scaling`.

use serde_json::json;

use super::section::Section;
use super::{RopeConfig, YarnConfig};
use crate::error::Result;

const POSITIVE: &str = "a number above 0";

/// The rotary embedding of the model that `config` describes.
pub(super) fn parse(config: &Section, interleave: bool, max_position_embeddings: usize) -> Result<RopeConfig> {
    let spellings = [config.section("rope_parameters")?, config.section("rope_scaling")?];
    let spellings: Vec<&Section> = spellings.iter().flatten().collect();
    let stating = |key: &str| spellings.iter().find(|section| section.has(key)).copied().unwrap_or(config);

    let theta = stating("rope_theta").number("rope_theta", |theta| theta > 1.0, "a number above 1")?;
    for section in spellings.iter().copied().chain([config]) {
        let other = section.optional_number("rope_theta", |theta| theta > 1.0, "a number above 1")?;
        if let Some(other) = other.filter(|other| *other != theta) {
            return Err(config.error(format!(
                "{} is {theta} and {} is {other}, expected the same in both, or one of them",
                stating("rope_theta").key("rope_theta"),
                section.key("rope_theta")
            )));
        }
    }
    stating("partial_rotary_factor").require("partial_rotary_factor", &[json!(1), json!(1.0)])?;
    let yarns = spellings.iter().map(|section| yarn(section, max_position_embeddings)).collect::<Result<Vec<_>>>()?;
    if yarns.windows(2).any(|pair| pair[0] != pair[1]) {
        return Err(config.error("rope_parameters and rope_scaling disagree, expected one of them or the same in both"));
    }
    Ok(RopeConfig { theta, interleave, yarn: yarns.into_iter().next().flatten() })
}

/// YaRN, with Hugging Face's defaults; `None` for plain RoPE.
fn yarn(rope: &Section, max_position_embeddings: usize) -> Result<Option<YarnConfig>> {
    let key = if rope.has("rope_type") { "rope_type" } else { "type" };
    match rope.text(key)? {
        None if rope.has("factor") => {
            return Err(rope.unexpected("rope_type", r#""yarn" or "default" beside a factor"#));
        }
        None | Some("default") => return Ok(None),
        Some("yarn") => {}
        Some(_) => return Err(rope.unexpected(key, r#""default" or "yarn" (others are not supported)"#)),
    }
    rope.require("truncate", &[json!(true)])?;
    let positive = |key: &str| rope.optional_number(key, |value| value > 0.0, POSITIVE);
    let coefficient = |key: &str| rope.optional_number(key, |value| value >= 0.0, "a number from 0");

    let original = positive("original_max_position_embeddings")?.unwrap_or(max_position_embeddings as f64);
    let factor = rope.number("factor", |value| value > 0.0, POSITIVE)?;
    if factor <= 1.0 {
        return Ok(None);
    }
    let mscale_all_dim = coefficient("mscale_all_dim")?.unwrap_or(0.0);
    // The amplitude is yarn_mscale(mscale) / yarn_mscale(mscale_all_dim), yarn_mscale(m) = 0.1 m ln(factor) + 1.
    let mscale = match (positive("attention_factor")?, coefficient("mscale")?) {
        (None, Some(mscale)) if mscale != 0.0 && mscale_all_dim != 0.0 => mscale,
        // Hugging Face takes the stated amplitude, or yarn_mscale(1) unless both coefficients are there.
        (amplitude, _) => {
            let slope = 0.1 * factor.ln();
            let amplitude = amplitude.unwrap_or(slope + 1.0);
            (amplitude * (slope * mscale_all_dim + 1.0) - 1.0) / slope
        }
    };
    Ok(Some(YarnConfig {
        factor,
        beta_fast: positive("beta_fast")?.unwrap_or(32.0),
        beta_slow: positive("beta_slow")?.unwrap_or(1.0),
        mscale,
        mscale_all_dim,
        original_max_position_embeddings: original,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::path::Path;

    fn rope(value: Value) -> Result<RopeConfig> {
        parse(&Section::root(Path::new("config.json"), value.as_object().unwrap()), true, 4096)
    }

    fn rope_yarn(parameters: Value) -> YarnConfig {
        rope(json!({"rope_theta": 1e4, "rope_scaling": parameters})).unwrap().yarn.unwrap()
    }

    fn yarn_mscale(factor: f64, coefficient: f64) -> f64 {
        0.1 * coefficient * factor.ln() + 1.0
    }

    #[test]
    fn both_spellings_are_read_alike() {
        let yarn = json!({"factor": 64.0, "beta_fast": 32, "beta_slow": 1, "mscale": 1, "mscale_all_dim": 1,
            "original_max_position_embeddings": 4096});
        let with = |extra: Value| {
            let mut object = yarn.as_object().unwrap().clone();
            object.extend(extra.as_object().unwrap().clone());
            Value::Object(object)
        };
        let older = rope(json!({"rope_theta": 50000, "rope_scaling": with(json!({"type": "yarn"}))})).unwrap();
        let newer = rope(json!({"rope_parameters": with(json!({"rope_theta": 5e4, "rope_type": "yarn"}))})).unwrap();
        let both = rope(json!({"rope_theta": 5e4, "rope_parameters": with(json!({"rope_type": "yarn"})),
            "rope_scaling": with(json!({"type": "yarn"}))}));
        let expected = YarnConfig {
            factor: 64.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            mscale: 1.0,
            mscale_all_dim: 1.0,
            original_max_position_embeddings: 4096.0,
        };
        assert_eq!(older, RopeConfig { theta: 5e4, interleave: true, yarn: Some(expected) });
        assert_eq!(newer, older);
        assert_eq!(both.unwrap(), older);
    }

    #[test]
    fn m1_plain_rope_in_every_spelling_has_no_yarn() {
        let plain = [
            json!({"rope_theta": 1e4}),
            json!({"rope_theta": 1e4, "rope_scaling": null}),
            json!({"rope_theta": 1e4, "rope_scaling": {"type": null}}),
            json!({"rope_theta": 1e4, "rope_scaling": {"type": "default"}}),
            json!({"rope_parameters": {"rope_theta": 1e4, "rope_type": "default"}}),
            json!({"rope_parameters": {"rope_theta": 1e4}}),
            json!({"rope_theta": 1e4, "rope_scaling": {"type": "yarn", "factor": 1.0}}),
            json!({"rope_theta": 1e4, "rope_scaling": {"type": "yarn", "factor": 0.5}}),
        ];
        for value in plain {
            let expected = RopeConfig { theta: 1e4, interleave: true, yarn: None };
            assert_eq!(rope(value.clone()).unwrap(), expected, "{value}");
        }
    }

    #[test]
    fn m1_what_cannot_be_honoured_is_an_error() {
        let cases = [
            (
                json!({"rope_theta": 1e4, "rope_scaling": {"type": "linear", "factor": 2}}),
                r#"type is "linear", expected"#,
            ),
            (
                json!({"rope_parameters": {"rope_theta": 1e4, "rope_type": "llama3"}}),
                r#"rope_type is "llama3", expected"#,
            ),
            (json!({"rope_theta": 1e4, "rope_scaling": {"factor": 2}}), "rope_scaling.rope_type is missing"),
            (json!({"rope_theta": 1e4, "rope_scaling": {"type": "yarn"}}), "rope_scaling.factor is missing"),
            (json!({"rope_theta": 1e4, "rope_scaling": {"type": "yarn", "factor": -1}}), "factor is -1, expected"),
            (json!({"rope_theta": 1e4, "rope_scaling": {"type": "yarn", "factor": 2, "truncate": false}}), "truncate"),
            (json!({"rope_theta": 1e4, "partial_rotary_factor": 0.5}), "partial_rotary_factor is 0.5"),
            (json!({"rope_theta": 1.0}), "rope_theta is 1.0, expected a number above 1"),
            (json!({"rope_scaling": null}), "rope_theta is missing"),
            (
                json!({"rope_theta": 1e4, "rope_parameters": {"rope_type": "default"},
                    "rope_scaling": {"type": "yarn", "factor": 2}}),
                "rope_parameters and rope_scaling disagree",
            ),
        ];
        for (value, expected) in cases {
            let message = rope(value.clone()).unwrap_err().to_string();
            assert!(message.contains(expected), "{value}: {message}");
        }
    }

    #[test]
    fn absent_yarn_keys_get_hugging_face_defaults() {
        let yarn = rope_yarn(json!({"type": "yarn", "factor": 4}));
        assert_eq!((yarn.beta_fast, yarn.beta_slow), (32.0, 1.0));
        assert_eq!(yarn.original_max_position_embeddings, 4096.0);
        assert_eq!(yarn.mscale_all_dim, 0.0);
    }

    #[test]
    fn m1_the_amplitude_follows_hugging_face_in_every_combination() {
        let m = |coefficient| yarn_mscale(40.0, coefficient);
        let cases = [
            (json!({}), m(1.0)),
            (json!({"mscale": 0.7}), m(1.0)),
            (json!({"mscale_all_dim": 0.7}), m(1.0)),
            (json!({"mscale": 0.0, "mscale_all_dim": 0.7}), m(1.0)),
            (json!({"mscale": 1.0, "mscale_all_dim": 1.0}), 1.0),
            (json!({"mscale": 0.7, "mscale_all_dim": 1.3}), m(0.7) / m(1.3)),
            (json!({"mscale": 0.7, "mscale_all_dim": 1.3, "attention_factor": 1.25}), 1.25),
            (json!({"attention_factor": 1.0}), 1.0),
        ];
        for (keys, expected) in cases {
            let mut parameters = json!({"type": "yarn", "factor": 40.0});
            parameters.as_object_mut().unwrap().extend(keys.as_object().unwrap().clone());
            let yarn = rope_yarn(parameters);
            let amplitude = m(yarn.mscale) / m(yarn.mscale_all_dim);
            assert!((amplitude - expected).abs() < 1e-14, "{keys}: {amplitude}, expected {expected}");
        }
    }
}
