//! A row of the result: one arm of one case, all repeats and prompts together.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::matrix::Case;
use super::metrics::Measured;
use super::stats::{Quantiles, Summary};
use crate::backend::{Stage, Work};
use crate::engine::stats::Acceptance;
use crate::engine::{RoundRecord, Speculation};
use crate::report::digest;

/// One arm of one case. Rates and times of a repeat are over all its prompts together; nothing that has no base has a figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// What the arms share.
    pub case: Case,
    /// `none`, `ngram`, `dflash` or `ddtree`.
    pub spec: String,
    /// Most nodes a round besides the root.
    pub budget: usize,
    /// How many of them is decided round by round.
    pub auto_budget: bool,
    /// Nodes verified besides the root, mean of all rounds.
    pub nodes_a_round: Option<f64>,
    /// Prompt tokens of all prompts, depth left out.
    pub prompt_tokens: usize,
    /// Tokens generated in a repeat.
    pub tokens: usize,
    /// Tokens a second after the first token: 1 / TPOT.
    pub decode_tok_s: Option<Summary>,
    /// `decode_tok_s` over that of plain decode, medians both.
    pub speedup: Option<f64>,
    /// Prompt tokens / TTFT.
    pub prefill_tok_s: Option<Summary>,
    /// Mean over prompts, milliseconds.
    pub ttft_ms: Option<Summary>,
    /// (End to end - TTFT) / (tokens - 1), milliseconds.
    pub tpot_ms: Option<Summary>,
    /// Between one chunk of tokens and the next, all repeats, milliseconds.
    pub itl_ms: Option<Quantiles>,
    /// Tokens in a chunk, and how many such chunks a repeat has.
    pub chunk_sizes: BTreeMap<usize, usize>,
    /// Decode time a round, milliseconds.
    pub round_ms: Option<Summary>,
    /// Time a round by stage, mean, milliseconds, of a further pass that is not timed as a whole: `draft`, `tree`, `verify`,
    /// `walk`, `commit`.
    pub stage_ms: BTreeMap<String, f64>,
    /// Bytes of weights and caches that a round reads, each counted once, mean of the same pass.
    pub bytes_a_round: Option<f64>,
    /// `bytes_a_round` over the median of `round_ms`, GB a second.
    pub read_gb_s: Option<f64>,
    /// `read_gb_s` over what memory gave the same threads in the same run; above 1 the caches help.
    pub share_of_read_ceiling: Option<f64>,
    /// Distinct experts that a round wakes, by mixture-of-experts layer, mean of the same pass.
    pub experts_a_round: Vec<f64>,
    /// Tokens committed a round, the bonus token included.
    pub tau: Option<f64>,
    /// Tokens committed, and how many rounds of a repeat committed so many.
    pub accept_lengths: BTreeMap<usize, usize>,
    /// By depth from 1: share of all rounds that accepted it.
    pub accept_rate_uncond: Vec<f64>,
    /// By depth from 1: share of the rounds that accepted the depth before; null where none did.
    pub accept_rate_cond: Vec<Option<f64>>,
    /// Share of the tokens that repeat what came one period of at most 64 tokens before, for 16 tokens at least.
    pub looping: f64,
    /// Of all tokens in the order of the prompts; see [`digest`].
    pub digest: String,
    /// Every repeat gave the same tokens.
    pub repeats_agree: bool,
    /// The tokens are plain decode's.
    pub agrees_with_plain: bool,
    /// (max - min) / median of `decode_tok_s`.
    pub noise: Option<f64>,
    /// Bytes that the device holds for weights, caches and buffers.
    pub device_bytes: usize,
    /// The prompts one by one.
    pub prompts: Vec<PromptRow>,
}

/// One prompt of a row.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PromptRow {
    /// The prompt's name.
    pub id: String,
    /// Its tokens, depth left out.
    pub prompt_tokens: usize,
    /// Tokens a second after the first.
    pub decode_tok_s: Option<Summary>,
    /// `decode_tok_s` over that of plain decode, medians both.
    pub speedup: Option<f64>,
    /// Tokens committed a round.
    pub tau: Option<f64>,
    /// As the row's.
    pub looping: f64,
    /// Of this prompt's tokens.
    pub digest: String,
}

/// The measurements of an arm: repeats, each with every prompt.
pub type Repeats = Vec<Vec<Measured>>;

/// All that was seen of an arm.
#[derive(Debug, Clone, Copy)]
pub struct Sample<'a> {
    /// At least one.
    pub repeats: &'a Repeats,
    /// Of a further pass.
    pub work: &'a Work,
    /// Bytes a second that memory gives.
    pub read_ceiling: f64,
}

