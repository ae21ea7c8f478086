use super::*;
use crate::round::{RowLayout, rows_reference};
use crate::testing::Random;
use cuda_std::simulate::{Buffer, Simulator};
use std::vec::Vec;

/// Choices of `count` rows of `logits` `[rows, vocab]`, in a set with room for two more.
fn run(sequence: SequenceState, vocab: usize, logits: &[f32], last: bool) -> Vec<u32> {
    let stride = vocab.next_multiple_of(4);
    let mut padded = std::vec![f32::INFINITY; logits.len() / vocab * stride];
    for (to, from) in padded.chunks_mut(stride).zip(logits.chunks(vocab)) {
        to[..vocab].copy_from_slice(from);
    }
    let count = if last { 3 } else { logits.len() / vocab };
    let capacity = count as u32 + 2;
    // Every second row hangs below the one before.
    let parents: Vec<u32> = (0..count as u32).map(|row| row.saturating_sub(1) / 2 * 2).collect();
    let set = rows_reference(&std::vec![1; count], &parents, sequence.len, capacity);
    let (state, rows) = (Buffer::new("state", &sequence.words()), Buffer::new("rows", &set));
    let (input, out) = (Buffer::input("logits", &padded), Buffer::<u32>::poisoned("choices", capacity as usize));
    let shape = choose_shape(capacity, last);
    let arguments = (
        state.ptr_mut().cast(),
        rows.ptr_mut(),
        input.ptr(),
        out.ptr_mut(),
        capacity,
        vocab as u32,
        stride as u32,
        last.into(),
    );
    Simulator::default().seed(vocab as u64).launch(&choose_tokens::KERNEL, shape, arguments).unwrap();
    let expected: Vec<u32> = logits
        .chunks(vocab)
        .enumerate()
        .map(|(row, logits)| {
            let row = if last { 2 } else { row };
            let position = set[RowLayout { capacity }.positions() as usize + row];
            choose_reference(logits, &sequence, position + 1)
        })
        .collect();
    let found = out.to_vec();
    assert_eq!(found[..expected.len()], expected, "{vocab} tokens, {sequence:?}");
    assert!(found[expected.len()..].iter().all(|choice| *choice == u32::MAX), "writes past the rows");
    expected
}

fn sampling(temperature: f32, top_k: u32, top_p: f32, min_p: f32, seed: u32) -> SequenceState {
    let seed = [seed, seed.wrapping_mul(77)];
    SequenceState { len: seed[0] % 91, temperature, top_k, top_p, min_p, seed, ..SequenceState::new(100, 9) }
}

#[test]
fn draws_are_those_of_the_sorted_reference() {
    let mut drawn = Vec::new();
    for (rows, vocab, temperature, top_k, top_p, min_p) in [
        (1usize, 1usize, 1.0f32, 0u32, 1.0f32, 0.0f32),
        (3, 2, 0.7, 0, 1.0, 0.0),
        (5, 7, 1.0, 3, 1.0, 0.0),
        (4, 31, 0.3, 0, 0.9, 0.0),
        (4, 127, 1.5, 0, 1.0, 0.1),
        (6, 500, 0.8, 40, 0.95, 0.05),
        (3, 1000, 1.0, 50, 1.0, 0.0),
        (3, 2047, 0.8, 0, 0.95, 0.0),
        (2, 2048, 3.0, 0, 1.0, 0.0),
        (2, 2049, 0.05, 0, 0.99, 0.0),
        (3, 4096, 0.8, 0, 1.0, 0.0),
        (2, 4096, 0.8, 5000, 0.5, 0.0),
        (1, 12_345, 1.0, 200, 0.9, 0.02),
        (1, 20_480, 0.6, 0, 0.95, 0.0),
        (1, 163_840, 1.0, 0, 1.0, 0.0),
    ] {
        for seed in 0..3 {
            let mut random = Random::new((vocab + seed) as u64);
            // Half of the rows have steps of 1/4, so that ties abound.
            let logits: Vec<f32> = (0..rows * vocab)
                .map(|i| match i / vocab % 2 {
                    0 => random.normal() * 2.5,
                    _ => (random.normal() * 10.0).round() / 4.0,
                })
                .collect();
            drawn.extend(run(sampling(temperature, top_k, top_p, min_p, seed as u32 + 1), vocab, &logits, false));
        }
    }
    drawn.sort_unstable();
    drawn.dedup();
    assert!(drawn.len() > 40, "{drawn:?}");
}

