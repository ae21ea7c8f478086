//! Checks of the kernels that choose tokens.

use coppice_gpu::round::{RowLayout, SequenceState, rows_reference};
use coppice_gpu::{sample, top_k};

use super::Run;
use crate::error::Result;
use crate::sampling::{Sampling, draw};
use crate::tree::candidates;

pub(super) fn argmax(run: &mut Run<'_>) -> Result<()> {
    let small = [(1, 1usize), (2, 31), (3, 2049), (2, 5000)];
    for (rows, vocab) in run.cases(&small, &[(64, 163_840), (5, 129_283)]) {
        let stride = vocab.next_multiple_of(4);
        // Few distinct values, so that ties abound; past the row's end lies what must not win.
        let mut logits = vec![f32::INFINITY; rows * stride];
        for row in logits.chunks_mut(stride) {
            row[..vocab].fill_with(|| run.random.below(50) as f32 - 40.0);
            row[vocab / 2] = f32::NAN;
        }
        let (input, out) = (run.place.input("logits", &logits)?, run.place.output::<u32>("out", rows)?);
        let arguments = (input.ptr(), out.ptr_mut(), vocab as u32, stride as u32);
        // SAFETY: the buffers are as large as these sizes say; the stride is a multiple of 4.
        unsafe { run.place.launch(&sample::argmax::KERNEL, sample::shape(rows as u32), arguments)? };
        let found = out.to_vec()?;
        let expected: Vec<u32> = logits.chunks(stride).map(|row| sample::argmax_reference(&row[..vocab])).collect();
        run.failures.check(found == expected, &format!("argmax {rows} x {vocab}"), "differs");
        run.integers.extend(found);
    }
    Ok(())
}

pub(super) fn top_k(run: &mut Run<'_>) -> Result<()> {
    let small = [(1, 5, 5), (2, 100, 8), (2, 5000, 8), (1, 2049, 16)];
    for (rows, vocab, k) in run.cases(&small, &[(16, 163_840, 8), (3, 129_280, 16)]) {
        let stride = vocab + 3;
        // Rounded, so that there are ties.
        let logits: Vec<f32> =
            run.random.normals(rows * stride).into_iter().map(|x| (x * 64.0).round() / 16.0).collect();
        let parts = top_k::parts(vocab as u32);
        let (r, v, s, k32) = (rows as u32, vocab as u32, stride as u32, k as u32);
        let input = run.place.input("logits", &logits)?;
        let candidates = run.place.output::<[u32; 2]>("candidates", rows * parts as usize * k)?;
        let sums = run.place.output::<[f32; 2]>("sums", rows * parts as usize)?;
        let arguments = (input.ptr(), candidates.ptr_mut(), sums.ptr_mut(), v, s, k32);
        // SAFETY: the buffers are as large as these sizes say.
        unsafe { run.place.launch(&top_k::top_k_parts::KERNEL, top_k::parts_shape(r, v), arguments)? };
        let (ids, log_probs) =
            (run.place.output::<u32>("ids", rows * k)?, run.place.output::<f32>("log_probs", rows * k)?);
        let log_sums = run.place.output::<f32>("log_sums", rows)?;
        let outputs = (ids.ptr_mut(), log_probs.ptr_mut(), log_sums.ptr_mut());
        let arguments = (candidates.ptr(), sums.ptr(), outputs.0, outputs.1, outputs.2, parts, k32);
        // SAFETY: as above; there are at most 256 parts.
        unsafe { run.place.launch(&top_k::top_k_merge::KERNEL, top_k::merge_shape(r), arguments)? };
        let (ids, log_probs, log_sums) = (ids.to_vec()?, log_probs.to_vec()?, log_sums.to_vec()?);
        for row in 0..rows {
            let (expected, log_sum) = top_k::top_k_reference(&logits[row * stride..][..vocab], k);
            let case = format!("top_k {k} of {rows} x {vocab}, row {row}");
            let (expected_ids, expected): (Vec<u32>, Vec<f32>) =
                expected.into_iter().map(|(id, log_prob)| (id, log_prob as f32)).unzip();
            run.failures.check(ids[row * k..][..k] == expected_ids, &case, "ids differ");
            run.failures.compare(&case, &log_probs[row * k..][..k], &expected, (1e-5, 1e-5));
            run.failures.compare(&case, &log_sums[row..=row], &[log_sum as f32], (1e-5, 1e-5));
        }
        run.integers.extend(ids);
    }
    Ok(())
}

/// Sampling parameters as a sequence's state has them.
fn state_of(sampling: &Sampling, len: u32) -> SequenceState {
    let Sampling { temperature, top_k, top_p, min_p, seed } = *sampling;
    let mut state = SequenceState::new(1000, 10);
    (state.len, state.temperature, state.top_p, state.min_p) = (len, temperature, top_p, min_p);
    (state.top_k, state.seed) = (u32::try_from(top_k).unwrap_or(u32::MAX), [seed as u32, (seed >> 32) as u32]);
    state
}

