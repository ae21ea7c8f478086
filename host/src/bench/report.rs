//! The result as JSON, JSON lines, CSV and Markdown. The JSON is also what a later run reads.

use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::baseline::Comparison;
use super::csv;
use super::row::Row;
use crate::error::{Error, Result};
use crate::report::{Bytes, schema};

/// A run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchReport {
    /// [`schema::BENCH`].
    pub schema: String,
    /// How it was measured.
    pub settings: Settings,
    /// Measurements.
    pub rows: Vec<Row>,
    /// Ctrl-C ended the run: there may be cases without rows.
    pub interrupted: bool,
    /// Most memory that the process held at once; null where the system does not say.
    pub peak_memory_bytes: Option<u64>,
    /// GB a second that memory gave the same threads before the first measurement.
    pub read_ceiling_gb_s: f64,
    /// The run that this one was judged by; null without one.
    pub comparison: Option<Comparison>,
    /// Build, machine, models, seed: what `generate --json` has there.
    pub env: Value,
}

/// What every row was measured with.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Settings {
    /// Measurements of every row.
    pub repeats: usize,
    /// Generations of each arm before a case's first measurement.
    pub warmup: usize,
    /// Percent; rows whose (max - min) / median is above are called noisy.
    pub max_noise: f64,
    /// Sampling besides the temperature.
    pub top_k: usize,
    /// See `top_k`.
    pub top_p: f32,
    /// See `top_k`.
    pub min_p: f32,
    /// Where prompts come from; null for the bundled texts.
    pub prompts: Option<String>,
}

/// How a report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// A table for people.
    Markdown,
    /// A line a row, header first; lists are joined by `;`.
    Csv,
    /// One object.
    Json,
    /// An object a row.
    JsonLines,
}

impl Format {
    /// The format that a file's name asks for: JSON unless it ends in `.md`, `.csv` or `.jsonl`.
    pub fn of(path: &Path) -> Self {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("md") => Self::Markdown,
            Some("csv") => Self::Csv,
            Some("jsonl") => Self::JsonLines,
            _ => Self::Json,
        }
    }
}

impl BenchReport {
    /// Reads a recorded run.
    ///
    /// # Errors
    /// [`Error::File`], or [`Error::Content`] for anything but the JSON of a run.
    pub fn read(path: &Path) -> Result<Self> {
        let wrong = |message| Error::Content { path: path.to_owned(), message };
        let bytes =
            std::fs::read(path).map_err(|source| Error::File { action: "read", path: path.to_owned(), source })?;
        let found: Value =
            serde_json::from_slice(&bytes).map_err(|error| wrong(format!("expected the JSON of a run: {error}")))?;
        let schema = found.get("schema").and_then(Value::as_str).unwrap_or("none");
        if schema != schema::BENCH {
            return Err(wrong(format!("schema is {schema}, expected {}, as `bench -o json` writes it", schema::BENCH)));
        }
        serde_json::from_value(found).map_err(|error| wrong(format!("expected the JSON of a run: {error}")))
    }

