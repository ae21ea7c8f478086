//! The draw: one token from one row of logits. No state between draws.

use super::{Descending, Sampling, softmax, uniform};

/// Tokens ranked at first when no filter says how many are needed: most draws end among them.
const FIRST_BATCH: usize = 32;

/// Logits that `argmax` searches for the position of a maximum it has found.
const BLOCK: usize = 1024;

/// The id of the greatest logit, the lowest id among equals. NaN never wins; the answer is 0 if all are NaN.
pub fn argmax(logits: &[f32]) -> u32 {
    let (mut best, mut start) = (f32::NEG_INFINITY, 0);
    for (index, block) in logits.chunks(BLOCK).enumerate() {
        let max = softmax::max(block);
        if max > best {
            (best, start) = (max, index * BLOCK);
        }
    }
    logits[start..].iter().position(|&logit| logit == best).map_or(0, |offset| (start + offset) as u32)
}

/// The greatest logit less the second greatest: 0 at a tie, infinite if there is no second one. NaN counts as -inf.
pub fn top2_gap(logits: &[f32]) -> f32 {
    let mut ranked = Descending::new(logits, 2);
    match (ranked.next(), ranked.next()) {
        (Some((_, first)), Some((_, second))) if first == second => 0.0,
        (Some((_, first)), Some((_, second))) => first - second,
        _ => f32::INFINITY,
    }
}

/// The token for absolute position `position`: [`argmax`] if greedy, else the inverse CDF at `uniform(seed, position)`
/// over the tokens that temperature, top-k, top-p and min-p leave, ordered by probability descending, then id
/// ascending. Probabilities are f64 and compared through their logits, so rounding makes no ties.
///
/// NaN logits count as -inf, which is never drawn; where nothing else is left, the answer is that of `argmax`.
/// `sampling` is taken to be valid. The cost is one pass over the logits and the ranking of the tokens up to the
/// drawn one, or of all that the filters leave.
pub fn draw(logits: &[f32], sampling: &Sampling, position: u64) -> u32 {
    let max = softmax::max(logits);
    if sampling.is_greedy() || max == f32::NEG_INFINITY {
        return argmax(logits);
    }
    let u = uniform(sampling.seed, position);
    if sampling.keeps_all() {
        let temperature = f64::from(sampling.temperature);
        let ranked = weighted(logits, FIRST_BATCH, max, temperature).map(|(token, _, weight)| (token, weight));
        return invert(ranked, u * softmax::total(logits, max, temperature));
    }
    let kept = filter(logits, sampling, max);
    let total: f64 = kept.iter().map(|(_, weight)| weight).sum();
    invert(kept.into_iter(), u * total)
}

/// (token, logit, weight) in descending order.
fn weighted(logits: &[f32], first_batch: usize, max: f32, temperature: f64) -> impl Iterator<Item = (u32, f32, f64)> {
    Descending::new(logits, first_batch)
        .map(move |(token, logit)| (token, logit, softmax::weight(logit, max, temperature)))
}

/// The first token at which the cumulative weight exceeds `target`. Rounding can leave `target` out of reach: then
/// the last token of any weight.
fn invert(ranked: impl Iterator<Item = (u32, f64)>, target: f64) -> u32 {
    let (mut mass, mut last) = (0.0, 0);
    for (token, weight) in ranked.take_while(|(_, weight)| *weight > 0.0) {
        mass += weight;
        last = token;
        if mass > target {
            break;
        }
    }
    last
}

