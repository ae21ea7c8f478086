//! The most probable tokens of each row in order, one block a row, whatever their number.
use super::histogram::{SHARED_BYTES, THREADS, at};
use super::row::{ONE, Row, id_of, logit_of};
use crate::block::{Candidate, block_best};
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{grid, prelude::*};

/// Most tokens of a row.
pub const MOST_RANKS: u32 = 1024;

/// The k most probable tokens of each row and their log-probabilities.
///
/// ids[t, j] = the j-th token in the order of logit descending, id ascending; log_probs[t, j] = its logit - ln sum_i
/// e^logits[t, i]. A NaN counts as -inf; past the tokens above -inf: id `u32::MAX`, log-probability -inf.
///
/// The same result as [`top_k_parts`](crate::top_k::top_k_parts) with [`top_k_merge`](crate::top_k::top_k_merge), in a time
/// that hardly depends on k: those take k reductions of a block each, and are for few tokens of very wide rows.
///
/// * Shapes: `logits` [rows, vocab] f32, rows `stride` elements apart; `ids` [rows, k] u32; `log_probs` [rows, k] f32.
/// * Work: a block of 512 threads a row: a pass for the maximum, one for a histogram of counts and weights, one to list what
///   lies in the bins down to the k-th token's; then each listed token counts those before it. Where the bins hold more than
///   1,024 tokens, up to nine passes more.
/// * Shared memory: 44.6 KB, as [`choose_tokens`](super::choose_tokens).
/// * Registers: up to 128.
/// * Bytes: 4 a logit and pass, from L2 after the first; FLOPs: 18 in f64 a logit within 33 of the maximum.
/// * Alignment: `logits` 16 B, `stride` a multiple of 4. Vocabularies below 2^18; k from 1 to 1024.
/// * Tolerance: ids exact; log-probabilities 1e-5: the logarithm is f32, the sum exact to 2^-27.
///
/// # Safety
/// The buffers have those shapes and alignments.
#[kernel(threads = 512, blocks_per_sm = 1)]
pub unsafe fn rank_tokens(
    logits: Global<f32>,
    ids: GlobalMut<u32>,
    log_probs: GlobalMut<f32>,
    vocab: u32,
    stride: u32,
    k: u32,
) {
    // SAFETY: one row a block, inside the buffers by the contract; what a block branches on is the same in its threads.
    unsafe {
        grid::dependency_wait();
        let (thread, row) = (thread::thread_idx_x(), thread::block_idx_x() as usize);
        let (ids, log_probs) = (ids.add(row * k as usize), log_probs.add(row * k as usize));
        let row = Row { logits: logits.add(row * stride as usize), vocab, max: 0.0, scale: 1.0, all: true };
        let mut best = Candidate::NONE;
        row.each(|value, index| best = best.better(Candidate { value, index }));
        let best = block_best(best, at(0));
        // Scratch may be written anew.
        thread::sync_threads();
        let mut ranked = 0;
        if best.value > f32::NEG_INFINITY {
            let row = Row { max: best.value, ..row };
            // No weight is that large: nothing is added up for it.
            let (total, _) = row.fill(f64::INFINITY);
            ranked = k.min(total.tokens as u32);
            let log_total = math::lg2(total.weight as f32 / ONE as f32) * core::f32::consts::LN_2;
            let (listed, list) = row.list_first(ranked);
            let mut i = thread;
            while i < listed {
                let [key, _] = list.add(i).read();
                let mut rank = 0;
                for j in 0..listed {
                    rank += u32::from(list.add(j).read()[0] > key);
                }
                if rank < ranked {
                    // Infinite logits share the row's probability.
                    let logit = logit_of(key);
                    let distance = if logit == best.value { 0.0 } else { logit - best.value };
                    ids.add(rank as usize).write(id_of(key));
                    log_probs.add(rank as usize).write(distance - log_total);
                }
                i += THREADS;
            }
        }
        let mut rank = ranked + thread;
        while rank < k {
            ids.add(rank as usize).write(u32::MAX);
            log_probs.add(rank as usize).write(f32::NEG_INFINITY);
            rank += THREADS;
        }
        grid::dependency_launch();
    }
}

