//! Summaries of repeated measurements.

use serde::{Deserialize, Serialize};

/// Repeated measurements of one figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Summary {
    /// The middle one; the mean of the middle two of an even number.
    pub median: f64,
    /// The least.
    pub min: f64,
    /// The greatest.
    pub max: f64,
    /// All, in the order they were taken.
    pub samples: Vec<f64>,
}

impl Summary {
    /// `None` of nothing.
    pub fn new(samples: Vec<f64>) -> Option<Self> {
        let sorted = sorted(&samples);
        let (min, max) = (*sorted.first()?, *sorted.last()?);
        Some(Self { median: quantile_of_sorted(&sorted, 0.5), min, max, samples })
    }

    /// How far apart the measurements lie: (max - min) / median.
    pub fn spread(&self) -> f64 {
        if self.median > 0.0 { (self.max - self.min) / self.median } else { 0.0 }
    }
}

/// The distribution of a time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Quantiles {
    /// Half are no greater.
    pub median: f64,
    /// Nine in ten are no greater.
    pub p90: f64,
    /// 99 in a hundred are no greater.
    pub p99: f64,
    /// The greatest.
    pub max: f64,
}

impl Quantiles {
    /// `None` of nothing.
    pub fn new(values: &[f64]) -> Option<Self> {
        let sorted = sorted(values);
        let max = *sorted.last()?;
        let at = |share| quantile_of_sorted(&sorted, share);
        Some(Self { median: at(0.5), p90: at(0.9), p99: at(0.99), max })
    }
}

fn sorted(values: &[f64]) -> Vec<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    sorted
}

/// Linear between the two values around `share` of the way; `sorted` holds at least one.
fn quantile_of_sorted(sorted: &[f64], share: f64) -> f64 {
    let at = share * (sorted.len() - 1) as f64;
    let (low, part) = (at.floor() as usize, at.fract());
    let high = (low + 1).min(sorted.len() - 1);
    sorted[low] + part * (sorted[high] - sorted[low])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_and_extremes_keep_the_raw_order() {
        let cases: [(&[f64], f64, f64, f64); 4] = [
            (&[3.0], 3.0, 3.0, 3.0),
            (&[4.0, 1.0], 2.5, 1.0, 4.0),
            (&[9.0, 1.0, 2.0], 2.0, 1.0, 9.0),
            (&[4.0, 1.0, 3.0, 2.0], 2.5, 1.0, 4.0),
        ];
        for (samples, median, min, max) in cases {
            let want = Summary { median, min, max, samples: samples.to_vec() };
            assert_eq!(Summary::new(samples.to_vec()), Some(want));
        }
        assert_eq!(Summary::new(Vec::new()), None);
    }

    #[test]
    fn the_spread_is_relative_to_the_median() {
        let spread = |samples: &[f64]| Summary::new(samples.to_vec()).unwrap().spread();
        assert_eq!(spread(&[100.0]), 0.0);
        assert!((spread(&[95.0, 100.0, 110.0]) - 0.15).abs() < 1e-12);
        assert_eq!(spread(&[0.0, 0.0]), 0.0);
    }

    #[test]
    fn quantiles_interpolate() {
        let values: Vec<f64> = (0..=100).rev().map(f64::from).collect();
        let want = Quantiles { median: 50.0, p90: 90.0, p99: 99.0, max: 100.0 };
        let got = Quantiles::new(&values).unwrap();
        for (got, want) in [(got.median, want.median), (got.p90, want.p90), (got.p99, want.p99), (got.max, want.max)] {
            assert!((got - want).abs() < 1e-9, "{got} {want}");
        }
        assert_eq!(Quantiles::new(&[]), None);
    }
}
