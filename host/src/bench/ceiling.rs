//! What memory gives: the speed at which threads read more than any cache holds.

use std::hint::black_box;
use std::time::Instant;

/// More than the caches of a large server processor.
const BYTES: usize = 1 << 30;
/// The best counts: whatever else the machine does only slows a pass.
const PASSES: usize = 5;
/// Words that are summed side by side, so that no sum waits for the one before.
const LANES: usize = 64;

/// Bytes a second that `threads` threads read together, each its own part of 1 GiB of memory; the best of 5 passes. It takes
/// about a second.
pub fn read_ceiling(threads: usize) -> f64 {
    let words = vec![1u64; BYTES / size_of::<u64>()];
    best_pass(&words, threads, PASSES)
}

fn best_pass(words: &[u64], threads: usize, passes: usize) -> f64 {
    let part = words.len().div_ceil(threads.max(1)).max(1);
    let pass = || {
        let started = Instant::now();
        let total: u64 = std::thread::scope(|scope| {
            let parts: Vec<_> = words.chunks(part).map(|part| scope.spawn(|| sum(part))).collect();
            parts.into_iter().map(|part| part.join().unwrap_or(0)).fold(0, u64::wrapping_add)
        });
        black_box(total);
        size_of_val(words) as f64 / started.elapsed().as_secs_f64()
    };
    (0..passes).map(|_| pass()).fold(0.0, f64::max)
}

fn sum(words: &[u64]) -> u64 {
    let mut lanes = [0u64; LANES];
    let chunks = words.chunks_exact(LANES);
    let rest = chunks.remainder().iter().fold(0, |sum: u64, word| sum.wrapping_add(*word));
    for chunk in chunks {
        for (lane, word) in lanes.iter_mut().zip(chunk) {
            *lane = lane.wrapping_add(*word);
        }
    }
    lanes.iter().fold(rest, |sum, lane| sum.wrapping_add(*lane))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_word_is_read_once() {
        for length in [0, 1, 63, 64, 65, 1000] {
            let words: Vec<u64> = (0..length).collect();
            assert_eq!(sum(&words), words.iter().sum::<u64>(), "{length}");
        }
    }

    #[test]
    fn a_speed_is_found_with_any_number_of_threads() {
        let words = vec![1u64; 100_003];
        for threads in [1, 2, 7] {
            let speed = best_pass(&words, threads, 2);
            assert!(speed.is_finite() && speed > 1e6, "{threads}: {speed}");
        }
    }
}
