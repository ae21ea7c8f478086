//! What rounds cost and what they brought, learned from those that ended. Nothing is decided here.

use std::sync::Arc;

/// Share of the past that a round forgets.
const FORGET: f64 = 0.05;

/// What a node is taken to cost, as a share of a plain round, before any was seen: dear enough that only nodes that are
/// likely to be accepted are tried, which tells the true cost.
const NODE_COST: f64 = 0.4;

/// Weight of what is believed before anything was seen, in rounds.
const PRIOR: f64 = 4.0;

/// A round that took longer than this many times what was expected of it was held up by something else.
const HELD_UP: f64 = 2.0;

/// Time of a round by its nodes: the mean of rounds without any, and a line through those with some (least squares, the
/// latest weighing most), since the first node costs more than those after it: weights are then multiplied by rows, no
/// longer by one.
#[derive(Debug, Clone, Copy, Default)]
struct Cost {
    alone: Sums,
    some: Sums,
    /// How far the rounds seen have replaced what is believed of nodes, from 0 to 1.
    experience: f64,
}

/// Weighted sums over rounds of n nodes and time t.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    weight: f64,
    n: f64,
    t: f64,
    nn: f64,
    nt: f64,
}

impl Sums {
    fn learn(&mut self, nodes: usize, time: f64) {
        let nodes = nodes as f64;
        let terms = [1.0, nodes, time, nodes * nodes, nodes * time];
        let Self { weight, n, t, nn, nt } = self;
        for (sum, term) in [weight, n, t, nn, nt].into_iter().zip(terms) {
            *sum += term - FORGET * *sum;
        }
    }

    /// With as many as `weight` rounds of n nodes and time t more.
    fn with(mut self, weight: f64, n: f64, t: f64) -> Self {
        for (sum, term) in
            [(&mut self.weight, 1.0), (&mut self.n, n), (&mut self.t, t), (&mut self.nn, n * n), (&mut self.nt, n * t)]
        {
            *sum += weight * term;
        }
        self
    }

    /// The time at `nodes` of the line with the least squares; the mean where all have the same n.
    fn line(&self, nodes: f64) -> f64 {
        let (n, t) = (self.n / self.weight, self.t / self.weight);
        let spread = self.nn - self.weight * n * n;
        let slope = if spread > 1e-9 { ((self.nt - self.weight * n * t) / spread).max(0.0) } else { 0.0 };
        // Never below half the mean: far from what was seen the line means little.
        (t + slope * (nodes - n)).max(t / 2.0)
    }
}

impl Cost {
    fn learn(&mut self, nodes: usize, time: f64) {
        let sums = if nodes == 0 { &mut self.alone } else { &mut self.some };
        let time = if sums.weight > PRIOR { time.min(HELD_UP * sums.line(nodes as f64)) } else { time };
        sums.learn(nodes, time);
        if nodes > 0 {
            self.experience += (1.0 - self.experience) / PRIOR;
        }
    }

    /// Seconds of a round of `nodes` nodes; none if no round was seen.
    fn of(&self, nodes: usize) -> Option<f64> {
        let Self { alone, some, experience } = self;
        match (alone.weight > 0.0, some.weight > 0.0) {
            (false, false) => None,
            (true, _) if nodes == 0 => Some(alone.line(0.0)),
            (false, true) => Some(some.line(nodes as f64)),
            (true, _) => {
                // What is believed of one node and of many.
                let (t, weight) = (alone.line(0.0), 1.0 - experience);
                let believed = |n: f64| t * (1.0 + NODE_COST * n);
                Some(some.with(weight, 1.0, believed(1.0)).with(weight, 8.0, believed(8.0)).line(nodes as f64))
            }
        }
    }
}

/// Tokens and seconds of recent rounds.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Yield {
    tokens: f64,
    seconds: f64,
    /// Rounds seen, none forgotten.
    pub(super) rounds: usize,
}

impl Yield {
    fn learn(&mut self, tokens: usize, seconds: f64) {
        self.tokens += tokens as f64 - FORGET * self.tokens;
        self.seconds += seconds - FORGET * self.seconds;
        self.rounds += 1;
    }

    /// Tokens a second; 0 if no round was seen.
    pub(super) fn rate(&self) -> f64 {
        if self.seconds > 0.0 { self.tokens / self.seconds } else { 0.0 }
    }
}

/// Rounds of one kind: with the drafter, or without.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Kind {
    cost: Cost,
    /// What they brought.
    pub(super) gain: Yield,
}

impl Kind {
    /// Takes note of a round of `nodes` nodes that committed `tokens` tokens in `seconds`.
    pub(super) fn learn(&mut self, nodes: usize, tokens: usize, seconds: f64) {
        self.cost.learn(nodes, seconds);
        self.gain.learn(tokens, seconds);
    }

