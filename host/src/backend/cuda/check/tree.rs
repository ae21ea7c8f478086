//! Checks of the tree's kernels: layout, walk, moving the accepted rows.

use coppice_gpu::round::{self, RowLayout, STATE_WORDS, SequenceState, rows_reference};
use coppice_gpu::{commit, tree};

use super::Run;
use super::round::compare;
use crate::error::Result;
use crate::tree::{BestFirst, Candidates, best_budget, best_first, chain};

/// A random tree of `rows` rows; the root's parent is not read.
pub(super) fn parents(run: &mut Run<'_>, rows: usize) -> Vec<u32> {
    (0..rows as u32).map(|row| if row == 0 { u32::MAX } else { run.random.below(row) }).collect()
}

/// The rows that each row sees, as bits: `ceil(rows / 32)` words a row.
pub(super) fn mask(sees: &[Vec<bool>]) -> Vec<u32> {
    let words = sees.len().div_ceil(32);
    let mut mask = vec![0u32; sees.len() * words];
    for (row, sees) in sees.iter().enumerate() {
        for node in (0..sees.len()).filter(|node| sees[*node]) {
            mask[row * words + node / 32] |= 1 << (node % 32);
        }
    }
    mask
}

pub(super) fn layout(run: &mut Run<'_>) -> Result<()> {
    for rows in run.cases(&[1, 2, 33, 65, 150], &[1024]) {
        let parents = parents(run, rows);
        let (tree, start) = (run.place.input("parents", &parents)?, run.place.input("start", &[1000u32])?);
        let positions = run.place.output::<u32>("positions", rows)?;
        let bits = run.place.output::<u32>("mask", rows * rows.div_ceil(32))?;
        let arguments = (tree.ptr(), start.ptr(), positions.ptr_mut(), bits.ptr_mut(), rows as u32);
        // SAFETY: the buffers are as large as these sizes say; parents precede their children.
        unsafe { run.place.launch(&tree::tree_layout::KERNEL, tree::shape(rows as u32), arguments)? };
        let (positions, bits) = (positions.to_vec()?, bits.to_vec()?);
        let (expected, sees) = tree::tree_layout_reference(&parents, 1000);
        let case = format!("tree_layout of {rows} rows");
        run.failures.check(positions == expected, &case, "positions differ");
        run.failures.check(bits == mask(&sees), &case, "masks differ");
        run.integers.extend(positions);
        run.integers.extend(bits);
    }
    Ok(())
}

pub(super) fn walk(run: &mut Run<'_>) -> Result<()> {
    for rows in run.cases(&[1, 2, 7, 33, 100], &[1024]) {
        let parents = parents(run, rows);
        // Few tokens, so that paths are long and siblings may hold the same.
        let [tokens, choices] = [0; 2].map(|_| (0..rows).map(|_| run.random.below(2)).collect::<Vec<u32>>());
        let inputs = (run.place.input("parents", &parents)?, run.place.input("tokens", &tokens)?);
        let chosen = run.place.input("choices", &choices)?;
        let (path, length) = (run.place.output::<u32>("path", rows)?, run.place.output::<u32>("length", 1)?);
        let bonus = run.place.output::<u32>("bonus", 1)?;
        let outputs = (path.ptr_mut(), length.ptr_mut(), bonus.ptr_mut());
        let arguments = (inputs.0.ptr(), inputs.1.ptr(), chosen.ptr(), outputs.0, outputs.1, outputs.2, rows as u32);
        // SAFETY: the buffers are as large as these sizes say; parents precede their children.
        unsafe { run.place.launch(&commit::walk::KERNEL, commit::walk_shape(), arguments)? };
        let (path, length, bonus) = (path.to_vec()?, length.to_vec()?[0], bonus.to_vec()?[0]);
        let (expected, expected_bonus) = commit::walk_reference(&parents, &tokens, &choices);
        let case = format!("walk of {rows} rows");
        run.failures.check(length as usize == expected.len(), &case, "the path's length differs");
        run.failures.check(path.get(..expected.len()) == Some(&expected[..]), &case, "the path differs");
        run.failures.check(path.iter().skip(expected.len()).all(|row| *row == u32::MAX), &case, "writes past the path");
        run.failures.check(bonus == expected_bonus, &case, "the bonus differs");
        run.integers.extend(path);
        run.integers.push(bonus);
    }
    Ok(())
}

