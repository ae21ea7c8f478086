//! A session: one loaded model on one backend, answering requests one after another.

use std::time::{Duration, Instant};

use coppice_model::{DraftModel, TargetModel};

use super::pilot::{Memory, Pilot};
use super::request::{Finish, Generation, Observer, Request, RoundRecord, Verdict};
use super::step::Step;
use super::worth::Drafting;
use crate::backend::{Backend, CacheLayer, MemoryUse, Op, Proposal, RequestSpec, Round, Sequence, SequenceSpec};
use crate::draft::{Dflash, DflashOptions};
use crate::error::{Error, Result};
use crate::layers::{Emit, Target};
use crate::stage;

/// Sizes that are fixed when a session is made.
#[derive(Debug, Clone, Copy)]
pub struct SessionOptions {
    /// Most tokens of prompt and answer together.
    pub context: usize,
    /// Prompt tokens a forward; does not change any result.
    pub prefill_chunk: usize,
    /// Largest tree budget that requests may ask for.
    pub max_budget: usize,
    /// Choices about the drafter.
    pub dflash: DflashOptions,
}

impl SessionOptions {
    /// Most rows of one forward.
    pub(crate) fn max_rows(&self) -> usize {
        self.prefill_chunk.max(self.max_budget + 1).max(1)
    }
}

/// A loaded model on a backend.
pub struct Session {
    backend: Box<dyn Backend>,
    step: Step,
    options: SessionOptions,
    vocab: usize,
    /// What the drafter costs, if there is one.
    drafting: Option<Drafting>,
    /// What rounds have cost and brought so far.
    memory: Memory,
}

/// Submits the next round, given the tokens generated so far.
type SubmitRound<'a> = dyn FnMut(&Step, &mut dyn Backend, &mut Pilot, &[u32]) + 'a;

impl Session {
    /// Uploads the weights. `loaded(n, total)` reports layers.
    ///
    /// # Errors
    /// Drafter and target do not fit each other, or the device lacks memory.
    pub fn new(
        mut backend: Box<dyn Backend>,
        target: &TargetModel,
        drafter: Option<&DraftModel>,
        options: SessionOptions,
        mut loaded: impl FnMut(usize, usize),
    ) -> Result<Self> {
        let max_rows = options.max_rows();
        let device = backend.as_mut();
        let total = target.config.num_hidden_layers;
        let vocab = target.config.vocab_size;
        if let Some(draft) = drafter {
            draft.config.check_against(&target.config)?;
        }
        let drafting = drafter.map(|drafter| Drafting::new(target, drafter));
        let target = Target::load(device, &target.config, &target.weights, max_rows, |n| loaded(n, total))?;
        let drafter = drafter
            .map(|draft| Dflash::load(device, &draft.config, &draft.weights, options.dflash, max_rows))
            .transpose()?;
        let sequence = device.sequence(&SequenceSpec {
            context: options.context,
            max_rows,
            target: target.attention(),
            draft: drafter.as_ref().map(Dflash::attention).unwrap_or_default(),
        })?;
        let step = Step {
            target,
            drafter,
            sequence,
            rows: device.rows(max_rows)?,
            accepted: device.rows(max_rows)?,
            logits: device.tensor(options.max_budget + 1, vocab)?,
        };
        Ok(Self { backend, step, options, vocab, drafting, memory: Memory::default() })
    }

