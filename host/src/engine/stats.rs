//! What a generation's speed and acceptance were. Formatting lives in `report` and `cli`.

use std::time::Duration;

use super::request::{Generation, RoundRecord};

/// Speed of one generation. `None` where too little happened for a figure to mean anything.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Timings {
    /// From the request to the first token.
    pub ttft: Option<Duration>,
    /// (End to end - TTFT) / (tokens - 1), in seconds.
    pub tpot: Option<f64>,
    /// Prompt tokens / TTFT.
    pub prefill_tok_s: Option<f64>,
    /// Tokens a second after the first: 1 / TPOT.
    pub decode_tok_s: Option<f64>,
}

impl Timings {
    /// Of a generation from a prompt of `prompt` tokens.
    pub fn new(prompt: usize, generation: &Generation) -> Self {
        let ttft = (!generation.first_token.is_zero()).then_some(generation.first_token);
        let decode = generation.total.saturating_sub(generation.first_token).as_secs_f64();
        let tokens = generation.tokens.len().saturating_sub(1) as f64;
        let decoded = ttft.is_some() && tokens > 0.0 && decode > 0.0;
        Self {
            ttft,
            tpot: decoded.then_some(decode / tokens),
            prefill_tok_s: ttft.map(|ttft| prompt as f64 / ttft.as_secs_f64()),
            decode_tok_s: decoded.then_some(tokens / decode),
        }
    }
}

/// How much of what was drafted the target accepted.
#[derive(Debug, Clone, PartialEq)]
pub struct Acceptance {
    /// Tokens committed by each round, the bonus token included.
    pub lengths: Vec<usize>,
    /// Tokens committed by each round whose tree came from the drafter.
    pub drafted: Vec<usize>,
    /// Nodes verified in all rounds, roots left out.
    pub nodes: usize,
    /// Mean of `lengths`; `None` without rounds.
    pub tau: Option<f64>,
    /// Share of all rounds that accepted a node at depth d + 1.
    pub uncond: Vec<f64>,
    /// Share of the rounds that accepted depth d (all, for d = 0) which accepted depth d + 1; `None` if there were none.
    pub cond: Vec<Option<f64>>,
}

impl Acceptance {
    /// Of a generation whose trees are at most `depths` deep; deeper acceptance, if any, is listed too.
    pub fn new(generation: &Generation, depths: usize) -> Self {
        Self::of(&generation.rounds, depths)
    }

    /// Of the rounds of one generation or of many.
    pub fn of(records: &[RoundRecord], depths: usize) -> Self {
        let lengths: Vec<usize> = records.iter().map(|round| round.accepted).collect();
        let rounds = lengths.len();
        let depths = lengths.iter().map(|length| length.saturating_sub(1)).max().map_or(0, |most| most.max(depths));
        let reached = |depth: usize| lengths.iter().filter(|length| **length > depth).count();
        let uncond = (1..=depths).map(|depth| reached(depth) as f64 / rounds as f64).collect();
        let cond = (1..=depths)
            .map(|depth| {
                let before = if depth == 1 { rounds } else { reached(depth - 1) };
                (before > 0).then(|| reached(depth) as f64 / before as f64)
            })
            .collect();
        let tau = (rounds > 0).then(|| lengths.iter().sum::<usize>() as f64 / rounds as f64);
        let drafted = records.iter().filter(|round| round.drafted).map(|round| round.accepted).collect();
        let nodes = records.iter().map(|round| round.nodes).sum();
        Self { lengths, drafted, nodes, tau, uncond, cond }
    }

    /// Whether the drafter is so far from the target that something must be wrong: fewer than [`LOW_TAU`] tokens a round
    /// over at least [`LOW_TAU_ROUNDS`] of its rounds.
    pub fn is_suspicious(&self) -> bool {
        let rounds = self.drafted.len();
        rounds >= LOW_TAU_ROUNDS && self.drafted.iter().sum::<usize>() as f64 / (rounds as f64) < LOW_TAU
    }
}

/// A drafter that suits its target commits more tokens a round than this.
pub const LOW_TAU: f64 = 1.5;

/// Rounds after which [`LOW_TAU`] is judged.
pub const LOW_TAU_ROUNDS: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::{Finish, RoundRecord};

    fn generation(accepted: &[usize], tokens: usize) -> Generation {
        let round = |(i, accepted): (usize, &usize)| RoundRecord {
            accepted: *accepted,
            nodes: 7,
            drafted: true,
            at: Duration::from_millis(100 + 50 * (i as u64 + 1)),
        };
        let rounds: Vec<_> = accepted.iter().enumerate().map(round).collect();
        Generation {
            tokens: vec![5; tokens],
            finish: Finish::Length,
            first_token: Duration::from_millis(100),
            total: rounds.last().map_or(Duration::from_millis(100), |round| round.at),
            rounds,
        }
    }

    #[test]
    fn rates_by_depth_follow_their_definitions() {
        let acceptance = Acceptance::new(&generation(&[1, 3, 4, 1], 10), 4);
        assert_eq!(acceptance.tau, Some(2.25));
        assert_eq!(acceptance.uncond, [0.5, 0.5, 0.25, 0.0]);
        assert_eq!(acceptance.cond, [Some(0.5), Some(1.0), Some(0.5), Some(0.0)]);
    }

    #[test]
    fn conditional_rates_without_occasion_are_absent() {
        let acceptance = Acceptance::new(&generation(&[1, 1], 3), 3);
        assert_eq!(acceptance.uncond, [0.0, 0.0, 0.0]);
        assert_eq!(acceptance.cond, [Some(0.0), None, None]);
    }

    #[test]
    fn no_rounds_give_no_rates() {
        let acceptance = Acceptance::new(&generation(&[], 1), 7);
        assert_eq!(
            acceptance,
            Acceptance { lengths: vec![], drafted: vec![], nodes: 0, tau: None, uncond: vec![], cond: vec![] }
        );
    }

    #[test]
    fn times_follow_their_definitions() {
        let timings = Timings::new(20, &generation(&[3, 3], 6));
        assert_eq!(timings.ttft, Some(Duration::from_millis(100)));
        assert!((timings.tpot.unwrap() - 0.02).abs() < 1e-12, "{timings:?}");
        assert!((timings.decode_tok_s.unwrap() - 50.0).abs() < 1e-9, "{timings:?}");
        assert!((timings.prefill_tok_s.unwrap() - 200.0).abs() < 1e-9, "{timings:?}");
    }

    #[test]
    fn figures_without_a_base_are_absent() {
        let one = Timings::new(20, &generation(&[], 1));
        assert_eq!((one.tpot, one.decode_tok_s), (None, None));
        let interrupted = Generation { first_token: Duration::ZERO, total: Duration::ZERO, ..generation(&[], 0) };
        let none = Timings { ttft: None, tpot: None, prefill_tok_s: None, decode_tok_s: None };
        assert_eq!(Timings::new(20, &interrupted), none);
    }

    #[test]
    fn s1_low_acceptance_is_suspicious_after_32_rounds_and_not_before() {
        let cases = [(vec![1; 31], false), (vec![1; 32], true), (vec![2; 64], false)];
        for (accepted, want) in cases {
            let acceptance = Acceptance::new(&generation(&accepted, accepted.len() + 1), 7);
            assert_eq!(acceptance.is_suspicious(), want, "{} rounds of {}", accepted.len(), accepted[0]);
        }
    }
}
