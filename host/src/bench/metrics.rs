//! What one generation showed. TTFT, TPOT and ITL are defined here; their summaries over repeats live in `row`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::engine::{Generation, Observer, RoundRecord, Verdict};

/// Tokens that must recur for text to count as looping.
const LOOP_RUN: usize = 16;
/// The longest period of a loop, in tokens.
const LOOP_PERIOD: usize = 64;

/// One generation, as numbers. Times are in seconds.
#[derive(Debug, Clone, PartialEq)]
pub struct Measured {
    /// Prompt tokens after the depth.
    pub prompt_tokens: usize,
    /// TTFT: from the request, or from the moment the depth is filled, to the first token.
    pub first_token: f64,
    /// From the first token to the last; `None` for a single token.
    pub decode: Option<f64>,
    /// For every chunk of tokens after the first token: its size, and its ITL, the time since the chunk before.
    pub chunks: Vec<(usize, f64)>,
    /// The rounds; the last may have committed tokens beyond the end of the text.
    pub rounds: Vec<RoundRecord>,
    /// The generated tokens.
    pub tokens: Vec<u32>,
}

impl Measured {
    /// Of a generation from `prompt_tokens` after a depth that was filled `filled` after the request.
    pub fn new(generation: &Generation, prompt_tokens: usize, filled: Duration) -> Self {
        let total = generation.tokens.len();
        let (mut emitted, mut before) = (1, generation.first_token);
        let mut chunks = Vec::new();
        for round in &generation.rounds {
            let size = round.accepted.min(total.saturating_sub(emitted));
            if size > 0 {
                chunks.push((size, round.at.saturating_sub(before).as_secs_f64()));
            }
            (emitted, before) = (emitted + size, round.at);
        }
        let decode = generation.total.saturating_sub(generation.first_token).as_secs_f64();
        Self {
            prompt_tokens,
            first_token: generation.first_token.saturating_sub(filled).as_secs_f64(),
            decode: (total > 1 && decode > 0.0).then_some(decode),
            chunks,
            rounds: generation.rounds.clone(),
            tokens: generation.tokens.clone(),
        }
    }

    /// Tokens after the first, which `decode` is the time of.
    pub fn decoded(&self) -> usize {
        self.tokens.len().saturating_sub(1)
    }

    /// How many tokens repeat what came one period of at most 64 tokens before, for 16 tokens at least.
    pub fn looping(&self) -> usize {
        let tokens = &self.tokens;
        let loops = |end: usize| {
            (1..=LOOP_PERIOD.min(end - LOOP_RUN))
                .any(|period| tokens[end - LOOP_RUN..end] == tokens[end - LOOP_RUN - period..end - period])
        };
        (LOOP_RUN..=tokens.len()).filter(|end| loops(*end)).count()
    }
}

/// Ends a generation on Ctrl-C, and notes when the depth was filled.
pub struct Watch<'a> {
    depth: usize,
    elapsed: &'a dyn Fn() -> Duration,
    interrupt: &'a AtomicBool,
    filled: Option<Duration>,
}

impl<'a> Watch<'a> {
    /// `elapsed` is the time since the request.
    pub fn new(depth: usize, elapsed: &'a dyn Fn() -> Duration, interrupt: &'a AtomicBool) -> Self {
        Self { depth, elapsed, interrupt, filled: None }
    }

    /// From the request to the moment the depth was filled.
    pub fn filled(&self) -> Duration {
        self.filled.unwrap_or_default()
    }

    fn verdict(&self) -> Verdict {
        if self.interrupt.load(Ordering::Relaxed) { Verdict::Interrupt } else { Verdict::Continue }
    }
}

impl Observer for Watch<'_> {
    fn prefill(&mut self, done: usize, _total: usize) -> Verdict {
        if self.depth > 0 && self.filled.is_none() && done >= self.depth {
            self.filled = Some((self.elapsed)());
        }
        self.verdict()
    }

    fn tokens(&mut self, _generated: &[u32], _new: usize) -> Verdict {
        self.verdict()
    }
}