    /// Rows that vary more than the settings allow.
    pub fn noisy(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| row.noise.is_some_and(|noise| noise * 100.0 > self.settings.max_noise))
    }

    /// The report in `format`, ending with a line end.
    ///
    /// # Errors
    /// None that a report can cause.
    pub fn write(&self, format: Format) -> Result<String> {
        Ok(match format {
            Format::Json => json_line(self)?,
            Format::JsonLines => {
                let line = |row| RowLine { schema: schema::BENCH_ROW, row, settings: &self.settings, env: &self.env };
                self.rows.iter().map(|row| json_line(&line(row))).collect::<Result<String>>()?
            }
            Format::Csv => csv::write(self),
            Format::Markdown => self.markdown(),
        })
    }

    fn markdown(&self) -> String {
        let mut table = Table::new();
        table.load_preset(presets::ASCII_MARKDOWN);
        table.set_header(MARKDOWN_COLUMNS.split(", "));
        for row in &self.rows {
            let case = &row.case;
            table.add_row([
                case.prompt.to_string(),
                case.max_tokens.to_string(),
                case.depth.to_string(),
                case.temperature.to_string(),
                row.arm(),
                row.decode_tok_s
                    .as_ref()
                    .map_or("-".to_owned(), |s| format!("{:.0} ({:.0}-{:.0})", s.median, s.min, s.max)),
                number(row.speedup, 2),
                number(row.worst_speedup(), 2),
                number(row.tau, 2),
                number(row.round_ms.as_ref().map(|round| round.median), 2),
                percent(row.share_of_read_ceiling),
                experts(row),
                number(row.ttft_ms.as_ref().map(|ttft| ttft.median), 1),
                number(row.prefill_tok_s.as_ref().map(|rate| rate.median), 0),
                number(row.itl_ms.map(|itl| itl.p99), 2),
                percent(Some(row.looping)),
                percent(row.noise),
                self.tokens_cell(row),
            ]);
        }
        for column in table.column_iter_mut().filter(|column| column.index != 4 && column.index != 17) {
            column.set_cell_alignment(CellAlignment::Right);
        }
        let settings = &self.settings;
        let env = |path: &str| self.env.pointer(path).map_or("unknown".to_owned(), plain_text);
        let mut text = format!(
            "{} on {} ({} threads of {}, {}), commit {}; medians of {} interleaved repeats\n\n{table}\n",
            env("/model/path"),
            env("/device"),
            env("/cpu/threads"),
            env("/cpu/model"),
            env("/cpu/simd"),
            env("/commit"),
            settings.repeats,
        );
        text += &format!("\nmemory gives {:.1} GB/s: read share is of it", self.read_ceiling_gb_s);
        if let Some(peak) = self.peak_memory_bytes {
            text += &format!("; peak memory of the process {}", Bytes(peak));
        }
        text += "; experts are those that a round wakes in a layer\n";
        if self.interrupted {
            text += "\ninterrupted: cases that were not finished are left out\n";
        }
        if let Some(comparison) = &self.comparison {
            text += &compared(comparison);
        }
        text
    }

    /// The digest, and what is wrong with it.
    fn tokens_cell(&self, row: &Row) -> String {
        let mut cell = row.digest.clone();
        if !row.repeats_agree {
            cell += " (repeats differ)";
        }
        if !row.agrees_with_plain {
            cell += " (not plain decode's)";
        }
        cell
    }
}

const MARKDOWN_COLUMNS: &str = "prompt, n, depth, temp, draft, tok/s (min-max), x none, worst, tau, round ms, read share, experts, TTFT ms, prefill tok/s, \
                                ITL p99 ms, looping, noise, tokens";

/// A line of JSON lines: complete in itself.
#[derive(Serialize)]
struct RowLine<'a> {
    schema: &'static str,
    row: &'a Row,
    settings: &'a Settings,
    env: &'a Value,
}

/// Numbers that JSON has no words for (NaN, infinities) are null.
fn json_line(value: &impl Serialize) -> Result<String> {
    let text = serde_json::to_string(value).map_err(|error| Error::Output(error.into()))?;
    Ok(text + "\n")
}

fn compared(comparison: &Comparison) -> String {
    let mut table = Table::new();
    table.load_preset(presets::ASCII_MARKDOWN);
    table.set_header(["row", "tok/s", "baseline", "ratio", "prefill ratio", "same tokens", "regressed"]);
    let word = |yes| if yes { "yes" } else { "no" }.to_owned();
    for row in &comparison.rows {
        table.add_row([
            row.name.clone(),
            format!("{:.1}", row.now),
            format!("{:.1}", row.before),
            format!("{:.3}", row.ratio),
            number(row.prefill_ratio, 3),
            word(row.same_tokens),
            word(row.regressed),
        ]);
    }
    let mut text = format!("\nagainst {}\n\n{table}\n", comparison.baseline);
    for name in &comparison.missing {
        text += &format!("not in the baseline: {name}\n");
    }
    text
}

