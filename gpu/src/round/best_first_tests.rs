use super::super::state::STATE_WORDS;
use super::super::{RowLayout, rows_reference};
use super::*;
use crate::testing::Random;
use cuda_std::simulate::{Buffer, Simulator};
use std::vec::Vec;

/// Sizes of a case.
#[derive(Clone, Copy, Debug)]
struct Case {
    depths: u32,
    k: u32,
    ranks: u32,
    limit: u32,
    capacity: u32,
}

const fn case(depths: u32, k: u32, ranks: u32, limit: u32, capacity: u32) -> Case {
    Case { depths, k, ranks, limit, capacity }
}

/// Ids and descending log-probabilities `[depths, k]`, in steps where `steps` is not 0.
fn candidates(random: &mut Random, case: Case, steps: f32) -> (Vec<u32>, Vec<f32>) {
    let ids = (0..case.depths * case.k).map(|_| random.below(1000)).collect();
    let mut log_probs = Vec::new();
    for _ in 0..case.depths {
        let mut own = 0.0;
        for _ in 0..case.k {
            own -= if steps == 0.0 { random.uniform() } else { random.below(3) as f32 * steps };
            log_probs.push(own);
        }
    }
    (ids, log_probs)
}

/// Runs the kernel and compares the set with the reference's; returns the state afterwards and the nodes.
fn check(
    before: SequenceState,
    case: Case,
    (ids, log_probs): (&[u32], &[f32]),
    auto: Option<(&[f32], f32)>,
) -> (SequenceState, usize) {
    let (costs, trust) = auto.unwrap_or((&[], f32::NAN));
    let state = Buffer::new("state", &before.words());
    let inputs = (Buffer::input("ids", ids), Buffer::input("log_probs", log_probs));
    let prices = (Buffer::input("costs", costs), Buffer::input("trust", &[trust]));
    let layout = RowLayout { capacity: case.capacity };
    let rows = Buffer::<u32>::poisoned("rows", layout.words() as usize);
    let arguments = (
        state.ptr_mut().cast(),
        inputs.0.ptr(),
        inputs.1.ptr(),
        prices.0.ptr(),
        prices.1.ptr(),
        rows.ptr_mut(),
        case.capacity,
        case.depths,
        case.k,
        case.ranks,
        case.limit,
        auto.is_some().into(),
    );
    let simulator = Simulator::default().seed(case.limit.into());
    simulator.launch(&tree_rows::KERNEL, tree_shape(case.limit), arguments).unwrap();

    let ranked: Vec<Vec<(u32, f32)>> = ids
        .chunks(case.k as usize)
        .zip(log_probs.chunks(case.k as usize))
        .map(|(ids, log_probs)| ids.iter().copied().zip(log_probs.iter().copied()).take(case.ranks as usize).collect())
        .collect();
    let ranked: Vec<&[(u32, f32)]> = ranked.iter().map(|depth| &depth[..]).collect();
    let mut nodes = best_first_reference(&ranked, case.limit as usize);
    let (mut promised, mut rate) = (0.0, 0.0);
    if auto.is_some() {
        let (mut kept, mut tokens, mut sum) = (0, 1.0, 0.0);
        for n in 0..nodes.len() + 1 {
            if n > 0 {
                tokens += nodes[n - 1].2.exp() * f64::from(trust);
                sum += nodes[n - 1].2.exp();
            }
            if tokens / f64::from(costs[n]) > rate {
                (kept, rate, promised) = (n, tokens / f64::from(costs[n]), sum);
            }
        }
        nodes.truncate(kept);
    }
    let (mut tokens, mut parents) = (std::vec![before.root], std::vec![u32::MAX]);
    tokens.extend(nodes.iter().map(|node| node.0));
    parents.extend(nodes.iter().map(|node| node.1));
    if before.done != 0 {
        tokens.clear();
        promised = f64::from(before.promised);
    }
    let expected = rows_reference(&tokens, &parents, before.len, case.capacity);
    let found = rows.to_vec();
    let fields = [RowLayout::IDS, layout.positions(), layout.parents(), layout.slots()];
    let mut used: Vec<u32> = std::vec![0, 1];
    used.extend(fields.iter().flat_map(|field| *field..field + case.capacity));
    used.extend(layout.mask()..layout.words());
    for word in used {
        assert_eq!(found[word as usize], expected[word as usize], "{case:?}, word {word}, count {}", expected[0]);
    }
    let after: [u32; STATE_WORDS] = state.to_vec().try_into().unwrap();
    let after = SequenceState::from_words(after);
    assert!((f64::from(after.promised) - promised).abs() <= promised * 1e-7, "{} for {promised}", after.promised);
    let mut unchanged = before;
    unchanged.promised = after.promised;
    assert_eq!(after, unchanged);
    (after, nodes.len())
}

