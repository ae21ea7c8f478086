//! The walk: which rows of a verified tree are accepted. How a token is chosen is the caller's affair.

use super::child;

/// The outcome of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Walk {
    /// The accepted rows, from row 0 down.
    pub path: Vec<usize>,
    /// The token after the last accepted row: chosen there, but no child holds it.
    pub bonus: u32,
}

/// Walks the tree with one token a row: `choose(row)` is called once for each visited row, from row 0 on; the child
/// with that token is next, and the first token without one is the bonus. With a `choose` that samples the target's
/// distribution after that row, the committed tokens are what plain decoding would have given.
pub fn walk(tokens: &[u32], parents: &[i32], mut choose: impl FnMut(usize) -> u32) -> Walk {
    let mut path = vec![0];
    let mut row = 0;
    loop {
        let token = choose(row);
        match child(tokens, parents, row, token) {
            Some(next) => {
                path.push(next);
                row = next;
            }
            None => return Walk { path, bonus: token },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sampling::{Sampling, draw};
    use crate::tree::tests::any_tree;
    use crate::tree::{Tree, path_to};
    use proptest::prelude::*;

    #[test]
    fn a_root_alone_gives_its_token_as_the_bonus() {
        let root = Tree::root(4);
        assert_eq!(walk(&root.tokens, &root.parents, |row| row as u32 + 9), Walk { path: vec![0], bonus: 9 });
    }

    #[test]
    fn s10_a_block_accepts_as_many_rows_as_the_target_agrees_with() {
        let block = Tree::chain(&[10, 11, 12, 13, 14, 15, 16, 17]);
        for accepted in [0, 1, 6, 7] {
            let outcome = walk(&block.tokens, &block.parents, |row| if row < accepted { 11 + row as u32 } else { 99 });
            assert_eq!(outcome, Walk { path: (0..=accepted).collect(), bonus: 99 });
        }
    }

    #[test]
    fn s12_accepted_rows_need_not_be_the_first() {
        // Rows 1, 2 and 3 are children of the root, 7 is a child of 3.
        let (tokens, parents) = ([0, 1, 2, 3, 1, 1, 2, 5], [-1, 0, 0, 0, 1, 2, 2, 3]);
        let outcome = walk(&tokens, &parents, |row| [3, 9, 9, 5, 9, 9, 9, 6][row]);
        assert_eq!(outcome, Walk { path: vec![0, 3, 7], bonus: 6 });
    }

    /// Logits of a toy target: any function of the whole prefix.
    fn target(prefix: &[u32], vocab: u32) -> Vec<f32> {
        let hash = prefix.iter().fold(17u32, |hash, token| (hash ^ token).wrapping_mul(0x0100_0193).rotate_left(7));
        (0..vocab).map(|token| (hash.wrapping_mul(2 * token + 1) >> 24) as f32 / 64.0).collect()
    }

    proptest! {
        #[test]
        fn s12_the_accepted_rows_are_the_path_to_the_last(
            tree in any_tree(60, 3), choices in prop::collection::vec(0u32..3, 60),
        ) {
            let mut visited = Vec::new();
            let outcome = walk(&tree.tokens, &tree.parents, |row| {
                visited.push(row);
                choices[row]
            });
            let last = outcome.path[outcome.path.len() - 1];
            let mut path = Vec::new();
            path_to(&tree.parents, last, &mut path);
            prop_assert_eq!(&outcome.path, &path);
            prop_assert_eq!(&visited, &path, "each row is asked once");
            prop_assert_eq!(outcome.bonus, choices[last]);
            let missed = (0..tree.len()).all(|row| tree.parents[row] != last as i32 || tree.tokens[row] != outcome.bonus);
            prop_assert!(missed, "the bonus has a row of its own");
        }

        #[test]
        fn s14_any_trees_give_the_text_of_plain_decoding(
            trees in prop::collection::vec(any_tree(30, 3), 1..12), temperature in prop_oneof![Just(0f32), 0.2f32..2.0], seed: u64,
        ) {
            const VOCAB: u32 = 3;
            let sampling = Sampling { temperature, seed, ..Sampling::GREEDY };
            let next = |prefix: &[u32]| draw(&target(prefix, VOCAB), &sampling, prefix.len() as u64);
            let mut drafted = vec![1];
            for tree in &trees {
                let (context, root) = drafted.split_at(drafted.len() - 1);
                let tokens = [root, &tree.tokens[1..]].concat();
                let prefix = |row: usize| {
                    let mut path = Vec::new();
                    path_to(&tree.parents, row, &mut path);
                    context.iter().copied().chain(path.iter().map(|&row| tokens[row])).collect::<Vec<_>>()
                };
                let outcome = walk(&tokens, &tree.parents, |row| next(&prefix(row)));
                let accepted: Vec<_> = outcome.path[1..].iter().map(|&row| tokens[row]).collect();
                drafted.extend(accepted);
                drafted.push(outcome.bonus);
            }
            let mut plain = vec![1];
            while plain.len() < drafted.len() {
                plain.push(next(&plain));
            }
            prop_assert_eq!(drafted, plain);
        }
    }
}