pub(super) fn choose(run: &mut Run<'_>) -> Result<()> {
    let warm = Sampling { temperature: 0.8, ..Sampling::GREEDY };
    let small = [
        (1, 1usize, warm),
        (3, 31, Sampling::GREEDY),
        (4, 500, Sampling { top_k: 40, top_p: 0.95, min_p: 0.01, ..warm }),
        (3, 4096, warm),
        (2, 5000, Sampling { temperature: 20.0, top_k: 3000, top_p: 0.9, ..warm }),
    ];
    let large = [
        (64, 163_840, warm),
        (16, 163_840, Sampling { top_k: 50, top_p: 0.95, ..warm }),
        (64, 20_480, Sampling { temperature: 1.5, min_p: 0.001, ..warm }),
        (5, 129_283, Sampling::GREEDY),
    ];
    for (rows, vocab, sampling) in run.cases(&small, &large) {
        let stride = vocab.next_multiple_of(4);
        // Rounded in every second case, so that there are ties; past the row's end lies what must not win.
        let steps = if rows % 2 == 0 { 4.0 } else { 1e9 };
        let mut logits = vec![f32::INFINITY; rows * stride];
        for row in logits.chunks_mut(stride) {
            row[..vocab].fill_with(|| (run.random.normal() * 2.5 * steps).round() / steps);
        }
        let sampling = Sampling { seed: u64::from(run.random.below(1 << 30)) << 11, ..sampling };
        let (len, capacity) = (run.random.below(900), rows as u32 + 1);
        let state = run.place.state("state", &state_of(&sampling, len).words())?;
        let parents: Vec<u32> = (0..rows as u32).map(|row| row / 2).collect();
        let set = rows_reference(&vec![1; rows], &parents, len, capacity);
        let (set_rows, input) = (run.place.state("rows", &set)?, run.place.input("logits", &logits)?);
        let out = run.place.output::<u32>("choices", capacity as usize)?;
        let (v, s) = (vocab as u32, stride as u32);
        let arguments = (state.ptr_mut().cast(), set_rows.ptr_mut(), input.ptr(), out.ptr_mut(), capacity, v, s, 0);
        // SAFETY: the buffers are as large as these sizes say; the stride is a multiple of 4.
        unsafe { run.place.launch(&sample::choose_tokens::KERNEL, sample::choose_shape(capacity, false), arguments)? };
        let found = out.to_vec()?;
        let positions = &set[RowLayout { capacity }.positions() as usize..];
        let expected: Vec<u32> = logits
            .chunks(stride)
            .zip(positions)
            .map(|(row, position)| draw(&row[..vocab], &sampling, u64::from(*position) + 1))
            .collect();
        let case = format!("choose_tokens {rows} x {vocab}, {sampling:?}");
        run.failures.check(found[..rows] == expected, &case, "differs");
        run.failures.check(found[rows..] == [u32::MAX], &case, "writes past the rows");
        run.integers.extend(found);
    }
    Ok(())
}

pub(super) fn rank(run: &mut Run<'_>) -> Result<()> {
    let small = [(1, 5usize, 7usize), (2, 1000, 63), (3, 4096, 15), (1, 9000, 256)];
    for (rows, vocab, k) in run.cases(&small, &[(15, 163_840, 64), (7, 20_480, 255), (15, 4096, 64)]) {
        let stride = vocab.next_multiple_of(4);
        // Rounded in every second case, so that there are ties; past the row's end lies what must not win.
        let steps = if rows % 2 == 0 { 8.0 } else { 1e9 };
        let mut logits = vec![f32::INFINITY; rows * stride];
        for row in logits.chunks_mut(stride) {
            row[..vocab].fill_with(|| (run.random.normal() * 3.0 * steps).round() / steps);
            row[vocab / 2] = f32::NAN;
        }
        let input = run.place.input("logits", &logits)?;
        let (ids, log_probs) =
            (run.place.output::<u32>("ids", rows * k)?, run.place.output::<f32>("log_probs", rows * k)?);
        let [v, s, n] = [vocab, stride, k].map(|n| n as u32);
        let arguments = (input.ptr(), ids.ptr_mut(), log_probs.ptr_mut(), v, s, n);
        // SAFETY: the buffers are as large as these sizes say; the stride is a multiple of 4.
        unsafe { run.place.launch(&sample::rank_tokens::KERNEL, sample::rank_shape(rows as u32), arguments)? };
        let (ids, log_probs) = (ids.to_vec()?, log_probs.to_vec()?);
        for (row, logits) in logits.chunks(stride).enumerate() {
            let case = format!("rank_tokens {k} of {rows} x {vocab}, row {row}");
            let mut expected = candidates::top_k(&logits[..vocab], k);
            expected.retain(|(_, log_prob)| *log_prob > f64::NEG_INFINITY);
            expected.resize(k, (u32::MAX, f64::NEG_INFINITY));
            let (wanted, probable): (Vec<u32>, Vec<f32>) = expected.iter().map(|(id, p)| (*id, *p as f32)).unzip();
            run.failures.check(ids[row * k..][..k] == wanted, &case, "ids differ");
            run.failures.compare(&case, &log_probs[row * k..][..k], &probable, (1e-6, 1e-5));
        }
        run.integers.extend(ids);
    }
    Ok(())
}