/// A sequence at a root.
fn sequence(len: u32) -> SequenceState {
    let mut state = SequenceState::new(1000, 9);
    (state.len, state.root, state.promised) = (len, 7, 3.0);
    state
}

const CASES: [Case; 14] = [
    case(1, 1, 1, 1, 2),
    case(1, 5, 5, 4, 5),
    case(2, 3, 3, 7, 8),
    case(7, 8, 8, 8, 9),
    case(7, 15, 15, 15, 16),
    case(7, 16, 1, 15, 16),
    case(3, 31, 31, 31, 40),
    case(15, 31, 31, 32, 33),
    case(7, 64, 63, 63, 64),
    case(15, 64, 64, 64, 65),
    case(4, 2, 2, 30, 31),
    case(15, 33, 33, 100, 128),
    case(7, 256, 256, 256, 257),
    case(15, 40, 40, 255, 256),
];

#[test]
fn the_most_probable_prefixes_make_the_tree() {
    let mut random = Random::new(5);
    for case in CASES {
        // With coarse steps ties abound, also between depths: a step may be 0.
        for steps in [0.0, 0.25, 1.0] {
            let (ids, log_probs) = candidates(&mut random, case, steps);
            let (_, nodes) = check(sequence(case.k), case, (&ids, &log_probs), None);
            if case.ranks == 1 {
                assert_eq!(nodes as u32, case.depths.min(case.limit), "a chain");
            }
        }
    }
}

#[test]
fn the_budget_is_the_one_that_pays() {
    let mut random = Random::new(6);
    let mut seen = Vec::new();
    for case in CASES {
        for (slope, trust) in [(0.001f32, 1.0), (0.02, 0.8), (0.1, 1.3), (2.0, 1.0), (0.0, 1.0)] {
            let (ids, log_probs) = candidates(&mut random, case, 0.0);
            // Rows up to a tile cost nearly the same.
            let costs: Vec<f32> = (0..=case.limit).map(|n| 1.0 + slope * (n + n / 8 * 8) as f32).collect();
            seen.push(check(sequence(3), case, (&ids, &log_probs), Some((&costs, trust))).1);
        }
    }
    seen.sort_unstable();
    seen.dedup();
    assert!(seen[0] == 0 && seen.len() > 10, "{seen:?}");
    let costs = [f32::NAN, 0.0, -1.0, f32::INFINITY, 1.0];
    let log_probs = [-0.5f32, -0.7, -2.0, -3.0];
    let case = case(1, 4, 4, 4, 5);
    assert_eq!(check(sequence(3), case, (&[1, 2, 3, 4], &log_probs), Some((&costs, 1.0))).1, 1);
    assert_eq!(check(sequence(3), case, (&[1, 2, 3, 4], &log_probs), Some((&[f32::NAN; 5], 1.0))).1, 0);
}

#[test]
fn tokens_without_probability_and_budgets_of_none_end_the_tree() {
    let (i, n) = (f32::NEG_INFINITY, f32::NAN);
    let ids = [4, 2, 6, 9, 1, 3];
    for (log_probs, limit, nodes) in [
        ([-0.1, i, n, n, 0.0, -1.0], 9, 1),
        ([-0.1, i, -0.2, -0.3, i, i], 9, 3),
        ([i, i, 0.0, 0.0, 0.0, 0.0], 9, 0),
        ([-0.1, -0.2, -0.2, -0.3, -0.1, -0.5], 0, 0),
        ([-0.1, -0.2, -0.2, -0.3, -0.1, -0.5], 100, 14),
    ] {
        let case = case(3, 2, 2, limit, limit + 2);
        assert_eq!(check(sequence(0), case, (&ids, &log_probs), None).1, nodes, "{log_probs:?}");
    }
}

#[test]
fn a_sequence_that_is_done_has_no_tree() {
    let mut state = sequence(12);
    state.done = 1;
    check(state, case(3, 2, 2, 5, 6), (&[1, 2, 3, 4, 5, 6], &[-1.0; 6]), None);
    check(state, case(3, 2, 2, 5, 6), (&[1, 2, 3, 4, 5, 6], &[-1.0; 6]), Some((&[1.0; 6], 1.0)));
}
