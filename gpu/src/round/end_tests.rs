use super::super::state::STATE_WORDS;
use super::*;
use crate::testing::Random;
use cuda_std::simulate::{Buffer, Simulator};
use std::vec::Vec;

const SLOTS: u32 = 3;

/// Runs the kernel over a set of `ids` and `parents` in `capacity` rows and compares everything it writes.
fn check(before: SequenceState, ids: &[u32], parents: &[u32], choices: &[u32], accept: Accept, capacity: u32) -> Ended {
    let words = super::super::rows_reference(ids, parents, before.len, capacity);
    let state = Buffer::new("state", &before.words());
    let rows = Buffer::new("rows", &words);
    let mut padded = std::vec![u32::MAX; capacity as usize];
    padded[..choices.len()].copy_from_slice(choices);
    let choice = Buffer::input("choices", &padded);
    let layout = RowLayout { capacity: capacity + 3 };
    let accepted = Buffer::<u32>::poisoned("accepted", layout.words() as usize);
    let verdict = Buffer::<u32>::poisoned("verdict", VerdictLayout::words(capacity) as usize);
    let history = Buffer::<u32>::poisoned("history", before.context as usize + 1);
    let slot_words = RoundRecord::slot_words(capacity);
    let ring = Buffer::<u32>::poisoned("ring", (SLOTS * slot_words) as usize);
    let arguments = (
        state.ptr_mut().cast(),
        rows.ptr_mut(),
        choice.ptr(),
        accepted.ptr_mut(),
        verdict.ptr_mut(),
        history.ptr_mut(),
        ring.ptr_mut(),
        capacity,
        layout.capacity,
        SLOTS,
        slot_words,
        accept as u32,
    );
    let simulator = Simulator::default().seed(u64::from(capacity) + u64::from(before.len));
    simulator.launch(&commit_round::KERNEL, commit_shape(capacity), arguments).unwrap();

    let case = std::format!("{} of {capacity} rows, {accept:?}, {before:?}", ids.len());
    let expected = commit_round_reference(before, ids, parents, choices, accept);
    let after: [u32; STATE_WORDS] = state.to_vec().try_into().unwrap();
    assert_eq!(SequenceState::from_words(after), expected.state, "{case}");
    assert_eq!(rows.to_vec(), words, "{case}: the rows changed");
    let kept = expected.path.len();
    let verdict = verdict.to_vec();
    assert_eq!(verdict[..3], [kept as u32, before.len, 0], "{case}");
    assert_eq!(verdict[4..4 + kept], expected.path, "{case}");
    let chosen: Vec<u32> = expected.path.iter().map(|row| ids[*row as usize]).collect();
    let chain: Vec<u32> = (0..kept as u32).map(|row| row.wrapping_sub(1)).collect();
    let accepted = accepted.to_vec();
    let set = super::super::rows_reference(&chosen, &chain, before.len, layout.capacity);
    assert_eq!(accepted[..2], set[..2], "{case}");
    for field in [RowLayout::IDS, layout.positions(), layout.parents(), layout.slots()] {
        let field = field as usize..(field + layout.capacity) as usize;
        assert_eq!(accepted[field.clone()], set[field], "{case}");
    }
    let slot = (before.round % SLOTS * slot_words) as usize;
    let ring = ring.to_vec();
    let record: [u32; RECORD_WORDS] = ring[slot..slot + RECORD_WORDS].try_into().unwrap();
    assert_eq!(RoundRecord::from_words(record), expected.record, "{case}");
    let tokens = &ring[slot + RECORD_WORDS..slot + slot_words as usize];
    assert_eq!(tokens[..expected.tokens.len()], expected.tokens, "{case}");
    let written = ring.iter().filter(|word| **word != u32::MAX).count();
    assert_eq!(written, RECORD_WORDS + expected.tokens.len(), "{case}: writes outside its slot");
    let mut committed = std::vec![u32::MAX; before.context as usize + 1];
    committed[before.len as usize..][..kept].copy_from_slice(&chosen);
    if kept > 0 && expected.state.root != u32::MAX {
        committed[before.len as usize + kept] = expected.state.root;
    }
    assert_eq!(history.to_vec(), committed, "{case}");
    expected
}

/// A random tree over `tokens` tokens: parents and ids.
fn tree(random: &mut Random, rows: u32, tokens: u32) -> (Vec<u32>, Vec<u32>) {
    let parents = (0..rows).map(|t| if t == 0 { u32::MAX } else { t - 1 - random.below(t.min(3)) }).collect();
    (parents, (0..rows).map(|_| random.below(tokens)).collect())
}

#[test]
fn a_round_commits_the_path_and_reports_it() {
    let mut deepest = 0;
    for (rows, capacity, len, left, context, stops) in [
        (1u32, 1u32, 0u32, 9u32, 40u32, &[][..]),
        (1, 8, 39, 9, 40, &[]),
        (2, 2, 7, 1, 40, &[]),
        (3, 8, 5, 2, 90, &[]),
        (8, 8, 11, 100, 90, &[9, 8]),
        (16, 16, 20, 100, 90, &[]),
        (16, 17, 88, 100, 90, &[]),
        (31, 32, 3, 100, 90, &[2]),
        (33, 33, 4, 3, 90, &[5, 1]),
        (64, 64, 1, 100, 200, &[]),
        (65, 70, 2, 100, 200, &[]),
        (100, 128, 196, 100, 200, &[]),
        (257, 257, 0, 1000, 600, &[]),
    ] {
        for seed in 0..4 {
            let mut random = Random::new((rows * 4 + seed).into());
            let (parents, ids) = tree(&mut random, rows, 3);
            let choices: Vec<u32> = (0..rows).map(|_| random.below(3)).collect();
            let before =
                SequenceState { len, left, round: seed + rows, promised: 1.25, ..SequenceState::new(context, 0) };
            let before = before.with_stops(stops).unwrap();
            deepest = deepest.max(check(before, &ids, &parents, &choices, Accept::Path, capacity).path.len());
        }
    }
    assert!(deepest > 4, "{deepest}");
}

