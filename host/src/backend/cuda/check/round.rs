//! Checks of a round's bookkeeping: row sets, and the round's end.

use coppice_gpu::round::{
    self, Accept, Ended, RECORD_WORDS, RoundRecord, RowLayout, STATE_WORDS, SequenceState, VerdictLayout,
    commit_round_reference, rows_reference,
};

use super::Run;
use super::tree::parents;
use crate::error::Result;

/// Parents of a chain, of which the first is not read.
fn chain(rows: usize) -> Vec<u32> {
    (0..rows as u32).map(|row| row.wrapping_sub(1)).collect()
}

/// Compares a written row set, but for the words that nothing writes, and keeps it in the trace.
pub(super) fn compare(run: &mut Run<'_>, case: &str, found: &[u32], expected: &[u32], capacity: u32) {
    let layout = RowLayout { capacity };
    let mut used: Vec<usize> = vec![RowLayout::COUNT as usize, RowLayout::START as usize];
    for field in [RowLayout::IDS, layout.positions(), layout.parents(), layout.slots()] {
        used.extend(field as usize..(field + capacity) as usize);
    }
    used.extend(layout.mask() as usize..layout.words() as usize);
    let wrong = used.iter().find(|word| found[**word] != expected[**word]);
    run.failures.check(wrong.is_none(), case, &format!("word {wrong:?} of the row set differs"));
    run.integers.extend(used.iter().map(|word| found[*word]));
}

pub(super) fn prompt(run: &mut Run<'_>) -> Result<()> {
    for (capacity, chunk, len, done) in
        run.cases(&[(1, 1, 0, 0), (33, 20, 7, 0), (64, 64, 1, 1)], &[(512, 511, 60_000, 0)])
    {
        let state = SequenceState { len, done, ..SequenceState::new(100_000, 5) };
        let ids: Vec<u32> = (0..chunk).map(|_| run.random.below(163_840)).collect();
        let (before, tokens) = (run.place.state("state", &state.words())?, run.place.input("ids", &ids)?);
        let (length, rows) = (
            run.place.input("chunk", &[chunk])?,
            run.place.output::<u32>("rows", RowLayout { capacity }.words() as usize)?,
        );
        let arguments = (before.ptr_mut().cast(), tokens.ptr(), length.ptr(), rows.ptr_mut(), capacity);
        // SAFETY: the buffers are as large as these sizes say; the chunk fits the set.
        unsafe { run.place.launch(&round::prompt_rows::KERNEL, round::chain_shape(), arguments)? };
        let ids = if done == 0 { &ids[..] } else { &[] };
        let expected = rows_reference(ids, &chain(ids.len()), len, capacity);
        compare(run, &format!("prompt_rows {chunk} of {capacity}"), &rows.to_vec()?, &expected, capacity);
    }
    Ok(())
}

pub(super) fn block(run: &mut Run<'_>) -> Result<()> {
    for (capacity, block, len, done) in run.cases(&[(1, 1, 0, 0), (16, 15, 7, 0), (8, 8, 1, 1)], &[(64, 40, 99_000, 0)])
    {
        let (root, mask) = (run.random.below(163_840), run.random.below(163_840));
        let state = SequenceState { len, done, root, ..SequenceState::new(100_000, 5) };
        let before = run.place.state("state", &state.words())?;
        let rows = run.place.output::<u32>("rows", RowLayout { capacity }.words() as usize)?;
        let arguments = (before.ptr_mut().cast(), rows.ptr_mut(), capacity, block, mask);
        // SAFETY: the buffers are as large as these sizes say; the block fits the set.
        unsafe { run.place.launch(&round::block_rows::KERNEL, round::chain_shape(), arguments)? };
        let mut ids = vec![mask; if done == 0 { block as usize } else { 0 }];
        ids.iter_mut().take(1).for_each(|id| *id = root);
        let expected = rows_reference(&ids, &chain(ids.len()), len, capacity);
        compare(run, &format!("block_rows {block} of {capacity}"), &rows.to_vec()?, &expected, capacity);
    }
    Ok(())
}

pub(super) fn given(run: &mut Run<'_>) -> Result<()> {
    for (capacity, nodes, len) in run.cases(&[(1u32, 0usize, 0u32), (40, 31, 7), (65, 64, 1)], &[(257, 256, 60_000)]) {
        let state = SequenceState { len, root: 5, ..SequenceState::new(100_000, 5) };
        let above = parents(run, nodes + 1);
        let ids: Vec<u32> = (0..=nodes).map(|row| if row == 0 { 5 } else { run.random.below(163_840) }).collect();
        let before = run.place.state("state", &state.words())?;
        let (tokens, tree) = (run.place.input("tokens", &ids[1..])?, run.place.input("parents", &above[1..])?);
        let rows = run.place.output::<u32>("rows", RowLayout { capacity }.words() as usize)?;
        let n = nodes as u32;
        let arguments = (before.ptr_mut().cast(), tokens.ptr(), tree.ptr(), rows.ptr_mut(), capacity, n);
        // SAFETY: the buffers are as large as these sizes say; parents precede their children.
        unsafe { run.place.launch(&round::given_rows::KERNEL, round::given_shape(n), arguments)? };
        let expected = rows_reference(&ids, &above, len, capacity);
        compare(run, &format!("given_rows {nodes} of {capacity}"), &rows.to_vec()?, &expected, capacity);
    }
    Ok(())
}

