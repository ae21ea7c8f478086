//! `profile`: a generation, and where its time went.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use super::answer::{Answer, Loaded, SoFar};
use super::output::{self, ResultFile};
use super::plan::Plan;
use super::validate::{ProfileArgs, ProfileFormat, ProfiledArgs};
use super::{Outcome, interrupt, messages};
use crate::backend::cuda;
use crate::engine::Finish;
use crate::engine::stats::Timings;
use crate::error::{Error, Result};
use crate::profile::{self, HostSpans, Marks, Recording, Source};
use crate::report::{OverheadReport, ProfileReport};

/// Pairs of runs, profiled and not, go on for so long.
const PATIENCE: Duration = Duration::from_millis(1500);
/// But are no more than this.
const PAIRS: usize = 9;

/// Runs the command.
///
/// # Errors
/// Anything wrong with the flags, the files or the device; a closed standard output.
pub fn run(args: &ProfileArgs) -> Result<Outcome> {
    match args {
        ProfileArgs::Watch => Err(watch()),
        ProfileArgs::Generation(args) => generation(args),
    }
}

/// Why no GPU can be watched.
fn watch() -> Error {
    let why = cuda::cupti::absence().unwrap_or_else(|| "this version has no reader for its samples yet".to_owned());
    Error::Request(format!("--watch cannot sample a GPU on this machine: {why}"))
}

/// A profiled run.
struct Profiled {
    answer: Answer,
    recording: Recording,
    speed: Option<f64>,
}

fn generation(args: &ProfiledArgs) -> Result<Outcome> {
    interrupt::install();
    let open = |path: &Option<_>| path.as_deref().map(ResultFile::open).transpose();
    let (file, trace, html) = (open(&args.output)?, open(&args.trace)?, open(&args.html)?);
    let plan = Plan::new(&args.request)?;
    let mut loaded = Loaded::new(&args.request, &plan)?;
    let interrupted = || messages::line(&"interrupted; there is no profile");
    let runs = interrupt::guard(|interrupt| runs(args, &plan, &mut loaded, interrupt), interrupted)?;
    let Some((profiled, overhead)) = runs else {
        interrupted();
        return Ok(Outcome::Interrupted);
    };

    let Profiled { answer, recording, .. } = profiled;
    let accepted: Vec<usize> = answer.generation.rounds.iter().map(|round| round.accepted).collect();
    let lanes = profile::analyse(&recording, answer.generation.tokens.len(), &accepted, args.options);
    let env = loaded.environment(args.request.device, plan.request.sampling.seed);
    let report = ProfileReport::new(&plan.request, &answer.generation, lanes, recording.sources.clone(), overhead, env);
    let object = serde_json::to_value(&report).map_err(|error| Error::Output(error.into()))?;
    if let Some(file) = &file {
        file.write_json(&report)?;
    }
    if let Some(file) = &trace {
        file.write_json(&profile::chrome_trace(&recording, &report.devices, &object["env"]))?;
    }
    if let Some(file) = &html {
        file.write(profile::page(&recording, &report.devices, &object).as_bytes())?;
    }
    match args.format {
        ProfileFormat::Json => output::print_json(&report)?,
        ProfileFormat::Csv => output::print(&report.csv())?,
        ProfileFormat::Text { waterfall, by_round } => {
            output::print(&(report.text() + &drawn(&recording, &report, waterfall, by_round)))?;
        }
    }
    Ok(Outcome::Done)
}

fn drawn(recording: &Recording, report: &ProfileReport, waterfall: bool, by_round: bool) -> String {
    let marks = if output::shows_unicode() { Marks::UNICODE } else { Marks::ASCII };
    let mut text = String::new();
    if waterfall {
        text += &format!("\n{}", profile::whole(recording, marks));
    }
    if by_round {
        text += &format!("\n{}", profile::by_round(recording, &report.devices, marks));
    }
    if !text.is_empty() {
        text += &profile::legend(marks);
    }
    text
}

/// Warms up, then generates profiled and not in turns. The profiled run of median speed, and what profiling cost; `None` if
/// Ctrl-C ended it.
fn runs(
    args: &ProfiledArgs,
    plan: &Plan,
    loaded: &mut Loaded,
    interrupt: &AtomicBool,
) -> Result<Option<(Profiled, OverheadReport)>> {
    let (mut profiled, mut unprofiled): (Vec<Profiled>, Vec<f64>) = (Vec::new(), Vec::new());
    if !args.once && once(plan, loaded, interrupt)?.is_none() {
        return Ok(None);
    }
    let started = Instant::now();
    while profiled.is_empty() || !args.once && profiled.len() < PAIRS && started.elapsed() < PATIENCE {
        let device = loaded.session.backend_name();
        let mut sources: Vec<Box<dyn Source>> = vec![Box::new(HostSpans::new(device))];
        sources.extend(profile::cuda_sources(device));
        let (answer, recording) = profile::record(sources, || once(plan, loaded, interrupt));
        let Some(answer) = answer? else { return Ok(None) };
        profiled.push(Profiled { speed: speed(plan, &answer), answer, recording });
        if !args.once {
            let Some(answer) = once(plan, loaded, interrupt)? else { return Ok(None) };
            unprofiled.extend(speed(plan, &answer));
        }
    }
    let speeds = profiled.iter().filter_map(|run| run.speed).collect();
    let overhead = OverheadReport::new(speeds, unprofiled);
    profiled.sort_by(|a, b| a.speed.unwrap_or_default().total_cmp(&b.speed.unwrap_or_default()));
    let middle = profiled.swap_remove(profiled.len() / 2);
    Ok(Some((middle, overhead)))
}

/// One generation, its text printed where nobody reads it; `None` if Ctrl-C ended it.
fn once(plan: &Plan, loaded: &mut Loaded, interrupt: &AtomicBool) -> Result<Option<Answer>> {
    let nowhere: Box<dyn Write> = match OpenOptions::new().write(true).open("/dev/null") {
        Ok(file) => Box::new(file),
        Err(_) => Box::new(io::sink()),
    };
    let answer = loaded.answer(plan, plan.request.speculation, nowhere, &SoFar::default(), interrupt)?;
    Ok((answer.generation.finish != Finish::Interrupted).then_some(answer))
}

fn speed(plan: &Plan, answer: &Answer) -> Option<f64> {
    Timings::new(plan.request.prompt.len(), &answer.generation).decode_tok_s
}