impl Row {
    /// Of `repeats`, at least one, of the prompts named `ids`; `plain` is the row of plain decode, unless this is it, and
    /// `depths` the depth of the deepest tree the arm can draft.
    pub fn new(
        case: Case,
        arm: Speculation,
        ids: &[String],
        sample: Sample<'_>,
        plain: Option<&Row>,
        depths: usize,
        device_bytes: usize,
    ) -> Self {
        let Sample { repeats, work, read_ceiling } = sample;
        let first: &[Measured] = repeats.first().map_or(&[], Vec::as_slice);
        let each = |figure: &dyn Fn(&[Measured]) -> Option<f64>| -> Option<Summary> {
            Summary::new(repeats.iter().map(|repeat| figure(repeat)).collect::<Option<Vec<_>>>()?)
        };
        let decode_tok_s = each(&decode_rate);
        let rounds: Vec<RoundRecord> = first.iter().flat_map(|measured| measured.rounds.iter().copied()).collect();
        let acceptance = Acceptance::of(&rounds, depths);
        let itl: Vec<f64> = repeats.iter().flatten().flat_map(|m| m.chunks.iter().map(|(_, gap)| gap * 1e3)).collect();
        let tokens: Vec<u32> = first.iter().flat_map(|measured| measured.tokens.iter().copied()).collect();
        let digest = digest(&tokens);
        let a_round = |total: f64| quotient(total, work.rounds as f64);
        let stage =
            |stage: Stage| Some((stage.name().to_owned(), a_round(work.stages[stage as usize].as_secs_f64() * 1e3)?));
        let round_ms = each(&|repeat| {
            let rounds: usize = repeat.iter().map(|measured| measured.rounds.len()).sum();
            let time: f64 = repeat.iter().filter_map(|measured| measured.decode).sum();
            quotient(time * 1e3, rounds as f64)
        });
        let bytes_a_round = a_round(work.bytes as f64).filter(|bytes| *bytes > 0.0);
        let read_gb_s = bytes_a_round.zip(round_ms.as_ref()).map(|(bytes, round)| bytes / 1e6 / round.median);
        let prompts = ids.iter().enumerate().map(|(i, id)| {
            let plain = plain.and_then(|plain| plain.prompts.get(i));
            PromptRow::new(id, repeats.iter().filter_map(|repeat| repeat.get(i)).collect(), plain)
        });
        Self {
            case,
            spec: arm.name().to_owned(),
            budget: arm.budget(),
            auto_budget: arm.is_auto(),
            nodes_a_round: quotient(acceptance.nodes as f64, rounds.len() as f64),
            prompt_tokens: first.iter().map(|measured| measured.prompt_tokens).sum(),
            tokens: tokens.len(),
            speedup: match plain {
                None => decode_tok_s.as_ref().map(|_| 1.0),
                Some(plain) => ratio(&decode_tok_s, &plain.decode_tok_s),
            },
            noise: decode_tok_s.as_ref().map(Summary::spread),
            decode_tok_s,
            prefill_tok_s: each(&|repeat| {
                let tokens: usize = repeat.iter().map(|measured| measured.prompt_tokens).sum();
                quotient(tokens as f64, repeat.iter().map(|measured| measured.first_token).sum())
            }),
            ttft_ms: each(&|repeat| {
                let total: f64 = repeat.iter().map(|measured| measured.first_token).sum();
                quotient(total * 1e3, repeat.len() as f64)
            }),
            tpot_ms: each(&|repeat| decode_rate(repeat).map(|rate| 1e3 / rate)),
            itl_ms: Quantiles::new(&itl),
            chunk_sizes: counts(first.iter().flat_map(|measured| measured.chunks.iter().map(|(size, _)| *size))),
            round_ms,
            stage_ms: Stage::ALL.into_iter().filter_map(stage).collect(),
            bytes_a_round,
            read_gb_s,
            share_of_read_ceiling: read_gb_s.and_then(|speed| quotient(speed * 1e9, read_ceiling)),
            experts_a_round: work.experts.iter().filter_map(|experts| a_round(*experts as f64)).collect(),
            tau: acceptance.tau,
            accept_lengths: counts(acceptance.lengths.iter().copied()),
            accept_rate_uncond: acceptance.uncond,
            accept_rate_cond: acceptance.cond,
            looping: looping(first),
            repeats_agree: repeats.iter().all(|repeat| {
                repeat.len() == first.len() && repeat.iter().zip(first).all(|(a, b)| a.tokens == b.tokens)
            }),
            agrees_with_plain: plain.is_none_or(|plain| plain.digest == digest),
            digest,
            device_bytes,
            prompts: prompts.collect(),
        }
    }