    /// What a node costs, as a share of a round without any.
    pub(super) fn node(&self) -> f64 {
        match (self.cost.of(0), self.cost.of(1)) {
            (Some(none), Some(one)) => one / none - 1.0,
            _ => NODE_COST,
        }
    }

    /// Seconds of a round of n nodes for n up to `most`; none before a round was seen.
    pub(super) fn costs(&self, most: usize) -> Option<Arc<[f32]>> {
        (0..=most).map(|nodes| self.cost.of(nodes).map(|seconds| seconds as f32)).collect()
    }
}

/// Accepted nodes for each that the drafter's probabilities promised.
#[derive(Debug, Clone, Copy)]
pub(super) struct Trust {
    promised: f64,
    accepted: f64,
}

impl Default for Trust {
    fn default() -> Self {
        Self { promised: PRIOR, accepted: PRIOR }
    }
}

impl Trust {
    /// Takes note of a round.
    pub(super) fn learn(&mut self, promised: f64, accepted: usize) {
        self.promised += promised - FORGET * self.promised;
        self.accepted += accepted as f64 - FORGET * self.accepted;
    }

    /// The quotient, from a quarter to two.
    pub(super) fn factor(&self) -> f32 {
        (self.accepted / self.promised.max(f64::MIN_POSITIVE)).clamp(0.25, 2.0) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cost(rounds: impl Iterator<Item = (usize, f64)>) -> Cost {
        let mut cost = Cost::default();
        rounds.for_each(|(nodes, time)| cost.learn(nodes, time));
        cost
    }

    fn near(a: Option<f64>, b: f64) -> bool {
        a.is_some_and(|a| (a - b).abs() < 0.1 * b)
    }

    #[test]
    fn before_a_node_was_seen_it_costs_a_share_of_a_round() {
        let plain = cost((0..50).map(|_| (0, 2e-3)));
        let share = |nodes: usize| 2e-3 * (1.0 + NODE_COST * nodes as f64);
        assert!([0, 1, 10].into_iter().all(|nodes| near(plain.of(nodes), share(nodes))), "{plain:?}");
        assert_eq!(Cost::default().of(3), None);
        assert_eq!(Kind::default().costs(3), None);
        assert_eq!(Kind::default().node(), NODE_COST);
    }

    #[test]
    fn a_linear_cost_is_found_and_followed() {
        let line = |slope: f64| move |i: usize| (i % 8, 1.0 + slope * (i % 8) as f64);
        for slope in [0.0, 0.02, 0.5, 2.0] {
            let cost = cost((0..400).map(line(slope)));
            for nodes in [0, 3, 7] {
                assert!(near(cost.of(nodes), 1.0 + slope * nodes as f64), "slope {slope}, {nodes}: {cost:?}");
            }
        }
        let changed = cost((0..200).map(line(0.1)).chain((0..200).map(line(0.5))));
        assert!(near(changed.of(7), 4.5), "{changed:?}");
    }

    #[test]
    fn the_first_node_may_cost_more_than_the_next() {
        let step = |n: usize| (n, if n == 0 { 1.0 } else { 1.5 + 0.1 * n as f64 });
        let cost = cost((0..400).map(|i| step(i % 5)));
        assert!((0..5).all(|n| near(cost.of(n), step(n).1)), "{cost:?}");
    }

    #[test]
    fn rounds_with_nodes_alone_give_a_line_too() {
        let cost = cost((0..100).map(|i| (4 + i % 2, 1.0)));
        assert!([0, 4, 9].into_iter().all(|nodes| near(cost.of(nodes), 1.0)), "{cost:?}");
    }

    #[test]
    fn a_round_that_was_held_up_hardly_counts() {
        let held_up = cost((0..100).map(|i| (0, if i == 90 { 100.0 } else { 1.0 })));
        assert!(held_up.of(0).is_some_and(|time| time < 1.1), "{held_up:?}");
    }

    #[test]
    fn costs_stay_positive_far_from_what_was_seen() {
        let odd = cost((0..40).map(|i| (10 + i % 2, 1.0 - 0.2 * (i % 2) as f64)));
        assert!((0..64).all(|nodes| odd.of(nodes).is_some_and(|time| time > 0.0)));
    }

    #[test]
    fn trust_is_what_was_accepted_of_what_was_promised() {
        let mut trust = Trust::default();
        assert_eq!(trust.factor(), 1.0);
        (0..200).for_each(|_| trust.learn(2.0, 1));
        assert!((trust.factor() - 0.5).abs() < 0.02);
        (0..200).for_each(|_| trust.learn(2.0, 0));
        assert_eq!(trust.factor(), 0.25);
    }

    #[test]
    fn a_yield_is_tokens_over_seconds() {
        let mut kind = Kind::default();
        assert_eq!(kind.gain.rate(), 0.0);
        (0..30).for_each(|_| kind.learn(3, 2, 0.5));
        assert!((kind.gain.rate() - 4.0).abs() < 1e-9 && kind.gain.rounds == 30);
    }
}
