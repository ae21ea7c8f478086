//! Cuts of very long texts, which the published tokenizer makes because tiktoken was quadratic in them. Each cut ends a
//! word, so ids depend on them.

use std::iter;

/// Characters of a text that are tokenised at once.
const MAX_CHARS: usize = 400_000;
/// Consecutive characters that are all whitespace or all not, before a cut.
const MAX_RUN: usize = 25_000;

/// The parts of `text` that are tokenised by themselves: at most 400,000 characters, and cut after each 25,000 of a run of
/// whitespace or of anything else. Texts without such runs are one part.
pub(super) fn windows(text: &str) -> impl Iterator<Item = &str> {
    let mut start = 0;
    let (mut run, mut run_is_space) = (0, false);
    let cuts = text.char_indices().enumerate().filter_map(move |(count, (at, character))| {
        let (block_starts, space) = (count % MAX_CHARS == 0, is_space(character));
        let cut = block_starts || (space == run_is_space && run == MAX_RUN);
        run = if cut || space != run_is_space { 1 } else { run + 1 };
        run_is_space = space;
        (cut && at > 0).then_some(at)
    });
    cuts.chain(iter::once(text.len())).map(move |cut| {
        let window = &text[start..cut];
        start = cut;
        window
    })
}

/// Python's `str.isspace`: Unicode's whitespace and four separators of ASCII.
fn is_space(character: char) -> bool {
    character.is_whitespace() || ('\u{1C}'..='\u{1F}').contains(&character)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cuts_come_after_whole_runs_and_blocks() {
        let cases: [(String, &[usize]); 8] = [
            (String::new(), &[0]),
            ("a".repeat(25_000), &[25_000]),
            ("a".repeat(25_001), &[25_000, 1]),
            (format!("{} {}", "a".repeat(25_000), "b".repeat(50_001)), &[50_001, 25_000, 1]),
            // Four separators count as spaces; a run goes on across them.
            (format!("{}\u{1F}{}", " ".repeat(24_999), "\n".repeat(3)), &[25_000, 3]),
            ("é ".repeat(200_001), &[600_000, 3]),
            // A block starts its runs anew.
            ("x".repeat(399_999) + &" ".repeat(25_002), &[&[25_000; 15][..], &[25_000, 25_000, 1]].concat()),
            ("漢".repeat(60_000), &[75_000, 75_000, 30_000]),
        ];
        for (text, expected) in cases {
            let lengths: Vec<usize> = windows(&text).map(str::len).collect();
            assert_eq!(lengths, expected, "{} bytes", text.len());
            assert_eq!(windows(&text).collect::<String>(), text);
        }
    }
}
