//! `bench`: speed, acceptance and memory of a model, by prompt, context and way of drafting. What is measured and how lives
//! in `bench`.

mod flags;

pub use flags::{BenchArgs, BenchFlags};

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use coppice_model::config::{DraftConfig, ModelConfig};
use coppice_model::tokenizer::Tokenizer;
use coppice_model::{DraftModel, TargetModel};

use super::output::ResultFile;
use super::progress::Progress;
use super::{Outcome, interrupt, messages, model, output, prompt};
use crate::backend::Meter;
use crate::bench::baseline::Comparison;
use crate::bench::matrix::{Lists, Matrix};
use crate::bench::prompts::{Library, Prompt};
use crate::bench::report::{BenchReport, Format, Settings};
use crate::bench::run::{self, Plan, Sessions, Watchers};
use crate::bench::{ceiling, metrics, plot};
use crate::draft::DflashOptions;
use crate::engine::{SessionOptions, Speculation};
use crate::error::{Error, Result};
use crate::report::{Build, CpuEnvironment, Environment, ModelIdentity, schema};
use crate::sampling::Sampling;
use flags::{MeasureArgs, Work};

/// Runs the command.
///
/// # Errors
/// Anything wrong with the flags, the files or the device; a closed standard output; a row that has regressed.
pub fn run(args: &BenchArgs) -> Result<Outcome> {
    interrupt::install();
    let open = |path: &Option<PathBuf>| path.as_deref().map(ResultFile::open).transpose();
    let results = Results { args, file: open(&args.output)?, plot: open(&args.plot)? };
    let baseline = args.baseline.as_deref().map(BenchReport::read).transpose()?;
    let report = match &args.work {
        Work::Read(path) => BenchReport::read(path)?,
        Work::Measure(work) => measure(work, &|report| {
            let _ = results.deliver(&compared(args, baseline.as_ref(), report));
        })?,
    };
    let report = compared(args, baseline.as_ref(), report);
    results.deliver(&report)?;
    if report.interrupted && matches!(args.work, Work::Measure(_)) {
        return Ok(Outcome::Interrupted);
    }
    match report.comparison.as_ref().map(Comparison::verdict) {
        Some(Err(message)) => Err(Error::Request(message)),
        _ => Ok(Outcome::Done),
    }
}

fn compared(args: &BenchArgs, baseline: Option<&BenchReport>, mut report: BenchReport) -> BenchReport {
    report.comparison = baseline.zip(args.baseline.as_ref()).map(|(baseline, path)| {
        Comparison::new(path.display().to_string(), &baseline.rows, &report.rows, args.max_regression)
    });
    report
}

/// Where a report goes.
struct Results<'a> {
    args: &'a BenchArgs,
    file: Option<ResultFile>,
    plot: Option<ResultFile>,
}

impl Results<'_> {
    fn deliver(&self, report: &BenchReport) -> Result<()> {
        if let (Some(file), Some(path)) = (&self.file, &self.args.output) {
            file.write(report.write(Format::of(path))?.as_bytes())?;
        }
        if let Some(file) = self.plot.as_ref().filter(|_| !report.rows.is_empty()) {
            file.write(plot::draw(report)?.as_bytes())?;
        }
        let printed = output::print(&report.write(self.args.format)?);
        warn(report);
        printed
    }
}

/// Says what makes the figures less than they seem.
fn warn(report: &BenchReport) {
    for row in report.noisy() {
        messages::warning(&format_args!(
            "{}: the measurements lie {:.0}% apart, expected at most {}%: the machine is not quiet enough to quote this row",
            row.name(),
            row.noise.unwrap_or_default() * 100.0,
            report.settings.max_noise,
        ));
    }
    for row in &report.rows {
        if !row.repeats_agree {
            messages::warning(&format_args!("{}: the repeats gave different tokens", row.name()));
        }
        if !row.agrees_with_plain {
            messages::warning(&format_args!("{}: the tokens are not those of plain decode", row.name()));
        }
    }
}

/// Everything that is known before a weight is read.
struct Prepared {
    matrix: Matrix,
    prompts: Vec<Vec<Prompt>>,
    sampling: Sampling,
    context: usize,
}

