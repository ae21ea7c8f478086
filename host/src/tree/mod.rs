//! Draft trees: how they are built, masked and walked. No model, no device.

pub mod budget;
pub mod build;
pub mod candidates;
pub mod mask;
pub mod walk;

pub use budget::best_budget;
pub use build::{BestFirst, Node, best_first, chain, from_nodes};
pub use candidates::{Candidates, top_k};
pub use mask::{Mask, ancestors, path_to};
pub use walk::{Walk, walk};

use std::collections::HashSet;

/// The rows of a round: row 0 is the root, parents precede children, siblings differ in their tokens. A row's
/// absolute position is the root's plus its depth.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Tree {
    /// The token of each row.
    pub tokens: Vec<u32>,
    /// The row of each row's parent, -1 for the root.
    pub parents: Vec<i32>,
    /// How far below the root each row is, 0 for the root.
    pub depths: Vec<u32>,
}

impl Tree {
    /// The empty tree: a root and no node, which is plain decoding.
    pub fn root(token: u32) -> Self {
        Self { tokens: vec![token], parents: vec![-1], depths: vec![0] }
    }

    /// Each token the only child of the one before it; the first is the root.
    pub fn chain(tokens: &[u32]) -> Self {
        let rows = 0..tokens.len();
        Self {
            tokens: tokens.to_vec(),
            parents: rows.clone().map(|row| row as i32 - 1).collect(),
            depths: rows.map(|row| row as u32).collect(),
        }
    }

    /// The number of rows, the root included.
    pub fn len(&self) -> usize {
        self.tokens.len()
    }

    /// Whether there is not even a root.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }

    /// The number of rows besides the root.
    pub fn nodes(&self) -> usize {
        self.len().saturating_sub(1)
    }

    /// Appends a child of row `parent` and returns its row.
    pub(crate) fn push(&mut self, token: u32, parent: usize) -> usize {
        self.tokens.push(token);
        self.parents.push(parent as i32);
        self.depths.push(self.depths[parent] + 1);
        self.len() - 1
    }

    /// Checks what the type's description promises.
    ///
    /// # Errors
    /// The first row that breaks it, with what was found and what was expected.
    pub fn validate(&self) -> Result<(), String> {
        let Self { tokens, parents, depths } = self;
        if parents.len() != tokens.len() || depths.len() != tokens.len() {
            let (tokens, parents, depths) = (tokens.len(), parents.len(), depths.len());
            return Err(format!(
                "tree has {tokens} tokens, {parents} parents and {depths} depths, expected as many of each"
            ));
        }
        let (Some(&parent), Some(&depth)) = (parents.first(), depths.first()) else {
            return Err("tree has no rows, expected at least the root".into());
        };
        if (parent, depth) != (-1, 0) {
            return Err(format!(
                "tree row 0 has parent {parent} and depth {depth}, expected a root (parent -1, depth 0)"
            ));
        }
        let mut seen = HashSet::new();
        for (row, ((&token, &parent), &depth)) in tokens.iter().zip(parents).zip(depths).enumerate().skip(1) {
            let Some(above) = usize::try_from(parent).ok().filter(|&above| above < row) else {
                return Err(format!("tree row {row} has parent {parent}, expected a row from 0 to {}", row - 1));
            };
            if depths[above].checked_add(1) != Some(depth) {
                let expected = u64::from(depths[above]) + 1;
                return Err(format!(
                    "tree row {row} has depth {depth}, expected {expected} (one below its parent {parent})"
                ));
            }
            if !seen.insert((parent, token)) {
                return Err(format!(
                    "tree row {row} has token {token} like a sibling under row {parent}, expected distinct tokens"
                ));
            }
        }
        Ok(())
    }
}

/// The row of the child of `row` that holds `token`, by tokens and parents of all rows.
pub(crate) fn child(tokens: &[u32], parents: &[i32], row: usize, token: u32) -> Option<usize> {
    let mut rows = tokens.iter().zip(parents).enumerate().skip(row + 1);
    rows.find(|&(_, (&other, &parent))| other == token && usize::try_from(parent) == Ok(row)).map(|(child, _)| child)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A valid tree of 1 to `rows` rows over tokens below `vocab`.
    pub(crate) fn any_tree(rows: usize, vocab: u32) -> impl Strategy<Value = Tree> {
        let node = (any::<prop::sample::Index>(), 0..vocab);
        (0..vocab, prop::collection::vec(node, 0..rows)).prop_map(|(root, nodes)| {
            let mut tree = Tree::root(root);
            for (parent, token) in nodes {
                let parent = parent.index(tree.len());
                if child(&tree.tokens, &tree.parents, parent, token).is_none() {
                    tree.push(token, parent);
                }
            }
            tree
        })
    }

    #[test]
    fn a_chain_of_one_is_the_root() {
        assert_eq!(Tree::chain(&[7]), Tree::root(7));
        assert_eq!(Tree::chain(&[]), Tree::default());
        assert_eq!((Tree::root(7).len(), Tree::root(7).nodes(), Tree::default().nodes()), (1, 0, 0));
    }

    #[test]
    fn a_chain_counts_its_parents_and_depths() {
        let chain = Tree::chain(&[5, 5, 6]);
        assert_eq!((chain.parents.as_slice(), chain.depths.as_slice()), (&[-1, 0, 1][..], &[0, 1, 2][..]));
        assert_eq!(chain.validate(), Ok(()));
    }

    #[test]
    fn each_fault_of_a_tree_is_named() {
        let tree = |tokens: &[u32], parents: &[i32], depths: &[u32]| Tree {
            tokens: tokens.to_vec(),
            parents: parents.to_vec(),
            depths: depths.to_vec(),
        };
        let cases = [
            (tree(&[1, 2, 2, 3], &[-1, 0, 1, 0], &[0, 1, 2, 1]), ""),
            (tree(&[], &[], &[]), "tree has no rows, expected at least the root"),
            (tree(&[1, 2], &[-1], &[0]), "tree has 2 tokens, 1 parents and 1 depths, expected as many of each"),
            (tree(&[1], &[0], &[0]), "tree row 0 has parent 0 and depth 0, expected a root (parent -1, depth 0)"),
            (tree(&[1], &[-1], &[1]), "tree row 0 has parent -1 and depth 1, expected a root (parent -1, depth 0)"),
            (tree(&[1, 2], &[-1, 1], &[0, 1]), "tree row 1 has parent 1, expected a row from 0 to 0"),
            (tree(&[1, 2, 3], &[-1, 0, -1], &[0, 1, 0]), "tree row 2 has parent -1, expected a row from 0 to 1"),
            (tree(&[1, 2], &[-1, 0], &[0, 2]), "tree row 1 has depth 2, expected 1 (one below its parent 0)"),
            (
                tree(&[1, 2, 3, 2], &[-1, 0, 0, 0], &[0, 1, 1, 1]),
                "tree row 3 has token 2 like a sibling under row 0, expected distinct tokens",
            ),
        ];
        let failed: Vec<_> = cases
            .iter()
            .map(|(t, want)| (t.validate().err().unwrap_or_default(), want))
            .filter(|(a, b)| a != *b)
            .collect();
        assert!(failed.is_empty(), "{failed:#?}");
    }

    proptest! {
        #[test]
        fn pushed_trees_are_valid(tree in any_tree(40, 4)) {
            prop_assert_eq!(tree.validate(), Ok(()));
        }
    }
}
