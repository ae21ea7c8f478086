//! What tests and checks of kernels share: random data and comparison within a tolerance. Not part of a GPU build.
use cuda_std::Bf16;
use std::{format, string::String, vec::Vec};

/// A small seeded generator (xorshift64*), so that a failing case can be repeated.
pub struct Random(u64);

impl Random {
    /// The sequence of this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d)
    }

    fn next(&mut self) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32) as u32
    }

    /// Uniform below `n`.
    pub fn below(&mut self, n: u32) -> u32 {
        ((u64::from(self.next()) * u64::from(n)) >> 32) as u32
    }

    /// Uniform in [0, 1).
    pub fn uniform(&mut self) -> f32 {
        (self.next() >> 8) as f32 / (1 << 24) as f32
    }

    /// Mean 0, variance 1: the sum of twelve uniforms less six.
    pub fn normal(&mut self) -> f32 {
        (0..12).map(|_| self.uniform()).sum::<f32>() - 6.0
    }

    /// `n` normal values.
    pub fn normals(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.normal()).collect()
    }
}

/// Collects what is wrong, so that a test over many cases tells all of them.
#[derive(Default)]
pub struct Failures(Vec<String>);

impl Failures {
    /// Notes `what` about `case` unless it is `good`.
    pub fn check(&mut self, good: bool, case: &str, what: &str) {
        if !good {
            self.0.push(format!("{case}: {what}"));
        }
    }

    /// Notes the first element whose error exceeds `absolute + relative * |expected|`, or a difference in length.
    pub fn compare(&mut self, case: &str, found: &[f32], expected: &[f32], (relative, absolute): (f32, f32)) {
        self.check(found.len() == expected.len(), case, &format!("{} elements, not {}", found.len(), expected.len()));
        let wrong = |(f, e): (&f32, &f32)| {
            let close = (f - e).abs() <= absolute + relative * e.abs();
            !(close || f == e || f.is_nan() && e.is_nan())
        };
        if let Some(i) = found.iter().zip(expected).position(wrong) {
            self.0.push(format!("{case}: element {i} is {}, expected {}", found[i], expected[i]));
        }
    }

    /// As [`compare`](Self::compare) for values rounded to bf16: half a unit in the last place, and f32 noise below.
    pub fn compare_bf16(&mut self, case: &str, found: &[Bf16], expected: &[f32]) {
        let found: Vec<f32> = found.iter().map(|x| x.to_f32()).collect();
        self.compare(case, &found, expected, (1.01 / 256.0, 1e-30));
    }

    /// What was noted.
    pub fn messages(&self) -> &[String] {
        &self.0
    }

    /// Fails the test if anything was noted.
    ///
    /// # Panics
    /// Anything was noted.
    pub fn report(self) {
        assert!(self.0.is_empty(), "{} failures:\n{}", self.0.len(), self.0.join("\n"));
    }
}