/// Measures. What is finished when Ctrl-C comes and the generation under way does not end in time goes to `abandoned`.
fn measure(args: &MeasureArgs, abandoned: &(dyn Fn(BenchReport) + Sync)) -> Result<BenchReport> {
    let prepared = prepare(args)?;
    let target = model::target(&args.target)?;
    let drafter = args.draft.as_ref().map(DraftModel::load).transpose()?;
    let mut sessions = sessions(args, &prepared, &target, drafter.as_ref())?;

    let Prepared { matrix, prompts, sampling, .. } = prepared;
    let env = environment(args, &sessions, &target, drafter.as_ref(), sampling.seed)?;
    let read_ceiling = ceiling::read_ceiling(args.device.threads);
    let plan = Plan { repeats: args.repeats, warmup: args.warmup, sampling, read_ceiling };
    let total = plan.generations(&matrix, &prompts);
    let report = |rows, interrupted| BenchReport {
        schema: schema::BENCH.to_owned(),
        settings: Settings {
            repeats: args.repeats,
            warmup: args.warmup,
            max_noise: args.max_noise,
            top_k: sampling.top_k,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            prompts: args.prompts.as_ref().map(|path| path.display().to_string()),
        },
        rows,
        interrupted,
        peak_memory_bytes: metrics::peak_memory(),
        read_ceiling_gb_s: read_ceiling / 1e9,
        comparison: None,
        env: env.clone(),
    };
    let finished = Mutex::new(Vec::new());
    let measured = interrupt::guard(
        |interrupt| {
            let mut bar = Progress::new("measuring", "generations, left:");
            let mut watch = Watchers {
                interrupt,
                ended: &mut |done| bar.set(done, total),
                finished: &mut |rows| finished.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(rows),
            };
            run::run(&mut sessions, &matrix, &prompts, plan, &mut watch)
        },
        || {
            messages::line(&"interrupted; the generation under way would not end in time and was abandoned");
            abandoned(report(finished.lock().unwrap_or_else(PoisonError::into_inner).clone(), true));
        },
    )?;
    Ok(report(measured.rows, measured.interrupted))
}

fn environment(
    args: &MeasureArgs,
    sessions: &Sessions,
    target: &TargetModel,
    drafter: Option<&DraftModel>,
    seed: u64,
) -> Result<serde_json::Value> {
    let identity = |path: &std::path::Path, fingerprint: &str| ModelIdentity {
        path: path.display().to_string(),
        fingerprint: fingerprint.to_owned(),
    };
    let env = Environment {
        build: Build::of_this_process(),
        device: sessions.plain.backend_name(),
        cpu: CpuEnvironment::new(args.device.threads),
        model: identity(&target.path, &target.fingerprint),
        draft: drafter.map(|drafter| identity(&drafter.path, &drafter.fingerprint)),
        seed,
    };
    serde_json::to_value(env).map_err(|error| Error::Output(error.into()))
}

fn prepare(args: &MeasureArgs) -> Result<Prepared> {
    let config = ModelConfig::load(&args.target)?;
    let drafter = args.draft.as_ref().map(DraftConfig::load).transpose()?;
    let sampling = args.sampling.over(&config.generation)?;
    let own = [sampling.temperature];
    let temperatures = if args.temperatures.is_empty() { &own[..] } else { &args.temperatures };
    for temperature in temperatures {
        Sampling { temperature: *temperature, ..sampling }.validate().map_err(Error::Usage)?;
    }
    let arms: Vec<Speculation> = args.specs.iter().map(|spec| spec.resolve(drafter.as_ref())).collect();
    let matrix = Matrix::new(Lists {
        prompts: &args.lengths,
        max_tokens: &args.max_tokens,
        depths: &args.depths,
        temperatures,
        arms: &arms,
    });
    let library = library(args)?;
    let prompts =
        matrix.cases.iter().map(|case| library.prompts(case, args.count)).collect::<Result<Vec<Vec<Prompt>>>>()?;
    let mut context = 0;
    for (case, prompts) in matrix.cases.iter().zip(&prompts) {
        for found in prompts {
            prompt::check(&found.tokens, config.vocab_size)?;
            context = context.max(found.tokens.len() + case.max_tokens);
        }
    }
    let trained = config.max_position_embeddings;
    if context > trained {
        return Err(Error::Request(format!(
            "depth, prompt and answer take {context} tokens together, expected at most the model's {trained} \
             (max_position_embeddings)"
        )));
    }
    Ok(Prepared { matrix, prompts, sampling, context })
}

fn library(args: &MeasureArgs) -> Result<Library> {
    let tokenizer = Tokenizer::load(&args.target)?;
    match (&args.prompts, &tokenizer) {
        (Some(path), tokenizer) => Library::file(path, tokenizer.as_ref()),
        (None, Some(tokenizer)) => Library::bundled(tokenizer),
        (None, None) => Err(Error::Request(format!(
            "{} has no tokenizer (tokenizer.json or tiktoken.model): give prompts as token ids with --prompts, a JSON \
             object a line with `tokens`",
            args.target.path().display()
        ))),
    }
}

/// One session for the arms without a drafter, and one for those with it.
fn sessions(
    args: &MeasureArgs,
    prepared: &Prepared,
    target: &TargetModel,
    drafter: Option<&DraftModel>,
) -> Result<Sessions> {
    let options = SessionOptions {
        context: prepared.context,
        prefill_chunk: model::PREFILL_CHUNK,
        max_budget: prepared.matrix.max_budget(),
        dflash: DflashOptions::default(),
    };
    let meter = Arc::new(Meter::default());
    let session = |drafter| model::session(args.device, Some(meter.clone()), target, drafter, options);
    let plain = session(None)?;
    let drafted = match drafter {
        Some(model) => Some((session(Some(model))?, model.config.block_size)),
        None => None,
    };
    Ok(Sessions { plain, drafted, meter })
}
