//! The gap report of one device: busy and idle to the nanosecond, why idle, where, how long, and what it costs. Exact: over
//! what is known of the window, busy and idle add up, whichever way they are split.

use serde::Serialize;

use super::cause::{Cause, Causes};
use super::histogram::{Bucket, histogram};
use super::interval::{Cover, Interval, innermost};
use super::lane::{HostSpan, Lane, Recording, Span};
use super::stage;

/// How gaps are looked at.
#[derive(Debug, Clone, Copy)]
pub struct Options {
    /// Shorter gaps are not explained, in nanoseconds.
    pub threshold_ns: u64,
    /// How many of the longest gaps are listed.
    pub longest: usize,
}

/// Part of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Phase {
    /// Up to the first token.
    Prefill,
    /// The rounds after it.
    Decode,
}

/// A time in which nothing ran.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Gap {
    /// From the start of the generation.
    pub start_ns: u64,
    /// How long.
    pub idle_ns: u64,
    /// Why.
    pub cause: Cause,
    /// The decode round it began in, from 1; null before the first.
    pub round: Option<usize>,
    /// What ran before it; null if nothing did.
    pub before: Option<String>,
    /// What ran after it; null if nothing did.
    pub after: Option<String>,
}

/// A phase's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct PhaseShare {
    /// Which.
    pub phase: Phase,
    /// What is known of it: busy and idle.
    pub wall_ns: u64,
    /// Something ran.
    pub busy_ns: u64,
    /// Nothing ran.
    pub idle_ns: u64,
}

/// A cause's gaps.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct CauseShare {
    /// Which.
    pub cause: Cause,
    /// How many.
    pub gaps: usize,
    /// Their time together.
    pub idle_ns: u64,
    /// The part of it after the first token.
    pub decode_idle_ns: u64,
}

/// A stage's time: of the device while it was busy, of the host while the device was idle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct StageShare {
    /// Its name; `-` where no stage was under way.
    pub stage: &'static str,
    /// The device worked on it.
    pub busy_ns: u64,
    /// The device was idle and the host was in it.
    pub idle_ns: u64,
}

/// An operation's time on the device.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OpShare {
    /// The stage.
    pub stage: &'static str,
    /// The operation.
    pub op: String,
    /// How often it ran.
    pub calls: usize,
    /// How long it ran, where nothing that started later ran beside it.
    pub busy_ns: u64,
}

/// A decode round's time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct RoundShare {
    /// From the start of the generation.
    pub start_ns: u64,
    /// What is known of it.
    pub wall_ns: u64,
    /// Something ran.
    pub busy_ns: u64,
    /// Nothing ran.
    pub idle_ns: u64,
    /// Tokens committed; null if that is not known.
    pub accepted: Option<usize>,
}

/// How fast decoding would be.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Ceiling {
    /// Without gaps of this cause; null: without any.
    pub without: Option<Cause>,
    /// Tokens a second; null if the device did nothing else.
    pub tok_s: Option<f64>,
}

/// The gap report of one device.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LaneGaps {
    /// The device.
    pub device: String,
    /// The generation, from its start to its end.
    pub window_ns: u64,
    /// What of it is not known, because nothing was sampled or records were lost.
    pub unknown_ns: u64,
    /// The rest: busy and idle.
    pub wall_ns: u64,
    /// Something ran, on whatever stream.
    pub busy_ns: u64,
    /// Nothing ran.
    pub idle_ns: u64,
    /// By phase.
    pub phases: Vec<PhaseShare>,
    /// Tokens after the first.
    pub decoded_tokens: usize,
    /// Idle time of the decode phase for each of them.
    pub decode_idle_ns_per_token: Option<f64>,
    /// Gaps shorter than this are not explained.
    pub threshold_ns: u64,
    /// By cause, the longest first.
    pub causes: Vec<CauseShare>,
    /// By stage, in the order in which they first come.
    pub stages: Vec<StageShare>,
    /// By stage and operation, the longest first.
    pub ops: Vec<OpShare>,
    /// Gaps by length.
    pub histogram: Vec<Bucket>,
    /// The longest gaps, longest first.
    pub longest: Vec<Gap>,
    /// Tokens a second in the decode phase as it was recorded.
    pub decode_tok_s: Option<f64>,
    /// And as it would be.
    pub ceilings: Vec<Ceiling>,
    /// The decode rounds.
    pub rounds: Vec<RoundShare>,
    /// All gaps, by start.
    #[serde(skip)]
    pub gaps: Vec<Gap>,
}

