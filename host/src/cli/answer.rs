//! A loaded model and the answers it gives, with bars, Ctrl-C and the text's way out.

use std::io::Write;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use coppice_model::{DraftModel, TargetModel};

use super::model;
use super::plan::Plan;
use super::progress::Progress;
use super::validate::GenerateArgs;
use crate::engine::{Finish, Generation, Observer, Request, Session, Speculation, TextObserver, Verdict};
use crate::error::{Error, Result};
use crate::report::ModelIdentity;

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

impl Loaded {
    /// Reads the weights.
    ///
    /// # Errors
    /// Anything wrong with the files or the device.
    pub fn new(args: &GenerateArgs, plan: &Plan) -> Result<Self> {
        let target = TargetModel::load(&args.target)?;
        let drafter = args.draft.as_ref().map(DraftModel::load).transpose()?;
        let backend = model::backend(args.device)?;
        let mut bar = Progress::new("loading", "layers");
        let session = Session::new(backend, &target, drafter.as_ref(), plan.options, |n, total| bar.set(n, total))?;
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
        interrupt: &AtomicBool,
    ) -> Result<Answer> {
        let request = Request { speculation, ..plan.request.clone() };
        let bar = Progress::new("reading the prompt", "tokens");
        let Some(tokenizer) = &plan.tokenizer else {
            let mut watch = Watch { inner: &mut (), bar, interrupt };
            let generation = self.session.generate(&request, &mut watch)?;
            return Ok(Answer { generation, text: None });
        };
        let mut observer = TextObserver::new(tokenizer, &plan.stops, out);
        let generation = self.session.generate(&request, &mut Watch { inner: &mut observer, bar, interrupt });
        let written = observer.finish();
        let mut generation = generation?;
        let written = written.map_err(Error::Output)?;
        if let Some(keep) = written.stopped {
            generation.tokens.truncate(keep);
            generation.finish = Finish::Stop;
        }
        Ok(Answer { generation, text: Some(written.text) })
    }

    /// Which checkpoint the target is.
    pub fn target_identity(&self) -> ModelIdentity {
        identity(&self.target.path, &self.target.fingerprint)
    }

    /// Which checkpoint the drafter is, where one is loaded.
    pub fn drafter_identity(&self) -> Option<ModelIdentity> {
        self.drafter.as_ref().map(|drafter| identity(&drafter.path, &drafter.fingerprint))
    }
}

fn identity(path: &Path, fingerprint: &str) -> ModelIdentity {
    ModelIdentity { path: path.display().to_string(), fingerprint: fingerprint.to_owned() }
}

/// Shows the prompt's progress and ends the generation on Ctrl-C; the tokens go to another observer.
struct Watch<'a> {
    inner: &'a mut dyn Observer,
    bar: Progress,
    interrupt: &'a AtomicBool,
}

impl Watch<'_> {
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

    fn tokens(&mut self, generated: &[u32], new: usize) -> Verdict {
        let verdict = self.inner.tokens(generated, new);
        self.or_interrupt(verdict)
    }
}
