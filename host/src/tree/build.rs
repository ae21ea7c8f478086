//! Builds trees from the candidates of each depth. No verification.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::{Candidates, Tree};

/// A node of the best-first order.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Node {
    /// Its token.
    pub token: u32,
    /// The row of its parent; the root is row 0, the n-th node of the order is row n, from 1.
    pub parent: usize,
    /// How far below the root, from 1.
    pub depth: u32,
    /// The log-probability of the whole prefix from the root to this node: the direct sum, from the root down, of
    /// its tokens' log-probabilities.
    pub log_prob: f64,
}

/// The prefixes that the candidates make up, the most probable first (DDTree): depths are independent, so a prefix
/// is as probable as the product of its tokens. Taking the best prefix brings two others in reach: its next sibling
/// and its first child. The order is total: log-probability descending, then depth, rank and parent ascending. It
/// ends when no prefix of any probability is left; the first N are the best tree of N nodes.
#[derive(Debug, Clone)]
pub struct BestFirst<'a> {
    candidates: &'a Candidates,
    /// The log-probability of each row taken so far.
    log_probs: Vec<f64>,
    reachable: BinaryHeap<Prefix>,
}

impl<'a> BestFirst<'a> {
    /// Starts below the root.
    pub fn new(candidates: &'a Candidates) -> Self {
        let mut order = Self { candidates, log_probs: vec![0.0], reachable: BinaryHeap::new() };
        order.reach(0, 1, 0);
        order
    }

    /// Makes the candidate `rank` below `parent` reachable, if there is one.
    fn reach(&mut self, parent: usize, depth: u32, rank: u32) {
        if let Some((token, log_prob)) = self.candidates.get(depth, rank) {
            // Never derived from the sibling: rounding would then depend on the way there.
            let log_prob = self.log_probs[parent] + log_prob;
            self.reachable.push(Prefix { node: Node { token, parent, depth, log_prob }, rank });
        }
    }
}

impl Iterator for BestFirst<'_> {
    type Item = Node;

    fn next(&mut self) -> Option<Node> {
        let Prefix { node, rank } = self.reachable.pop()?;
        let row = self.log_probs.len();
        self.log_probs.push(node.log_prob);
        self.reach(node.parent, node.depth, rank + 1);
        self.reach(row, node.depth + 1, 0);
        Some(node)
    }
}

/// A reachable node, greater if it is to be taken earlier.
#[derive(Debug, Clone, Copy)]
struct Prefix {
    node: Node,
    rank: u32,
}

impl Ord for Prefix {
    fn cmp(&self, other: &Self) -> Ordering {
        let ascending = |prefix: &Self| (prefix.node.depth, prefix.rank, prefix.node.parent);
        self.node.log_prob.total_cmp(&other.node.log_prob).then_with(|| ascending(other).cmp(&ascending(self)))
    }
}

