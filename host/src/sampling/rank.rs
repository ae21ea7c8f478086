//! Tokens in descending order of logit, found lazily. No probabilities.

use super::softmax::{self, LANES};

/// How much larger each batch is than the one before.
const GROWTH: usize = 4;

/// Tokens with their logits, by logit descending, then id ascending. NaN counts as -inf and -0 as 0, so the order is
/// total. Tokens are selected and sorted a batch at a time, so the first m cost O(V + m log m); each further batch
/// is [`GROWTH`] times larger and starts where the last one ended.
pub(crate) struct Descending<'a> {
    logits: &'a [f32],
    batch: usize,
    unselected: usize,
    last: u64,
    ready: std::vec::IntoIter<u64>,
}

impl<'a> Descending<'a> {
    /// Starts at the highest logit; `first_batch` is how many tokens the caller is likely to take.
    pub(crate) fn new(logits: &'a [f32], first_batch: usize) -> Self {
        let ready = Vec::new().into_iter();
        Self { logits, batch: first_batch.max(1), unselected: logits.len(), last: u64::MAX, ready }
    }
}

impl Iterator for Descending<'_> {
    type Item = (u32, f32);

    fn next(&mut self) -> Option<(u32, f32)> {
        if self.ready.len() == 0 {
            let keys = greatest_below(self.logits, self.last, self.batch.min(self.unselected));
            self.last = *keys.last()?;
            self.unselected -= keys.len();
            self.batch = self.batch.saturating_mul(GROWTH);
            self.ready = keys.into_iter();
        }
        self.ready.next().map(|key| (id_of(key), logit_of(key)))
    }
}

/// An integer that orders like (logit ascending, id descending).
fn key_of(logit: f32, id: u32) -> u64 {
    // Adding 0 turns -0 into 0.
    let bits = if logit.is_nan() { f32::NEG_INFINITY } else { logit + 0.0 }.to_bits();
    let ordered = if bits >> 31 == 0 { bits | 1 << 31 } else { !bits };
    u64::from(ordered) << 32 | u64::from(!id)
}

fn id_of(key: u64) -> u32 {
    !(key as u32)
}

fn logit_of(key: u64) -> f32 {
    let ordered = (key >> 32) as u32;
    f32::from_bits(if ordered >> 31 == 1 { ordered & !(1 << 31) } else { !ordered })
}

/// The `count` greatest keys under `below`, descending.
fn greatest_below(logits: &[f32], below: u64, count: usize) -> Vec<u64> {
    if count == 0 {
        return Vec::new();
    }
    let chunks = || logits.chunks(LANES).zip((0..).step_by(LANES));
    // The greatest of each chunk, as the least key of that logit. `count` chunks hold a key at or above the `count`-th of
    // them, so no key below it is among the greatest, and most chunks hold none other.
    let top = |(chunk, first_id): (&[f32], u32)| match below {
        u64::MAX => key_of(softmax::max(chunk), u32::MAX),
        _ => keys_below(chunk, first_id, below).max().unwrap_or(0) >> 32 << 32,
    };
    let tops: Vec<u64> = chunks().map(top).collect();
    let mut greatest_tops = tops.clone();
    keep_greatest(&mut greatest_tops, count);
    let floor = greatest_tops.iter().copied().min().filter(|_| greatest_tops.len() == count).unwrap_or(0);
    let candidates = chunks().zip(&tops).filter(|(_, top)| **top >= floor);
    let mut keys: Vec<u64> = candidates
        .flat_map(|((chunk, first_id), _)| keys_below(chunk, first_id, below))
        .filter(|key| *key >= floor)
        .collect();
    keep_greatest(&mut keys, count);
    keys.sort_unstable_by(|a, b| b.cmp(a));
    keys
}

/// Keys of logits whose first has id `first_id`, those under `below`.
fn keys_below(logits: &[f32], first_id: u32, below: u64) -> impl Iterator<Item = u64> + '_ {
    logits.iter().zip(first_id..).map(|(&logit, id)| key_of(logit, id)).filter(move |key| *key < below)
}

/// Shortens `keys` to the `count` greatest, the least of them last.
fn keep_greatest(keys: &mut Vec<u64>, count: usize) {
    if keys.len() > count {
        keys.select_nth_unstable_by(count - 1, |a, b| b.cmp(a));
        keys.truncate(count);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Logits with ties, infinities, NaN and both zeros.
    pub(in super::super) fn logits_with_ties(len: std::ops::Range<usize>) -> impl Strategy<Value = Vec<f32>> {
        let special = [0.0, -0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MIN, f32::MIN_POSITIVE];
        let logit = prop_oneof![
            6 => (-8i8..8).prop_map(|n| f32::from(n) / 2.0),
            6 => -10f32..10.0,
            1 => prop::sample::select(special.to_vec()),
        ];
        prop::collection::vec(logit, len)
    }

    /// The whole order by a full sort.
    fn sorted(logits: &[f32]) -> Vec<(u32, f32)> {
        let clean = logits.iter().map(|&logit| if logit.is_nan() { f32::NEG_INFINITY } else { logit });
        let mut all: Vec<_> = (0..).zip(clean).collect();
        all.sort_by(|a, b| b.1.partial_cmp(&a.1).unwrap().then(a.0.cmp(&b.0)));
        all
    }

    #[test]
    fn no_logits_give_no_tokens() {
        assert_eq!(Descending::new(&[], 8).next(), None);
    }

    #[test]
    fn equal_logits_come_in_the_order_of_their_ids() {
        for logit in [f32::NEG_INFINITY, f32::NAN, -0.0, f32::INFINITY] {
            let logits = [logit; 100];
            let ids = Descending::new(&logits, 3).map(|(id, _)| id);
            assert!(ids.eq(0..100), "{logit}");
        }
    }

    proptest! {
        #[test]
        fn any_first_batch_gives_the_fully_sorted_order(logits in logits_with_ties(0..300), first_batch in 0usize..40) {
            let got: Vec<_> = Descending::new(&logits, first_batch).collect();
            prop_assert_eq!(got, sorted(&logits));
        }
    }
}