/// The gap report of each device. `tokens`: how many were generated; `accepted`: by each decode round.
pub fn analyse(recording: &Recording, tokens: usize, accepted: &[usize], options: Options) -> Vec<LaneGaps> {
    recording.lanes.iter().map(|lane| Analysis::new(recording, lane, options).report(tokens, accepted)).collect()
}

struct Analysis<'a> {
    recording: &'a Recording,
    lane: &'a Lane,
    options: Options,
    window: Interval,
    /// The end of the prefill.
    decode: Interval,
    known: Cover,
    busy: Cover,
    idle: Cover,
    rounds: Vec<Interval>,
}

impl<'a> Analysis<'a> {
    fn new(recording: &'a Recording, lane: &'a Lane, options: Options) -> Self {
        let window = recording.window();
        let known = lane.known(window);
        let busy = lane.busy(&known);
        let idle = known.intervals().iter().flat_map(|known| busy.outside(*known).intervals().to_vec());
        let idle = Cover::of(idle);
        let prefill = recording.stages().iter().find(|span| span.stage == stage::PREFILL);
        let first_token = prefill.map_or(window.start, |span| span.interval.end);
        let decode = Interval::new(first_token, window.end).within(window);
        Self { recording, lane, options, window, decode, known, busy, idle, rounds: recording.rounds() }
    }

    fn report(self, tokens: usize, accepted: &[usize]) -> LaneGaps {
        let gaps = self.gaps();
        let phases =
            [(Phase::Prefill, Interval::new(self.window.start, self.decode.start)), (Phase::Decode, self.decode)].map(
                |(phase, time)| PhaseShare {
                    phase,
                    wall_ns: self.known.overlap(time),
                    busy_ns: self.busy.overlap(time),
                    idle_ns: self.idle.overlap(time),
                },
            );
        let decode = phases[1];
        let causes = self.causes(&gaps);
        let decoded_tokens = tokens.saturating_sub(1);
        let rate = |nanoseconds: u64| {
            (decoded_tokens > 0 && nanoseconds > 0).then(|| decoded_tokens as f64 / (nanoseconds as f64 * 1e-9))
        };
        let all = [Ceiling { without: None, tok_s: rate(decode.busy_ns) }];
        let each = causes
            .iter()
            .filter(|share| share.decode_idle_ns > 0)
            .map(|share| Ceiling { without: Some(share.cause), tok_s: rate(decode.wall_ns - share.decode_idle_ns) });
        let mut longest = gaps.clone();
        longest.sort_by_key(|gap| (std::cmp::Reverse(gap.idle_ns), gap.start_ns));
        longest.truncate(self.options.longest);
        LaneGaps {
            device: self.lane.device.clone(),
            window_ns: self.window.length(),
            unknown_ns: self.window.length() - self.known.length(),
            wall_ns: self.known.length(),
            busy_ns: self.busy.length(),
            idle_ns: self.idle.length(),
            phases: phases.to_vec(),
            decoded_tokens,
            decode_idle_ns_per_token: (decoded_tokens > 0).then(|| decode.idle_ns as f64 / decoded_tokens as f64),
            threshold_ns: self.options.threshold_ns,
            stages: self.stages(),
            ops: self.ops(),
            histogram: histogram(gaps.iter().map(|gap| gap.idle_ns)),
            longest,
            decode_tok_s: rate(decode.wall_ns),
            ceilings: all.into_iter().chain(each).collect(),
            rounds: self.round_shares(accepted),
            causes,
            gaps,
        }
    }

    fn gaps(&self) -> Vec<Gap> {
        let causes = self.host_causes(self.recording.stages(), self.options.threshold_ns);
        let mut by_end: Vec<&Span> = self.lane.spans.iter().collect();
        by_end.sort_by_key(|span| span.interval.end);
        let mut by_start = by_end.clone();
        by_start.sort_by_key(|span| span.interval.start);
        let name = |span: Option<&&Span>| {
            span.map(|span| match span.name.starts_with(span.stage) {
                true => span.name.to_string(),
                false => format!("{}: {}", span.stage, span.name),
            })
        };
        let gap = |gap: &Interval| {
            let ended = by_end.partition_point(|span| span.interval.end <= gap.start);
            let started = by_start.partition_point(|span| span.interval.start < gap.end);
            Gap {
                start_ns: gap.start - self.window.start,
                idle_ns: gap.length(),
                cause: causes.of(*gap),
                round: match self.rounds.partition_point(|round| round.start <= gap.start) {
                    0 => None,
                    round => Some(round),
                },
                before: name(ended.checked_sub(1).and_then(|last| by_end.get(last))),
                after: name(by_start.get(started)),
            }
        };
        self.idle.intervals().iter().map(gap).collect()
    }

