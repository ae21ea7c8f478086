//! Comparison with a recorded run.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::row::Row;
use super::stats::Summary;

/// A run beside the one that it is judged by.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Comparison {
    /// The baseline's file.
    pub baseline: String,
    /// Loss of decode speed, in percent, from which on a row has regressed.
    pub max_regression: f64,
    /// The rows that both runs have.
    pub rows: Vec<ComparedRow>,
    /// Rows of this run that the baseline lacks.
    pub missing: Vec<String>,
}

/// One row of both runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ComparedRow {
    /// Case and arm.
    pub name: String,
    /// Decode tokens a second, median: of this run.
    pub now: f64,
    /// Of the baseline.
    pub before: f64,
    /// `now / before`.
    pub ratio: f64,
    /// The same of prefill.
    pub prefill_ratio: Option<f64>,
    /// Both generated the same tokens; different ones may take a different time.
    pub same_tokens: bool,
    /// `ratio` is below what `max_regression` allows.
    pub regressed: bool,
}

impl Comparison {
    /// Of `now` with the rows `before` of the file `baseline`. Rows are the same if case and arm are.
    pub fn new(baseline: String, before: &[Row], now: &[Row], max_regression: f64) -> Self {
        let (mut rows, mut missing) = (Vec::new(), Vec::new());
        for row in now {
            let name = row.name();
            let same = before.iter().find(|before| before.name() == name);
            match same.and_then(|before| compare(row, before, max_regression)) {
                Some(compared) => rows.push(compared),
                None => missing.push(name),
            }
        }
        Self { baseline, max_regression, rows, missing }
    }

    /// What is wrong, row by row.
    ///
    /// # Errors
    /// The rows that have regressed; or there is nothing to compare.
    pub fn verdict(&self) -> Result<(), String> {
        if self.rows.is_empty() {
            return Err(format!("no row is in {}: it was recorded with another matrix", self.baseline));
        }
        let regressed: Vec<String> =
            self.rows.iter().filter(|row| row.regressed).map(|row| format!("\n  {row}")).collect();
        if regressed.is_empty() {
            return Ok(());
        }
        Err(format!(
            "{} of {} rows are more than {}% slower than in {}:{}",
            regressed.len(),
            self.rows.len(),
            self.max_regression,
            self.baseline,
            regressed.concat()
        ))
    }
}

fn compare(now: &Row, before: &Row, max_regression: f64) -> Option<ComparedRow> {
    let medians = |a: &Option<Summary>, b: &Option<Summary>| Some((a.as_ref()?.median, b.as_ref()?.median));
    let (speed, recorded) = medians(&now.decode_tok_s, &before.decode_tok_s)?;
    let ratio = speed / recorded;
    Some(ComparedRow {
        name: now.name(),
        now: speed,
        before: recorded,
        ratio,
        prefill_ratio: medians(&now.prefill_tok_s, &before.prefill_tok_s).map(|(now, before)| now / before),
        same_tokens: now.digest == before.digest,
        regressed: ratio < 1.0 - max_regression / 100.0,
    })
}

impl fmt::Display for ComparedRow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, now, before, ratio, .. } = self;
        write!(f, "{name}: {now:.1} tok/s, was {before:.1}, ratio {ratio:.3}")
    }
}

#[cfg(test)]
mod tests {
    use super::super::row::tests::row;
    use super::*;

    #[test]
    fn a_planted_slowdown_of_a_fifth_is_a_regression_and_names_its_row() {
        let (before, now) = (row(&[20, 20, 20]), row(&[25, 25, 25]));
        let comparison = |allowed| {
            Comparison::new("b.json".to_owned(), std::slice::from_ref(&before), std::slice::from_ref(&now), allowed)
        };
        let message = comparison(10.0).verdict().unwrap_err();
        let want = "1 of 1 rows are more than 10% slower than in b.json:\n  --spec none -p whole -n 7 --depth 0 --temp 0.8: \
                    80.0 tok/s, was 100.0, ratio 0.800";
        assert_eq!(message, want);
        assert_eq!(comparison(25.0).verdict(), Ok(()));
        let faster = Comparison::new(String::new(), std::slice::from_ref(&now), std::slice::from_ref(&before), 10.0);
        assert_eq!(faster.verdict(), Ok(()));
        assert!((faster.rows[0].ratio - 1.25).abs() < 1e-9 && faster.rows[0].same_tokens);
    }

    #[test]
    fn rows_without_a_counterpart_are_listed_and_not_judged() {
        let mut other = row(&[20]);
        other.case.depth = 64;
        let comparison = Comparison::new("b".to_owned(), &[row(&[20])], &[other.clone(), row(&[20])], 10.0);
        assert_eq!((comparison.rows.len(), comparison.verdict()), (1, Ok(())));
        let nothing = Comparison::new("b".to_owned(), &[row(&[1])], &[other], 10.0).verdict();
        assert_eq!(nothing, Err("no row is in b: it was recorded with another matrix".to_owned()));
        assert_eq!(comparison.missing, ["--spec none -p whole -n 7 --depth 64 --temp 0.8"]);
    }
}
