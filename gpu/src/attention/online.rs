//! Online softmax in base 2: the running state of a row, and the merge of states over parts of the context.
use cuda_std::math;

/// Maximum score and sum of 2^(score - maximum) of the keys seen so far.
#[derive(Clone, Copy)]
pub struct State {
    /// Largest score in units of log2; -inf before any key.
    pub max: f32,
    /// Sum of the weights relative to `max`.
    pub sum: f32,
}

impl State {
    /// No key yet.
    pub const EMPTY: Self = Self { max: f32::NEG_INFINITY, sum: 0.0 };

    /// Raises the maximum to `max` and returns the factor for what was accumulated before. An empty state stays empty:
    /// without the test, -inf less -inf would be NaN.
    #[inline(always)]
    pub fn raise(&mut self, max: f32) -> f32 {
        let new = self.max.max(max);
        let factor = if new == f32::NEG_INFINITY { 1.0 } else { math::ex2(self.max - new) };
        self.max = new;
        self.sum *= factor;
        factor
    }

    /// Weight of a key under the present maximum; 0 for a masked one.
    #[inline(always)]
    pub fn weight(&self, score: f32) -> f32 {
        if score == f32::NEG_INFINITY { 0.0 } else { math::ex2(score - self.max) }
    }
}
