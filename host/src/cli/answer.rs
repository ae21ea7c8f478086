//! A loaded model and the answers it gives, with bars, Ctrl-C and the text's way out.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use coppice_model::{DraftModel, TargetModel};

use super::model;
use super::plan::Plan;
use super::progress::Progress;
use super::validate::{DeviceArgs, RequestArgs};
use crate::engine::{
    Finish, Generation, Observer, Request, RoundRecord, RoundTrace, Session, Speculation, TextObserver, Verdict,
};
use crate::error::{Error, Result};
use crate::report::{Build, CpuEnvironment, Environment, ModelIdentity};

/// A model whose weights are on the device.
pub struct Loaded {
    /// The target's configuration and weights.
    pub target: TargetModel,
    /// What answers.
    pub session: Session,
    drafter: Option<DraftModel>,
}

/// What was generated.
pub struct Answer {
    /// The tokens, cut to what the text needs.
    pub generation: Generation,
    /// The text; `None` without a tokenizer.
    pub text: Option<String>,
}

/// What of an answer is certain while it is under way, for whoever cannot wait for its end.
#[derive(Debug)]
pub struct SoFar(Mutex<Generation>);

impl Default for SoFar {
    fn default() -> Self {
        Self(Mutex::new(Generation {
            tokens: Vec::new(),
            finish: Finish::Interrupted,
            rounds: Vec::new(),
            first_token: Duration::ZERO,
            total: Duration::ZERO,
        }))
    }
}

impl SoFar {
    /// The answer as if it had been interrupted now.
    pub fn answer(&self, plan: &Plan) -> Answer {
        let generation = self.lock().clone();
        let text = plan.tokenizer.as_ref().map(|tokenizer| tokenizer.decode(&generation.tokens, true));
        Answer { generation, text }
    }

    fn lock(&self) -> MutexGuard<'_, Generation> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Loaded {
    /// Reads the weights.
    ///
    /// # Errors
    /// Anything wrong with the files or the device.
    pub fn new(args: &RequestArgs, plan: &Plan) -> Result<Self> {
        let target = model::target(&args.target)?;
        let drafter = args.draft.as_ref().map(DraftModel::load).transpose()?;
        let session = model::session(args.device, None, &target, drafter.as_ref(), plan.options)?;
        Ok(Self { target, session, drafter })
    }

    /// Generates what `plan` asks for by `speculation`. Text goes to `out` as it becomes certain.
    ///
    /// # Errors
    /// The device failed, or `out`; text that was generated before a failure has been written.
    pub fn answer(
        &mut self,
        plan: &Plan,
        speculation: Speculation,
        out: Box<dyn Write>,
        so_far: &SoFar,
        interrupt: &AtomicBool,
    ) -> Result<Answer> {
        let request = Request { speculation, ..plan.request.clone() };
        let Some(tokenizer) = &plan.tokenizer else {
            let generation = self.generate(&request, &mut Watch::new(&mut (), so_far, interrupt))?;
            return Ok(Answer { generation, text: None });
        };
        let mut observer = TextObserver::new(tokenizer, &plan.stops, out);
        let generation = self.generate(&request, &mut Watch::new(&mut observer, so_far, interrupt));
        let written = observer.finish();
        let mut generation = generation?;
        let written = written.map_err(Error::Output)?;
        if let Some(keep) = written.stopped {
            generation.tokens.truncate(keep);
            generation.finish = Finish::Stop;
        }
        Ok(Answer { generation, text: Some(written.text) })
    }

    /// Generates up to the end of round `round`, the first being 1, and reads its tree; `None` if the text ended before.
    ///
    /// # Errors
    /// The device failed.
    pub fn trace(
        &mut self,
        plan: &Plan,
        round: usize,
        interrupt: &AtomicBool,
    ) -> Result<(Generation, Option<RoundTrace>)> {
        let so_far = SoFar::default();
        let mut inner = ();
        let mut watch = Watch::new(&mut inner, &so_far, interrupt);
        let traced = self.session.trace_round(&plan.request, &mut watch, round);
        traced.map_err(|error| error.of_model(&self.target.path))
    }

    fn generate(&mut self, request: &Request, watch: &mut Watch) -> Result<Generation> {
        self.session.generate(request, watch).map_err(|error| error.of_model(&self.target.path))
    }

    /// What the answers depend on besides the request.
    pub fn environment(&self, device: DeviceArgs, seed: u64) -> Environment {
        Environment {
            build: Build::of_this_process(),
            device: self.session.backend_name(),
            cpu: CpuEnvironment::new(device.threads),
            model: identity(&self.target.path, &self.target.fingerprint),
            draft: self.drafter.as_ref().map(|drafter| identity(&drafter.path, &drafter.fingerprint)),
            seed,
        }
    }
}

fn identity(path: &Path, fingerprint: &str) -> ModelIdentity {
    ModelIdentity { path: path.display().to_string(), fingerprint: fingerprint.to_owned() }
}

/// Shows the prompt's progress, keeps what has come so far, and ends the generation on Ctrl-C; the tokens go to another
/// observer.
struct Watch<'a> {
    inner: &'a mut dyn Observer,
    bar: Progress,
    started: Instant,
    so_far: &'a SoFar,
    interrupt: &'a AtomicBool,
}

impl<'a> Watch<'a> {
    /// Of a generation that starts now.
    fn new(inner: &'a mut dyn Observer, so_far: &'a SoFar, interrupt: &'a AtomicBool) -> Self {
        let bar = Progress::new("reading the prompt", "tokens");
        Self { inner, bar, started: Instant::now(), so_far, interrupt }
    }

    fn or_interrupt(&self, verdict: Verdict) -> Verdict {
        if verdict == Verdict::Continue && self.interrupt.load(Ordering::Relaxed) {
            Verdict::Interrupt
        } else {
            verdict
        }
    }
}

impl Observer for Watch<'_> {
    fn prefill(&mut self, done: usize, total: usize) -> Verdict {
        self.bar.set(done, total);
        let verdict = self.inner.prefill(done, total);
        self.or_interrupt(verdict)
    }

    fn round(&mut self, record: &RoundRecord) {
        self.so_far.lock().rounds.push(*record);
        self.inner.round(record);
    }

    fn tokens(&mut self, generated: &[u32], new: usize) -> Verdict {
        let mut so_far = self.so_far.lock();
        so_far.total = self.started.elapsed();
        if so_far.tokens.is_empty() {
            so_far.first_token = so_far.total;
        }
        so_far.tokens.extend(&generated[generated.len() - new..]);
        drop(so_far);
        let verdict = self.inner.tokens(generated, new);
        self.or_interrupt(verdict)
    }
}