/// Most memory that this process has held at once, in bytes; `None` where the system does not say (Linux does).
pub fn peak_memory() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    Some(kib * 1024)
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::engine::Finish;
    use std::cell::Cell;

    /// A generation by a synthetic clock: the first token, then rounds of (tokens committed, milliseconds since the last).
    pub fn generation(tokens: usize, first_ms: u64, rounds: &[(usize, u64)]) -> Generation {
        let mut at = Duration::from_millis(first_ms);
        let record = |(accepted, ms): &(usize, u64)| {
            at += Duration::from_millis(*ms);
            RoundRecord { accepted: *accepted, nodes: 7, drafted: true, at }
        };
        let rounds: Vec<_> = rounds.iter().map(record).collect();
        Generation {
            tokens: (0..tokens as u32).collect(),
            finish: Finish::Length,
            first_token: Duration::from_millis(first_ms),
            total: rounds.last().map_or(Duration::from_millis(first_ms), |round| round.at),
            rounds,
        }
    }

    #[test]
    fn ttft_tpot_and_itl_follow_their_definitions() {
        // 1 + 3 + 1 + 2 tokens; the last round commits 4 of which the text needs 2.
        let measured = Measured::new(&generation(7, 200, &[(3, 30), (1, 10), (4, 20)]), 20, Duration::ZERO);
        assert_eq!(measured.first_token, 0.2);
        assert_eq!(measured.decode, Some(0.06));
        assert_eq!(measured.decoded(), 6); // TPOT 10 ms
        assert_eq!(measured.chunks, [(3, 0.03), (1, 0.01), (2, 0.02)]);
        let accepted: Vec<_> = measured.rounds.iter().map(|round| round.accepted).collect();
        assert_eq!(accepted, [3, 1, 4]);
    }

    #[test]
    fn the_time_of_the_depth_does_not_count() {
        let measured = Measured::new(&generation(2, 200, &[(1, 5)]), 20, Duration::from_millis(150));
        assert_eq!(measured.first_token, 0.05);
        assert_eq!(measured.decode, Some(0.005));
    }

    #[test]
    fn one_token_has_no_decode_time() {
        let measured = Measured::new(&generation(1, 200, &[]), 20, Duration::ZERO);
        assert_eq!((measured.decode, measured.chunks.len(), measured.decoded()), (None, 0, 0));
    }

    #[test]
    fn the_depth_is_filled_at_the_first_report_that_reaches_it() {
        let interrupt = AtomicBool::new(false);
        let clock = Cell::new(0);
        let elapsed = || Duration::from_millis(clock.get());
        let filled = |depth, reports: &[(usize, u64)]| {
            let mut watch = Watch::new(depth, &elapsed, &interrupt);
            for (done, now) in reports {
                clock.set(*now);
                assert_eq!(watch.prefill(*done, 200), Verdict::Continue);
            }
            watch.filled()
        };
        let reports = [(64, 10), (128, 25), (192, 45), (200, 50)];
        assert_eq!(filled(0, &reports), Duration::ZERO);
        assert_eq!(filled(128, &reports), Duration::from_millis(25));
        interrupt.store(true, Ordering::Relaxed);
        assert_eq!(Watch::new(0, &elapsed, &interrupt).tokens(&[1], 1), Verdict::Interrupt);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_peak_is_no_less_than_what_was_held() {
        let held = vec![1u8; 64 << 20];
        assert!(peak_memory().unwrap() >= held.len() as u64);
    }

    #[test]
    fn loops_are_found_at_any_period_and_text_is_not() {
        let looping = |tokens: Vec<u32>| {
            let generation = Generation { tokens, ..generation(0, 1, &[]) };
            Measured::new(&generation, 1, Duration::ZERO).looping()
        };
        let repeated = |period: u32, length: u32| (0..length).map(|i| i % period).collect::<Vec<_>>();
        assert_eq!(looping((0..200).collect()), 0);
        assert_eq!(looping(repeated(1, 100)), 100 - 16); // the first run has nothing before it
        assert_eq!(looping(repeated(64, 200)), 200 - 64 - 15);
        assert_eq!(looping(repeated(65, 200)), 0);
        assert_eq!(looping(vec![1; 16]), 0);
        assert_eq!(looping(vec![]), 0);
    }
}