#[test]
fn a_path_is_cut_where_plain_decode_would_have_ended() {
    // A chain whose every row is right: tokens 101, 102, ..., 108.
    let (ids, choices) = ((100..108).collect::<Vec<u32>>(), (101..109).collect::<Vec<u32>>());
    let parents: Vec<u32> = (0..8u32).map(|row| row.wrapping_sub(1)).collect();
    // left, context, stop, tokens, done
    for (left, context, stop, tokens, done) in [
        (100, 100, 7, 8, 0),
        (8, 100, 7, 8, 1),
        (9, 100, 7, 8, 0),
        (3, 100, 7, 3, 1),
        (1, 100, 7, 1, 1),
        (0, 100, 7, 0, 1),
        (100, 18, 7, 8, 1),
        (100, 19, 7, 8, 0),
        (100, 14, 7, 4, 1),
        (100, 11, 7, 1, 1),
        (100, 100, 101, 1, 1),
        (100, 100, 108, 8, 1),
        (100, 100, 105, 5, 1),
        (4, 100, 105, 4, 1),
        (5, 100, 105, 5, 1),
        (100, 100, 100, 8, 0),
    ] {
        let before = SequenceState { len: 10, left, ..SequenceState::new(context, 0) }.with_stops(&[3, stop]).unwrap();
        let ended = check(before, &ids, &parents, &choices, Accept::Path, 8);
        assert_eq!(
            (ended.tokens.len(), ended.state.done),
            (tokens, done),
            "left {left}, context {context}, stop {stop}"
        );
    }
}

#[test]
fn prompt_chunks_become_context_whole() {
    for (rows, capacity, len, left, context, accept, next, done) in [
        (1u32, 1u32, 0u32, 5u32, 40u32, Accept::Chunk, 0, 0),
        (1, 1, 0, 5, 40, Accept::LastChunk, 8, 0),
        (5, 8, 3, 5, 40, Accept::Chunk, 0, 0),
        (5, 8, 3, 5, 8, Accept::Chunk, 0, 0),
        (5, 8, 3, 5, 8, Accept::LastChunk, 8, 1),
        (5, 8, 3, 1, 40, Accept::LastChunk, 8, 1),
        (5, 8, 3, 0, 40, Accept::LastChunk, 8, 1),
        (5, 8, 3, 0, 40, Accept::Chunk, 8, 0),
        (32, 32, 0, 5, 40, Accept::LastChunk, 9, 1),
        (33, 64, 0, 5, 40, Accept::LastChunk, 8, 0),
        (128, 128, 1, 5, 300, Accept::LastChunk, 8, 0),
        (200, 256, 40, 5, 300, Accept::Chunk, 8, 0),
        (255, 256, 40, 5, 300, Accept::LastChunk, u32::MAX, 1),
    ] {
        let ids: Vec<u32> = (0..rows).map(|row| row % 7).collect();
        let parents: Vec<u32> = (0..rows).map(|row| row.wrapping_sub(1)).collect();
        let before = SequenceState { len, left, round: rows, ..SequenceState::new(context, 0) };
        let before = before.with_stops(&[9]).unwrap();
        let ended = check(before, &ids, &parents, &[next], accept, capacity);
        assert_eq!(ended.state.done, done, "{rows} rows, {accept:?}");
    }
}

#[test]
fn a_set_of_no_rows_is_an_idle_round_of_a_sequence_that_is_done() {
    for (done, flags) in [(0, 0), (1, RoundRecord::IDLE | RoundRecord::DONE)] {
        for accept in [Accept::Path, Accept::Chunk, Accept::LastChunk] {
            let before = SequenceState { len: 6, done, root: 4, ..SequenceState::new(50, 9) };
            let ended = check(before, &[], &[], &[], accept, 8);
            assert_eq!((ended.record.flags, ended.record.tokens), (flags, 0));
        }
    }
}

#[test]
fn a_choice_that_could_not_be_made_is_a_fault_of_its_row() {
    let (ids, parents) = ([5, 6, 7, 8], [u32::MAX, 0, 1, 0]);
    for (choices, row) in [
        ([u32::MAX, 0, 0, 0], Some(0)),
        ([6, u32::MAX, 0, 0], Some(1)),
        ([6, 7, u32::MAX, 0], Some(2)),
        ([8, 0, 0, u32::MAX], Some(3)),
        // Rows off the path do not matter.
        ([8, u32::MAX, u32::MAX, 1], None),
    ] {
        let ended = check(SequenceState::new(50, 9), &ids, &parents, &choices, Accept::Path, 4);
        let fault = ended.record.flags & RoundRecord::FAULT != 0;
        assert_eq!(fault.then_some(ended.record.row), row, "{choices:?}");
    }
}

#[test]
fn more_stop_ids_than_fit_are_refused() {
    use super::super::state::MAX_STOPS;
    assert!(SequenceState::new(1, 1).with_stops(&[1; MAX_STOPS]).is_some());
    assert!(SequenceState::new(1, 1).with_stops(&[1; MAX_STOPS + 1]).is_none());
}