/// Mean over layers.
fn experts(row: &Row) -> String {
    let layers = &row.experts_a_round;
    number((!layers.is_empty()).then(|| layers.iter().sum::<f64>() / layers.len() as f64), 1)
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or("-".to_owned(), |value| format!("{value:.digits$}"))
}

fn percent(share: Option<f64>) -> String {
    share.map_or("-".to_owned(), |share| format!("{:.0}%", share * 100.0))
}

/// A value of the environment as text.
pub(super) fn plain_text(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::row::tests::row;
    use super::*;

    /// A run of one noisy plain row.
    pub fn report() -> BenchReport {
        let settings =
            Settings { repeats: 3, warmup: 1, max_noise: 10.0, top_k: 0, top_p: 1.0, min_p: 0.0, prompts: None };
        BenchReport {
            schema: schema::BENCH.to_owned(),
            settings,
            rows: vec![row(&[20, 25, 30])],
            interrupted: false,
            read_ceiling_gb_s: 6.0,
            peak_memory_bytes: Some(3 << 20),
            comparison: None,
            env: serde_json::json!({"seed": 3, "commit": "abc", "cpu": {"model": "A, \"B\"", "threads": 2}}),
        }
    }

    #[test]
    fn json_reads_back_as_it_was_written() {
        let mut report = report();
        let (before, now) = (row(&[20]), row(&[30]));
        report.comparison = Some(Comparison::new("b.json".to_owned(), &[before], &[now], 10.0));
        let path = std::env::temp_dir().join(format!("coppice-bench-{}.json", std::process::id()));
        std::fs::write(&path, report.write(Format::Json).unwrap()).unwrap();
        let read = BenchReport::read(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        // Decimal text and back is exact for f64, so all of it must be equal.
        assert_eq!(read, report);
    }

    #[test]
    fn what_is_no_run_is_refused() {
        let path = std::env::temp_dir().join(format!("coppice-no-bench-{}.json", std::process::id()));
        let cases = [
            ("{", "expected the JSON of a run"),
            ("{}", "schema is none, expected coppice.bench.v1"),
            ("{\"schema\": \"coppice.generate.v1\"}", "schema is coppice.generate.v1"),
            ("{\"schema\": \"coppice.bench.v1\"}", "missing field"),
        ];
        for (content, want) in cases {
            std::fs::write(&path, content).unwrap();
            let message = BenchReport::read(&path).unwrap_err().to_string();
            assert!(message.contains(want), "{content}: {message}");
        }
        std::fs::remove_file(&path).unwrap();
    }

    #[test]
    fn every_line_of_json_lines_stands_alone() {
        let mut report = report();
        report.rows.push(report.rows[0].clone());
        let text = report.write(Format::JsonLines).unwrap();
        assert_eq!(text.lines().count(), 2);
        for line in text.lines() {
            let line: Value = serde_json::from_str(line).unwrap();
            assert_eq!(line["schema"], "coppice.bench-row.v1");
            assert_eq!((&line["row"]["spec"], &line["env"]["seed"]), (&"none".into(), &3.into()));
        }
    }

    #[test]
    fn markdown_shows_speed_noise_and_what_is_wrong() {
        let mut report = report();
        report.rows[0].agrees_with_plain = false;
        report.interrupted = true;
        let text = report.write(Format::Markdown).unwrap();
        for want in ["80 (67-100) |", "2 threads of A, \"B\"", "(not plain decode's)", "interrupted", "3.0 MiB"] {
            assert!(text.contains(want), "{want}: {text}");
        }
        assert_eq!(report.noisy().count(), 1);
        report.settings.max_noise = 50.0;
        assert_eq!(report.noisy().count(), 0);
    }

    #[test]
    fn the_files_name_says_the_format() {
        let cases = [("a.md", Format::Markdown), ("a.csv", Format::Csv), ("a.jsonl", Format::JsonLines)];
        for (name, format) in cases.into_iter().chain([("a.json", Format::Json), ("a", Format::Json)]) {
            assert_eq!(Format::of(Path::new(name)), format, "{name}");
        }
    }
}
