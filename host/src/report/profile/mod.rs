//! A profile as `profile --json` prints it, and for people.

mod text;

use serde::Serialize;

use super::{Environment, schema};
use crate::engine::{Generation, Request};
use crate::profile::{LaneGaps, SourceReport};

/// Where a generation's time went.
#[derive(Debug, Clone, Serialize)]
pub struct ProfileReport {
    schema: &'static str,
    /// Tokens it was generated from.
    pub prompt_tokens: usize,
    /// Tokens generated.
    pub tokens: usize,
    /// `none`, `ngram`, `dflash`, `ddtree` or `auto`.
    pub mode: &'static str,
    /// Decode rounds.
    pub rounds: usize,
    /// What recording cost.
    pub overhead: OverheadReport,
    /// What was recorded by whom, and what could not be.
    pub sources: Vec<SourceReport>,
    /// The gap report of each device.
    pub devices: Vec<LaneGaps>,
    /// What it ran on.
    pub env: Environment,
}

/// Decode speed with and without profiling, in tokens a second, of runs in turns.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OverheadReport {
    /// Median of the profiled runs; null where too little was generated.
    pub profiled_tok_s: Option<f64>,
    /// Median of the others; null if there were none.
    pub unprofiled_tok_s: Option<f64>,
    /// Time that profiling added, as a share of the time without it; noise can make it negative.
    pub overhead: Option<f64>,
    /// Each profiled run.
    pub profiled: Vec<f64>,
    /// Each run that was not profiled.
    pub unprofiled: Vec<f64>,
}

impl OverheadReport {
    /// Of the speeds of the runs.
    pub fn new(profiled: Vec<f64>, unprofiled: Vec<f64>) -> Self {
        let (with, without) = (median(&profiled), median(&unprofiled));
        let overhead = with.zip(without).map(|(with, without)| without / with - 1.0);
        Self { profiled_tok_s: with, unprofiled_tok_s: without, overhead, profiled, unprofiled }
    }
}

fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    match sorted.len() {
        0 => None,
        even if even % 2 == 0 => Some((sorted[middle - 1] + sorted[middle]) / 2.0),
        _ => Some(sorted[middle]),
    }
}

impl ProfileReport {
    /// Of a generation and the gaps found in it.
    pub fn new(
        request: &Request,
        generation: &Generation,
        devices: Vec<LaneGaps>,
        sources: Vec<SourceReport>,
        overhead: OverheadReport,
        env: Environment,
    ) -> Self {
        Self {
            schema: schema::PROFILE,
            prompt_tokens: request.prompt.len(),
            tokens: generation.tokens.len(),
            mode: request.speculation.name(),
            rounds: generation.rounds.len(),
            overhead,
            sources,
            devices,
            env,
        }
    }

    /// A line a gap.
    pub fn csv(&self) -> String {
        let mut text = "device,start_ns,idle_ns,cause,round,before,after\n".to_owned();
        for device in &self.devices {
            for gap in &device.gaps {
                let round = gap.round.map_or(String::new(), |round| round.to_string());
                let cause = gap.cause.to_string();
                let names =
                    [&device.device, &cause, gap.before.as_deref().unwrap_or(""), gap.after.as_deref().unwrap_or("")]
                        .map(quoted);
                let [name, cause, before, after] = names;
                text += &format!("{name},{},{},{cause},{round},{before},{after}\n", gap.start_ns, gap.idle_ns);
            }
        }
        text
    }
}

/// A field, in quotes where it needs them.
fn quoted(field: &str) -> String {
    if field.contains([',', '"', '\n']) { format!("\"{}\"", field.replace('"', "\"\"")) } else { field.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn overhead_is_the_time_that_profiling_added() {
        let report = OverheadReport::new(vec![90.0, 100.0, 80.0], vec![95.0, 94.5, 93.0, 200.0]);
        assert_eq!((report.profiled_tok_s, report.unprofiled_tok_s), (Some(90.0), Some(94.75)));
        assert!((report.overhead.unwrap() - (94.75 / 90.0 - 1.0)).abs() < 1e-12);
        assert_eq!(OverheadReport::new(vec![90.0], vec![]).overhead, None);
    }

    #[test]
    fn fields_with_commas_are_quoted() {
        assert_eq!([quoted("a b"), quoted("a,b"), quoted("a\"b")], ["a b", "\"a,b\"", "\"a\"\"b\""]);
    }
}
