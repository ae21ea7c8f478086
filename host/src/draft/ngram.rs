//! Prompt lookup: drafts from what followed earlier occurrences of the latest tokens. No model.

use crate::tree::{Tree, child};

/// The longest continuation that is proposed, in tokens.
pub const MAX_DEPTH: usize = 16;

/// Earlier occurrences that are merged at most, so that a repetitive history costs no more than another.
const MAX_OCCURRENCES: usize = 64;

/// Drafts at most `budget` nodes below the last token of `history`, as prompt lookup does: the last n tokens, for
/// the largest n from `min_ngram` to `max_ngram` that has one, are looked up at their most recent earlier
/// occurrence, and the tokens that followed it there are proposed as a chain of at most [`MAX_DEPTH`]. What is left
/// of the budget goes to the other occurrences, longer matches first, then more recent ones: their continuations
/// share the prefixes that are already there and branch off where they differ.
///
/// Nothing past the end of the history is proposed. No match, or no budget, gives the root alone; an empty history
/// has no root and gives the empty [`Tree`]. `min_ngram` is at least 1. One scan of the history, O(history x
/// `max_ngram`) at worst.
pub fn propose(history: &[u32], max_ngram: usize, min_ngram: usize, budget: usize) -> Tree {
    let Some(&root) = history.last() else { return Tree::default() };
    let mut tree = Tree::root(root);
    for start in continuations(history, max_ngram, min_ngram.max(1)) {
        let mut row = 0;
        for &token in history[start..].iter().take(MAX_DEPTH) {
            row = match child(&tree.tokens, &tree.parents, row, token) {
                Some(next) => next,
                None if tree.nodes() == budget => return tree,
                None => tree.push(token, row),
            };
        }
    }
    tree
}

/// The latest of the longest matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Match {
    /// Tokens that are equal before the continuation.
    pub length: usize,
    /// What followed, at most [`MAX_DEPTH`] tokens and at least one.
    pub tokens: Vec<u32>,
}

/// The continuation that [`propose`] puts first, with the length of its match, of at most `max_ngram` tokens; none
/// without a match.
pub fn longest_match(history: &[u32], max_ngram: usize) -> Option<Match> {
    let mut best = (0, 0);
    for start in (1..history.len()).rev() {
        let length = common_suffix(&history[..start], history, max_ngram);
        if length > best.0 {
            best = (length, start);
        }
        if length == max_ngram {
            break;
        }
    }
    let (length, start) = best;
    let tokens = || history[start..].iter().copied().take(MAX_DEPTH).collect();
    (length > 0).then(|| Match { length, tokens: tokens() })
}

/// Where the text goes on after each earlier occurrence of the last tokens: longer matches first, then more recent
/// ones, at most [`MAX_OCCURRENCES`].
fn continuations(history: &[u32], max_ngram: usize, min_ngram: usize) -> impl Iterator<Item = usize> {
    let max_ngram = max_ngram.min(history.len());
    // By match length, from the longest.
    let mut starts = vec![Vec::new(); (max_ngram + 1).saturating_sub(min_ngram)];
    for start in (1..history.len()).rev() {
        let ngram = common_suffix(&history[..start], history, max_ngram);
        if ngram < min_ngram {
            continue;
        }
        let same = &mut starts[max_ngram - ngram];
        if same.len() < MAX_OCCURRENCES {
            same.push(start);
        } else if ngram == max_ngram {
            break;
        }
    }
    starts.into_iter().flatten().take(MAX_OCCURRENCES)
}

