//! The k most probable tokens of each row and their log-probabilities, over vocabularies too wide for one block.
use crate::block::{Candidate, block_best, block_sum};
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{grid, prelude::*, shared};

/// Threads of a block.
const THREADS: u32 = 256;
/// Logits a thread holds in registers.
const HELD: usize = 8;
/// Logits of a part: what one block searches.
const PART: u32 = THREADS * HELD as u32;
/// Offset of the partial sums in shared memory, after two scratch areas of a candidate (8 B) a warp.
const SUMS: u32 = 2 * THREADS / 32 * 8;

/// The k best logits of each part of a row, in order, and the part's sum of exponentials.
///
/// candidates[t, p, j] = the j-th largest logit of part p and its id (ties to the lower id); sums[t, p] = (m, sum_i
/// e^(logits[t, i] - m)) with m the part's maximum.
///
/// * Shapes: `logits` [rows, vocab] f32, rows `stride` elements apart; `candidates` [rows, parts, k] of (f32 bits, u32 id);
///   `sums` [rows, parts] of (f32, f32); parts = ceil(vocab / 2048). Past a part's end: -inf, id `u32::MAX`.
/// * Work: grid (parts, rows), 256 threads; a thread holds 8 logits; k rounds of a block reduction.
/// * Shared memory: 160 B: two candidates a warp, in turn, and a partial sum a warp.
/// * Registers: 8 logits a thread; up to 40.
/// * Bytes: 4 a logit, once; FLOPs: 3 a logit, and k comparisons.
/// * Alignment: 4 B, `candidates` and `sums` 8 B. NaN never wins.
/// * Tolerance: ids exact; sums 1e-5 relative: f32 additions and ex2.
///
/// # Safety
/// The buffers have those shapes and alignments.
#[kernel(threads = 256)]
pub unsafe fn top_k_parts(
    logits: Global<f32>,
    candidates: GlobalMut<[u32; 2]>,
    sums: GlobalMut<[f32; 2]>,
    vocab: u32,
    stride: u32,
    k: u32,
) {
    // SAFETY: one part a block, inside the buffers by the contract; bounds of loops are uniform in the block.
    unsafe {
        grid::dependency_wait();
        let (part, row, t) = (thread::block_idx_x(), thread::block_idx_y() as usize, thread::thread_idx_x());
        let logits = logits.add(row * stride as usize);
        let place = row * thread::grid_dim_x() as usize + part as usize;
        let mut held = [Candidate::NONE; HELD];
        for (j, held) in held.iter_mut().enumerate() {
            let index = part * PART + j as u32 * THREADS + t;
            if index < vocab {
                *held = Candidate { value: logits.add(index as usize).read(), index };
            }
        }
        let scratch = shared::dynamic_shared_mem::<[u32; 2]>();
        let mut max = f32::NEG_INFINITY;
        let mut last = Candidate { value: f32::INFINITY, index: u32::MAX };
        for round in 0..k {
            let mut best = Candidate::NONE;
            for candidate in held {
                if round == 0 || last.precedes(candidate) {
                    best = best.better(candidate);
                }
            }
            last = block_best(best, scratch.add(round % 2 * (THREADS / 32)));
            if round == 0 {
                max = last.value;
            }
            if t == 0 {
                candidates.add(place * k as usize + round as usize).write([last.value.to_bits(), last.index]);
            }
        }
        let mut sum = 0.0;
        for candidate in held {
            // Neither a place past the end nor a logit of -inf counts; -inf less -inf would be NaN.
            if candidate.value != f32::NEG_INFINITY {
                sum += math::exp(candidate.value - max);
            }
        }
        let sum = block_sum(sum, scratch.byte_add(SUMS).cast());
        if t == 0 {
            sums.add(place).write([max, sum]);
        }
        grid::dependency_launch();
    }
}

