//! The run: warm-up, then repeats with all arms interleaved.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use super::matrix::{Case, Matrix};
use super::metrics::{Measured, Watch};
use super::prompts::Prompt;
use super::row::{Repeats, Row, Sample};
use crate::backend::{Meter, Work};
use crate::engine::{Drafts, Finish, Generation, Observer, Request, Session, Speculation};
use crate::error::{Error, Result};
use crate::sampling::Sampling;

/// What generates. A session with a drafter keeps the drafter's context up to date in every mode; arms that draft without it
/// must not pay for that, so there may be two.
pub trait Engine {
    /// Generates by `request`.
    ///
    /// # Errors
    /// Those of [`Session::generate`].
    fn generate(&mut self, request: &Request, observer: &mut dyn Observer) -> Result<Generation>;

    /// Bytes held for generations by `speculation`.
    fn device_bytes(&self, speculation: Speculation) -> usize;

    /// Takes note of the rounds from here on, by `speculation` alone.
    fn start_meter(&mut self, speculation: Speculation);

    /// What the rounds did since [`Engine::start_meter`].
    fn stop_meter(&mut self) -> Work;

    /// Depth of the deepest tree that `speculation` can draft; 0 where that is not known.
    fn depths(&self, speculation: Speculation) -> usize;
}

/// Sessions for arms with and without a drafter.
pub struct Sessions {
    /// Without a drafter.
    pub plain: Session,
    /// With one, if an arm needs it, and the size of its block.
    pub drafted: Option<(Session, usize)>,
    /// Of both.
    pub meter: Arc<Meter>,
}

/// Whether generations by `speculation` may use the drafter.
fn uses_drafter(speculation: Speculation) -> bool {
    speculation.needs_drafter() || speculation == Speculation::Auto(Drafts::Any)
}

impl Engine for Sessions {
    fn generate(&mut self, request: &Request, observer: &mut dyn Observer) -> Result<Generation> {
        match &mut self.drafted {
            Some((session, _)) if uses_drafter(request.speculation) => session.generate(request, observer),
            _ => self.plain.generate(request, observer),
        }
    }

    fn device_bytes(&self, speculation: Speculation) -> usize {
        let session = match &self.drafted {
            Some((session, _)) if uses_drafter(speculation) => session,
            _ => &self.plain,
        };
        let memory = session.memory();
        memory.weights + memory.cache + memory.buffers
    }

    fn start_meter(&mut self, _: Speculation) {
        self.meter.start();
    }

    fn stop_meter(&mut self) -> Work {
        self.meter.stop()
    }

    fn depths(&self, speculation: Speculation) -> usize {
        match &self.drafted {
            Some((_, block)) if uses_drafter(speculation) => (block - 1).min(speculation.budget()),
            _ => 0,
        }
    }
}

/// How a matrix is measured.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// Measurements of everything.
    pub repeats: usize,
    /// Generations that each arm makes before a case's first measurement.
    pub warmup: usize,
    /// Token choice; the case has the temperature.
    pub sampling: Sampling,
    /// Bytes a second that memory gives.
    pub read_ceiling: f64,
}

impl Plan {
    /// Generations of a run over cases of so many prompts each.
    pub fn generations(&self, matrix: &Matrix, prompts: &[Vec<Prompt>]) -> usize {
        // The metered pass is one more.
        let each = |prompts: &Vec<Prompt>| self.warmup + (self.repeats + 1) * prompts.len();
        matrix.arms.len() * prompts.iter().map(each).sum::<usize>()
    }
}

/// The rows of the cases that were finished.
#[derive(Debug)]
pub struct Measurement {
    /// In the order of the cases, and of the arms in each.
    pub rows: Vec<Row>,
    /// Ctrl-C came before the last case was finished.
    pub interrupted: bool,
}

/// Who looks on.
pub struct Watchers<'a> {
    /// Ctrl-C.
    pub interrupt: &'a AtomicBool,
    /// So many generations have ended.
    pub ended: &'a mut dyn FnMut(usize),
    /// A case is finished; its rows.
    pub finished: &'a mut dyn FnMut(&[Row]),
}

/// Measures `matrix` over the prompts of each case.
///
/// # Errors
/// The engine's, or a generation that ended before its length.
pub fn run(
    engine: &mut dyn Engine,
    matrix: &Matrix,
    prompts: &[Vec<Prompt>],
    plan: Plan,
    watchers: &mut Watchers<'_>,
) -> Result<Measurement> {
    let (mut rows, mut done) = (Vec::new(), 0);
    for (case, prompts) in matrix.cases.iter().zip(prompts) {
        let Watchers { interrupt, ended, finished } = watchers;
        let measured = measure_case(engine, case, &matrix.arms, prompts, plan, interrupt, &mut || {
            done += 1;
            ended(done);
        })?;
        let Some(measured) = measured else {
            return Ok(Measurement { rows, interrupted: true });
        };
        let ids: Vec<String> = prompts.iter().map(|prompt| prompt.id.clone()).collect();
        let first = rows.len();
        for (arm, (repeats, work)) in matrix.arms.iter().zip(&measured) {
            let (depths, bytes) = (engine.depths(*arm), engine.device_bytes(*arm));
            let sample = Sample { repeats, work, read_ceiling: plan.read_ceiling };
            let row = Row::new(*case, *arm, &ids, sample, rows.get(first), depths, bytes);
            rows.push(row);
        }
        finished(&rows[first..]);
    }
    Ok(Measurement { rows, interrupted: false })
}

