//! Tokens in descending order of logit, found lazily. No probabilities.

use super::softmax::LANES;

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
    let mut keys = Vec::with_capacity(2 * count);
    let mut floor = 0;
    let mut floor_logit = f32::NEG_INFINITY;
    for (chunk, first_id) in logits.chunks(LANES).zip((0..).step_by(LANES)) {
        // Without an early exit this is a vector comparison; most chunks end here.
        if chunk.iter().fold(true, |all, &logit| all & (logit < floor_logit)) {
            continue;
        }
        for (&logit, id) in chunk.iter().zip(first_id..) {
            let key = key_of(logit, id);
            if floor < key && key < below {
                keys.push(key);
                if keys.len() == 2 * count {
                    keep_greatest(&mut keys, count);
                    floor = keys[count - 1];
                    floor_logit = logit_of(floor);
                }
            }
        }
    }
    keep_greatest(&mut keys, count);
    keys.sort_unstable_by(|a, b| b.cmp(a));
    keys
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