    /// The case and the arm as flags: what the row is called.
    pub fn name(&self) -> String {
        let Self { case, spec, .. } = self;
        match self.budget_name() {
            None => format!("--spec {spec} {case}"),
            Some(budget) => format!("--spec {spec} --tree-budget {budget} {case}"),
        }
    }

    /// The arm alone.
    pub fn arm(&self) -> String {
        match self.budget_name() {
            None => self.spec.clone(),
            Some(budget) => format!("{} {budget}", self.spec),
        }
    }

    /// The budget, where there is a choice of one.
    fn budget_name(&self) -> Option<String> {
        match (self.spec.as_str(), self.budget) {
            ("auto", _) | (_, 0) => None,
            _ if self.auto_budget => Some("auto".to_owned()),
            (_, budget) => Some(budget.to_string()),
        }
    }

    /// The least speedup of any prompt.
    pub fn worst_speedup(&self) -> Option<f64> {
        self.prompts.iter().filter_map(|prompt| prompt.speedup).min_by(f64::total_cmp)
    }
}

impl PromptRow {
    /// Of one prompt's repeats.
    fn new(id: &str, repeats: Vec<&Measured>, plain: Option<&Self>) -> Self {
        let rates: Option<Vec<f64>> =
            repeats.iter().map(|measured| decode_rate(std::slice::from_ref(*measured))).collect();
        let decode_tok_s = rates.and_then(Summary::new);
        let first = repeats.first();
        let rounds = first.map_or(0, |measured| measured.rounds.len());
        let accepted: usize = first.map_or(0, |measured| measured.rounds.iter().map(|round| round.accepted).sum());
        Self {
            id: id.to_owned(),
            prompt_tokens: first.map_or(0, |measured| measured.prompt_tokens),
            speedup: match plain {
                None => decode_tok_s.as_ref().map(|_| 1.0),
                Some(plain) => ratio(&decode_tok_s, &plain.decode_tok_s),
            },
            decode_tok_s,
            tau: quotient(accepted as f64, rounds as f64),
            looping: first.map_or(0.0, |measured| looping(std::slice::from_ref(*measured))),
            digest: digest(first.map_or(&[], |measured| &measured.tokens)),
        }
    }
}

/// Tokens after the first a second, of several generations together.
fn decode_rate(measured: &[Measured]) -> Option<f64> {
    let decoded = measured.iter().filter_map(|measured| measured.decode.map(|time| (measured.decoded(), time)));
    let (tokens, time) = decoded.fold((0, 0.0), |(tokens, total), (more, time)| (tokens + more, total + time));
    quotient(tokens as f64, time)
}

fn looping(measured: &[Measured]) -> f64 {
    let (looping, tokens) = measured.iter().fold((0, 0), |(a, b), m| (a + m.looping(), b + m.tokens.len()));
    quotient(looping as f64, tokens as f64).unwrap_or(0.0)
}

fn ratio(of: &Option<Summary>, to: &Option<Summary>) -> Option<f64> {
    quotient(of.as_ref()?.median, to.as_ref()?.median)
}

/// `None` where there is nothing to divide by.
fn quotient(of: f64, by: f64) -> Option<f64> {
    (by > 0.0).then(|| of / by)
}

fn counts(values: impl Iterator<Item = usize>) -> BTreeMap<usize, usize> {
    let mut counts = BTreeMap::new();
    for value in values {
        *counts.entry(value).or_insert(0) += 1;
    }
    counts
}

#[cfg(test)]
pub(super) mod tests {
    use std::sync::LazyLock;
    use std::time::Duration;

    use super::super::matrix::PromptLength;
    use super::super::metrics::tests::generation;
    use super::*;
    use crate::engine::Drafts;

    pub const CASE: Case = Case { prompt: PromptLength::Whole, depth: 0, max_tokens: 7, temperature: 0.8 };

    /// Four rounds of 30 MB, 8 ms of verification, 3 and 5 experts.
    static WORK: LazyLock<Work> = LazyLock::new(|| Work {
        rounds: 4,
        stages: [0, 0, 32, 0, 4].map(Duration::from_millis),
        bytes: 120_000_000,
        experts: vec![12, 20],
    });

    fn sample<'a>(repeats: &'a Repeats, work: &'a Work) -> Sample<'a> {
        Sample { repeats, work, read_ceiling: 6e9 }
    }