/// Merges the parts of [`top_k_parts`]: the k best tokens of each row with their log-probabilities.
///
/// ids[t, j] = the j-th most probable token; log_probs[t, j] = its logit - ln sum_i e^logits[t, i]; log_sums[t] = that ln.
///
/// * Shapes: `candidates` and `sums` as there, with 1 to 256 `parts`; `ids` [rows, k] u32, `u32::MAX` past the vocabulary;
///   `log_probs` [rows, k] f32; `log_sums` [rows] f32.
/// * Work: a block of 256 threads a row; thread p offers the best of part p that is not taken yet; k rounds of a block
///   reduction.
/// * Shared memory: 160 B, as there.
/// * Registers: up to 40.
/// * Bytes: 8 x parts x (k + 1) a row; FLOPs: k comparisons.
/// * Alignment: 4 B, `candidates` and `sums` 8 B.
/// * Tolerance: ids exact; log-probabilities 1e-5 plus the rounding of the difference.
///
/// # Safety
/// The buffers have those shapes and alignments.
#[kernel(threads = 256)]
pub unsafe fn top_k_merge(
    candidates: Global<[u32; 2]>,
    sums: Global<[f32; 2]>,
    ids: GlobalMut<u32>,
    log_probs: GlobalMut<f32>,
    log_sums: GlobalMut<f32>,
    parts: u32,
    k: u32,
) {
    // SAFETY: one row a block, inside the buffers by the contract; bounds of loops are uniform in the block.
    unsafe {
        grid::dependency_wait();
        let (row, t) = (thread::block_idx_x() as usize, thread::thread_idx_x());
        let part = row * parts as usize + t as usize;
        let offer = |taken: u32| {
            if t >= parts || taken >= k {
                return Candidate::NONE;
            }
            let [value, index] = candidates.add(part * k as usize + taken as usize).read();
            Candidate { value: f32::from_bits(value), index }
        };
        let scratch = shared::dynamic_shared_mem::<[u32; 2]>();
        let (mut taken, mut head, mut log_sum) = (0, offer(0), 0.0);
        for round in 0..k {
            let best = block_best(head, scratch.add(round % 2 * (THREADS / 32)));
            if round == 0 {
                let mut sum = 0.0;
                if t < parts {
                    let [part_max, part_sum] = sums.add(part).read();
                    if part_max != f32::NEG_INFINITY {
                        sum = part_sum * math::exp(part_max - best.value);
                    }
                }
                let total = block_sum(sum, scratch.byte_add(SUMS).cast());
                log_sum = best.value + math::lg2(total) * core::f32::consts::LN_2;
                if t == 0 {
                    log_sums.add(row).write(log_sum);
                }
            }
            if t == 0 {
                ids.add(row * k as usize + round as usize).write(best.index);
                log_probs.add(row * k as usize + round as usize).write(best.value - log_sum);
            }
            if head.index == best.index {
                taken += 1;
                head = offer(taken);
            }
        }
        grid::dependency_launch();
    }
}

/// Parts of a vocabulary: the blocks of [`top_k_parts`] for a row.
#[cfg(not(target_arch = "nvptx64"))]
pub fn parts(vocab: u32) -> u32 {
    vocab.div_ceil(PART)
}

/// Launch of [`top_k_parts`].
#[cfg(not(target_arch = "nvptx64"))]
pub fn parts_shape(rows: u32, vocab: u32) -> LaunchShape {
    LaunchShape::new((parts(vocab), rows), THREADS).shared(SUMS + THREADS / 32 * 4)
}

/// Launch of [`top_k_merge`].
#[cfg(not(target_arch = "nvptx64"))]
pub fn merge_shape(rows: u32) -> LaunchShape {
    LaunchShape::new(rows, THREADS).shared(SUMS + THREADS / 32 * 4)
}

