//! A sequence on a place: its caches and state, which kernels keep, and the reports of its rounds.

use std::collections::VecDeque;

use coppice_gpu::round::{
    Accept, MAX_STOPS, NgramMemory, RECORD_WORDS, RoundRecord, STATE_WORDS, SequenceState, VerdictLayout,
};
use cuda_std::{Bf16, Global, GlobalMut};

use super::super::{Memory, Place, Ring, error};
use super::draft::DraftCache;
use crate::backend::{Mla, RequestSpec, Round};
use crate::error::{NOT_A_NUMBER, Result};

/// Rounds whose reports the ring holds.
const SLOTS: usize = 16;

/// A sequence.
#[derive(Debug)]
pub(super) struct Sequence {
    pub context: usize,
    pub max_rows: usize,
    /// Attention of the target's layers.
    pub target: Vec<Mla>,
    /// Caches of all layers, one after the other.
    pub cache: Memory<'static, Bf16>,
    /// Caches of the drafter's layers.
    pub draft: Vec<DraftCache>,
    /// Slots of a layer's cache, and elements of a slot.
    pub slots: usize,
    pub stride: usize,
    pub state: Memory<'static, u32>,
    pub verdict: Memory<'static, u32>,
    pub history: Memory<'static, u32>,
    /// Tokens of a prompt chunk, and how many.
    pub chunk: Memory<'static, u32>,
    pub chunk_len: Memory<'static, u32>,
    /// Nodes of a tree that the host made, and their parents.
    pub given: [Memory<'static, u32>; 2],
    /// Costs of a round of 0, 1, .. nodes, and how far the drafter is trusted, where a budget is chosen.
    pub costs: Memory<'static, f32>,
    pub trust: Memory<'static, f32>,
    /// What prompt lookup has learned.
    pub ngram: Memory<'static, u32>,
    /// The token chosen after each row.
    pub choices: Memory<'static, u32>,
    /// What the last walk accepts, until its commit.
    pub walked: Option<Accept>,
    ring: Ring<'static>,
    begun: bool,
    /// Prompt tokens taken so far.
    prompted: usize,
    /// Number of the next round.
    next: u32,
    /// Rounds submitted and not yet read.
    outstanding: usize,
    ready: VecDeque<Round>,
}

impl Sequence {
    pub fn new(
        place: Place<'static>,
        (context, max_rows): (usize, usize),
        target: Vec<Mla>,
        stride: usize,
        draft: Vec<DraftCache>,
    ) -> Result<Self> {
        let slots = context + max_rows;
        let capacity = max_rows as u32;
        Ok(Self {
            context,
            max_rows,
            cache: place.zeroed("latent caches", target.len() * slots * stride)?,
            target,
            draft,
            slots,
            stride,
            state: place.state("sequence state", &SequenceState::new(0, 0).words())?,
            verdict: place.zeroed("verdict", VerdictLayout::words(capacity) as usize)?,
            history: place.zeroed("history", slots + 1)?,
            chunk: place.zeroed("prompt chunk", max_rows)?,
            chunk_len: place.zeroed("length of the prompt chunk", 1)?,
            given: [place.zeroed("given tokens", max_rows)?, place.zeroed("given parents", max_rows)?],
            costs: place.zeroed("costs of a round", max_rows)?,
            trust: place.zeroed("trust", 1)?,
            ngram: place.state("prompt lookup", &NgramMemory::initial())?,
            choices: place.zeroed("choices", max_rows)?,
            ring: place.ring(SLOTS * RoundRecord::slot_words(capacity) as usize)?,
            walked: None,
            begun: false,
            prompted: 0,
            next: 0,
            outstanding: 0,
            ready: VecDeque::new(),
        })
    }

    /// Bytes of the caches.
    pub fn cache_bytes(&self) -> usize {
        self.cache.bytes() + self.draft.iter().map(DraftCache::bytes).sum::<usize>()
    }

    /// Bytes of everything else.
    pub fn buffer_bytes(&self) -> usize {
        let [tokens, parents] = &self.given;
        let all = [
            &self.state,
            &self.verdict,
            &self.history,
            &self.chunk,
            &self.chunk_len,
            &self.choices,
            &self.ngram,
            tokens,
            parents,
        ];
        all.iter().map(|memory| memory.bytes()).sum::<usize>() + self.costs.bytes() + self.trust.bytes()
    }

    /// Starts a request: what earlier ones left in the caches lies past the context.
    pub fn begin(&mut self, request: &RequestSpec) -> Result<()> {
        let [context, new] = [self.context, request.max_new_tokens.min(self.context + 1)].map(|n| n as u32);
        let stops = &request.stop_ids;
        let Some(state) = SequenceState::new(context, new).with_stops(stops) else {
            return Err(error(format!("there are {} stop tokens, expected at most {MAX_STOPS}", stops.len())));
        };
        let sampling = &request.sampling;
        let state = SequenceState {
            top_k: u32::try_from(sampling.top_k).unwrap_or(u32::MAX),
            seed: [sampling.seed as u32, (sampling.seed >> 32) as u32],
            temperature: sampling.temperature,
            top_p: sampling.top_p,
            min_p: sampling.min_p,
            ..state
        };
        self.state.write(&state.words())?;
        self.ngram.write(&NgramMemory::initial())?;
        self.ring.clear()?;
        self.ready.clear();
        (self.begun, self.next, self.outstanding, self.prompted) = (true, 0, 0, 0);
        self.walked = None;
        Ok(())
    }

