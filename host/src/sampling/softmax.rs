//! Softmax in f64 over f32 logits, one token at a time. No ordering, no filters.

use crate::simd::{Isa, sum_of_exponentials};

/// Elements a vector loop takes at once: enough independent lanes for any SIMD width.
pub(super) const LANES: usize = 16;

/// The greatest logit; NaN counts as -inf, and so does no logit at all.
pub(super) fn max(logits: &[f32]) -> f32 {
    let greater = |a: f32, b: f32| if b > a { b } else { a };
    let mut lanes = [f32::NEG_INFINITY; LANES];
    let (chunks, rest) = logits.as_chunks::<LANES>();
    for chunk in chunks {
        for (lane, &logit) in lanes.iter_mut().zip(chunk) {
            *lane = greater(*lane, logit);
        }
    }
    lanes.iter().chain(rest).fold(f32::NEG_INFINITY, |a, &b| greater(a, b))
}

/// exp((logit - max) / temperature): a probability before normalisation, 1 at `max`. A NaN logit weighs 0, and an
/// infinite `max` leaves nothing to the others.
pub(super) fn weight(logit: f32, max: f32, temperature: f64) -> f64 {
    if logit == max {
        1.0
    } else if logit < max {
        ((f64::from(logit) - f64::from(max)) / temperature).exp()
    } else {
        0.0
    }
}

/// The sum of [`weight`] over all logits, but for the last places of its terms.
pub(super) fn total(logits: &[f32], max: f32, temperature: f64) -> f64 {
    sum_of_exponentials(Isa::detect(), logits, max, 1.0 / temperature)
}

/// Log-probabilities at temperature 1: (logit - max) - ln(total).
pub(crate) struct LogSoftmax {
    max: f32,
    log_total: f64,
}

impl LogSoftmax {
    /// Takes the maximum and the normaliser of `logits`.
    pub(crate) fn of(logits: &[f32]) -> Self {
        let max = max(logits);
        Self { max, log_total: total(logits, max, 1.0).ln() }
    }

    /// The log-probability of a token, -inf for a NaN logit and wherever no logit is above -inf.
    pub(crate) fn log_prob(&self, logit: f32) -> f64 {
        if self.max == f32::NEG_INFINITY || logit.is_nan() {
            f64::NEG_INFINITY
        } else if logit == self.max {
            -self.log_total
        } else {
            (f64::from(logit) - f64::from(self.max)) - self.log_total
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn degenerate_logits_keep_a_meaning() {
        const INF: f32 = f32::INFINITY;
        let half = 0.5f64.ln();
        let cases: [(&[f32], &[f64]); 6] = [
            (&[2.0], &[0.0]),
            (&[f32::NAN, 1.0, 1.0], &[f64::NEG_INFINITY, half, half]),
            (&[INF, 3.0, INF], &[half, f64::NEG_INFINITY, half]),
            (&[-INF, 3.0], &[f64::NEG_INFINITY, 0.0]),
            (&[-INF, -INF], &[f64::NEG_INFINITY; 2]),
            (&[f32::NAN, f32::NAN], &[f64::NEG_INFINITY; 2]),
        ];
        let log_probs = |logits: &[f32]| -> Vec<f64> {
            let softmax = LogSoftmax::of(logits);
            logits.iter().map(|&logit| softmax.log_prob(logit)).collect()
        };
        let failed: Vec<_> = cases.iter().filter(|(logits, want)| log_probs(logits) != *want).collect();
        assert!(failed.is_empty(), "{failed:?}");
    }

    proptest! {
        #[test]
        fn probabilities_are_the_quotients_of_exponentials(
            logits in prop::collection::vec(-20f32..20.0, 1..70), temperature in 0.1f64..3.0,
        ) {
            let max = max(&logits);
            prop_assert_eq!(max, logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
            let sum = |t: f64| logits.iter().map(|&l| (f64::from(l) / t).exp()).sum::<f64>();
            let softmax = LogSoftmax::of(&logits);
            for &logit in &logits {
                let probability = weight(logit, max, temperature) / total(&logits, max, temperature);
                prop_assert!((probability - (f64::from(logit) / temperature).exp() / sum(temperature)).abs() < 1e-12);
                prop_assert!((softmax.log_prob(logit) - (f64::from(logit) - sum(1.0).ln())).abs() < 1e-12);
            }
        }
    }
}
