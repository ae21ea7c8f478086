//! How a token is chosen from logits: parameters, random numbers, the draw. No model, no decoding loop.

pub mod draw;
pub mod philox;
mod rank;
mod softmax;

pub use draw::{argmax, draw, top2_gap};
pub use philox::{philox4x32, uniform};
pub(crate) use rank::Descending;
pub(crate) use softmax::LogSoftmax;

/// What shapes the distribution that tokens are drawn from. The filters apply in the order of the fields, each as
/// Hugging Face transformers defines it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 is greedy: the most probable token, always.
    pub temperature: f32,
    /// Keeps the `top_k` highest logits and whatever ties with the lowest of them; 0 keeps all.
    pub top_k: usize,
    /// Keeps the most probable tokens up to and including the one whose cumulative probability reaches `top_p`, at
    /// least one; 1 keeps all.
    pub top_p: f32,
    /// Keeps the tokens whose probability is at least `min_p` times the highest; 0 keeps all.
    pub min_p: f32,
    /// The key of the random numbers: the same seed gives the same text.
    pub seed: u64,
}

impl Sampling {
    /// The most probable token, always.
    pub const GREEDY: Self = Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };

    /// Whether the most probable token is always chosen.
    pub fn is_greedy(&self) -> bool {
        self.temperature <= 0.0
    }

    /// Whether every token may be drawn.
    fn keeps_all(&self) -> bool {
        self.top_k == 0 && self.top_p >= 1.0 && self.min_p <= 0.0
    }

    /// Checks the ranges of the fields.
    ///
    /// # Errors
    /// The first field out of range, as the flag that sets it, with its value and its range.
    pub fn validate(&self) -> Result<(), String> {
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return Err(format!("--temperature is {}, expected a finite number of at least 0", self.temperature));
        }
        for (flag, value) in [("--top-p", self.top_p), ("--min-p", self.min_p)] {
            if !(0.0..=1.0).contains(&value) {
                return Err(format!("{flag} is {value}, expected a number from 0 to 1"));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_out_of_range_is_named_with_its_value() {
        let ok = Sampling { temperature: 0.7, ..Sampling::GREEDY };
        let cases = [
            (ok, ""),
            (Sampling::GREEDY, ""),
            (Sampling { top_k: usize::MAX, top_p: 0.0, min_p: 1.0, ..ok }, ""),
            (Sampling { temperature: -0.1, ..ok }, "--temperature is -0.1, expected a finite number of at least 0"),
            (Sampling { temperature: f32::NAN, ..ok }, "--temperature is NaN, expected a finite number of at least 0"),
            (
                Sampling { temperature: f32::INFINITY, ..ok },
                "--temperature is inf, expected a finite number of at least 0",
            ),
            (Sampling { top_p: 1.5, ..ok }, "--top-p is 1.5, expected a number from 0 to 1"),
            (Sampling { top_p: f32::NAN, ..ok }, "--top-p is NaN, expected a number from 0 to 1"),
            (Sampling { min_p: -1.0, ..ok }, "--min-p is -1, expected a number from 0 to 1"),
        ];
        let failed: Vec<_> = cases
            .iter()
            .map(|(s, want)| (s.validate().err().unwrap_or_default(), want))
            .filter(|(a, b)| a != *b)
            .collect();
        assert!(failed.is_empty(), "{failed:#?}");
    }

    #[test]
    fn only_temperature_zero_is_greedy() {
        assert!(Sampling::GREEDY.is_greedy());
        assert!(!Sampling { temperature: f32::MIN_POSITIVE, ..Sampling::GREEDY }.is_greedy());
    }
}