pub(super) fn compact(run: &mut Run<'_>) -> Result<()> {
    // layers, slots, bytes of a row
    for (layers, slots, row_bytes) in run.cases(&[(1, 4, 16), (2, 9, 176), (3, 40, 2064)], &[(61, 80, 1168)]) {
        let start = run.random.below(slots as u32 / 2);
        let mut path = vec![0u32];
        path.extend((1..slots as u32 - start).filter(|_| run.random.below(2) == 0));
        let data: Vec<u8> = (0..layers * slots * row_bytes).map(|_| run.random.below(256) as u8).collect();
        let rows = run.place.state("buffer", &data)?;
        let (begin, steps) = (run.place.input("start", &[start])?, run.place.input("path", &path)?);
        let length = run.place.input("length", &[path.len() as u32])?;
        let arguments =
            (rows.ptr_mut(), begin.ptr(), steps.ptr(), length.ptr(), row_bytes as u32, (slots * row_bytes) as u64);
        let shape = commit::compact_shape(row_bytes as u32, layers as u32);
        // SAFETY: the buffer is as large as these sizes say, in multiples of 16; the path rises from 0 inside a layer.
        unsafe { run.place.launch(&commit::compact_rows::KERNEL, shape, arguments)? };
        let found = rows.to_vec()?;
        let mut expected = data;
        for layer in expected.chunks_mut(slots * row_bytes) {
            for (i, from) in path.iter().enumerate() {
                let from = (start + from) as usize * row_bytes;
                layer.copy_within(from..from + row_bytes, (start as usize + i) * row_bytes);
            }
        }
        let case = format!("compact_rows of {layers} layers, {slots} slots, {row_bytes} B, path of {}", path.len());
        run.failures.check(found == expected, &case, "differs");
        run.integers.extend(found.chunks(4).map(|word| word.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte))));
    }
    Ok(())
}

pub(super) fn build(run: &mut Run<'_>) -> Result<()> {
    // depths, candidates a depth, ranks used, most nodes, whether the budget is chosen
    let small = [
        (1usize, 1usize, 1usize, 1usize, false),
        (7, 15, 15, 15, false),
        (7, 16, 1, 15, false),
        (15, 31, 31, 40, true),
    ];
    let large = [(15, 64, 64, 64, false), (15, 256, 256, 256, true), (7, 63, 63, 63, true), (15, 40, 40, 255, false)];
    for (depths, k, ranks, limit, auto) in run.cases(&small, &large) {
        let ids: Vec<u32> = (0..depths * k).map(|_| run.random.below(163_840)).collect();
        // Steps of 1/4 where the budget is fixed, so that there are ties.
        let log_probs: Vec<f32> = (0..depths)
            .flat_map(|_| {
                let mut own = 0.0;
                let step = |uniform: f32| if auto { uniform } else { (uniform * 3.0).floor() / 4.0 };
                (0..k)
                    .map(|_| {
                        own -= step(run.random.uniform());
                        own
                    })
                    .collect::<Vec<f32>>()
            })
            .collect();
        let costs: Vec<f32> = (0..=limit).map(|n| 1.0 + 0.02 * (n + n / 8 * 8) as f32).collect();
        let trust = 0.9f32;
        let before = SequenceState { len: 600, root: 7, ..SequenceState::new(1000, 5) };
        let capacity = limit as u32 + 2;
        let layout = RowLayout { capacity };
        let state = run.place.state("state", &before.words())?;
        let inputs = (run.place.input("ids", &ids)?, run.place.input("log_probs", &log_probs)?);
        let prices = (run.place.input("costs", &costs)?, run.place.input("trust", &[trust])?);
        let rows = run.place.output::<u32>("rows", layout.words() as usize)?;
        let [d, width, r, l] = [depths, k, ranks, limit].map(|n| n as u32);
        let arguments = (
            state.ptr_mut().cast(),
            inputs.0.ptr(),
            inputs.1.ptr(),
            prices.0.ptr(),
            prices.1.ptr(),
            rows.ptr_mut(),
            capacity,
            d,
            width,
            r,
            l,
            u32::from(auto),
        );
        // SAFETY: the buffers are as large as these sizes say.
        unsafe { run.place.launch(&round::tree_rows::KERNEL, round::tree_shape(l), arguments)? };
        let ranked = ids.chunks(k).zip(log_probs.chunks(k)).map(|(ids, log_probs)| {
            ids.iter().zip(log_probs).map(|(id, log_prob)| (*id, f64::from(*log_prob))).take(ranks).collect()
        });
        let candidates = Candidates::new(ranked.collect());
        let budget = if auto {
            let probabilities = BestFirst::new(&candidates).take(limit).map(|node| node.log_prob.exp());
            best_budget(probabilities.map(|p| p * f64::from(trust)), &costs)
        } else {
            limit
        };
        let expected = match ranks {
            1 => chain(7, &candidates, budget),
            _ => best_first(7, &candidates, budget),
        };
        let promised: f64 = BestFirst::new(&candidates).take(budget).map(|node| node.log_prob.exp()).sum();
        let parents: Vec<u32> = expected.parents.iter().map(|p| u32::try_from(*p).unwrap_or(u32::MAX)).collect();
        let set = rows_reference(&expected.tokens, &parents, 600, capacity);
        let case = format!("tree_rows of {depths} x {k}, {ranks} ranks, {limit} nodes, auto {auto}");
        compare(run, &case, &rows.to_vec()?, &set, capacity);
        let found = state.to_vec()?;
        let after: Option<[u32; STATE_WORDS]> = found.try_into().ok();
        let after = after.map(SequenceState::from_words);
        let close = after.filter(|after| {
            let promised = if auto { promised } else { 0.0 };
            // The probabilities' last places may differ.
            let near = (f64::from(after.promised) - promised).abs() <= promised * 1e-6;
            near && SequenceState { promised: before.promised, ..*after } == before
        });
        run.failures.check(close.is_some(), &case, &format!("the state is {after:?}, promised {promised}"));
    }
    Ok(())
}
