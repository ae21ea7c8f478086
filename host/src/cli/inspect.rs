//! `inspect`: what a checkpoint holds.

use std::fmt::Write;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use coppice_model::config::{DraftConfig, ModelConfig};
use coppice_model::tokenizer::Tokenizer;
use coppice_model::{DraftModel, Error as ModelError, Source, TargetModel};
use serde::Serialize;
use serde_json::Value;

use super::output::ReportOutput;
use super::validate::InspectArgs;
use super::{Outcome, messages, model};
use crate::draft::DflashOptions;
use crate::engine::SessionOptions;
use crate::error::{Error, Result};
use crate::report::{Build, Bytes, ModelReport, Parameters, Unbound, schema};

/// Nodes of a tree that buffers are stated for.
const BUDGET: usize = 16;

/// Tensors that a list in a line names.
const LISTED: usize = 8;

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
/// Anything wrong with the files; missing tensors, after all else has been described; a closed standard output.
pub fn run(args: &InspectArgs) -> Result<Outcome> {
    let output = ReportOutput::open(&args.report)?;
    let mut ctx = args.ctx;
    let mut models = Vec::new();
    let mut incomplete = None;
    for source in &args.sources {
        let (report, missing) = if is_drafter(source)? { drafter(source, ctx)? } else { target(source, ctx)? };
        // A drafter's context is its target's, which comes before it.
        ctx = ctx.or(report.memory.map(|memory| memory.context));
        report.warnings.iter().for_each(|warning| messages::warning(warning));
        models.push(report);
        incomplete = incomplete.or(missing);
    }
    let report = InspectReport { schema: schema::INSPECT, models, env: Build::of_this_process() };
    output.write(&report, || report.models.iter().map(text).collect::<Vec<_>>().join("\n"))?;
    incomplete.map_or(Ok(Outcome::Done), |error| Err(error.into()))
}

/// A description, and the error if tensors are missing.
type Described = (ModelReport, Option<ModelError>);

fn target(source: &Source, ctx: Option<usize>) -> Result<Described> {
    let config = ModelConfig::load(source)?;
    let trained = config.max_position_embeddings;
    if let Some(ctx) = ctx.filter(|ctx| *ctx > trained) {
        return Err(Error::Request(format!(
            "--ctx is {ctx}, expected at most the model's {trained} (max_position_embeddings)"
        )));
    }
    let checkpoint = source.checkpoint()?;
    let (mut report, missing) = match TargetModel::load(source) {
        Ok(model) => (ModelReport::target(&model, &checkpoint, sizes(ctx.unwrap_or(trained)))?, None),
        Err(ModelError::MissingTensors { path, missing, unused }) => {
            let unbound = Unbound { missing: missing.clone(), unused: unused.clone() };
            let report = ModelReport::incomplete_target(source.path(), &config, &checkpoint, unbound);
            (report, Some(ModelError::MissingTensors { path, missing, unused }))
        }
        Err(error) => return Err(error.into()),
    };
    let tokenizer = Tokenizer::load(source)?;
    report.warnings.extend(tokenizer.and_then(|tokenizer| tokenizer.beyond(config.vocab_size)));
    Ok((report, missing))
}

fn drafter(source: &Source, ctx: Option<usize>) -> Result<Described> {
    let checkpoint = source.checkpoint()?;
    match DraftModel::load(source) {
        Ok(model) => Ok((ModelReport::drafter(&model, &checkpoint, ctx.map(sizes))?, None)),
        Err(ModelError::MissingTensors { path, missing, unused }) => {
            let unbound = Unbound { missing: missing.clone(), unused: unused.clone() };
            let config = DraftConfig::load(source)?;
            let report = ModelReport::incomplete_drafter(source.path(), &config, &checkpoint, unbound);
            Ok((report, Some(ModelError::MissingTensors { path, missing, unused })))
        }
        Err(error) => Err(error.into()),
    }
}

fn sizes(context: usize) -> SessionOptions {
    SessionOptions {
        context,
        prefill_chunk: model::PREFILL_CHUNK,
        max_budget: BUDGET,
        dflash: DflashOptions::default(),
    }
}

/// Whether the configuration has what only DFlash drafters have. A malformed one is left to the target's parser to report.
fn is_drafter(source: &Source) -> Result<bool> {
    let (_, bytes) = source.read_required("config.json")?;
    let config: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    let named = config["architectures"][0].as_str().is_some_and(|name| name.contains("DFlash"));
    Ok(named || ["dflash_config", "target_layer_ids"].iter().any(|key| config.get(key).is_some()))
}

fn text(model: &ModelReport) -> String {
    let ModelReport { path, kind, fingerprint, bytes, .. } = model;
    let mut text = format!("{kind} {path}\n");
    // Writing to a string cannot fail.
    let _ = writeln!(text, "fingerprint {fingerprint}, {} of tensors", Bytes(*bytes));
    let _ = match model.parameters {
        None => writeln!(text, "tensors are missing: parameters and memory are unknown"),
        Some(Parameters { total, active }) if total == active => writeln!(text, "{} parameters", Count(total)),
        Some(Parameters { total, active }) => {
            writeln!(text, "{} parameters, {} active a token", Count(total), Count(active))
        }
    };
    if let Some(memory) = &model.memory {
        let _ = writeln!(text, "memory at --ctx {} on the CPU: {}", memory.context, memory.bytes);
    }
    text.push('\n');
    let width = model.config.keys().map(String::len).max().unwrap_or_default();
    for (key, value) in &model.config {
        let _ = writeln!(text, "{key:width$}  {}", plain(value));
    }
    let _ = writeln!(text, "\n{}", tensor_table(model).trim_fmt());
    text.push('\n');
    for layer in &model.unused_prediction_layers {
        let _ =
            writeln!(text, "model.layers.{layer} predicts further tokens (num_nextn_predict_layers): not used here");
    }
    text + &listed(&model.unused, "unused") + &listed(&model.missing, "missing")
}

/// How many tensors are `what`, with the first of their names.
fn listed(names: &[String], what: &str) -> String {
    let shown = names[..names.len().min(LISTED)].join("\n  ");
    let more = names.len() - names.len().min(LISTED);
    let more = if more > 0 { format!("\n  and {more} more") } else { String::new() };
    match names.len() {
        0 => format!("no tensor is {what}\n"),
        1 => format!("1 tensor is {what}:\n  {shown}\n"),
        count => format!("{count} tensors are {what}:\n  {shown}{more}\n"),
    }
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