pub(super) fn last_row(run: &mut Run<'_>) -> Result<()> {
    for (count, row_bytes) in run.cases(&[(1u32, 16usize), (3, 2064), (0, 48)], &[(512, 14_336)]) {
        let data: Vec<u8> = (0..(count as usize + 1) * row_bytes).map(|_| run.random.below(255) as u8).collect();
        let (length, x) = (run.place.input("count", &[count])?, run.place.input("x", &data)?);
        let out = run.place.output::<u8>("out", row_bytes)?;
        let arguments = (length.ptr(), x.ptr(), out.ptr_mut(), row_bytes as u32);
        // SAFETY: the buffers are as large as these sizes say, in multiples of 16.
        unsafe { run.place.launch(&round::last_row::KERNEL, round::last_row_shape(row_bytes as u32), arguments)? };
        let out = out.to_vec()?;
        let expected = match count {
            0 => vec![u8::MAX; row_bytes],
            _ => data[(count as usize - 1) * row_bytes..][..row_bytes].to_vec(),
        };
        run.failures.check(out == expected, &format!("last_row of {count}, {row_bytes} B"), "differs");
        run.integers.extend(out.into_iter().map(u32::from));
    }
    Ok(())
}

pub(super) fn commit(run: &mut Run<'_>) -> Result<()> {
    let small = [
        (1u32, 0u32, 5u32, 40u32, Accept::Path),
        (8, 3, 2, 40, Accept::Path),
        (33, 38, 9, 40, Accept::Path),
        (20, 0, 9, 40, Accept::Chunk),
        (20, 0, 1, 40, Accept::LastChunk),
    ];
    let large = [(257, 60_000, 900, 65_536, Accept::Path), (512, 1024, 900, 65_536, Accept::LastChunk)];
    for (count, len, left, context, accept) in run.cases(&small, &large) {
        let capacity = count + 2;
        let above = if accept == Accept::Path { parents(run, count as usize) } else { chain(count as usize) };
        // Few tokens, so that paths are long.
        let [ids, choices] = [0; 2].map(|_| (0..capacity).map(|_| run.random.below(2)).collect::<Vec<u32>>());
        let ids = &ids[..count as usize];
        let round = run.random.below(100);
        let before = SequenceState { len, left, round, promised: 2.5, ..SequenceState::new(context, 0) };
        let slots = 4u32;
        let slot_words = RoundRecord::slot_words(capacity);
        let state = run.place.state("state", &before.words())?;
        let rows = run.place.state("rows", &rows_reference(ids, &above, len, capacity))?;
        let chosen = run.place.input("choices", &choices)?;
        let accepted = run.place.output::<u32>("accepted", RowLayout { capacity }.words() as usize)?;
        let verdict = run.place.output::<u32>("verdict", VerdictLayout::words(capacity) as usize)?;
        let history = run.place.output::<u32>("history", context as usize + 1)?;
        let ring = run.place.output::<u32>("ring", (slots * slot_words) as usize)?;
        let arguments = (
            state.ptr_mut().cast(),
            rows.ptr_mut(),
            chosen.ptr(),
            accepted.ptr_mut(),
            verdict.ptr_mut(),
            history.ptr_mut(),
            ring.ptr_mut(),
            capacity,
            capacity,
            slots,
            slot_words,
            accept as u32,
        );
        // SAFETY: the buffers are as large as these sizes say; parents precede their children.
        unsafe { run.place.launch(&round::commit_round::KERNEL, round::commit_shape(capacity), arguments)? };
        let Ended { state: after, path, record, tokens } =
            commit_round_reference(before, ids, &above, &choices, accept);
        let case = format!("commit_round of {count} rows, {accept:?}");
        let found = state.to_vec()?;
        run.failures.check(found == after.words(), &case, "the state differs");
        let verdict = verdict.to_vec()?;
        let kept = path.len();
        run.failures.check(verdict[..3] == [kept as u32, len, 0], &case, "the verdict differs");
        run.failures.check(verdict[VerdictLayout::PATH as usize..][..kept] == path, &case, "the path differs");
        let (accepted, history) = (accepted.to_vec()?, history.to_vec()?);
        let committed: Vec<u32> = path.iter().map(|row| ids[*row as usize]).collect();
        let first = RowLayout::IDS as usize;
        run.failures.check(accepted[..2] == [kept as u32, len], &case, "the accepted rows' header differs");
        run.failures.check(accepted[first..first + kept] == committed, &case, "the accepted rows differ");
        run.failures.check(history[len as usize..][..kept] == committed, &case, "the history differs");
        let ring = ring.to_vec()?;
        let slot = &ring[(before.round % slots * slot_words) as usize..][..slot_words as usize];
        run.failures.check(slot[..RECORD_WORDS] == record.words(), &case, "the record differs");
        run.failures.check(slot[RECORD_WORDS..][..tokens.len()] == tokens, &case, "the tokens differ");
        debug_assert_eq!(found.len(), STATE_WORDS);
        run.integers.extend([found, verdict, history, ring].concat());
    }
    Ok(())
}