#[test]
fn a_flood_of_tokens_in_one_bin_is_told_apart() {
    let mut random = Random::new(3);
    let equal = std::vec![2.0; 5000];
    let close: Vec<f32> = (0..5000).map(|i| 1.0 + (i * 7919 % 5000) as f32 * 1e-6).collect();
    let two: Vec<f32> = (0..5000).map(|_| random.below(2) as f32 * 1e-4).collect();
    let mixed: Vec<f32> = (0..5000).map(|i| if i % 3 == 0 { 1.0 } else { random.normal() - 4.0 }).collect();
    for logits in [equal, close, two, mixed] {
        for (top_k, top_p, min_p) in [(0, 1.0, 0.0), (1500, 1.0, 0.0), (0, 0.4, 0.0), (1200, 0.7, 0.0), (0, 1.0, 1.0)] {
            for seed in 1..3 {
                run(sampling(1.0, top_k, top_p, min_p, seed), 5000, &logits, false);
            }
        }
    }
}

#[test]
fn the_ends_of_every_filter_keep_what_they_say() {
    let i = f32::INFINITY;
    let logits = [0.0, 3.0, 1.0, 3.0, 2.0, -i, -0.0];
    for (state, kept) in [
        (sampling(0.7, 0, 1.0, 0.0, 0), &[0u32, 1, 2, 3, 4, 6][..]),
        (sampling(0.7, 1, 1.0, 0.0, 0), &[1, 3]),
        (sampling(0.7, 3, 1.0, 0.0, 0), &[1, 3, 4]),
        (sampling(0.7, u32::MAX, 1.0, 0.0, 0), &[0, 1, 2, 3, 4, 6]),
        (sampling(0.7, 0, 0.0, 0.0, 0), &[1]),
        (sampling(0.7, 0, f32::MIN_POSITIVE, 0.0, 0), &[1]),
        (sampling(0.7, 2, 0.5, 0.0, 0), &[1]),
        (sampling(0.7, 0, 1.0, 1.0, 0), &[1, 3]),
        (sampling(0.7, 0, 0.1, 1.0, 0), &[1]),
        (sampling(f32::MIN_POSITIVE, 0, 1.0, 0.0, 0), &[1, 3]),
    ] {
        let (mut found, mut state) = (Vec::new(), state);
        for seed in 0..12 {
            state.seed = [seed * 31 + 5, seed];
            found.extend(run(state, 7, &logits.repeat(8), false));
        }
        found.sort_unstable();
        found.dedup();
        assert!(found.iter().all(|token| kept.contains(token)), "{state:?}: {found:?}");
        assert!(found.len() + 2 >= kept.len(), "{state:?}: {found:?}");
    }
}

#[test]
fn greedy_rows_and_rows_without_a_distribution_give_the_argmax() {
    let (n, i) = (f32::NAN, f32::INFINITY);
    let rows = [
        [0.5, 2.0, 2.0, -1.0, 0.0],
        [-i; 5],
        [-i, -i, 3.0, -i, -i],
        [i, 1.0, i, 0.0, -i],
        [-0.0, 0.0, -0.0, 0.0, -1.0],
    ];
    let greedy = run(sampling(0.0, 3, 0.5, 0.5, 9), 5, &rows.concat(), false);
    assert_eq!(greedy, [1, 0, 2, 0, 0]);
    let drawn = run(sampling(1.0, 0, 1.0, 0.0, 9), 5, &rows.concat(), false);
    assert_eq!((drawn[1], drawn[2], drawn[3] % 2), (0, 2, 0));
    for temperature in [0.0, 0.8] {
        let rows = [1.0, n, 2.0, 0.0, n, n, n, n, 5.0, 6.0, 7.0, 8.0];
        let found = run(sampling(temperature, 0, 1.0, 0.0, 2), 4, &rows, false);
        assert_eq!(found[..2], [u32::MAX; 2]);
    }
}

#[test]
fn the_last_row_of_a_prompt_is_drawn_at_its_position() {
    let mut random = Random::new(8);
    for vocab in [3, 64, 1000, 2050, 4096] {
        let logits = random.normals(vocab);
        for seed in 0..6 {
            run(sampling(1.0, 0, 1.0, 0.0, seed), vocab, &logits, true);
        }
    }
    let empty = rows_reference(&[], &[], 5, 4);
    let (state, rows) = (Buffer::new("state", &sampling(1.0, 0, 1.0, 0.0, 1).words()), Buffer::new("rows", &empty));
    let (logits, out) = (Buffer::input("logits", &[0.0; 8]), Buffer::<u32>::poisoned("choices", 1));
    let arguments = (state.ptr_mut().cast(), rows.ptr_mut(), logits.ptr(), out.ptr_mut(), 4, 8, 8, 1);
    Simulator::default().launch(&choose_tokens::KERNEL, choose_shape(4, true), arguments).unwrap();
    assert_eq!(out.to_vec(), [u32::MAX], "a set of no rows has a last one");
}

#[test]
fn a_block_fits_the_shared_memory_of_sm_120() {
    assert!(choose_shape(64, false).shared_bytes <= 101_376);
}
