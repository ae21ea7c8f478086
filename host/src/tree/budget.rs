//! How many nodes a round's tree should have. No tree is built here.

/// The N that maximises (1 + sum of the first N `probabilities`) / `costs[N]`: tokens a round commits, the bonus token
/// included, over the time it takes. N is at most `costs.len() - 1`; the least of equals; 0 without costs.
///
/// `probabilities` are those of the nodes' whole prefixes, which is how often each is expected to be accepted.
pub fn best_budget(probabilities: impl IntoIterator<Item = f64>, costs: &[f32]) -> usize {
    let (mut best, mut rate) = (0, 0.0);
    let mut tokens = 1.0;
    let mut probabilities = probabilities.into_iter();
    for (nodes, cost) in costs.iter().enumerate() {
        if tokens / f64::from(*cost) > rate {
            (best, rate) = (nodes, tokens / f64::from(*cost));
        }
        match probabilities.next() {
            Some(probability) => tokens += probability,
            None => break,
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn nodes_are_added_while_they_pay() {
        let halves = || (1..).map(|i| 0.5f64.powi(i));
        let linear = |slope: f32| (0..40).map(|n| 1.0 + slope * n as f32).collect::<Vec<_>>();
        let cases = [(0.6, 0), (0.5, 0), (0.3, 1), (0.1, 2), (0.01, 5), (0.0, 39)];
        let failed: Vec<_> = cases
            .iter()
            .map(|(slope, want)| (slope, want, best_budget(halves(), &linear(*slope))))
            .filter(|(_, want, got)| *want != got)
            .collect();
        assert!(failed.is_empty(), "{failed:?}");
    }

    #[test]
    fn a_step_in_the_costs_is_taken_when_what_lies_behind_it_pays() {
        // Rows up to a tile cost the same, the first node of a tile costs as much as all of it.
        let costs: Vec<f32> = (0..16).map(|n| 1.0 + (n / 8) as f32).collect();
        assert_eq!(best_budget([0.9; 16], &costs), 7);
        assert_eq!(best_budget([0.1; 16], &costs), 7);
        assert_eq!(best_budget([0.9; 3], &costs), 3);
    }

    #[test]
    fn without_nodes_or_costs_there_is_no_budget() {
        assert_eq!(best_budget([], &[1.0, 1.0]), 0);
        assert_eq!(best_budget([1.0], &[1.0]), 0);
        assert_eq!(best_budget([1.0], &[]), 0);
    }

    proptest! {
        #[test]
        fn no_other_budget_is_better(
            probabilities in prop::collection::vec(0f64..1.0, 0..30), costs in prop::collection::vec(0.1f32..9.0, 1..30),
        ) {
            let rate = |n: usize| (1.0 + probabilities[..n].iter().sum::<f64>()) / f64::from(costs[n]);
            let most = probabilities.len().min(costs.len() - 1);
            let best = best_budget(probabilities.iter().copied(), &costs);
            prop_assert!(best <= most);
            for n in 0..=most {
                prop_assert!(rate(n) <= rate(best) + 1e-9);
            }
        }
    }
}