    /// One prompt of 20 tokens, 100 ms to the first of 7 tokens, then rounds of 3, 1 and 2 tokens at `ms` each.
    fn repeat(ms: u64) -> Vec<Measured> {
        vec![Measured::new(&generation(7, 100, &[(3, ms), (1, ms), (2, ms)]), 20, Duration::ZERO)]
    }

    /// A plain row of those repeats.
    pub fn row(round_ms: &[u64]) -> Row {
        let repeats = round_ms.iter().map(|ms| repeat(*ms)).collect();
        Row::new(CASE, Speculation::None, &["p".to_owned()], sample(&repeats, &WORK), None, 0, 5)
    }

    #[test]
    fn figures_are_over_all_prompts_and_repeats() {
        let row = row(&[10, 20, 30]);
        let close = |a: Option<f64>, b: f64| assert!((a.unwrap() - b).abs() < 1e-9, "{a:?} {b}");
        let median = |summary: &Option<Summary>| summary.as_ref().map(|summary| summary.median);
        close(median(&row.decode_tok_s), 100.0);
        close(median(&row.tpot_ms), 10.0);
        close(median(&row.prefill_tok_s), 200.0);
        close(median(&row.ttft_ms), 100.0);
        close(median(&row.round_ms), 20.0);
        close(row.itl_ms.map(|itl| itl.max), 30.0);
        close(row.stage_ms.get("verify").copied(), 8.0);
        close(row.stage_ms.get("commit").copied(), 1.0);
        close(row.bytes_a_round, 30e6);
        close(row.read_gb_s, 1.5);
        close(row.share_of_read_ceiling, 0.25);
        assert_eq!(row.experts_a_round, [3.0, 5.0]);
        close(row.tau, 2.0);
        close(row.noise, (200.0 - 200.0 / 3.0) / 100.0);
        assert_eq!(row.accept_lengths, BTreeMap::from([(1, 1), (2, 1), (3, 1)]));
        assert_eq!(row.chunk_sizes, BTreeMap::from([(1, 1), (2, 1), (3, 1)]));
        assert_eq!((row.speedup, row.repeats_agree, row.agrees_with_plain), (Some(1.0), true, true));
        assert_eq!(row.name(), "--spec none -p whole -n 7 --depth 0 --temp 0.8");
    }

    #[test]
    fn drafted_rows_are_compared_with_plain_decode() {
        let plain = row(&[20]);
        let mut other = repeat(10);
        let arm = Speculation::Ddtree { budget: 8 };
        let drafted =
            |repeats: &Repeats| Row::new(CASE, arm, &["p".to_owned()], sample(repeats, &WORK), Some(&plain), 3, 5);
        let row = drafted(&vec![other.clone()]);
        assert_eq!((row.speedup, row.worst_speedup(), row.agrees_with_plain), (Some(2.0), Some(2.0), true));
        assert_eq!((row.accept_rate_uncond.len(), row.accept_rate_cond.len()), (3, 3));
        assert_eq!(row.name(), "--spec ddtree --tree-budget 8 -p whole -n 7 --depth 0 --temp 0.8");
        other[0].tokens[3] = 99;
        let row = drafted(&vec![repeat(10), other]);
        assert_eq!((row.repeats_agree, row.agrees_with_plain), (false, true));
    }

    #[test]
    fn a_budget_that_is_decided_round_by_round_is_no_number() {
        let repeats = vec![repeat(10)];
        let name = |arm| {
            let row = Row::new(CASE, arm, &["p".to_owned()], sample(&repeats, &WORK), None, 3, 5);
            (row.name(), row.arm())
        };
        let case = "-p whole -n 7 --depth 0 --temp 0.8";
        assert_eq!(name(Speculation::Auto(Drafts::Any)), (format!("--spec auto {case}"), "auto".to_owned()));
        let ngram = (format!("--spec ngram --tree-budget auto {case}"), "ngram auto".to_owned());
        assert_eq!(name(Speculation::Auto(Drafts::Ngram)), ngram);
    }

    #[test]
    fn a_row_without_decoded_tokens_has_no_rates() {
        let repeats = vec![vec![Measured::new(&generation(1, 100, &[]), 20, Duration::ZERO)]];
        let row = Row::new(CASE, Speculation::None, &["p".to_owned()], sample(&repeats, &Work::default()), None, 0, 5);
        assert_eq!((row.decode_tok_s, row.speedup, row.tau, row.noise), (None, None, None, None));
        assert_eq!((row.bytes_a_round, row.read_gb_s, row.stage_ms.len()), (None, None, 0));
        assert!(row.ttft_ms.is_some());
    }
}
