use super::super::{RowLayout, rows_reference};
use super::*;
use crate::testing::Random;
use cuda_std::simulate::{Buffer, Simulator};
use std::vec::Vec;

/// Runs the kernel; ids and parents of the rows, after everything else of the set was compared. `memory` is changed.
fn run(
    history: &[u32],
    memory: &mut Vec<u32>,
    costs: &[f32],
    (limit, capacity, auto): (u32, u32, bool),
    round: u32,
) -> (Vec<u32>, Vec<u32>) {
    let len = history.len() as u32 - 1;
    let mut sequence = SequenceState::new(10_000, 9);
    (sequence.len, sequence.root, sequence.round) = (len, history[len as usize], round);
    let state = Buffer::new("state", &sequence.words());
    let (text, prices) = (Buffer::input("history", history), Buffer::input("costs", costs));
    let (memo, layout) = (Buffer::new("memory", memory), RowLayout { capacity });
    let rows = Buffer::<u32>::poisoned("rows", layout.words() as usize);
    let arguments = (
        state.ptr_mut().cast(),
        text.ptr(),
        memo.ptr_mut(),
        prices.ptr(),
        rows.ptr_mut(),
        capacity,
        limit,
        auto.into(),
    );
    let simulator = Simulator::default().seed(len.into());
    simulator.launch(&ngram_rows::KERNEL, ngram_shape(limit), arguments).unwrap();
    *memory = memo.to_vec();
    let rows = rows.to_vec();
    let count = rows[0] as usize;
    let field = |at: u32| rows[at as usize..at as usize + count].to_vec();
    let (ids, parents) = (field(RowLayout::IDS), field(layout.parents()));
    let expected = rows_reference(&ids, &parents, len, capacity);
    for field in [RowLayout::IDS, layout.positions(), layout.parents(), layout.slots()] {
        let field = field as usize..(field + capacity) as usize;
        assert_eq!(rows[field.clone()], expected[field]);
    }
    assert_eq!(rows[layout.mask() as usize..], expected[layout.mask() as usize..]);
    (ids, parents)
}

#[test]
fn continuations_of_earlier_occurrences_make_the_tree() {
    let mut random = Random::new(4);
    let mut largest = 0;
    for (len, tokens, limit, capacity) in [
        (1u32, 1u32, 3u32, 4u32),
        (2, 1, 3, 4),
        (3, 2, 8, 9),
        (5, 1, 64, 65),
        (17, 2, 8, 16),
        (40, 3, 16, 17),
        (100, 2, 64, 65),
        (100, 5, 15, 16),
        (511, 9, 31, 32),
        (513, 4, 255, 256),
        (1500, 40, 31, 33),
        (3000, 3, 256, 257),
        (200, 1000, 8, 9),
        (60, 2, 0, 1),
    ] {
        for _ in 0..3 {
            let history: Vec<u32> = (0..len).map(|_| random.below(tokens)).collect();
            let expected = ngram_reference(&history, limit as usize);
            let found = run(&history, &mut Vec::new(), &[], (limit, capacity, false), 5);
            assert_eq!(found, expected, "{len} of {tokens} tokens, {limit} nodes");
            largest = largest.max(found.0.len());
        }
    }
    assert_eq!(largest, 257);
}

/// The memory's rule: shares by length and place, forgetting 2% a trial.
struct Model(Vec<[f32; 2]>);

impl Model {
    fn cell(&mut self, length: usize, place: usize) -> &mut [f32; 2] {
        &mut self.0[2 * (length.min(8) - 1) + place.min(1)]
    }

    fn learn(&mut self, length: usize, promised: &[u32], tokens: &[u32]) {
        for (place, (promised, token)) in promised.iter().zip(tokens).enumerate() {
            let [right, trials] = self.cell(length, place);
            *trials += 1.0 - 0.02 * *trials;
            *right += f32::from(promised == token) - 0.02 * *right;
            if promised != token {
                break;
            }
        }
    }

    fn nodes(&mut self, length: usize, most: usize, costs: &[f32]) -> usize {
        let (mut best, mut rate, mut sum, mut all) = (0, 0.0, 1.0, 1.0);
        for (nodes, cost) in costs.iter().enumerate().take(most + 1) {
            if sum / f64::from(*cost) > rate {
                (best, rate) = (nodes, sum / f64::from(*cost));
            }
            let [right, trials] = *self.cell(length, nodes);
            all *= f64::from(right / trials);
            sum += all;
        }
        best
    }
}

#[test]
fn the_chosen_budget_follows_what_earlier_matches_were_worth() {
    let mut random = Random::new(9);
    let mut chosen = Vec::new();
    for (tokens, slope, limit) in [(2u32, 0.05f32, 15u32), (2, 0.3, 20), (3, 0.02, 15), (50, 0.05, 7), (9, 0.0, 30)] {
        let costs: Vec<f32> = (0..=limit).map(|n| 1.0 + slope * n as f32).collect();
        let mut memory = NgramMemory::initial().to_vec();
        let mut model = Model(memory[..32].chunks(2).map(|cell| [0, 1].map(|i| f32::from_bits(cell[i]))).collect());
        let mut history: Vec<u32> = (0..30).map(|_| random.below(tokens)).collect();
        let mut round = 3;
        for _ in 0..25 {
            let (ids, parents) = run(&history, &mut memory, &costs, (limit, limit + 1, true), round);
            let found = occurrences(&history, 8);
            let (nodes, promised) = found.first().map_or((0, &[][..]), |(length, place)| {
                let follows = &history[*place..history.len().min(place + 16)];
                (model.nodes(*length, follows.len(), &costs), follows)
            });
            assert_eq!(ids[1..], promised[..nodes]);
            assert!(parents[1..].iter().copied().eq(0..nodes as u32));
            chosen.push(nodes);
            // The text goes on as promised for a while, then differently; now and then a round is another's.
            let right = random.below(promised.len() as u32 + 1) as usize;
            let committed: Vec<u32> = promised[..right].iter().copied().chain([random.below(tokens)]).collect();
            if random.below(5) == 0 {
                round += 2;
            } else {
                round += 1;
                if let Some((length, _)) = found.first() {
                    model.learn(*length, promised, &committed);
                }
            }
            history.extend(committed);
        }
        run(&history, &mut memory, &costs, (limit, limit + 1, true), round);
        let cells: Vec<[f32; 2]> =
            memory[..32].chunks(2).map(|c| [f32::from_bits(c[0]), f32::from_bits(c[1])]).collect();
        assert_eq!(cells, model.0);
    }
    chosen.sort_unstable();
    chosen.dedup();
    assert!(chosen.len() > 5, "{chosen:?}");
}

#[test]
fn a_sequence_that_is_done_has_no_tree() {
    let mut sequence = SequenceState::new(100, 9);
    (sequence.len, sequence.done) = (4, 1);
    let state = Buffer::new("state", &sequence.words());
    let (text, memory) = (Buffer::input("history", &[1u32; 5]), Buffer::new("memory", &NgramMemory::initial()));
    let (costs, rows) = (
        Buffer::input("costs", &[1.0f32; 9]),
        Buffer::<u32>::poisoned("rows", RowLayout { capacity: 9 }.words() as usize),
    );
    for auto in [0, 1] {
        let arguments = (state.ptr_mut().cast(), text.ptr(), memory.ptr_mut(), costs.ptr(), rows.ptr_mut(), 9, 8, auto);
        Simulator::default().launch(&ngram_rows::KERNEL, ngram_shape(8), arguments).unwrap();
        assert_eq!(rows.to_vec()[0], 0);
    }
    assert_eq!(memory.to_vec(), NgramMemory::initial());
}