/// One row by its formula, in f64: ids with log-probabilities, and the log of the sum.
#[cfg(not(target_arch = "nvptx64"))]
pub fn top_k_reference(logits: &[f32], k: usize) -> (std::vec::Vec<(u32, f64)>, f64) {
    let max = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let log_sum = max + logits.iter().map(|x| (f64::from(*x) - max).exp()).sum::<f64>().ln();
    let mut order: std::vec::Vec<u32> = (0..logits.len() as u32).collect();
    order.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
    (order.into_iter().take(k).map(|id| (id, f64::from(logits[id as usize]) - log_sum)).collect(), log_sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Failures, Random};
    use cuda_std::simulate::{Buffer, launch};
    use std::vec::Vec;

    /// Ids, log-probabilities and log-sums of all rows.
    fn run(rows: u32, vocab: u32, k: u32, logits: &[f32]) -> (Vec<u32>, Vec<f32>, Vec<f32>) {
        let (parts, n) = (parts(vocab), rows as usize * k as usize);
        let input = Buffer::input("logits", logits);
        let candidates = Buffer::<[u32; 2]>::poisoned("candidates", n * parts as usize);
        let sums = Buffer::<[f32; 2]>::poisoned("sums", (rows * parts) as usize);
        let arguments = (input.ptr(), candidates.ptr_mut(), sums.ptr_mut(), vocab, vocab, k);
        launch(&top_k_parts::KERNEL, parts_shape(rows, vocab), arguments).unwrap();
        let (ids, log_probs) = (Buffer::<u32>::poisoned("ids", n), Buffer::<f32>::poisoned("log_probs", n));
        let log_sums = Buffer::<f32>::poisoned("log_sums", rows as usize);
        let outputs = (ids.ptr_mut(), log_probs.ptr_mut(), log_sums.ptr_mut());
        let arguments = (candidates.ptr(), sums.ptr(), outputs.0, outputs.1, outputs.2, parts, k);
        launch(&top_k_merge::KERNEL, merge_shape(rows), arguments).unwrap();
        (ids.to_vec(), log_probs.to_vec(), log_sums.to_vec())
    }

    #[test]
    fn the_most_probable_tokens_come_first() {
        let mut failures = Failures::default();
        for (rows, vocab, k) in [
            (1, 1, 1),
            (2, 7, 3),
            (1, 255, 16),
            (3, 256, 1),
            (2, 257, 5),
            (1, 2047, 8),
            (2, 2048, 4),
            (1, 2049, 64),
            (3, 4096, 7),
            (2, 5000, 15),
            (1, 12_289, 31),
            (1, 163_840, 8),
        ] {
            let mut random = Random::new((vocab + k).into());
            // Steps of 1/8, so that ties occur, also across parts.
            let logits: Vec<f32> = (0..rows * vocab).map(|_| (random.normal() * 24.0).round() / 8.0 + 50.0).collect();
            let (ids, log_probs, log_sums) = run(rows, vocab, k, &logits);
            for (row, logits) in logits.chunks(vocab as usize).enumerate() {
                let case = std::format!("{rows} x {vocab}, k {k}, row {row}");
                let span = row * k as usize..(row + 1) * k as usize;
                let (expected, log_sum) = top_k_reference(logits, k as usize);
                let expected_ids: Vec<u32> = expected.iter().map(|(id, _)| *id).collect();
                failures.check(ids[span.clone()] == expected_ids, &case, "ids differ");
                let expected: Vec<f32> = expected.iter().map(|(_, p)| *p as f32).collect();
                failures.compare(&case, &log_probs[span], &expected, (0.0, 2e-5));
                failures.compare(&case, &log_sums[row..row + 1], &[log_sum as f32], (1e-6, 0.0));
            }
        }
        failures.report();
    }

    #[test]
    fn masked_and_missing_tokens_come_last_without_nan() {
        let i = f32::NEG_INFINITY;
        let (ids, log_probs, _) = run(1, 4, 6, &[i, 2.0, i, 2.0]);
        assert_eq!(ids, [1, 3, 0, 2, u32::MAX, u32::MAX]);
        assert!((log_probs[0] + 2f32.ln()).abs() < 1e-6 && log_probs[0] == log_probs[1], "{log_probs:?}");
        assert_eq!(log_probs[2..], [i; 4]);
    }
}