    /// The backend's name.
    pub fn backend_name(&self) -> &'static str {
        self.backend.name()
    }

    /// Bytes the backend holds.
    pub fn memory(&self) -> MemoryUse {
        self.backend.memory()
    }

    /// Debug: one layer's cache of committed tokens.
    ///
    /// # Errors
    /// The backend's.
    pub fn read_cache(&mut self, layer: CacheLayer) -> Result<Vec<f32>> {
        self.backend.read_cache(self.step.sequence, layer)
    }

    /// Generates until a stop, an end-of-text token, or the length.
    ///
    /// # Errors
    /// The prompt is empty, has unknown ids, or exceeds the context; the budget exceeds the session's; no drafter is
    /// loaded for a mode that needs one; or the device failed.
    pub fn generate(&mut self, request: &Request, observer: &mut dyn Observer) -> Result<Generation> {
        self.check(request)?;
        self.run(request, observer, &mut |step, backend, pilot, _| step.round(backend, pilot.plan()))
    }

    /// As [`Session::generate`], over trees that `propose` makes from the tokens generated so far (tests and tools).
    ///
    /// # Errors
    /// As [`Session::generate`].
    pub fn generate_with_trees(
        &mut self,
        request: &Request,
        observer: &mut dyn Observer,
        mut propose: impl FnMut(&[u32]) -> Proposal,
    ) -> Result<Generation> {
        self.check(request)?;
        self.run(request, observer, &mut |step, backend, pilot, generated| {
            let follow = pilot.plan().follow;
            let proposal = {
                let _stage = stage!("propose");
                propose(generated)
            };
            step.tree(backend, proposal, follow);
        })
    }

    pub(super) fn run(
        &mut self,
        request: &Request,
        observer: &mut dyn Observer,
        submit_round: &mut SubmitRound<'_>,
    ) -> Result<Generation> {
        let _request = stage!("request");
        let start = Instant::now();
        let limit = request.max_new_tokens.min(self.options.context - request.prompt.len());
        let backend = self.backend.as_mut();
        backend.submit(Op::Begin {
            sequence: self.step.sequence,
            request: RequestSpec {
                sampling: request.sampling,
                max_new_tokens: limit,
                stop_ids: request.eos_ids.clone().into(),
            },
        });
        let mut pilot = Pilot::new(&mut self.memory, request.speculation, self.drafting);
        let mut progress = Progress { request, limit, start, generation: Generation::empty() };
        let mut ended = (limit == 0).then_some(Finish::Length);

        let prefill = stage!("prefill");
        let mut chunks = request.prompt.chunks(self.options.prefill_chunk.max(1)).peekable();
        let mut filled = 0;
        while let (None, Some(chunk)) = (ended, chunks.next()) {
            let emit = if chunks.peek().is_none() { Emit::Last } else { Emit::None };
            self.step.prompt(backend, chunk, emit, pilot.follows());
            for round in poll(backend, self.step.sequence)? {
                filled += round.prompt_tokens;
                ended = progress.take(&round, false, observer);
            }
            if ended.is_none() && observer.prefill(filled, request.prompt.len()) != Verdict::Continue {
                ended = Some(Finish::Interrupted);
            }
        }

        drop(prefill);

        let mut outstanding = 0;
        while ended.is_none() {
            let _round = stage!("round");
            // A round's time is from its submission, or from the end of the one before if that came later.
            let begun = Instant::now();
            while outstanding < backend.queue_depth() {
                submit_round(&self.step, backend, &mut pilot, &progress.generation.tokens);
                outstanding += 1;
            }
            let rounds = poll(backend, self.step.sequence)?;
            let seconds = begun.elapsed().as_secs_f64() / rounds.len() as f64;
            for round in rounds {
                outstanding -= 1;
                let drafted = pilot.ended(&round, seconds);
                if ended.is_none() {
                    ended = progress.take(&round, drafted, observer);
                }
            }
        }
        // Rounds submitted ahead of the end are no part of the answer, but must not be met by the next request.
        while outstanding > 0 {
            outstanding -= poll(backend, self.step.sequence)?.len();
        }
        Ok(progress.finish(ended.unwrap_or(Finish::Length)))
    }

    pub(super) fn check(&self, request: &Request) -> Result<()> {
        let (prompt, context) = (request.prompt.len(), self.options.context);
        if prompt == 0 {
            return Err(Error::Request("the prompt has no tokens".into()));
        }
        if prompt >= context {
            return Err(Error::Request(format!(
                "the prompt has {prompt} tokens, the context holds {context} with at least one to generate: shorten \
                 the prompt or raise --ctx"
            )));
        }
        if let Some(id) = request.prompt.iter().find(|id| **id as usize >= self.vocab) {
            return Err(Error::Request(format!("prompt token {id} is not in the vocabulary of {}", self.vocab)));
        }
        let budget = request.speculation.budget();
        if budget > self.options.max_budget {
            let most = self.options.max_budget;
            return Err(Error::Request(format!("a tree budget of {budget} exceeds this session's {most}")));
        }
        if request.speculation.needs_drafter() && self.step.drafter.is_none() {
            let mode = request.speculation.name();
            return Err(Error::Request(format!("--spec {mode} needs a drafter: name one with --draft")));
        }
        request.sampling.validate().map_err(Error::Usage)
    }
}

/// Rounds that have ended, at least one: called only while some are outstanding.
fn poll(backend: &mut dyn Backend, sequence: Sequence) -> Result<Vec<Round>> {
    let _stage = stage!("poll");
    let rounds = backend.poll(sequence)?;
    if rounds.is_empty() {
        return Err(Error::Backend { backend: backend.name(), message: "a submitted round was never reported".into() });
    }
    Ok(rounds)
}

/// A generation under way.
struct Progress<'a> {
    request: &'a Request,
    limit: usize,
    start: Instant,
    generation: Generation,
}

impl Progress<'_> {
    /// Takes the tokens of a round, `drafted` by the drafter or not; the reason if the generation ends with it.
    fn take(&mut self, round: &Round, drafted: bool, observer: &mut dyn Observer) -> Option<Finish> {
        let _stage = stage!("account");
        let generation = &mut self.generation;
        if round.idle {
            return Some(Finish::Length);
        }
        let (at, accepted) = (self.start.elapsed(), round.tokens.len());
        generation.total = at;
        if round.prompt_tokens == 0 {
            let record = RoundRecord { accepted, nodes: round.nodes, drafted, at };
            observer.round(&record);
            generation.rounds.push(record);
        } else if accepted > 0 {
            generation.first_token = at;
        }
        let room = self.limit - generation.tokens.len();
        let eos = round.tokens.iter().take(room).position(|id| self.request.eos_ids.contains(id));
        let new = &round.tokens[..eos.unwrap_or(accepted.min(room))];
        generation.tokens.extend(new);
        if !new.is_empty() {
            let verdict = {
                let _stage = stage!("deliver");
                observer.tokens(&generation.tokens, new.len())
            };
            match verdict {
                Verdict::Continue => {}
                Verdict::Stop { keep } => {
                    generation.tokens.truncate(keep);
                    return Some(Finish::Stop);
                }
                Verdict::Interrupt => return Some(Finish::Interrupted),
            }
        }
        match eos {
            Some(_) => Some(Finish::Eos),
            None => (generation.tokens.len() == self.limit).then_some(Finish::Length),
        }
    }

    fn finish(mut self, finish: Finish) -> Generation {
        self.generation.finish = finish;
        self.generation
    }
}

impl Generation {
    fn empty() -> Self {
        Self {
            tokens: Vec::new(),
            finish: Finish::Length,
            rounds: Vec::new(),
            first_token: Duration::ZERO,
            total: Duration::ZERO,
        }
    }
}
