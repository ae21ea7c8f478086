//! The rows as CSV: a header, then a line a row. Lists are joined by `;`, counts are `size:count`.

use std::collections::BTreeMap;

use super::report::{BenchReport, plain_text};
use super::row::Row;
use super::stats::Summary;

/// A column: its name, and its cell in a row.
type Column = (&'static str, fn(&Row) -> String);

const COLUMNS: &[Column] = &[
    ("prompt", |row| row.case.prompt.to_string()),
    ("max_tokens", |row| row.case.max_tokens.to_string()),
    ("depth", |row| row.case.depth.to_string()),
    ("temperature", |row| row.case.temperature.to_string()),
    ("spec", |row| row.spec.clone()),
    ("budget", |row| row.budget.to_string()),
    ("auto_budget", |row| row.auto_budget.to_string()),
    ("nodes_a_round", |row| exact(row.nodes_a_round)),
    ("decode_tok_s", |row| median(&row.decode_tok_s)),
    ("decode_tok_s_min", |row| exact(row.decode_tok_s.as_ref().map(|summary| summary.min))),
    ("decode_tok_s_max", |row| exact(row.decode_tok_s.as_ref().map(|summary| summary.max))),
    ("decode_tok_s_samples", |row| list(row.decode_tok_s.iter().flat_map(|summary| &summary.samples))),
    ("speedup", |row| exact(row.speedup)),
    ("worst_speedup", |row| exact(row.worst_speedup())),
    ("noise", |row| exact(row.noise)),
    ("tpot_ms", |row| median(&row.tpot_ms)),
    ("ttft_ms", |row| median(&row.ttft_ms)),
    ("prefill_tok_s", |row| median(&row.prefill_tok_s)),
    ("itl_ms_median", |row| exact(row.itl_ms.map(|itl| itl.median))),
    ("itl_ms_p99", |row| exact(row.itl_ms.map(|itl| itl.p99))),
    ("round_ms", |row| median(&row.round_ms)),
    ("stage_ms", |row| joined(row.stage_ms.iter().map(|(stage, ms)| format!("{stage}:{ms}")))),
    ("bytes_a_round", |row| exact(row.bytes_a_round)),
    ("read_gb_s", |row| exact(row.read_gb_s)),
    ("share_of_read_ceiling", |row| exact(row.share_of_read_ceiling)),
    ("experts_a_round", |row| list(&row.experts_a_round)),
    ("tau", |row| exact(row.tau)),
    ("accept_lengths", |row| counts(&row.accept_lengths)),
    ("accept_rate_uncond", |row| list(&row.accept_rate_uncond)),
    ("accept_rate_cond", |row| joined(row.accept_rate_cond.iter().map(|rate| exact(*rate)))),
    ("chunk_sizes", |row| counts(&row.chunk_sizes)),
    ("looping", |row| row.looping.to_string()),
    ("digest", |row| row.digest.clone()),
    ("repeats_agree", |row| row.repeats_agree.to_string()),
    ("agrees_with_plain", |row| row.agrees_with_plain.to_string()),
    ("device_bytes", |row| row.device_bytes.to_string()),
];

/// Columns that every row shares: name, and place in the environment.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("model_fingerprint", "/model/fingerprint"),
    ("cpu", "/cpu/model"),
    ("threads", "/cpu/threads"),
    ("seed", "/seed"),
    ("commit", "/commit"),
];

/// The whole file.
pub fn write(report: &BenchReport) -> String {
    let names = COLUMNS.iter().map(|(name, _)| *name).chain(ENVIRONMENT.iter().map(|(name, _)| *name));
    let mut text = names.collect::<Vec<_>>().join(",") + "\n";
    let shared: Vec<String> =
        ENVIRONMENT.iter().map(|(_, place)| report.env.pointer(place).map_or_else(String::new, plain_text)).collect();
    for row in &report.rows {
        let cells = COLUMNS.iter().map(|(_, cell)| cell(row)).chain(shared.iter().cloned());
        text += &cells.map(|cell| quoted(&cell)).collect::<Vec<_>>().join(",");
        text.push('\n');
    }
    text
}

/// RFC 4180: in quotes where the cell has a character that would end it.
fn quoted(cell: &str) -> String {
    if cell.contains([',', '"', '\n', '\r']) { format!("\"{}\"", cell.replace('"', "\"\"")) } else { cell.to_owned() }
}

fn exact(value: Option<f64>) -> String {
    value.map_or_else(String::new, |value| value.to_string())
}

fn median(summary: &Option<Summary>) -> String {
    exact(summary.as_ref().map(|summary| summary.median))
}

fn list<'a>(values: impl IntoIterator<Item = &'a f64>) -> String {
    joined(values.into_iter().map(f64::to_string))
}

fn counts(counts: &BTreeMap<usize, usize>) -> String {
    joined(counts.iter().map(|(size, count)| format!("{size}:{count}")))
}

fn joined(cells: impl Iterator<Item = String>) -> String {
    cells.collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use super::super::report::tests::report;
    use super::*;

    #[test]
    fn cells_that_would_break_a_line_are_quoted() {
        for (cell, want) in [("a b;c", "a b;c"), ("a,b", "\"a,b\""), ("say \"x\"", "\"say \"\"x\"\"\"")] {
            assert_eq!(quoted(cell), want);
        }
    }

    #[test]
    fn every_line_has_every_column() {
        let text = write(&report());
        let (header, row) = text.trim_end().split_once('\n').unwrap();
        assert_eq!(header.split(',').count(), COLUMNS.len() + ENVIRONMENT.len());
        let row = row.replace("\"A, \"\"B\"\"\"", "CPU");
        let cells: Vec<&str> = row.split(',').collect();
        let cell = |name| cells[header.split(',').position(|column| column == name).unwrap()];
        assert_eq!(cells.len(), COLUMNS.len() + ENVIRONMENT.len());
        assert_eq!((cell("spec"), cell("accept_lengths"), cell("cpu")), ("none", "1:1;2:1;3:1", "CPU"));
        assert_eq!(cell("decode_tok_s_samples").split(';').count(), 3);
    }
}
