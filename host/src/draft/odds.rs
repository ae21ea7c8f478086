//! How often prompt lookup is right: learned from the text itself, so that a lookup can say what it is worth.

/// Lengths of a match that are told apart; longer ones count as the last.
const LENGTHS: usize = 8;

/// Tokens after a match that are told apart: the first, and those after it.
const PLACES: usize = 2;

/// Weight of what is believed before anything was seen, in trials.
const PRIOR: f32 = 4.0;

/// Share of the past that a trial forgets, so that a change of subject is noticed.
const FORGET: f32 = 0.02;

/// Share of right continuations, by length of the match and place after it, given that those before were right.
#[derive(Debug, Clone, PartialEq)]
pub struct Odds {
    cells: [[Cell; PLACES]; LENGTHS],
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Cell {
    right: f32,
    trials: f32,
}

impl Default for Odds {
    /// What holds for code and prose alike: a longer match is righter, and what was right once goes on being so.
    fn default() -> Self {
        let believed = |share: f32| Cell { right: share * PRIOR, trials: PRIOR };
        let cells = std::array::from_fn(|length| {
            let first = 0.25 + 0.5 * length as f32 / LENGTHS as f32;
            [believed(first), believed(0.5 + first / 2.0)]
        });
        Self { cells }
    }
}

impl Odds {
    /// Probability that the first d tokens after a match of `length` tokens (at least 1) are all right, for d from 1 on.
    pub fn probabilities(&self, length: usize) -> impl Iterator<Item = f64> {
        let cells = self.cells[length.clamp(1, LENGTHS) - 1];
        let mut all = 1.0;
        (0..).map(move |place| {
            let Cell { right, trials } = cells[usize::min(place, PLACES - 1)];
            all *= f64::from(right / trials);
            all
        })
    }

    /// Takes note that `tokens` followed where a match of `length` tokens promised `promised`.
    pub fn learn(&mut self, length: usize, promised: &[u32], tokens: &[u32]) {
        let cells = &mut self.cells[length.clamp(1, LENGTHS) - 1];
        for (place, (promised, token)) in promised.iter().zip(tokens).enumerate() {
            let cell = &mut cells[place.min(PLACES - 1)];
            let right = promised == token;
            cell.trials += 1.0 - FORGET * cell.trials;
            cell.right += f32::from(right) - FORGET * cell.right;
            if !right {
                break;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(odds: &Odds, length: usize, count: usize) -> Vec<f64> {
        odds.probabilities(length).take(count).collect()
    }

    #[test]
    fn longer_matches_are_believed_more_and_deeper_tokens_less() {
        let odds = Odds::default();
        for length in 1..LENGTHS {
            assert!(first(&odds, length, 1) < first(&odds, length + 1, 1));
        }
        let deep = first(&odds, 3, 5);
        assert!(deep.is_sorted_by(|a, b| a > b) && deep[4] > 0.0, "{deep:?}");
        assert_eq!(first(&odds, LENGTHS, 4), first(&odds, 1000, 4));
    }

    #[test]
    fn what_is_seen_replaces_what_was_believed() {
        let mut odds = Odds::default();
        for i in 0..400 {
            let hit = i % 4 == 0;
            odds.learn(2, &[1, 2, 3], if hit { &[1, 2, 9] } else { &[7] });
        }
        let seen = first(&odds, 2, 3);
        assert!((seen[0] - 0.25).abs() < 0.05, "{seen:?}");
        // The second place was right as often as it was reached, the third never.
        assert!((seen[1] / seen[0] - 0.5).abs() < 0.1, "{seen:?}");
        assert_eq!(first(&odds, 3, 2), first(&Odds::default(), 3, 2));
    }

    #[test]
    fn tokens_that_were_not_promised_teach_nothing() {
        let mut odds = Odds::default();
        odds.learn(1, &[], &[1, 2]);
        odds.learn(1, &[5], &[]);
        assert_eq!(odds, Odds::default());
    }
}