/// How many of the last tokens of `a` and `b` are equal, counted up to `limit`.
fn common_suffix(a: &[u32], b: &[u32], limit: usize) -> usize {
    a.iter().rev().zip(b.iter().rev()).take(limit).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tree(rows: &[(u32, usize)], root: u32) -> Tree {
        let mut tree = Tree::root(root);
        for &(token, parent) in rows {
            tree.push(token, parent);
        }
        tree
    }

    #[test]
    fn without_a_match_or_a_budget_there_is_only_the_root() {
        let cases: [(&[u32], usize, usize, usize); 6] = [
            (&[5], 3, 1, 8),
            (&[1, 2, 3, 5], 3, 1, 8),
            (&[5, 1, 5], 3, 1, 0),
            (&[5, 1, 5], 3, 2, 8),
            (&[5, 1, 5], 0, 0, 8),
            (&[5, 1, 5], 1, 3, 8),
        ];
        let failed: Vec<_> =
            cases.iter().filter(|(h, max, min, b)| propose(h, *max, *min, *b) != Tree::root(5)).collect();
        assert!(failed.is_empty(), "{failed:?}");
        assert_eq!(propose(&[], 3, 1, 8), Tree::default());
    }

    #[test]
    fn the_longest_match_is_preferred_to_a_more_recent_one() {
        let history = [1, 2, 3, 7, 9, 3, 8, 2, 3];
        assert_eq!(propose(&history, 4, 1, 2), Tree::chain(&[3, 7, 9]));
        assert_eq!(propose(&history, 1, 1, 2), Tree::chain(&[3, 8, 2]));
    }

    #[test]
    fn other_occurrences_branch_off_where_they_differ() {
        // After 1 2: 3 4 most recently, 3 5 before, 6 first.
        let history = [1, 2, 6, 1, 2, 3, 5, 1, 2, 3, 4, 1, 2];
        let recent = [(3, 0), (4, 1), (1, 2), (2, 3)];
        assert_eq!(propose(&history, 2, 2, 4), tree(&recent, 2));
        let more = [(5, 1), (1, 5), (2, 6), (3, 7), (4, 8), (1, 9), (2, 10)];
        assert_eq!(propose(&history, 2, 2, 11), tree(&[&recent[..], &more].concat(), 2));
        assert_eq!(propose(&history, 2, 2, 12), tree(&[&recent[..], &more, &[(6, 0)]].concat(), 2));
    }

    #[test]
    fn a_repetition_is_extended_by_its_older_turns_up_to_the_depth_limit() {
        let history: Vec<u32> = (0..100).map(|i| i % 2).collect();
        let want: Vec<u32> = (99..100 + MAX_DEPTH as u32).map(|i| i % 2).collect();
        assert_eq!(propose(&history, 3, 1, 64).tokens[..=MAX_DEPTH], want);
        assert_eq!(propose(&history, 3, 2, 64), Tree::chain(&want));
        assert_eq!(propose(&[4; 5], 3, 1, 64), Tree::chain(&[4; 5]));
    }

    proptest! {
        #[test]
        fn every_branch_repeats_text_that_followed_a_match(
            history in prop::collection::vec(0u32..3, 1..80), max in 1usize..6, min in 1usize..4, budget in 0usize..40,
        ) {
            let tree = propose(&history, max, min, budget);
            prop_assert_eq!(tree.validate(), Ok(()));
            prop_assert!(tree.nodes() <= budget);
            prop_assert!(tree.depths.iter().all(|&depth| depth as usize <= MAX_DEPTH));
            let suffix = &history[history.len() - min.min(history.len())..];
            let mut path = Vec::new();
            for row in 1..tree.len() {
                crate::tree::path_to(&tree.parents, row, &mut path);
                let branch: Vec<_> = path[1..].iter().map(|&row| tree.tokens[row]).collect();
                let text = [suffix, &branch].concat();
                prop_assert!(history.windows(text.len()).any(|window| window == text), "{:?}", branch);
            }
        }

        #[test]
        fn the_longest_match_is_the_first_that_is_proposed(
            history in prop::collection::vec(0u32..3, 1..60), max in 1usize..6,
        ) {
            match longest_match(&history, max) {
                None => prop_assert_eq!(propose(&history, max, 1, 9).nodes(), 0),
                Some(Match { length, tokens }) => {
                    let tree = propose(&history, max, 1, tokens.len());
                    prop_assert_eq!(&tree.tokens[1..], tokens.as_slice());
                    let text = [&history[history.len() - length..], &tokens].concat();
                    prop_assert!(history.windows(text.len()).any(|window| window == text));
                }
            }
        }

        #[test]
        fn a_small_budget_gives_the_chain_after_the_first_longest_match(
            history in prop::collection::vec(0u32..3, 1..60), max in 1usize..6, budget in 1usize..4,
        ) {
            let len = history.len();
            let found = (1..=max.min(len)).rev().find_map(|n| {
                let start = (n..len).rev().find(|&start| history[start - n..start] == history[len - n..])?;
                Some(history[start..].iter().copied().take(budget).collect::<Vec<_>>())
            });
            let want = found.unwrap_or_default();
            let tree = propose(&history, max, 1, budget);
            prop_assert_eq!(&tree.tokens[1..=want.len()], want.as_slice());
            prop_assert_eq!(&Tree::chain(&tree.tokens[..=want.len()]).parents[..], &tree.parents[..=want.len()]);
        }
    }
}
