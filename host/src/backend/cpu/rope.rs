//! Rotary position embedding on the CPU: the table of cosines and sines by position, and the rotation itself.

use crate::backend::RopeTable;

/// Cosines and sines of every position met so far, `[positions, pairs]`.
#[derive(Debug)]
pub(super) struct RopeCache {
    table: RopeTable,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

impl RopeCache {
    /// An empty cache of `table`.
    pub(super) fn new(table: &RopeTable) -> Self {
        Self { table: table.clone(), cos: Vec::new(), sin: Vec::new() }
    }

    /// Elements that one rotation turns.
    pub(super) fn width(&self) -> usize {
        2 * self.table.inv_freq.len()
    }

    /// Makes positions `0..end` available.
    pub(super) fn grow(&mut self, end: usize) {
        let pairs = self.table.inv_freq.len();
        for position in self.cos.len().checked_div(pairs).unwrap_or(end)..end {
            // Angle, cosine and sine in f32, as the published models compute them.
            let angles = self.table.inv_freq.iter().map(|frequency| position as f32 * frequency);
            self.cos.extend(angles.clone().map(|angle| angle.cos() * self.table.amplitude));
            self.sin.extend(angles.map(|angle| angle.sin() * self.table.amplitude));
        }
    }

    /// Rotates `x` (`[width]`) to `position`, which [`RopeCache::grow`] must have covered.
    pub(super) fn rotate(&self, x: &mut [f32], position: usize) {
        let pairs = self.table.inv_freq.len();
        let row = position * pairs..(position + 1) * pairs;
        let turns = self.cos[row.clone()].iter().zip(&self.sin[row]);
        if self.table.interleave {
            for (pair, (cos, sin)) in x.chunks_exact_mut(2).zip(turns) {
                let (a, b) = (pair[0], pair[1]);
                pair[0] = a * cos - b * sin;
                pair[1] = b * cos + a * sin;
            }
        } else {
            let (low, high) = x.split_at_mut(pairs);
            for ((a, b), (cos, sin)) in low.iter_mut().zip(high).zip(turns) {
                (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache(pairs: usize, amplitude: f32, interleave: bool) -> RopeCache {
        let inv_freq = (0..pairs).map(|i| 1e4f32.powf(-(i as f32) / pairs as f32)).collect();
        RopeCache::new(&RopeTable { inv_freq, amplitude, interleave })
    }

    #[test]
    fn rotation_matches_complex_multiplication_in_f64() {
        for (pairs, amplitude, interleave) in [(1, 1.0, true), (5, 1.25, true), (5, 1.25, false), (32, 1.0, false)] {
            let mut rope = cache(pairs, amplitude, interleave);
            rope.grow(300);
            for position in [0usize, 1, 7, 299] {
                let x: Vec<f32> = (0..2 * pairs).map(|i| (i as f32 * 0.7).sin()).collect();
                let mut turned = x.clone();
                rope.rotate(&mut turned, position);
                for i in 0..pairs {
                    let (re, im) = if interleave { (2 * i, 2 * i + 1) } else { (i, i + pairs) };
                    let angle = f64::from(position as f32 * rope.table.inv_freq[i]);
                    let (sin, cos) = angle.sin_cos();
                    let (a, b, m) = (f64::from(x[re]), f64::from(x[im]), f64::from(amplitude));
                    let expected = (m * (a * cos - b * sin), m * (b * cos + a * sin));
                    assert!((f64::from(turned[re]) - expected.0).abs() < 1e-6, "pair {i} position {position}");
                    assert!((f64::from(turned[im]) - expected.1).abs() < 1e-6, "pair {i} position {position}");
                }
            }
        }
    }

    #[test]
    fn m1_scores_depend_on_the_distance_of_positions_only() {
        for interleave in [true, false] {
            let mut rope = cache(8, 1.0, interleave);
            rope.grow(64);
            let q: Vec<f32> = (0..16).map(|i| (i as f32).cos()).collect();
            let k: Vec<f32> = (0..16).map(|i| (i as f32 * 1.3).sin()).collect();
            let score = |at_q: usize, at_k: usize| {
                let (mut q, mut k) = (q.clone(), k.clone());
                rope.rotate(&mut q, at_q);
                rope.rotate(&mut k, at_k);
                q.iter().zip(&k).map(|(a, b)| a * b).sum::<f32>()
            };
            assert!((score(5, 2) - score(60, 57)).abs() < 1e-5);
            assert!((score(5, 2) - score(5, 4)).abs() > 1e-3);
        }
    }

    #[test]
    fn growing_in_steps_equals_growing_at_once() {
        let (mut steps, mut once) = (cache(3, 1.0, true), cache(3, 1.0, true));
        for end in [1, 5, 4, 17] {
            steps.grow(end);
        }
        once.grow(17);
        assert_eq!((steps.cos, steps.sin), (once.cos, once.sin));
    }
}
