//! What a drafter proposes at each depth: its most probable tokens. No tree yet.

use crate::sampling::{Descending, LogSoftmax};

/// The `k` most probable tokens of `logits` (`[vocab]`) with their log-probabilities (f64 log-softmax at temperature 1),
/// descending, ties to the lower id; all tokens if there are fewer than `k`. NaN counts as -inf; a logit of -inf has
/// log-probability -inf. O(vocab + k log k).
pub fn top_k(logits: &[f32], k: usize) -> Vec<(u32, f64)> {
    let softmax = LogSoftmax::of(logits);
    Descending::new(logits, k).take(k).map(|(token, logit)| (token, softmax.log_prob(logit))).collect()
}

/// The most probable tokens of each draft depth. A tree of N nodes holds no token of rank N or beyond, so N
/// candidates a depth are enough for any tree of N nodes.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Candidates {
    depths: Vec<Vec<(u32, f64)>>,
}

impl Candidates {
    /// Takes ranked tokens with their log-probabilities, one list for each depth, each descending and without a
    /// token twice, as [`top_k`] gives them.
    pub fn new(depths: Vec<Vec<(u32, f64)>>) -> Self {
        Self { depths }
    }

    /// The [`top_k`] of each row of `logits` (`[depths, vocab]`); a last row that is not whole is left out.
    pub fn from_logits(logits: &[f32], vocab: usize, k: usize) -> Self {
        if vocab == 0 {
            return Self::default();
        }
        Self::new(logits.chunks_exact(vocab).map(|row| top_k(row, k)).collect())
    }

    /// The number of depths.
    pub fn depths(&self) -> usize {
        self.depths.len()
    }

    /// Token and log-probability of the candidate `rank` (from 0) at `depth` (from 1); none if there is none or it
    /// has no probability.
    pub fn get(&self, depth: u32, rank: u32) -> Option<(u32, f64)> {
        let index = (depth as usize).checked_sub(1)?;
        let candidate = self.depths.get(index)?.get(rank as usize)?;
        (candidate.1 > f64::NEG_INFINITY).then_some(*candidate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn s9_equal_logits_give_distinct_ids_the_lower_first() {
        let ids = |logits: &[f32], k| top_k(logits, k).iter().map(|c| c.0).collect::<Vec<_>>();
        assert_eq!(ids(&[1.0; 100], 5), [0, 1, 2, 3, 4]);
        assert_eq!(ids(&[0.0, 3.0, -0.0, 3.0, 0.0], 9), [1, 3, 0, 2, 4]);
        assert_eq!(ids(&[f32::NAN, -1.0, f32::NAN, 5.0], 4), [3, 1, 0, 2]);
        assert_eq!(ids(&[1.0], 0), [0; 0]);
    }

    #[test]
    fn rows_are_depths_and_a_broken_row_is_left_out() {
        let candidates = Candidates::from_logits(&[0.0, 1.0, 5.0, 4.0, 9.0], 2, 1);
        let tokens: Vec<_> = (0..4).map(|depth| candidates.get(depth, 0).map(|c| c.0)).collect();
        assert_eq!((candidates.depths(), tokens), (2, vec![None, Some(1), Some(0), None]));
        assert_eq!(candidates.get(1, 1), None);
        assert_eq!(Candidates::from_logits(&[1.0], 0, 1).depths(), 0);
    }

    #[test]
    fn a_token_without_probability_is_no_candidate() {
        let candidates = Candidates::from_logits(&[0.0, f32::NEG_INFINITY, f32::NAN, f32::NAN], 2, 2);
        assert_eq!([(1, 0), (1, 1), (2, 0)].map(|(d, r)| candidates.get(d, r)), [Some((0, 0.0)), None, None]);
    }

    proptest! {
        #[test]
        fn top_k_equals_a_full_sort_of_the_log_softmax(
            logits in prop::collection::vec(prop_oneof![-9f32..9.0, Just(1.5f32)], 1..400), k in 0usize..70,
        ) {
            let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
            let mut want: Vec<_> = (0u32..).zip(&logits).collect();
            want.sort_by(|a, b| b.1.total_cmp(a.1).then(a.0.cmp(&b.0)));
            want.truncate(k);
            let got = top_k(&logits, k);
            prop_assert_eq!(got.len(), want.len());
            for ((token, log_prob), (id, logit)) in got.into_iter().zip(want) {
                prop_assert_eq!(token, id);
                prop_assert!((log_prob - (f64::from(*logit) - total.ln())).abs() < 1e-12);
            }
        }
    }
}
