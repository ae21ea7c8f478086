//! Choosing tokens from logits: the argmax, the most probable ones, the draw.
mod draw;
mod histogram;
mod philox;
mod rank;
mod row;
mod select;

pub use draw::*;
pub use philox::{philox4x32, uniform_bits};
pub use rank::*;

use crate::block::{Candidate, block_best};
#[cfg(not(target_arch = "nvptx64"))]
use cuda_std::launch::LaunchShape;
use cuda_std::{grid, prelude::*, shared};

/// Threads of a block: one row of logits.
const THREADS: u32 = 512;

/// Index of the largest logit of each row; of equal ones the lowest index.
///
/// out[t] = min { i : logits[t, i] = max_j logits[t, j] }
///
/// * Shapes: `logits` [rows, vocab] f32, rows `stride` elements apart; `out` [rows] u32. NaN never wins; a row without a
///   number gives `u32::MAX`.
/// * Work: a block of 512 threads a row; a thread takes four neighbouring logits, then steps by 2048.
/// * Shared memory: 128 B, a candidate (value, index) a warp.
/// * Registers: up to 40.
/// * Bytes: 4 a logit; FLOPs: one comparison a logit.
/// * Alignment: `logits` 16 B, `stride` a multiple of 4. Any vocabulary.
/// * Tolerance: exact.
///
/// # Safety
/// The buffers have those shapes and alignments.
#[kernel(threads = 512)]
pub unsafe fn argmax(logits: Global<f32>, out: GlobalMut<u32>, vocab: u32, stride: u32) {
    // SAFETY: one row a block, inside the buffers by the contract.
    unsafe {
        grid::dependency_wait();
        let row = thread::block_idx_x() as usize;
        let logits = logits.add(row * stride as usize);
        let mut best = Candidate::NONE;
        let mut i = thread::thread_idx_x() * 4;
        while i < vocab {
            let at = logits.add(i as usize);
            if i + 4 <= vocab {
                let [a, b, c, d] = at.cast::<[f32; 4]>().read();
                best = best.better(Candidate { value: a, index: i });
                best = best.better(Candidate { value: b, index: i + 1 });
                best = best.better(Candidate { value: c, index: i + 2 });
                best = best.better(Candidate { value: d, index: i + 3 });
            } else {
                for j in 0..vocab - i {
                    best = best.better(Candidate { value: at.add(j as usize).read(), index: i + j });
                }
            }
            i += THREADS * 4;
        }
        let best = block_best(best, shared::dynamic_shared_mem());
        if thread::thread_idx_x() == 0 {
            out.add(row).write(best.index);
        }
        grid::dependency_launch();
    }
}

/// Launch of [`argmax`] over `rows` rows.
#[cfg(not(target_arch = "nvptx64"))]
pub fn shape(rows: u32) -> LaunchShape {
    LaunchShape::new(rows, THREADS).shared(THREADS / 32 * 8)
}

/// One row of [`argmax`] by its formula.
#[cfg(not(target_arch = "nvptx64"))]
pub fn argmax_reference(logits: &[f32]) -> u32 {
    let mut best = u32::MAX;
    let mut value = f32::NEG_INFINITY;
    for (i, logit) in logits.iter().enumerate() {
        if *logit > value || (*logit == value && best == u32::MAX) {
            (best, value) = (i as u32, *logit);
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Random;
    use cuda_std::simulate::{Buffer, Simulator};
    use std::vec::Vec;

    fn run(rows: u32, vocab: u32, logits: &[f32], seed: u64) -> Vec<u32> {
        let stride = vocab.next_multiple_of(4);
        let mut padded = std::vec![f32::INFINITY; (rows * stride) as usize];
        for (to, from) in padded.chunks_mut(stride as usize).zip(logits.chunks(vocab as usize)) {
            to[..vocab as usize].copy_from_slice(from);
        }
        let (input, out) = (Buffer::input("logits", &padded), Buffer::<u32>::poisoned("out", rows as usize));
        let arguments = (input.ptr(), out.ptr_mut(), vocab, stride);
        Simulator::default().seed(seed).launch(&argmax::KERNEL, shape(rows), arguments).unwrap();
        out.to_vec()
    }

    #[test]
    fn argmax_finds_the_lowest_of_the_largest() {
        for (rows, vocab) in [
            (1, 1),
            (2, 2),
            (3, 3),
            (1, 5),
            (4, 31),
            (2, 127),
            (3, 1000),
            (2, 2047),
            (2, 2048),
            (2, 2049),
            (1, 4096),
            (1, 12_345),
            (1, 163_840),
        ] {
            let mut random = Random::new(vocab.into());
            // Few distinct values, so that ties abound.
            let logits: Vec<f32> = (0..rows * vocab).map(|_| random.below(50) as f32 - 40.0).collect();
            let expected: Vec<u32> = logits.chunks(vocab as usize).map(argmax_reference).collect();
            assert_eq!(run(rows, vocab, &logits, vocab.into()), expected, "{rows} x {vocab}");
        }
    }

    #[test]
    fn nan_and_infinities_are_ordered() {
        let (n, i) = (f32::NAN, f32::INFINITY);
        for (row, expected) in [
            ([n, 1.0, n, 2.0, 2.0], 3),
            ([n, n, n, n, n], u32::MAX),
            ([-i, -i, -i, -i, -i], 0),
            ([n, -i, n, -i, n], 1),
            ([0.0, i, -i, i, n], 1),
            ([-0.0, 0.0, -0.0, 0.0, -1.0], 0),
        ] {
            assert_eq!((run(1, 5, &row, 0)[0], argmax_reference(&row)), (expected, expected), "{row:?}");
        }
    }
}
