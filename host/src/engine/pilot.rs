//! Decides how each round is drafted. What rounds cost is learned in [`super::pace`]; the text never depends on it.

use std::collections::VecDeque;

use super::pace::{Kind, Trust};
use super::request::{Drafts, Speculation};
use super::worth::Drafting;
use crate::backend::{Budget, Round};
use crate::stage;

/// Nodes of a tree whose budget is decided round by round, at most.
pub const MOST_NODES: usize = 31;

/// Rounds without the drafter before it is tried, which tell what a plain round costs.
const PLAIN_ROUNDS: usize = 4;

/// Rounds of the drafter's trial: after the least of them it may be given up if it is far behind, after the most if it is
/// behind at all.
const TRIAL: std::ops::RangeInclusive<usize> = 2..=8;

/// Far behind: a lower share than this of the tokens a second without the drafter.
const FAR_BEHIND: f64 = 0.8;

/// Nodes of a tree before the cost of any is known.
const FIRST_NODES: usize = 4;

/// What a round is drafted from.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Draft {
    /// Nothing: the root alone.
    Nothing,
    /// What followed earlier occurrences of the latest tokens.
    Ngram(Budget),
    /// The drafter's best token a slot, at most so many.
    Chain(usize),
    /// The drafter's most probable prefixes.
    BestFirst(Budget),
}

/// How a round is carried out.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct RoundPlan {
    /// Its tree.
    pub(super) draft: Draft,
    /// The drafter's context is kept up to date. Once it was not, the drafter is of no use to the request.
    pub(super) follow: bool,
}

/// What a session remembers from one request to the next.
#[derive(Debug, Default)]
pub(super) struct Memory {
    /// Rounds with the drafter, and without.
    drafted: Kind,
    undrafted: Kind,
    trust: Trust,
    /// Requests in which the drafter might have been used.
    requests: u32,
}

/// Plans the rounds of one request.
#[derive(Debug)]
pub(super) struct Pilot<'m> {
    memory: &'m mut Memory,
    speculation: Speculation,
    /// Whether the drafter is still of use.
    following: bool,
    /// Rounds of this request: without the drafter, and with it.
    plain_rounds: usize,
    drafted_rounds: usize,
    /// Plans of the rounds that have not ended, oldest first: whether they are drafted.
    outstanding: VecDeque<bool>,
}

impl<'m> Pilot<'m> {
    /// `drafting`: what the session's drafter costs, if it has one.
    pub(super) fn new(memory: &'m mut Memory, speculation: Speculation, drafting: Option<Drafting>) -> Self {
        let following = match (drafting, speculation) {
            (None, _) => false,
            (Some(drafting), Speculation::Auto(Drafts::Any)) => {
                memory.requests += 1;
                let Memory { drafted, undrafted, requests, .. } = &*memory;
                if drafted.gain.rounds == 0 {
                    drafting.may_pay(undrafted.node())
                } else {
                    // One that fell behind is tried again in the 2nd, 4th, 8th, .. request: texts differ.
                    drafted.gain.rate() >= undrafted.gain.rate() || requests.is_power_of_two()
                }
            }
            (Some(_), speculation) => speculation.needs_drafter(),
        };
        Self { memory, speculation, following, plain_rounds: 0, drafted_rounds: 0, outstanding: VecDeque::new() }
    }

    /// Whether the drafter takes the prompt into its context.
    pub(super) fn follows(&self) -> bool {
        self.following
    }

    /// The plan of the next round.
    pub(super) fn plan(&mut self) -> RoundPlan {
        let _stage = stage!("plan");
        let draft = match self.speculation {
            Speculation::None => Draft::Nothing,
            Speculation::Ngram { budget } => Draft::Ngram(Budget::Fixed(budget)),
            Speculation::Dflash { budget } => Draft::Chain(budget),
            Speculation::Ddtree { budget } => Draft::BestFirst(Budget::Fixed(budget)),
            Speculation::Auto(Drafts::Ngram) => self.ngram(),
            Speculation::Auto(Drafts::Ddtree) => self.best_first(),
            Speculation::Auto(Drafts::Any) if self.following && self.plain_rounds >= PLAIN_ROUNDS => self.best_first(),
            Speculation::Auto(Drafts::Any) => self.ngram(),
        };
        let drafted = matches!(draft, Draft::Chain(_) | Draft::BestFirst(_));
        if drafted {
            self.drafted_rounds += 1;
        } else {
            self.plain_rounds += 1;
        }
        self.outstanding.push_back(drafted);
        RoundPlan { draft, follow: self.following }
    }

    fn ngram(&self) -> Draft {
        match self.memory.undrafted.costs(MOST_NODES) {
            Some(costs) => Draft::Ngram(Budget::Auto { costs, trust: 1.0 }),
            None => Draft::Nothing,
        }
    }

    fn best_first(&self) -> Draft {
        Draft::BestFirst(match self.memory.drafted.costs(MOST_NODES) {
            Some(costs) => Budget::Auto { costs, trust: self.memory.trust.factor() },
            None => Budget::Fixed(FIRST_NODES),
        })
    }

