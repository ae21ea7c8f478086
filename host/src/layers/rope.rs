//! Rotary frequencies and the softmax scale that YaRN brings with it.
//!
//! RoFormer (Su et al. 2021), YaRN (Peng et al. 2023), in the form of the DeepSeek-V3 modelling code.

use std::f64::consts::PI;

use coppice_model::config::{AttentionConfig, RopeConfig, YarnConfig};

use crate::backend::RopeTable;

/// The rotary table of `dim` elements a head. `amplitude` overrides the factor that YaRN puts on cos and sin.
pub fn table(config: &RopeConfig, dim: usize, amplitude: Option<f64>) -> RopeTable {
    let plain = (0..dim / 2).map(|i| config.theta.powf(-(2.0 * i as f64) / dim as f64));
    let (inv_freq, yarn_amplitude) = match &config.yarn {
        None => (plain.map(|f| f as f32).collect(), 1.0),
        Some(yarn) => {
            let (low, high) = ramp_bounds(yarn, config.theta, dim);
            let scaled = plain.enumerate().map(|(i, frequency)| {
                // 0 below `low` (rotates fast: left as it is), 1 above `high` (interpolated).
                let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                (frequency / yarn.factor * ramp + frequency * (1.0 - ramp)) as f32
            });
            (scaled.collect(), cos_sin_amplitude(yarn))
        }
    };
    RopeTable { inv_freq, amplitude: amplitude.unwrap_or(yarn_amplitude) as f32, interleave: config.interleave }
}

/// Factor on the attention scores: `(nope + rope)^-0.5`, times the square of YaRN's mscale where it is set.
pub fn softmax_scale(attention: &AttentionConfig, rope: &RopeConfig) -> f32 {
    let scale = ((attention.nope + attention.rope) as f64).powf(-0.5);
    let mscale = match &rope.yarn {
        Some(yarn) if yarn.mscale_all_dim != 0.0 => mscale(yarn.factor, yarn.mscale_all_dim),
        _ => 1.0,
    };
    (scale * mscale * mscale) as f32
}

fn cos_sin_amplitude(yarn: &YarnConfig) -> f64 {
    if yarn.mscale != 0.0 && yarn.mscale_all_dim != 0.0 {
        mscale(yarn.factor, yarn.mscale) / mscale(yarn.factor, yarn.mscale_all_dim)
    } else {
        mscale(yarn.factor, 1.0)
    }
}

fn mscale(factor: f64, coefficient: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * coefficient * factor.ln() + 1.0 }
}

/// The pair indices between which YaRN goes from extrapolation to interpolation.
fn ramp_bounds(yarn: &YarnConfig, theta: f64, dim: usize) -> (f64, f64) {
    let pair_with = |rotations: f64| {
        dim as f64 * (yarn.original_max_position_embeddings / (rotations * 2.0 * PI)).ln() / (2.0 * theta.ln())
    };
    let low = pair_with(yarn.beta_fast).floor().max(0.0);
    let high = pair_with(yarn.beta_slow).ceil().min(dim as f64 - 1.0);
    // A ramp of no width would divide by zero.
    (low, if high == low { low + 0.001 } else { high })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yarn(mscale: f64, mscale_all_dim: f64) -> YarnConfig {
        YarnConfig {
            factor: 40.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            mscale,
            mscale_all_dim,
            original_max_position_embeddings: 4096.0,
        }
    }

    fn attention() -> AttentionConfig {
        AttentionConfig { heads: 128, q_lora_rank: Some(1536), kv_lora_rank: 512, nope: 128, rope: 64, v: 128 }
    }

    #[test]
    fn without_yarn_frequencies_are_powers_of_theta() {
        let t = table(&RopeConfig { theta: 10000.0, interleave: true, yarn: None }, 64, None);
        assert_eq!(t.inv_freq.len(), 32);
        assert_eq!(t.inv_freq[0], 1.0);
        assert!((t.inv_freq[16] - 0.01).abs() < 1e-9);
        assert_eq!(t.amplitude, 1.0);
    }

    #[test]
    fn yarn_leaves_fast_pairs_and_divides_slow_ones() {
        let config = RopeConfig { theta: 10000.0, interleave: true, yarn: Some(yarn(1.0, 1.0)) };
        let (t, plain) =
            (table(&config, 64, None), table(&RopeConfig { yarn: None, ..config.clone() }, 64, None).inv_freq);
        assert_eq!(t.inv_freq[0], plain[0]);
        assert!((t.inv_freq[31] * 40.0 / plain[31] - 1.0).abs() < 1e-6);
        assert_eq!(t.amplitude, 1.0, "equal coefficients cancel");
    }

    #[test]
    fn m1_mscale_squared_is_in_the_softmax_scale() {
        let rope = RopeConfig { theta: 1e4, interleave: true, yarn: Some(yarn(1.0, 1.0)) };
        let m = 0.1 * 40f64.ln() + 1.0;
        let expected = 192f64.powf(-0.5) * m * m;
        assert!((f64::from(softmax_scale(&attention(), &rope)) / expected - 1.0).abs() < 1e-6);
        let off = RopeConfig { yarn: Some(yarn(1.0, 0.0)), ..rope.clone() };
        assert!((f64::from(softmax_scale(&attention(), &off)) / 192f64.powf(-0.5) - 1.0).abs() < 1e-6);
        let none = RopeConfig { yarn: None, ..rope };
        assert!((f64::from(softmax_scale(&attention(), &none)) / 192f64.powf(-0.5) - 1.0).abs() < 1e-6);
    }

    #[test]
    fn amplitude_follows_hugging_face_when_a_coefficient_is_absent_and_can_be_overridden() {
        let config = RopeConfig { theta: 5e4, interleave: false, yarn: Some(yarn(0.0, 0.0)) };
        assert!((f64::from(table(&config, 128, None).amplitude) - (0.1 * 40f64.ln() + 1.0)).abs() < 1e-6);
        assert_eq!(table(&config, 128, Some(1.0)).amplitude, 1.0);
    }
}
