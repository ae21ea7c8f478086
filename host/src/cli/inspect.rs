//! `inspect`: what a checkpoint holds.

use std::fmt::Write;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use coppice_model::{DraftModel, Source, TargetModel};
use serde::Serialize;
use serde_json::Value;

use super::validate::InspectArgs;
use super::{Outcome, output};
use crate::error::Result;
use crate::report::{Build, Bytes, ModelReport, Parameters, schema};

/// The JSON object.
#[derive(Serialize)]
struct InspectReport {
    schema: &'static str,
    models: Vec<ModelReport>,
    env: Build,
}

/// Runs the command.
///
/// # Errors
/// Anything wrong with the files; a closed standard output.
pub fn run(args: &InspectArgs) -> Result<Outcome> {
    let models = args.sources.iter().map(describe).collect::<Result<Vec<_>>>()?;
    let report = InspectReport { schema: schema::INSPECT, models, env: Build::of_this_process() };
    if let Some(path) = &args.output {
        output::write_json(&report, path)?;
    }
    if args.json {
        output::print_json(&report)?;
    } else {
        let texts: Vec<String> = report.models.iter().map(text).collect();
        output::print(&texts.join("\n"))?;
    }
    Ok(Outcome::Done)
}

fn describe(source: &Source) -> Result<ModelReport> {
    let drafter = is_drafter(source)?;
    let checkpoint = source.checkpoint()?;
    Ok(if drafter {
        ModelReport::drafter(&DraftModel::load(source)?, &checkpoint)
    } else {
        ModelReport::target(&TargetModel::load(source)?, &checkpoint)
    })
}

/// Whether the configuration has what only DFlash drafters have. A malformed one is left to the target's parser to report.
fn is_drafter(source: &Source) -> Result<bool> {
    let (_, bytes) = source.read_required("config.json")?;
    let config: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let named = config["architectures"][0].as_str().is_some_and(|name| name.contains("DFlash"));
    Ok(named || ["dflash_config", "target_layer_ids"].iter().any(|key| config.get(key).is_some()))
}

fn text(model: &ModelReport) -> String {
    let ModelReport { path, kind, fingerprint, bytes, parameters: Parameters { total, active }, .. } = model;
    let mut text = format!("{kind} {path}\n");
    // Writing to a string cannot fail.
    let _ = writeln!(text, "fingerprint {fingerprint}, {} of tensors", Bytes(*bytes));
    let _ = match total == active {
        true => writeln!(text, "{} parameters\n", Count(*total)),
        false => writeln!(text, "{} parameters, {} active a token\n", Count(*total), Count(*active)),
    };
    let width = model.config.keys().map(String::len).max().unwrap_or_default();
    for (key, value) in &model.config {
        let _ = writeln!(text, "{key:width$}  {}", plain(value));
    }
    let _ = writeln!(text, "\n{}", tensor_table(model).trim_fmt());
    match model.unused.as_slice() {
        [] => text.push_str("\nno tensor is unused\n"),
        [one] => {
            let _ = writeln!(text, "\n1 tensor is unused: {one}");
        }
        [first, .., last] => {
            let _ = writeln!(text, "\n{} tensors are unused, from {first} to {last}", model.unused.len());
        }
    }
    text
}

fn tensor_table(model: &ModelReport) -> Table {
    let mut table = Table::new();
    table.load_preset(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(["role", "tensors", "dtype", "shape", "bytes", "name"]);
    for group in &model.tensors {
        let shape = group.shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ");
        table.add_row([
            group.role.name(),
            &group.count.to_string(),
            &group.dtype,
            &shape,
            &Bytes(group.bytes).to_string(),
            &group.name,
        ]);
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if matches!(index, 1 | 4) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// A value without JSON's punctuation.
fn plain(value: &Value) -> String {
    match value {
        Value::Null => "none".to_owned(),
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(plain).collect::<Vec<_>>().join(" "),
        Value::Object(map) => {
            map.iter().map(|(key, value)| format!("{key} {}", plain(value))).collect::<Vec<_>>().join(", ")
        }
        number_or_bool => number_or_bool.to_string(),
    }
}

/// A number of parameters in thousands, millions, billions or trillions.
struct Count(u64);

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let units = [(1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")];
        match units.iter().find(|(size, _)| self.0 as f64 >= *size) {
            Some((size, unit)) => write!(f, "{:.1}{unit}", self.0 as f64 / size),
            None => write!(f, "{}", self.0),
        }
    }
}