    /// Takes a chunk of the prompt from the host.
    pub fn take_prompt(&mut self, ids: &[u32]) -> Result<()> {
        let Self { context, max_rows, prompted, .. } = *self;
        if prompted + ids.len() > context {
            let tokens = ids.len();
            return Err(error(format!("{tokens} tokens after {prompted} do not fit a context of {context}")));
        }
        if ids.is_empty() || ids.len() > max_rows {
            return Err(error(format!("a prompt chunk has {} tokens, expected 1 to {max_rows}", ids.len())));
        }
        self.prompted += ids.len();
        self.chunk.write(ids)?;
        self.chunk_len.write(&[ids.len() as u32])
    }

    /// Takes a tree from the host.
    pub fn take_tree(&mut self, tokens: &[u32], parents: &[u32]) -> Result<()> {
        if tokens.len() != parents.len() || tokens.len() >= self.max_rows {
            let (nodes, others, most) = (tokens.len(), parents.len(), self.max_rows - 1);
            return Err(error(format!(
                "a tree has {nodes} tokens and {others} parents, expected the same up to {most}"
            )));
        }
        if let Some(node) = parents.iter().enumerate().position(|(node, parent)| *parent as usize > node) {
            return Err(error(format!("node {} has parent {}, expected an earlier row", node + 1, parents[node])));
        }
        let [own_tokens, own_parents] = &mut self.given;
        own_tokens.write(tokens)?;
        own_parents.write(parents)
    }

    /// Fails unless a request was begun.
    pub fn check_begun(&self) -> Result<()> {
        if self.begun { Ok(()) } else { Err(error("the sequence was never begun".to_owned())) }
    }

    /// Takes what a budget is chosen by.
    pub fn take_costs(&mut self, costs: &[f32], trust: f32) -> Result<()> {
        if costs.len() > self.max_rows {
            let (found, most) = (costs.len(), self.max_rows);
            return Err(error(format!("there are costs of {found} budgets, expected at most {most}")));
        }
        self.costs.write(costs)?;
        self.trust.write(&[trust])
    }

    /// The state, for kernels.
    pub fn state_ptr(&self) -> GlobalMut<SequenceState> {
        self.state.ptr_mut().cast()
    }

    /// The ring, its slots, and words of a slot.
    pub fn ring(&self) -> (GlobalMut<u32>, u32, u32) {
        (self.ring.ptr_mut(), SLOTS as u32, RoundRecord::slot_words(self.max_rows as u32))
    }

    /// Where rows were, and where they go: start, path and length, for the kernel that moves them.
    pub fn moves(&self, start: u32) -> [Global<u32>; 3] {
        [start, VerdictLayout::PATH, VerdictLayout::LENGTH].map(|word| self.verdict.ptr().add(word as usize))
    }

    /// This layer's cache.
    pub fn layer(&self, layer: usize) -> GlobalMut<Bf16> {
        self.cache.ptr_mut().add(layer * self.slots * self.stride)
    }

    /// Context tokens, as the device has them.
    pub fn len(&self) -> Result<usize> {
        let words = self.state.to_vec()?;
        let words: [u32; STATE_WORDS] =
            words.try_into().map_err(|_| error("the sequence's state has another size".to_owned()))?;
        Ok(SequenceState::from_words(words).len as usize)
    }

    /// Takes note of a round that was submitted; waits for the oldest if the ring is full.
    ///
    /// # Errors
    /// Those of [`wait`](Self::wait).
    pub fn submitted(&mut self, place: Place<'static>) -> Result<()> {
        self.next += 1;
        self.outstanding += 1;
        if self.outstanding == SLOTS {
            self.wait(place)?;
        }
        Ok(())
    }

    /// Rounds that have ended, at least one where any is outstanding.
    ///
    /// # Errors
    /// A kernel failed, or the logits of a row held NaN.
    pub fn take(&mut self, place: Place<'static>) -> Result<Vec<Round>> {
        if self.ready.is_empty() && self.outstanding > 0 {
            self.wait(place)?;
        }
        while self.outstanding > 0 && self.ring.number(self.slot_of_oldest())? == self.oldest() {
            self.wait(place)?;
        }
        Ok(self.ready.drain(..).collect())
    }

    /// Number of the oldest outstanding round's record.
    fn oldest(&self) -> u32 {
        self.next - self.outstanding as u32 + 1
    }

    fn slot_of_oldest(&self) -> usize {
        (self.oldest() as usize - 1) % SLOTS * RoundRecord::slot_words(self.max_rows as u32) as usize
    }

    /// Waits for the oldest outstanding round and reads its report.
    fn wait(&mut self, place: Place<'static>) -> Result<()> {
        let at = self.slot_of_oldest();
        self.ring.wait(place, at, self.oldest())?;
        let words = self.ring.read(at, RECORD_WORDS)?;
        let words: [u32; RECORD_WORDS] =
            words.try_into().map_err(|_| error("a round's report has another size".to_owned()))?;
        let record = RoundRecord::from_words(words);
        self.outstanding -= 1;
        if record.flags & RoundRecord::FAULT != 0 {
            let (row, len) = (record.row, record.len);
            return Err(error(format!(
                "walk: logits of row {row}, after {len} context tokens, hold NaN, expected numbers; {NOT_A_NUMBER}"
            )));
        }
        self.ready.push_back(Round {
            tokens: self.ring.read(at + RECORD_WORDS, record.tokens as usize)?,
            prompt_tokens: record.prompt_tokens as usize,
            nodes: record.nodes as usize,
            promised: record.promised,
            idle: record.flags & RoundRecord::IDLE != 0,
        });
        Ok(())
    }
}
