//! Gaps by length.

use serde::Serialize;

/// Lower ends of the buckets, in nanoseconds.
const EDGES: [u64; 16] = [
    0,
    100,
    200,
    500,
    1_000,
    2_000,
    5_000,
    10_000,
    20_000,
    50_000,
    100_000,
    200_000,
    500_000,
    1_000_000,
    10_000_000,
    100_000_000,
];

/// Gaps of about one length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Bucket {
    /// The shortest.
    pub from_ns: u64,
    /// Longer than the longest; none for the last bucket.
    pub to_ns: Option<u64>,
    /// How many.
    pub gaps: usize,
    /// Their time together.
    pub idle_ns: u64,
}

/// Buckets of all lengths, the empty ones too: every gap is in exactly one.
pub fn histogram(lengths: impl IntoIterator<Item = u64>) -> Vec<Bucket> {
    let ends = EDGES.iter().skip(1).map(|end| Some(*end)).chain([None]);
    let mut buckets: Vec<Bucket> =
        EDGES.iter().zip(ends).map(|(from, to)| Bucket { from_ns: *from, to_ns: to, gaps: 0, idle_ns: 0 }).collect();
    for length in lengths {
        let bucket = EDGES.partition_point(|edge| *edge <= length) - 1;
        buckets[bucket].gaps += 1;
        buckets[bucket].idle_ns += length;
    }
    buckets
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_gap_is_in_the_one_bucket_that_its_length_names() {
        let lengths = [0, 1, 99, 100, 199, 999, 1_000, 99_999, 100_000, 5_000_000_000, u64::from(u32::MAX)];
        let buckets = histogram(lengths);
        assert_eq!(buckets.iter().map(|bucket| bucket.gaps).sum::<usize>(), lengths.len());
        assert_eq!(buckets.iter().map(|bucket| bucket.idle_ns).sum::<u64>(), lengths.iter().sum::<u64>());
        for length in lengths {
            let alone = histogram([length]);
            let bucket = alone.iter().find(|bucket| bucket.gaps == 1).unwrap();
            assert!(bucket.from_ns <= length && bucket.to_ns.is_none_or(|to| length < to), "{length}: {bucket:?}");
        }
        assert!(histogram([]).iter().all(|bucket| bucket.gaps == 0));
    }
}
