//! `tree`: one round's draft tree, drawn.

use super::answer::Loaded;
use super::output::{self, ResultFile};
use super::plan::Plan;
use super::validate::{Drawing, TreeArgs};
use super::{Outcome, interrupt, messages};
use crate::engine::Finish;
use crate::error::{Error, Result};
use crate::report::{Glyphs, TreeReport};

/// Runs the command.
///
/// # Errors
/// Anything wrong with the flags, the files or the device; a text that ends before the round; a closed standard output.
pub fn run(args: &TreeArgs) -> Result<Outcome> {
    interrupt::install();
    let file = args.output.as_deref().map(ResultFile::open).transpose()?;
    let plan = Plan::new(&args.request)?;
    let mut loaded = Loaded::new(&args.request, &plan)?;
    let interrupted = || messages::line(&"interrupted; no tree was drawn");
    let (generation, trace) = interrupt::guard(|interrupt| loaded.trace(&plan, args.round, interrupt), interrupted)?;
    let Some(trace) = trace else {
        if generation.finish == Finish::Interrupted {
            interrupted();
            return Ok(Outcome::Interrupted);
        }
        return Err(ended_before(args.round, generation.rounds.len(), generation.finish));
    };

    let env = loaded.environment(args.request.device, plan.request.sampling.seed);
    let tokenizer = plan.tokenizer.as_ref();
    let report = TreeReport::new(&plan.request, args.round, &generation.tokens, &trace, tokenizer, env);
    let (printed, written) = match args.drawing {
        Drawing::Text => (report.text(if output::shows_unicode() { Glyphs::UNICODE } else { Glyphs::ASCII }), None),
        Drawing::Json => (output::json(&report)?, None),
        Drawing::Dot => (report.dot(), Some(report.dot())),
    };
    match (&file, written) {
        (Some(file), Some(dot)) => file.write(dot.as_bytes())?,
        (Some(file), None) => file.write_json(&report)?,
        (None, _) => {}
    }
    output::print(&printed)?;
    Ok(Outcome::Done)
}

fn ended_before(round: usize, rounds: usize, finish: Finish) -> Error {
    let remedy = match finish {
        Finish::Eos => "choose an earlier one, or add --ignore-eos",
        _ => "choose an earlier one",
    };
    let finish = finish.name();
    Error::Request(format!("the text ended ({finish}) with round {rounds}, expected --round {round}: {remedy}"))
}
