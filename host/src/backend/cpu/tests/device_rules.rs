//! The rules by which GPU kernels end a round give what this backend gives.

use coppice_gpu::round::{self, RowLayout, SequenceState, commit_round_reference, rows_reference};
use proptest::prelude::*;

use super::*;

/// What follows each row, and the rows as the device has them.
fn rows_and_choices(rig: &mut Rig) -> (RowValues, Vec<u32>, Vec<u32>) {
    let rows = rig.rows();
    let parents = rows.parents.iter().map(|parent| u32::try_from(*parent).unwrap_or(u32::MAX)).collect();
    let choices = rows.ids.iter().map(|id| rig.next(*id)).collect();
    (rows, parents, choices)
}

/// A tree below `root` in which about every other node holds the token that greedy text goes on with.
fn half_right(rig: &Rig, root: u32, draws: &[(prop::sample::Index, bool, u32)]) -> Proposal {
    let (mut ids, mut parents) = (vec![root], vec![u32::MAX]);
    for (parent, right, token) in draws {
        let parent = parent.index(ids.len());
        let token = if *right { rig.next(ids[parent]) } else { token % VOCAB as u32 };
        let known = (1..ids.len()).any(|row| parents[row] == parent as u32 && ids[row] == token);
        if !known {
            ids.push(token);
            parents.push(parent as u32);
        }
    }
    given(&ids[1..], &parents[1..])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_round_ends_on_the_device_as_it_ends_here(
        prompt in 1usize..30, chunk in 1usize..20, spare in 0usize..40, most in 1usize..40,
        stops in prop::collection::vec(0..VOCAB as u32, 0..3),
        trees in prop::collection::vec(prop::collection::vec((any::<prop::sample::Index>(), any::<bool>(), any::<u32>()), 0..24), 12),
    ) {
        let mut rig = Rig::new(ODD, MlaForm::Absorbed);
        let context = prompt + spare;
        let sequence = rig.sequence(context, request(most, &stops));
        let mut state = SequenceState::new(context as u32, most as u32).with_stops(&stops).unwrap();
        let ids = text(prompt as u64, prompt);
        let mut left = prompt;
        for part in ids.chunks(chunk) {
            left -= part.len();
            rig.backend.submit(Op::PromptRows { sequence, rows: rig.rows, ids: part.into() });
            let (rows, parents, choices) = rows_and_choices(&mut rig);
            prop_assert_eq!(&device_rows(&rows, &parents, state.len), &rows);
            let last = rig.last_logits(part);
            let logits = (left == 0).then_some(last);
            let round = rig.finish(sequence, Accept::Prompt { logits });
            let accept = if left == 0 { round::Accept::LastChunk } else { round::Accept::Chunk };
            state = compare(&mut rig, state, (&rows, &parents), &choices[choices.len() - 1..], accept, round)?;
        }
        for tree in trees {
            // Whatever the tree, a sequence that is done has no rows.
            let proposal = half_right(&rig, if state.done == 0 { state.root } else { 0 }, &tree);
            rig.backend.submit(Op::TreeRows { sequence, rows: rig.rows, proposal });
            let (rows, parents, choices) = rows_and_choices(&mut rig);
            prop_assert_eq!(&device_rows(&rows, &parents, state.len), &rows);
            rig.attend(sequence);
            let round = rig.finish(sequence, Accept::Path { logits: rig.logits });
            state = compare(&mut rig, state, (&rows, &parents), &choices, round::Accept::Path, round)?;
        }
    }
}

/// The rows as the device lays them out.
fn device_rows(rows: &RowValues, parents: &[u32], start: u32) -> RowValues {
    let capacity = MAX_ROWS as u32;
    let words = rows_reference(&rows.ids, parents, start, capacity);
    let layout = RowLayout { capacity };
    let field = |at: u32| words[at as usize..][..words[0] as usize].iter().copied();
    RowValues {
        ids: field(RowLayout::IDS).collect(),
        positions: field(layout.positions()).map(|position| position as usize).collect(),
        parents: field(layout.parents()).map(|parent| parent as i32).collect(),
    }
}

/// Ends the round by the device's rule and compares what it reports and accepts; the state after it.
fn compare(
    rig: &mut Rig,
    state: SequenceState,
    (rows, parents): (&RowValues, &[u32]),
    choices: &[u32],
    accept: round::Accept,
    expected: Round,
) -> Result<SequenceState, TestCaseError> {
    let ended = commit_round_reference(state, &rows.ids, parents, choices, accept);
    let record = ended.record;
    let found = Round {
        tokens: ended.tokens,
        prompt_tokens: record.prompt_tokens as usize,
        nodes: record.nodes as usize,
        promised: record.promised,
        idle: record.flags & round::RoundRecord::IDLE != 0,
    };
    prop_assert_eq!(found, expected, "{:?} after {:?}", accept, state);
    let accepted = rig.backend.read_rows(rig.accepted).unwrap();
    let ids: Vec<u32> = ended.path.iter().map(|row| rows.ids[*row as usize]).collect();
    prop_assert_eq!(accepted.ids, ids);
    let end = accepted.positions.last().map_or(state.len as usize, |last| last + 1);
    prop_assert_eq!(ended.state.len as usize, end);
    Ok(ended.state)
}
