//! `generate`: a prompt in, text out as it is generated.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use super::answer::{Answer, Loaded, SoFar};
use super::output::{self, ResultFile, UntilClosed};
use super::plan::Plan;
use super::validate::{Format, GenerateArgs, PromptSource, Template};
use super::{Outcome, interrupt, messages, parity};
use crate::backend::MemoryUse;
use crate::engine::stats::{Acceptance, LOW_TAU, Timings};
use crate::engine::{Finish, Speculation};
use crate::error::{Error, Result};
use crate::report::{Environment, GenerationReport, SpeculationReport, TimingsReport};

/// Runs the command.
///
/// # Errors
/// Anything wrong with the flags, the files or the device; a closed standard output; a token that drafting changed.
pub fn run(args: &GenerateArgs) -> Result<Outcome> {
    interrupt::install();
    let file = args.output.as_deref().map(ResultFile::open).transpose()?;
    let started = Instant::now();
    let plan = Plan::new(&args.request)?;
    let speculation = plan.request.speculation;
    if args.verify_parity && speculation == Speculation::None {
        let message = "--verify-parity compares drafting with plain decode, but nothing is drafted: choose a --spec";
        return Err(Error::Usage(message.to_owned()));
    }
    let mut loaded = Loaded::new(&args.request, &plan)?;
    let around = Surroundings::new(args, &plan, &loaded, started.elapsed());

    // The text is wanted after its reader has gone if anything else depends on it.
    let elsewhere = file.is_some() || args.stats || args.verify_parity;
    let streamed: Box<dyn Write> = match args.format {
        Format::Stream if elsewhere => Box::new(UntilClosed::default()),
        Format::Stream => Box::new(io::stdout()),
        Format::Text | Format::Json => Box::new(io::sink()),
    };
    let so_far = SoFar::default();
    let answer = interrupt::guard(
        |interrupt| loaded.answer(&plan, speculation, streamed, &so_far, interrupt),
        || {
            messages::line(&"interrupted; what was under way would not end in time and was abandoned");
            let report = around.report(args, &plan, &so_far.answer(&plan));
            let _ = deliver(args, file.as_ref(), &report);
        },
    )?;
    let interrupted = answer.generation.finish == Finish::Interrupted;
    let report = around.report(args, &plan, &answer);
    let printed = deliver(args, file.as_ref(), &report)?;
    if interrupted {
        return printed.map(|()| Outcome::Interrupted);
    }
    if args.verify_parity && verify_parity(args, &plan, &mut loaded, &answer)? == Outcome::Interrupted {
        return Ok(Outcome::Interrupted);
    }
    printed.map(|()| Outcome::Done)
}

/// Generates again without drafting and compares.
fn verify_parity(args: &GenerateArgs, plan: &Plan, loaded: &mut Loaded, drafted: &Answer) -> Result<Outcome> {
    let interrupted = || messages::line(&"interrupted; parity was not verified");
    let so_far = SoFar::default();
    let plain = interrupt::guard(
        |interrupt| loaded.answer(plan, Speculation::None, Box::new(io::sink()), &so_far, interrupt),
        interrupted,
    )?;
    if plain.generation.finish == Finish::Interrupted {
        interrupted();
        return Ok(Outcome::Interrupted);
    }
    let device = args.request.device;
    parity::check(device, &loaded.target, &plan.request, &plain.generation, &drafted.generation)?;
    Ok(Outcome::Done)
}

/// What a report says about everything but the answer.
struct Surroundings {
    load: Duration,
    memory: MemoryUse,
    env: Environment,
}

impl Surroundings {
    fn new(args: &GenerateArgs, plan: &Plan, loaded: &Loaded, load: Duration) -> Self {
        let env = loaded.environment(args.request.device, plan.request.sampling.seed);
        Self { load, memory: loaded.session.memory(), env }
    }

    /// The report of an answer, and a warning if drafting went suspiciously badly.
    fn report(&self, args: &GenerateArgs, plan: &Plan, answer: &Answer) -> GenerationReport {
        let request = &plan.request;
        let acceptance = Acceptance::new(&answer.generation, plan.depths());
        if acceptance.is_suspicious() {
            warn_of_low_acceptance(args, &acceptance);
        }
        GenerationReport::new(
            &request.prompt,
            answer.text.clone(),
            &answer.generation,
            TimingsReport::new(self.load, &Timings::new(request.prompt.len(), &answer.generation)),
            SpeculationReport::new(request.speculation, acceptance),
            self.memory,
            self.env.clone(),
        )
    }
}

/// Writes the file and the statistics, and prints what standard output does not have yet. What printing came to is left to
/// the caller: a closed pipe must keep nothing else from being done.
///
/// # Errors
/// [`Error::File`].
fn deliver(args: &GenerateArgs, file: Option<&ResultFile>, report: &GenerationReport) -> Result<Result<()>> {
    let written = file.map_or(Ok(()), |file| file.write_json(report));
    if args.stats || report.finish_reason == Finish::Interrupted.name() {
        messages::line(report);
    }
    let printed = print(args.format, report);
    written.map(|()| printed)
}

fn print(format: Format, report: &GenerationReport) -> Result<()> {
    match (format, &report.text) {
        (Format::Json, _) => output::print_json(report),
        (Format::Stream, Some(text)) => output::end_line(text),
        (Format::Text, Some(text)) => {
            output::print(text)?;
            output::end_line(text)
        }
        (Format::Stream | Format::Text, None) => output::print_json(&report.token_ids),
    }
}

/// Names what makes acceptance collapse without any error.
fn warn_of_low_acceptance(args: &GenerateArgs, acceptance: &Acceptance) {
    let request = &args.request;
    let tau = acceptance.tau.unwrap_or_default();
    let rounds = acceptance.lengths.len();
    let target = request.target.path().display();
    let drafter = request.draft.as_ref().map(|source| source.path().display().to_string()).unwrap_or_default();
    let framing = match (&request.prompt, &request.template) {
        (PromptSource::Tokens(_), _) => "token ids as given, which no template has framed".to_owned(),
        (_, Template::Raw) => "no chat template (--chat is off), thinking not set (--thinking needs --chat)".to_owned(),
        (_, Template::Chat { thinking, .. }) => {
            let thinking = thinking.map_or("left to the template", |on| if on { "on" } else { "off" });
            format!("the chat template of {target}, --thinking {thinking}")
        }
    };
    messages::warning(&format_args!(
        "the target accepts little of what is drafted: {tau:.2} tokens a round over {rounds} rounds, expected at least \
         {LOW_TAU}. Check that the drafter {drafter} was trained for the target {target}, and on prompts like this one: \
         {framing}"
    ));
}