/// The repeats of each arm, then one pass more with the meter on, whose time does not count; `None` after Ctrl-C.
fn measure_case(
    engine: &mut dyn Engine,
    case: &Case,
    arms: &[Speculation],
    prompts: &[Prompt],
    plan: Plan,
    interrupt: &AtomicBool,
    ended: &mut dyn FnMut(),
) -> Result<Option<Vec<(Repeats, Work)>>> {
    let mut measure = |engine: &mut dyn Engine, arm: Speculation, prompt: &Prompt| -> Result<Option<Measured>> {
        let measured = generate(engine, case, arm, prompt, plan.sampling, interrupt)?;
        ended();
        // An answer that came while Ctrl-C did is complete, but the case no longer will be.
        Ok(measured.filter(|_| !interrupt.load(Ordering::Relaxed)))
    };
    for _ in 0..plan.warmup {
        for arm in arms {
            if measure(engine, *arm, &prompts[0])?.is_none() {
                return Ok(None);
            }
        }
    }
    let mut repeats: Vec<Repeats> = vec![Vec::new(); arms.len()];
    for number in 0..plan.repeats {
        repeats.iter_mut().for_each(|arm| arm.push(Vec::new()));
        for prompt in prompts {
            // Every second repeat goes through the arms backwards, so that no arm always follows the same one.
            for step in 0..arms.len() {
                let index = if number % 2 == 0 { step } else { arms.len() - 1 - step };
                let Some(measured) = measure(engine, arms[index], prompt)? else {
                    return Ok(None);
                };
                repeats[index][number].push(measured);
            }
        }
    }
    let mut measured = Vec::new();
    for (arm, repeats) in arms.iter().zip(repeats) {
        engine.start_meter(*arm);
        for prompt in prompts {
            if measure(engine, *arm, prompt)?.is_none() {
                engine.stop_meter();
                return Ok(None);
            }
        }
        measured.push((repeats, engine.stop_meter()));
    }
    Ok(Some(measured))
}

/// One generation; `None` if Ctrl-C ended it.
fn generate(
    engine: &mut dyn Engine,
    case: &Case,
    arm: Speculation,
    prompt: &Prompt,
    sampling: Sampling,
    interrupt: &AtomicBool,
) -> Result<Option<Measured>> {
    let request = Request {
        prompt: prompt.tokens.clone(),
        max_new_tokens: case.max_tokens,
        sampling: Sampling { temperature: case.temperature, ..sampling },
        speculation: arm,
        // Every row generates its full length.
        eos_ids: Vec::new(),
    };
    let started = Instant::now();
    let elapsed = || started.elapsed();
    let mut watch = Watch::new(case.depth, &elapsed, interrupt);
    let generation = engine.generate(&request, &mut watch)?;
    match generation.finish {
        Finish::Interrupted => Ok(None),
        _ if generation.tokens.len() == case.max_tokens => {
            Ok(Some(Measured::new(&generation, prompt.tokens.len() - case.depth, watch.filled())))
        }
        _ => Err(Error::Request(format!(
            "{case}: prompt {} gave {} tokens, expected {}",
            prompt.id,
            generation.tokens.len(),
            case.max_tokens
        ))),
    }
}

#[cfg(test)]
mod tests {
    use super::super::matrix::{Lists, PromptLength};
    use super::super::metrics::tests::generation;
    use super::*;

