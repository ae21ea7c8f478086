//! `generate`: a prompt in, text out as it is generated.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use super::answer::{Answer, Loaded};
use super::plan::Plan;
use super::validate::{Format, GenerateArgs, PromptSource, Template};
use super::{Outcome, interrupt, messages, output, parity};
use crate::engine::stats::{Acceptance, LOW_TAU, Timings};
use crate::engine::{Finish, Speculation};
use crate::error::Result;
use crate::report::{Build, CpuEnvironment, Environment, GenerationReport, SpeculationReport, TimingsReport};

/// Runs the command.
///
/// # Errors
/// Anything wrong with the flags, the files or the device; a closed standard output; a token that drafting changed.
pub fn run(args: &GenerateArgs) -> Result<Outcome> {
    let interrupt = interrupt::install();
    let started = Instant::now();
    let plan = Plan::new(args)?;
    let mut loaded = Loaded::new(args, &plan)?;
    let load = started.elapsed();

    let streamed: Box<dyn Write> =
        if args.format == Format::Stream { Box::new(io::stdout()) } else { Box::new(io::sink()) };
    let answer = loaded.answer(&plan, plan.request.speculation, streamed, interrupt)?;
    let report = report(args, &plan, &loaded, load, &answer);
    write(args, &report)?;

    let interrupted = answer.generation.finish == Finish::Interrupted;
    if args.stats || interrupted {
        messages::line(&report);
    }
    if interrupted {
        return Ok(Outcome::Interrupted);
    }
    if args.verify_parity {
        let plain = loaded.answer(&plan, Speculation::None, Box::new(io::sink()), interrupt)?;
        parity::check(args.device, &loaded.target, &plan.request, &plain.generation, &answer.generation)?;
    }
    Ok(Outcome::Done)
}

fn report(args: &GenerateArgs, plan: &Plan, loaded: &Loaded, load: Duration, answer: &Answer) -> GenerationReport {
    let request = &plan.request;
    let acceptance = Acceptance::new(&answer.generation, plan.depths());
    if acceptance.is_suspicious() {
        warn_of_low_acceptance(args, &acceptance);
    }
    let env = Environment {
        build: Build::of_this_process(),
        device: loaded.session.backend_name(),
        cpu: CpuEnvironment::new(args.device.threads),
        model: loaded.target_identity(),
        draft: loaded.drafter_identity(),
        seed: request.sampling.seed,
    };
    GenerationReport::new(
        &request.prompt,
        answer.text.clone(),
        &answer.generation,
        TimingsReport::new(load, &Timings::new(request.prompt.len(), &answer.generation)),
        SpeculationReport::new(request.speculation, acceptance),
        loaded.session.memory(),
        env,
    )
}

/// What standard output does not have yet, and the file.
fn write(args: &GenerateArgs, report: &GenerationReport) -> Result<()> {
    match (args.format, &report.text) {
        (Format::Json, _) => output::print_json(report)?,
        (Format::Stream, Some(text)) => output::end_line(text)?,
        (Format::Text, Some(text)) => {
            output::print(text)?;
            output::end_line(text)?;
        }
        (Format::Stream | Format::Text, None) => output::print_json(&report.token_ids)?,
    }
    match &args.output {
        Some(path) => output::write_json(report, path),
        None => Ok(()),
    }
}

/// Names what makes acceptance collapse without any error.
fn warn_of_low_acceptance(args: &GenerateArgs, acceptance: &Acceptance) {
    let tau = acceptance.tau.unwrap_or_default();
    let rounds = acceptance.lengths.len();
    let target = args.target.path().display();
    let drafter = args.draft.as_ref().map(|source| source.path().display().to_string()).unwrap_or_default();
    let framing = match (&args.prompt, &args.template) {
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