/// The tokens that pass top-k, top-p and min-p, with their weights, in descending order. Each filter keeps a prefix
/// of that order, at least the first token.
fn filter(logits: &[f32], sampling: &Sampling, max: f32) -> Vec<(u32, f64)> {
    let temperature = f64::from(sampling.temperature);
    let top_p = f64::from(sampling.top_p);
    let min_p = f64::from(sampling.min_p);
    if sampling.top_k == 0 {
        let nucleus = if top_p < 1.0 { top_p * softmax::total(logits, max, temperature) } else { f64::INFINITY };
        let ranked = weighted(logits, FIRST_BATCH, max, temperature).map(|(token, _, weight)| (token, weight));
        return ranked.take_while(inside(nucleus, min_p)).collect();
    }
    let mut kth = max;
    // One more than k, to see in the same batch that nothing ties with the last.
    let mut kept: Vec<_> = weighted(logits, sampling.top_k.saturating_add(1), max, temperature)
        .enumerate()
        .take_while(|&(rank, (_, logit, _))| {
            let within = rank < sampling.top_k;
            if within {
                kth = logit;
            }
            within || logit == kth
        })
        .map(|(_, (token, _, weight))| (token, weight))
        .collect();
    let nucleus = if top_p < 1.0 { top_p * kept.iter().map(|(_, weight)| weight).sum::<f64>() } else { f64::INFINITY };
    let mut inside = inside(nucleus, min_p);
    let len = kept.iter().take_while(|token| inside(token)).count();
    kept.truncate(len);
    kept
}