/// Launch of [`rank_tokens`].
#[cfg(not(target_arch = "nvptx64"))]
pub fn rank_shape(rows: u32) -> LaunchShape {
    LaunchShape::new(rows, THREADS).shared(SHARED_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Failures, Random};
    use crate::top_k::top_k_reference;
    use cuda_std::simulate::{Buffer, Simulator};
    use std::vec::Vec;

    fn run(rows: usize, vocab: usize, k: usize, logits: &[f32]) -> (Vec<u32>, Vec<f32>) {
        let stride = vocab.next_multiple_of(4);
        let mut padded = std::vec![f32::INFINITY; rows * stride];
        for (to, from) in padded.chunks_mut(stride).zip(logits.chunks(vocab)) {
            to[..vocab].copy_from_slice(from);
        }
        let input = Buffer::input("logits", &padded);
        let (ids, log_probs) = (Buffer::<u32>::poisoned("ids", rows * k), Buffer::poisoned("log_probs", rows * k));
        let [v, s, n] = [vocab, stride, k].map(|n| n as u32);
        let arguments = (input.ptr(), ids.ptr_mut(), log_probs.ptr_mut(), v, s, n);
        let simulator = Simulator::default().seed(vocab as u64);
        simulator.launch(&rank_tokens::KERNEL, rank_shape(rows as u32), arguments).unwrap();
        (ids.to_vec(), log_probs.to_vec())
    }

    fn check(failures: &mut Failures, rows: usize, vocab: usize, k: usize, logits: &[f32]) {
        let (ids, log_probs) = run(rows, vocab, k, logits);
        for (row, logits) in logits.chunks(vocab).enumerate() {
            let case = std::format!("{rows} x {vocab}, k {k}, row {row}");
            let (expected, _) = top_k_reference(logits, k);
            let mut wanted: Vec<u32> = expected.iter().map(|(id, _)| *id).collect();
            wanted.resize(k, u32::MAX);
            failures.check(ids[row * k..][..k] == wanted, &case, "ids differ");
            let mut wanted: Vec<f32> = expected.iter().map(|(_, p)| *p as f32).collect();
            wanted.resize(k, f32::NEG_INFINITY);
            failures.compare(&case, &log_probs[row * k..][..k], &wanted, (1e-6, 1e-5));
        }
    }

    #[test]
    fn the_most_probable_tokens_come_first() {
        let mut failures = Failures::default();
        for (rows, vocab, k) in [
            (1usize, 1usize, 1usize),
            (2, 7, 3),
            (2, 7, 9),
            (1, 255, 16),
            (3, 256, 256),
            (2, 2047, 8),
            (2, 2049, 64),
            (3, 4096, 63),
            (7, 4096, 256),
            (1, 8191, 1),
            (1, 8193, 31),
            (1, 12_289, 1024),
            (1, 163_840, 64),
        ] {
            for steps in [8.0, 1e6] {
                let mut random = Random::new((vocab + k) as u64);
                // With steps of 1/8 ties occur.
                let logits: Vec<f32> =
                    (0..rows * vocab).map(|_| (random.normal() * 3.0 * steps).round() / steps + 50.0).collect();
                check(&mut failures, rows, vocab, k, &logits);
            }
        }
        failures.report();
    }

    #[test]
    fn tokens_far_below_the_best_are_ranked_too() {
        let mut failures = Failures::default();
        let mut random = Random::new(2);
        let mut logits: Vec<f32> = (0..5000).map(|_| random.normal() * 20.0 - 400.0).collect();
        (logits[17], logits[4000]) = (30.0, 29.0);
        let equal = std::vec![0.5; 5000];
        for logits in [logits, equal] {
            for k in [1, 2, 3, 64, 600, 1024] {
                check(&mut failures, 1, 5000, k, &logits);
            }
        }
        failures.report();
    }

    #[test]
    fn tokens_without_probability_are_no_tokens() {
        let (n, i) = (f32::NAN, f32::INFINITY);
        let (ids, log_probs) = run(1, 6, 5, &[-i, 2.0, n, 2.0, -i, -300.0]);
        assert_eq!(ids, [1, 3, 5, u32::MAX, u32::MAX]);
        assert!((log_probs[0] + 2f32.ln()).abs() < 1e-6 && log_probs[0] == log_probs[1], "{log_probs:?}");
        assert!((log_probs[2] + 302.0 + 2f32.ln()).abs() < 1e-3 && log_probs[3..] == [-i; 2], "{log_probs:?}");
        assert_eq!(run(2, 3, 2, &[n, n, n, -i, -i, -i]), (std::vec![u32::MAX; 4], std::vec![-i; 4]));
        assert_eq!(run(1, 4, 3, &[1.0, i, 0.0, i]).0, [1, 3, 0]);
    }
}