    fn host_causes(&self, host: &[HostSpan], threshold: u64) -> Causes {
        Causes::new(host, &self.lane.annotations, self.lane.asynchronous, threshold)
    }

    fn causes(&self, gaps: &[Gap]) -> Vec<CauseShare> {
        let mut shares: Vec<CauseShare> = Vec::new();
        for gap in gaps {
            let start = self.window.start + gap.start_ns;
            let decode_idle_ns = Interval::new(start, start + gap.idle_ns).overlap(self.decode);
            match shares.iter_mut().find(|share| share.cause == gap.cause) {
                Some(share) => {
                    share.gaps += 1;
                    share.idle_ns += gap.idle_ns;
                    share.decode_idle_ns += decode_idle_ns;
                }
                None => {
                    shares.push(CauseShare { cause: gap.cause, gaps: 1, idle_ns: gap.idle_ns, decode_idle_ns });
                }
            }
        }
        shares.sort_by_key(|share| (std::cmp::Reverse(share.idle_ns), share.cause));
        shares
    }

    /// Busy time goes to the stage of what ran, idle time to what the host did then; what it did in the prefill, to that.
    fn stages(&self) -> Vec<StageShare> {
        let mut shares: Vec<StageShare> = Vec::new();
        let mut add = |stage: &'static str, busy_ns: u64, idle_ns: u64| match shares
            .iter_mut()
            .find(|share| share.stage == stage)
        {
            Some(share) => {
                share.busy_ns += busy_ns;
                share.idle_ns += idle_ns;
            }
            None => shares.push(StageShare { stage, busy_ns, idle_ns }),
        };
        let prefill = Interval::new(self.window.start, self.decode.start);
        let inside = |span: &HostSpan| span.interval.overlap(prefill) > 0 && span.stage != stage::REQUEST;
        let coarse = |span: &&HostSpan| span.stage == stage::PREFILL || !inside(span);
        let host: Vec<HostSpan> = self.recording.stages().iter().filter(coarse).copied().collect();
        let spans: Vec<Interval> = host.iter().map(|span| span.interval).collect();
        for (time, index) in innermost(&spans) {
            add(host[index].stage, 0, self.idle.overlap(time));
        }
        let staged = Cover::of(spans);
        let unstaged: u64 = self.idle.intervals().iter().map(|gap| staged.outside(*gap).length()).sum();
        add("-", 0, unstaged);
        for (span, busy_ns) in self.innermost_work() {
            add(span.stage, busy_ns, 0);
        }
        shares.retain(|share| share.busy_ns + share.idle_ns > 0);
        shares
    }

    fn ops(&self) -> Vec<OpShare> {
        let mut shares: Vec<OpShare> = Vec::new();
        let mut add = |span: &Span, calls: usize, busy_ns: u64| match shares
            .iter_mut()
            .find(|share| share.stage == span.stage && share.op == span.name)
        {
            Some(share) => {
                share.calls += calls;
                share.busy_ns += busy_ns;
            }
            None => shares.push(OpShare { stage: span.stage, op: span.name.to_string(), calls, busy_ns }),
        };
        self.innermost_work().for_each(|(span, busy_ns)| add(span, 0, busy_ns));
        let inside = |span: &&Span| self.window.contains(span.interval.start);
        self.lane.spans.iter().filter(inside).for_each(|span| add(span, 1, 0));
        shares.sort_by(|a, b| b.busy_ns.cmp(&a.busy_ns).then(a.op.cmp(&b.op)));
        shares
    }

    /// Each busy nanosecond once: what ran, and for how long of what is known.
    fn innermost_work(&self) -> impl Iterator<Item = (&'a Span, u64)> {
        let spans: Vec<Interval> = self.lane.spans.iter().map(|span| span.interval).collect();
        let known = &self.known;
        let work = innermost(&spans).into_iter().map(move |(time, index)| (index, known.overlap(time)));
        let work: Vec<_> = work.filter(|(_, busy_ns)| *busy_ns > 0).collect();
        work.into_iter().map(|(index, busy_ns)| (&self.lane.spans[index], busy_ns))
    }

    fn round_shares(&self, accepted: &[usize]) -> Vec<RoundShare> {
        let told = accepted.len() == self.rounds.len();
        let share = |(round, time): (usize, &Interval)| RoundShare {
            start_ns: time.within(self.window).start - self.window.start,
            wall_ns: self.known.overlap(*time),
            busy_ns: self.busy.overlap(*time),
            idle_ns: self.idle.overlap(*time),
            accepted: told.then(|| accepted[round]),
        };
        self.rounds.iter().enumerate().map(share).collect()
    }
}

#[cfg(test)]
mod tests;