    /// Takes 10 ms a round, or 5 ms where it drafts; raises Ctrl-C at generation `interrupt_at`.
    struct Synthetic<'a> {
        calls: Vec<(Speculation, usize, f32)>,
        interrupt_at: usize,
        interrupt: &'a AtomicBool,
        /// Rounds since the meter was started.
        metered: usize,
    }

    impl Engine for Synthetic<'_> {
        fn generate(&mut self, request: &Request, observer: &mut dyn Observer) -> Result<Generation> {
            self.calls.push((request.speculation, request.prompt.len(), request.sampling.temperature));
            if self.calls.len() == self.interrupt_at {
                self.interrupt.store(true, Ordering::Relaxed);
            }
            let ms = if request.speculation == Speculation::None { 10 } else { 5 };
            let rounds = vec![(1, ms); request.max_new_tokens - 1];
            self.metered += rounds.len();
            let mut generation = generation(request.max_new_tokens, 50, &rounds);
            if observer.tokens(&generation.tokens, 1) != crate::engine::Verdict::Continue {
                generation.finish = Finish::Interrupted;
            }
            Ok(generation)
        }

        fn device_bytes(&self, _: Speculation) -> usize {
            1
        }

        fn start_meter(&mut self, _: Speculation) {
            self.metered = 0;
        }

        fn stop_meter(&mut self) -> Work {
            Work { rounds: self.metered, bytes: 1000 * self.metered as u64, ..Work::default() }
        }

        fn depths(&self, speculation: Speculation) -> usize {
            speculation.budget()
        }
    }

    fn measure(interrupt_at: usize) -> (Measurement, Vec<(Speculation, usize, f32)>, usize) {
        let arms = [Speculation::Ngram { budget: 2 }];
        let matrix = Matrix::new(Lists {
            prompts: &[PromptLength::Whole],
            max_tokens: &[4],
            depths: &[0],
            temperatures: &[0.0, 0.5],
            arms: &arms,
        });
        let prompt = |tokens: usize| Prompt { id: format!("p{tokens}"), tokens: vec![1; tokens] };
        let prompts = vec![vec![prompt(2), prompt(3)]; 2];
        let plan = Plan { repeats: 2, warmup: 1, sampling: Sampling::GREEDY, read_ceiling: 1e6 };
        let interrupt = AtomicBool::new(false);
        let mut engine = Synthetic { calls: Vec::new(), interrupt_at, interrupt: &interrupt, metered: 0 };
        let mut done = 0;
        let mut finished = Vec::new();
        let mut watchers = Watchers {
            interrupt: &interrupt,
            ended: &mut |n| done = n,
            finished: &mut |rows| finished.extend_from_slice(rows),
        };
        let measured = run(&mut engine, &matrix, &prompts, plan, &mut watchers).unwrap();
        assert_eq!(finished, measured.rows);
        assert_eq!(plan.generations(&matrix, &prompts), 28);
        (measured, engine.calls, done)
    }

    #[test]
    fn arms_are_interleaved_prompt_by_prompt_and_reversed_every_other_repeat() {
        let (measured, calls, done) = measure(0);
        let (none, ngram) = (Speculation::None, Speculation::Ngram { budget: 2 });
        let of_a_case = [
            (none, 2),
            (ngram, 2),
            (none, 2),
            (ngram, 2),
            (none, 3),
            (ngram, 3),
            (ngram, 2),
            (none, 2),
            (ngram, 3),
            (none, 3),
            (none, 2),
            (none, 3),
            (ngram, 2),
            (ngram, 3),
        ];
        let want: Vec<_> =
            [0.0, 0.5].iter().flat_map(|temp| of_a_case.map(|(arm, length)| (arm, length, *temp))).collect();
        assert_eq!(calls, want);
        assert_eq!((measured.rows.len(), measured.interrupted, done), (4, false, 28));
        let speedups: Vec<_> = measured.rows.iter().map(|row| row.speedup.unwrap()).collect();
        assert_eq!(speedups, [1.0, 2.0, 1.0, 2.0]);
        assert!(measured.rows.iter().all(|row| row.repeats_agree && row.agrees_with_plain));
        assert_eq!(measured.rows[0].decode_tok_s.as_ref().unwrap().samples.len(), 2);
    }

    #[test]
    fn c6_ctrl_c_leaves_the_rows_of_finished_cases() {
        for (at, rows) in [(1, 0), (3, 0), (9, 0), (14, 0), (15, 2), (28, 2)] {
            let (measured, calls, _) = measure(at);
            assert_eq!((measured.rows.len(), measured.interrupted, calls.len()), (rows, true, at), "at {at}");
        }
    }

    #[test]
    fn a_text_that_ends_early_is_an_error() {
        struct Short;
        impl Engine for Short {
            fn generate(&mut self, _: &Request, _: &mut dyn Observer) -> Result<Generation> {
                Ok(generation(2, 1, &[(1, 1)]))
            }
            fn device_bytes(&self, _: Speculation) -> usize {
                0
            }
            fn depths(&self, _: Speculation) -> usize {
                0
            }
            fn start_meter(&mut self, _: Speculation) {}
            fn stop_meter(&mut self) -> Work {
                Work::default()
            }
        }
        let case = Case { prompt: PromptLength::Whole, depth: 0, max_tokens: 4, temperature: 0.0 };
        let prompt = Prompt { id: "p".to_owned(), tokens: vec![1] };
        let interrupt = AtomicBool::new(false);
        let error = generate(&mut Short, &case, Speculation::None, &prompt, Sampling::GREEDY, &interrupt).unwrap_err();
        assert!(error.to_string().contains("prompt p gave 2 tokens, expected 4"), "{error}");
    }
}
