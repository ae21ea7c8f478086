//! Byte-pair merging of one word, in O(n log n) for n bytes. Which words a text has is not decided here.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::ranks::Ranks;

/// A part that another part has swallowed.
const GONE: usize = usize::MAX;

/// Appends the ids of `word`.
///
/// As tiktoken: a word that is a token is that token; any other starts as single bytes, and while two neighbours together
/// are a token, those of the lowest rank, leftmost first, become one.
pub(super) fn merge(ranks: &Ranks, word: &[u8], ids: &mut Vec<u32>) {
    if let Some(rank) = ranks.get(word) {
        ids.push(rank);
        return;
    }
    // Parts are known by their first byte; `next` and `previous` are the parts around one, `word.len()` the end.
    let mut next: Vec<usize> = (1..=word.len()).collect();
    let mut previous: Vec<usize> = (0..=word.len()).map(|start| start.wrapping_sub(1)).collect();
    let candidate = |next: &[usize], start: usize| {
        let end = *next.get(*next.get(start)?)?;
        Some(Reverse((ranks.get(&word[start..end])?, start, end)))
    };
    let mut queue: BinaryHeap<_> = (0..word.len()).filter_map(|start| candidate(&next, start)).collect();
    while let Some(Reverse((_, start, end))) = queue.pop() {
        let middle = next[start];
        // Either part may have been merged with another since this pair was queued.
        if middle == GONE || next.get(middle) != Some(&end) {
            continue;
        }
        next[start] = end;
        next[middle] = GONE;
        previous[end] = start;
        queue.extend(candidate(&next, start));
        if start > 0 {
            queue.extend(candidate(&next, previous[start]));
        }
    }
    let mut start = 0;
    while start < word.len() {
        // Single bytes and merged pairs are all tokens.
        ids.extend(ranks.get(&word[start..next[start]]));
        start = next[start];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The definition, in O(n^2).
    fn reference(ranks: &Ranks, word: &[u8]) -> Vec<u32> {
        if let Some(rank) = ranks.get(word) {
            return vec![rank];
        }
        let mut parts: Vec<Vec<u8>> = word.iter().map(|&byte| vec![byte]).collect();
        loop {
            let pairs = parts.windows(2).enumerate();
            let lowest = pairs.filter_map(|(at, pair)| Some((ranks.get(&pair.concat())?, at))).min();
            let Some((_, at)) = lowest else { break };
            let right = parts.remove(at + 1);
            parts[at].extend(right);
        }
        parts.iter().map(|part| ranks.get(part).unwrap()).collect()
    }

    fn check(tokens: Vec<Vec<u8>>, word: &[u8]) {
        let ranks = Ranks::of_bytes_and(tokens);
        let mut ids = Vec::new();
        merge(&ranks, word, &mut ids);
        assert_eq!(ids, reference(&ranks, word), "{word:?}");
    }

    proptest! {
        #[test]
        fn merging_is_its_definition(
            tokens in prop::collection::vec("[ab]{2,5}|[abc]{2,4}", 0..40),
            word in "[abc]{0,40}|[ab]{0,40}|a{0,60}",
        ) {
            check(tokens.into_iter().map(String::into_bytes).collect(), word.as_bytes());
        }
    }

    #[test]
    fn the_lowest_rank_wins_and_then_the_leftmost() {
        let tokens = |texts: &[&str]| texts.iter().map(|t| t.as_bytes().to_vec()).collect::<Vec<_>>();
        check(tokens(&["aa"]), b"aaa");
        check(tokens(&["bc", "ab", "abc"]), b"abcab");
        // Whole words are found even where merging would not reach them.
        check(tokens(&["abcd"]), b"abcd");
        check(tokens(&["abcd"]), b"abcda");
        check(tokens(&["aa", "aaaa", "aaaaaaaa"]), &b"a".repeat(1000));
    }
}
