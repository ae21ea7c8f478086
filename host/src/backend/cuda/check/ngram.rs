//! Check of prompt lookup.

use coppice_gpu::round::{self, NgramMemory, RowLayout, SequenceState, rows_reference};

use super::Run;
use super::round::compare;
use crate::draft::{Odds, ngram};
use crate::error::Result;
use crate::tree::{Tree, best_budget};

pub(super) fn lookup(run: &mut Run<'_>) -> Result<()> {
    // tokens of the history, of the vocabulary, most nodes, whether the budget is chosen
    let small =
        [(1usize, 3u32, 4u32, false), (40, 2, 15, false), (700, 9, 40, false), (60, 2, 15, true), (30, 3, 7, true)];
    let large = [(65_000, 50, 64, false), (30_000, 3, 256, false), (65_000, 20, 15, true)];
    for (len, vocab, limit, auto) in run.cases(&small, &large) {
        let capacity = limit + 1;
        let layout = RowLayout { capacity };
        let mut history: Vec<u32> = (0..len).map(|_| run.random.below(vocab)).collect();
        let costs: Vec<f32> = (0..=limit).map(|n| 1.0 + 0.05 * n as f32).collect();
        let prices = run.place.input("costs", &costs)?;
        let memory = run.place.state("memory", &NgramMemory::initial())?;
        let mut odds = Odds::default();
        // What a round learns from the one before is seen in the next.
        for round in 0..if auto { 4 } else { 1 } {
            let root = history[history.len() - 1];
            let start = history.len() as u32 - 1;
            let before = SequenceState { len: start, root, round, ..SequenceState::new(100_000, 5) };
            let state = run.place.state("state", &before.words())?;
            let text = run.place.input("history", &history)?;
            let rows = run.place.output::<u32>("rows", layout.words() as usize)?;
            let arguments = (
                state.ptr_mut().cast(),
                text.ptr(),
                memory.ptr_mut(),
                prices.ptr(),
                rows.ptr_mut(),
                capacity,
                limit,
                u32::from(auto),
            );
            // SAFETY: the buffers are as large as these sizes say.
            unsafe { run.place.launch(&round::ngram_rows::KERNEL, round::ngram_shape(limit), arguments)? };
            let found = ngram::longest_match(&history, 8).filter(|_| auto);
            let expected = match &found {
                Some(found) => {
                    let probabilities = odds.probabilities(found.length).take(found.tokens.len());
                    Tree::chain(&[&[root], &found.tokens[..best_budget(probabilities, &costs)]].concat())
                }
                None if auto => Tree::root(root),
                None => ngram::propose(&history, 3, 1, limit as usize),
            };
            let parents: Vec<u32> = expected.parents.iter().map(|p| u32::try_from(*p).unwrap_or(u32::MAX)).collect();
            let set = rows_reference(&expected.tokens, &parents, start, capacity);
            let case = format!("ngram_rows of {len} tokens, {limit} nodes, auto {auto}, round {round}");
            compare(run, &case, &rows.to_vec()?, &set, capacity);
            if let Some(found) = found {
                let right = run.random.below(found.tokens.len() as u32 + 1) as usize;
                let committed = [&found.tokens[..right], &[run.random.below(vocab)]].concat();
                odds.learn(found.length, &found.tokens, &committed);
                history.extend(committed);
            }
        }
    }
    Ok(())
}