/// Whether a token, in descending order, is inside both filters: the weight before it is under `nucleus`, and its
/// own, relative to the first token's 1, at least `min_p`. The first token always is.
fn inside(nucleus: f64, min_p: f64) -> impl FnMut(&(u32, f64)) -> bool {
    let mut before = 0.0;
    move |&(_, weight)| {
        let keep = before == 0.0 || (before < nucleus && weight >= min_p);
        before += weight;
        keep
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::rank::tests::logits_with_ties;
    use proptest::prelude::*;

    const WARM: Sampling = Sampling { temperature: 0.7, seed: 1, ..Sampling::GREEDY };

    /// What remains of the logits, and its probabilities, in the order of the draw: Hugging Face's warpers, each
    /// over a full sort.
    fn distribution(logits: &[f32], sampling: &Sampling) -> Vec<(u32, f64)> {
        let clean = logits.iter().map(|&logit| if logit.is_nan() { f64::NEG_INFINITY } else { f64::from(logit) });
        let mut scores: Vec<_> = (0u32..).zip(clean).collect();
        scores.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        // TemperatureLogitsWarper
        scores.iter_mut().for_each(|(_, score)| *score /= f64::from(sampling.temperature));
        // TopKLogitsWarper
        if sampling.top_k > 0 {
            let lowest = scores[sampling.top_k.min(scores.len()) - 1].1;
            scores.retain(|&(_, score)| score >= lowest);
        }
        // TopPLogitsWarper, which removes the least probable tokens while their sum stays within 1 - top_p.
        if sampling.top_p < 1.0 {
            let mut cumulative = 0.0;
            let ascending = softmax(&scores);
            let remove = |p: &f64| {
                cumulative += p;
                cumulative <= 1.0 - f64::from(sampling.top_p)
            };
            let removed = ascending.iter().rev().copied().take_while(remove).count();
            scores.truncate((scores.len() - removed).max(1));
        }
        // MinPLogitsWarper
        let probabilities = softmax(&scores);
        let lowest = f64::from(sampling.min_p) * probabilities[0];
        let passing = probabilities.iter().filter(|&&probability| probability >= lowest).count();
        scores.truncate(passing.max(1));
        scores.iter().map(|(token, _)| *token).zip(softmax(&scores)).collect()
    }

    /// Probabilities of scores in descending order.
    fn softmax(scores: &[(u32, f64)]) -> Vec<f64> {
        let max = scores[0].1;
        let weights = scores.iter().map(|&(_, score)| if score == max { 1.0 } else { (score - max).exp() });
        let total: f64 = weights.clone().sum();
        weights.map(|weight| weight / total).collect()
    }

    fn naive_draw(logits: &[f32], sampling: &Sampling, position: u64) -> u32 {
        let u = uniform(sampling.seed, position);
        let mut cumulative = 0.0;
        let reached = |&&(_, probability): &&(u32, f64)| {
            cumulative += probability;
            cumulative > u
        };
        distribution(logits, sampling).iter().find(reached).unwrap().0
    }

    #[test]
    fn argmax_takes_the_lowest_id_among_equals_and_never_nan() {
        const NAN: f32 = f32::NAN;
        let mut far = vec![0.0; 5000];
        (far[1030], far[4100]) = (1.0, 1.0);
        let mut late = vec![NAN; 5000];
        late[3000] = f32::NEG_INFINITY;
        let cases: [(&[f32], u32); 10] = [
            (&[1.0], 0),
            (&[0.0, 2.0, 2.0, 1.0], 1),
            (&[-0.0, 0.0], 0),
            (&[NAN, -5.0, NAN, -4.0], 3),
            (&[NAN, f32::NEG_INFINITY], 1),
            (&[NAN, NAN], 0),
            (&[3.0, f32::INFINITY, f32::INFINITY], 1),
            (&[], 0),
            (&far, 1030),
            (&late, 3000),
        ];
        let failed: Vec<_> =
            cases.iter().map(|(l, want)| (argmax(l), want)).filter(|(got, want)| got != *want).collect();
        assert!(failed.is_empty(), "{failed:?}");
    }

    #[test]
    fn the_gap_is_between_the_two_greatest_logits() {
        const INF: f32 = f32::INFINITY;
        let cases: [(&[f32], f32); 7] = [
            (&[1.0, 4.0, 3.5, -9.0], 0.5),
            (&[4.0, 1.0, 4.0], 0.0),
            (&[f32::NAN, 2.0, 1.0], 1.0),
            (&[INF, INF], 0.0),
            (&[INF, 0.0], INF),
            (&[1.0], INF),
            (&[], INF),
        ];
        let failed: Vec<_> = cases.iter().filter(|(logits, want)| top2_gap(logits) != *want).collect();
        assert!(failed.is_empty(), "{failed:?}");
    }

    #[test]
    fn s14_draws_follow_the_distribution() {
        let logits = [1.0, -0.5, 0.3, 2.0, 0.3, -2.0, 1.4, 0.0];
        let draws = 200_000;
        let filtered = Sampling { top_k: 6, top_p: 0.9, ..WARM };
        for (seed, base) in [(1, WARM), (2, WARM), (0xDEAD_BEEF_0000_0000, WARM), (3, filtered)] {
            let sampling = Sampling { seed, ..base };
            let mut counts = [0u32; 8];
            for position in 0..draws {
                counts[draw(&logits, &sampling, position) as usize] += 1;
            }
            let expected = distribution(&logits, &sampling);
            let chi2: f64 = expected
                .iter()
                .map(|&(token, probability)| (token as usize, probability * draws as f64))
                .map(|(token, expected)| (f64::from(counts[token]) - expected).powi(2) / expected)
                .sum();
            let drawn: u32 = expected.iter().map(|&(token, _)| counts[token as usize]).sum();
            assert_eq!(u64::from(drawn), draws, "a filtered token was drawn: {counts:?}");
            // p = 0.001 at 7 degrees of freedom, and at fewer still less likely.
            assert!(chi2 < 24.32, "seed {seed}: chi-square {chi2}, counts {counts:?}");
        }
    }

    #[test]
    fn s14_a_seed_repeats_its_draws_and_another_does_not() {
        let logits = [0.1; 50];
        let text =
            |seed| (0..100).map(|position| draw(&logits, &Sampling { seed, ..WARM }, position)).collect::<Vec<_>>();
        assert_eq!(text(7), text(7));
        assert_ne!(text(7), text(8));
        assert_ne!(text(7), text(7 + (1 << 32)));
    }

    #[test]
    fn the_ends_of_every_filter_keep_what_they_say() {
        let logits = [0.0, 3.0, 1.0, 3.0, 2.0, f32::NEG_INFINITY, f32::NAN];
        let cases: [(&str, Sampling, &[u32]); 12] = [
            ("no filter", WARM, &[0, 1, 2, 3, 4]),
            ("top-k of 1 keeps the tie", Sampling { top_k: 1, ..WARM }, &[1, 3]),
            ("top-k of 3", Sampling { top_k: 3, ..WARM }, &[1, 3, 4]),
            ("top-k above the vocabulary", Sampling { top_k: usize::MAX, ..WARM }, &[0, 1, 2, 3, 4]),
            ("top-p of 0 keeps the first", Sampling { top_p: 0.0, ..WARM }, &[1]),
            ("top-p just above 0", Sampling { top_p: f32::MIN_POSITIVE, ..WARM }, &[1]),
            ("top-p just under 1", Sampling { top_p: 0.999_999_9, ..WARM }, &[0, 1, 2, 3, 4]),
            ("top-p counts what top-k left", Sampling { top_k: 2, top_p: 0.5, ..WARM }, &[1]),
            ("min-p of 1 keeps the tie", Sampling { min_p: 1.0, ..WARM }, &[1, 3]),
            ("min-p after top-p", Sampling { top_p: 0.1, min_p: 1.0, ..WARM }, &[1]),
            ("min-p just above 0", Sampling { min_p: f32::MIN_POSITIVE, ..WARM }, &[0, 1, 2, 3, 4]),
            ("a tiny temperature", Sampling { temperature: f32::MIN_POSITIVE, ..WARM }, &[1, 3]),
        ];
        let drawn = |sampling: &Sampling| {
            let mut tokens: Vec<_> = (0..3000).map(|position| draw(&logits, sampling, position)).collect();
            tokens.sort_unstable();
            tokens.dedup();
            tokens
        };
        let failed: Vec<_> =
            cases.iter().map(|(name, s, want)| (name, drawn(s), want)).filter(|(_, got, want)| got != *want).collect();
        assert!(failed.is_empty(), "{failed:#?}");
    }

    #[test]
    fn a_token_owns_its_interval_from_the_lower_end_on() {
        let ranked = [(5, 1.0), (3, 0.5), (8, 0.5), (1, 0.0)];
        let cases = [(0.0, 5), (0.999, 5), (1.0, 3), (1.5, 8), (1.999, 8), (2.0, 8)];
        let failed: Vec<_> = cases
            .iter()
            .map(|&(target, want)| (target, invert(ranked.into_iter(), target), want))
            .filter(|c| c.1 != c.2)
            .collect();
        assert!(failed.is_empty(), "{failed:?}");
    }

    #[test]
    fn logits_without_a_distribution_give_the_argmax() {
        let rows: [&[f32]; 4] = [&[], &[f32::NAN, f32::NAN], &[f32::NAN, f32::NEG_INFINITY], &[f32::NEG_INFINITY; 40]];
        for logits in rows {
            assert_eq!(draw(logits, &WARM, 0), argmax(logits), "{logits:?}");
        }
    }

    #[test]
    fn greedy_ignores_the_seed_and_the_position() {
        let logits = [0.0, 0.1, 0.1];
        assert!(
            (0..100).all(|position| draw(&logits, &Sampling { seed: position, ..Sampling::GREEDY }, position) == 1)
        );
    }

    proptest! {
        #[test]
        fn every_draw_equals_the_fully_sorted_reference(
            logits in logits_with_ties(1..200).prop_filter("no distribution", |l| l.iter().any(|&l| l > f32::NEG_INFINITY)),
            temperature in 0.05f32..3.0,
            top_k in prop_oneof![Just(0usize), 1usize..250],
            top_p in prop_oneof![Just(1f32), 0f32..1.0],
            min_p in prop_oneof![Just(0f32), 0f32..0.5],
            seed: u64,
        ) {
            let sampling = Sampling { temperature, top_k, top_p, min_p, seed };
            for position in 0..20 {
                let want = naive_draw(&logits, &sampling, position);
                prop_assert_eq!(draw(&logits, &sampling, position), want, "{:?} at {}", sampling, position);
            }
        }
    }
}