    /// Takes note of the oldest outstanding round, which took `seconds`; whether its tree came from the drafter.
    pub(super) fn ended(&mut self, round: &Round, seconds: f64) -> bool {
        let drafted = self.outstanding.pop_front().unwrap_or(false);
        let tokens = round.tokens.len();
        if tokens == 0 {
            return drafted;
        }
        let Memory { drafted: with, undrafted: without, trust, .. } = &mut *self.memory;
        if drafted {
            with.learn(round.nodes, tokens, seconds);
            if round.promised > 0.0 {
                trust.learn(f64::from(round.promised), tokens - 1);
            }
        } else {
            without.learn(round.nodes, tokens, seconds);
        }
        if drafted && self.speculation == Speculation::Auto(Drafts::Any) {
            let share = with.gain.rate() / without.gain.rate();
            let far_behind = self.drafted_rounds >= *TRIAL.start() && share < FAR_BEHIND;
            let behind = self.drafted_rounds >= *TRIAL.end() && share < 1.0;
            self.following &= !(far_behind || behind);
        }
        drafted
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs rounds that commit what `tokens` says of their plan and take what `seconds` says.
    fn fly(
        memory: &mut Memory,
        drafting: Drafting,
        rounds: usize,
        outcome: impl Fn(&RoundPlan) -> (usize, usize, f64),
    ) -> Vec<RoundPlan> {
        let mut pilot = Pilot::new(memory, Speculation::Auto(Drafts::Any), Some(drafting));
        (0..rounds)
            .map(|_| {
                let plan = pilot.plan();
                let (nodes, tokens, seconds) = outcome(&plan);
                let round = Round { tokens: vec![1; tokens], nodes, promised: 1.0, ..Round::default() };
                pilot.ended(&round, seconds);
                plan
            })
            .collect()
    }

    fn is_drafted(plan: &RoundPlan) -> bool {
        matches!(plan.draft, Draft::BestFirst(_))
    }

    const LIGHT: Drafting = Drafting::of(0.1, 8);

    #[test]
    fn a_drafter_that_pays_is_used_after_a_few_plain_rounds() {
        let plans =
            fly(&mut Memory::default(), LIGHT, 50, |plan| if is_drafted(plan) { (7, 4, 1.5) } else { (0, 1, 1.0) });
        assert!(plans[..PLAIN_ROUNDS].iter().all(|plan| !is_drafted(plan) && plan.follow));
        assert!(plans[PLAIN_ROUNDS..].iter().all(|plan| is_drafted(plan) && plan.follow));
        assert!(matches!(plans[PLAIN_ROUNDS].draft, Draft::BestFirst(Budget::Fixed(FIRST_NODES))));
        assert!(matches!(plans[PLAIN_ROUNDS + 1].draft, Draft::BestFirst(Budget::Auto { .. })));
    }

    #[test]
    fn a_drafter_that_does_not_pay_is_given_up_and_tried_again_ever_more_rarely() {
        let mut memory = Memory::default();
        let mut tried = Vec::new();
        for request in 1..=16 {
            let plans = fly(&mut memory, LIGHT, 60, |plan| if is_drafted(plan) { (7, 2, 4.0) } else { (0, 1, 1.0) });
            let drafted = plans.iter().filter(|plan| is_drafted(plan)).count();
            assert!(drafted <= *TRIAL.start(), "{drafted} rounds of request {request}");
            assert!(plans[59].follow == is_drafted(&plans[59]) && !plans[59].follow);
            if drafted > 0 {
                tried.push(request);
            }
        }
        assert_eq!(tried, [1, 2, 4, 8, 16]);
    }

    #[test]
    fn one_that_is_nearly_as_good_gets_the_whole_trial() {
        let plans =
            fly(&mut Memory::default(), LIGHT, 60, |plan| if is_drafted(plan) { (7, 9, 10.0) } else { (0, 1, 1.0) });
        assert_eq!(plans.iter().filter(|plan| is_drafted(plan)).count(), *TRIAL.end());
    }

    #[test]
    fn one_too_heavy_to_pay_is_never_tried() {
        let plans = fly(&mut Memory::default(), Drafting::of(4.0, 8), 60, |_| (0, 1, 1.0));
        assert!(plans.iter().all(|plan| !plan.follow && !is_drafted(plan)));
        assert!(
            matches!(plans[0].draft, Draft::Nothing) && matches!(plans[1].draft, Draft::Ngram(Budget::Auto { .. }))
        );
    }

    #[test]
    fn fixed_modes_plan_what_they_say() {
        let cases = [
            (Speculation::None, Draft::Nothing, false),
            (Speculation::Ngram { budget: 3 }, Draft::Ngram(Budget::Fixed(3)), false),
            (Speculation::Dflash { budget: 3 }, Draft::Chain(3), true),
            (Speculation::Ddtree { budget: 3 }, Draft::BestFirst(Budget::Fixed(3)), true),
            (Speculation::Auto(Drafts::Ddtree), Draft::BestFirst(Budget::Fixed(FIRST_NODES)), true),
        ];
        for (speculation, draft, follow) in cases {
            let mut memory = Memory::default();
            assert_eq!(Pilot::new(&mut memory, speculation, Some(LIGHT)).plan(), RoundPlan { draft, follow });
        }
    }
}