impl PartialOrd for Prefix {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Prefix {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Prefix {}

/// The best tree of `budget` nodes (DDTree): the first of [`BestFirst`], in that order; of fewer nodes if there are
/// no more. Exact if each depth has `budget` candidates or the whole vocabulary.
pub fn best_first(root: u32, candidates: &Candidates, budget: usize) -> Tree {
    from_nodes(root, BestFirst::new(candidates).take(budget))
}

/// The tree of nodes in their order.
pub fn from_nodes(root: u32, nodes: impl IntoIterator<Item = Node>) -> Tree {
    let mut tree = Tree::root(root);
    for node in nodes {
        tree.push(node.token, node.parent);
    }
    tree
}

/// The most probable token of each depth in one chain, at most `budget` of them: DFlash without DDTree.
pub fn chain(root: u32, candidates: &Candidates, budget: usize) -> Tree {
    let best = (1..).map_while(|depth| candidates.get(depth, 0)).map(|(token, _)| token).take(budget);
    Tree::chain(&std::iter::once(root).chain(best).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::path::Path;

    /// Ranks of a prefix, depth by depth, with its score.
    type Ranked = (Vec<u32>, f64);

    /// Every prefix of the candidates but the empty one.
    fn all_prefixes(candidates: &Candidates) -> Vec<Ranked> {
        let (mut all, mut level) = (Vec::new(), vec![(Vec::new(), 0.0)]);
        for depth in 1..=candidates.depths() as u32 {
            let extend = |(ranks, score): &Ranked| {
                let (ranks, score) = (ranks.clone(), *score);
                (0..).map_while(move |rank| {
                    let (_, log_prob) = candidates.get(depth, rank)?;
                    Some(([ranks.as_slice(), &[rank]].concat(), score + log_prob))
                })
            };
            level = level.iter().flat_map(extend).collect();
            all.extend_from_slice(&level);
        }
        all
    }

    /// Best-first without a heap: of all prefixes whose parent is taken and which are not, the first in the order.
    fn naive(root: u32, candidates: &Candidates, budget: usize) -> Tree {
        let (mut tree, mut taken) = (Tree::root(root), vec![Vec::new()]);
        let all = all_prefixes(candidates);
        while tree.nodes() < budget {
            let parent = |ranks: &[u32]| taken.iter().position(|other| *other == ranks[..ranks.len() - 1]);
            let next = all
                .iter()
                .filter(|(ranks, _)| !taken.contains(ranks))
                .filter_map(|(ranks, score)| Some((ranks, score, parent(ranks)?)))
                .min_by(|a, b| {
                    let rest =
                        |(ranks, _, parent): &(&Vec<u32>, &f64, usize)| (ranks.len(), ranks.last().copied(), *parent);
                    b.1.total_cmp(a.1).then_with(|| rest(a).cmp(&rest(b)))
                });
            let Some((ranks, _, parent)) = next else { break };
            let depth = ranks.len() as u32;
            tree.push(candidates.get(depth, ranks[ranks.len() - 1]).unwrap().0, parent);
            taken.push(ranks.clone());
        }
        tree
    }

    /// Logits [depths, vocab], half of the time with many ties.
    fn logits() -> impl Strategy<Value = (usize, Vec<f32>)> {
        (1usize..5, 0usize..5).prop_flat_map(|(vocab, depths)| {
            let coarse = (0i8..3).prop_map(f32::from);
            let row = prop_oneof![
                prop::collection::vec(coarse, vocab * depths).boxed(),
                prop::collection::vec(-4f32..4.0, vocab * depths).boxed(),
            ];
            (Just(vocab), row)
        })
    }

    #[test]
    fn s12_budget_zero_is_the_root_alone() {
        let candidates = Candidates::from_logits(&[0.0, 1.0], 2, 2);
        assert_eq!(best_first(9, &candidates, 0), Tree::root(9));
        assert_eq!(chain(9, &candidates, 0), Tree::root(9));
        assert_eq!(best_first(9, &Candidates::default(), 5), Tree::root(9));
    }

    #[test]
    fn ties_are_taken_by_depth_then_rank_then_parent() {
        // One token is certain at depth 2, so a node of depth 1 ties with its child; at depth 1 two tokens tie.
        let candidates = Candidates::new(vec![vec![(5, -1.0), (3, -1.0)], vec![(8, 0.0)], vec![(1, -1.0), (0, -1.0)]]);
        let tree = best_first(7, &candidates, 100);
        assert_eq!(tree.tokens, [7, 5, 3, 8, 8, 1, 1, 0, 0]);
        assert_eq!(tree.parents, [-1, 0, 0, 1, 2, 3, 4, 3, 4]);
    }

    #[test]
    fn tokens_without_probability_are_left_out() {
        const INF: f64 = f64::INFINITY;
        let candidates = Candidates::new(vec![vec![(4, -0.1), (2, -INF)], vec![(6, f64::NAN)], vec![(1, 0.0)]]);
        assert_eq!(best_first(0, &candidates, 9), Tree::chain(&[0, 4]));
        assert_eq!(chain(0, &candidates, 9), Tree::chain(&[0, 4]));
    }

    #[test]
    fn the_tiny_drafters_trees_equal_the_published_reference() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures/tiny-expected");
        let json = std::fs::read(folder.join("expected.json")).unwrap();
        let prompts: Vec<serde_json::Value> = serde_json::from_slice(&json).unwrap();
        let bytes = std::fs::read(folder.join("expected.safetensors")).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let mut compared = 0;
        for (index, prompt) in prompts.iter().enumerate() {
            let tensor = tensors.tensor(&format!("{index}.draft_logits")).unwrap();
            let logits: Vec<f32> = tensor.data().as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
            let root = prompt["greedy"][8].as_u64().unwrap() as u32;
            for (budget, nodes) in prompt["tree"].as_object().unwrap() {
                let budget: usize = budget.parse().unwrap();
                let mut want = Tree::root(root);
                for [token, parent, depth] in serde_json::from_value::<Vec<[u32; 3]>>(nodes.clone()).unwrap() {
                    let row = want.push(token, parent as usize);
                    assert_eq!(want.depths[row], depth);
                }
                let candidates = Candidates::from_logits(&logits, tensor.shape()[1], budget);
                assert_eq!(best_first(root, &candidates, budget), want, "prompt {index}, budget {budget}");
                compared += 1;
            }
        }
        assert_eq!((prompts.len(), compared), (5, 25));
    }

    proptest! {
        #[test]
        fn a_tree_equals_the_search_over_all_prefixes((vocab, logits) in logits(), budget in 0usize..40) {
            let candidates = Candidates::from_logits(&logits, vocab, vocab);
            let tree = best_first(1, &candidates, budget);
            prop_assert_eq!(tree.validate(), Ok(()));
            prop_assert_eq!(&tree, &naive(1, &candidates, budget));
            prop_assert_eq!(tree.nodes(), budget.min(all_prefixes(&candidates).len()));
        }

        #[test]
        fn a_tree_holds_the_most_probable_prefixes((vocab, logits) in logits(), budget in 0usize..40) {
            let candidates = Candidates::from_logits(&logits, vocab, vocab);
            let got: Vec<f64> = BestFirst::new(&candidates).take(budget).map(|node| node.log_prob).collect();
            let mut want: Vec<f64> = all_prefixes(&candidates).iter().map(|(_, score)| *score).collect();
            want.sort_by(|a, b| b.total_cmp(a));
            want.truncate(budget);
            prop_assert_eq!(got, want);
        }

        #[test]
        fn as_many_candidates_as_nodes_are_enough((vocab, logits) in logits(), budget in 0usize..6) {
            let all = Candidates::from_logits(&logits, vocab, vocab);
            let some = Candidates::from_logits(&logits, vocab, budget);
            prop_assert_eq!(best_first(1, &some, budget), best_first(1, &all, budget));
        }

        #[test]
        fn s12_one_candidate_a_depth_gives_the_chain((vocab, logits) in logits(), budget in 0usize..9) {
            let candidates = Candidates::from_logits(&logits, vocab, 1);
            let tree = best_first(1, &candidates, budget);
            prop_assert_eq!(&tree, &chain(1, &candidates, budget));
            prop_assert_eq!(&tree, &Tree::chain(&tree.tokens));
            prop_assert_eq!(tree.nodes(), budget.min(candidates.depths()));
        }
    }
}
