//! A sequence's state: its tokens, what ends it, the rounds it reports. The caches' contents belong to `mla` and
//! `draft_attention`.

use std::collections::VecDeque;

use super::draft_attention::DraftCache;
use super::mla::MlaCache;
use super::state::RowSet;
use crate::backend::{Budget, DraftAttention, Mla, Proposal, RequestSpec, Round, RowValues};
use crate::draft::{Odds, ngram};
use crate::error::NOT_A_NUMBER;
use crate::sampling::draw;
use crate::tree::{BestFirst, Candidates, Tree, best_budget, best_first, chain, from_nodes, walk};

/// Lengths of the latest tokens that the n-gram drafter looks up, longest first.
const NGRAM: std::ops::RangeInclusive<usize> = 1..=3;

/// The longest match it looks for where it judges matches by their length.
const LONGEST_MATCH: usize = 8;

/// A sequence.
#[derive(Debug)]
pub(super) struct SequenceState {
    /// Most context tokens.
    context: usize,
    max_rows: usize,
    /// Caches of the target's layers.
    pub(super) target: Vec<(Mla, MlaCache)>,
    /// Caches of the drafter's layers.
    pub(super) draft: Vec<(DraftAttention, DraftCache)>,
    request: Option<RequestSpec>,
    /// Committed tokens: the context's, then the root if there is one.
    history: Vec<u32>,
    /// Context tokens.
    len: usize,
    /// Tokens chosen since the request began.
    produced: usize,
    done: bool,
    verdict: Option<Verdict>,
    rounds: VecDeque<Round>,
    /// How often matches were right, and the one of this round.
    odds: Odds,
    matched: Option<ngram::Match>,
    /// What the probabilities of this round's nodes add up to.
    promised: f32,
}

/// What a walk decided and a commit carries out.
#[derive(Debug)]
struct Verdict {
    /// Accepted rows, ascending.
    path: Vec<usize>,
    /// The token after them, where one was chosen.
    next: Option<u32>,
    /// The rows are a chunk of the prompt.
    prompt: bool,
}

impl SequenceState {
    /// A sequence that no request has begun.
    pub(super) fn new(
        context: usize,
        max_rows: usize,
        target: Vec<(Mla, MlaCache)>,
        draft: Vec<(DraftAttention, DraftCache)>,
    ) -> Self {
        Self {
            context,
            max_rows,
            target,
            draft,
            request: None,
            history: Vec::new(),
            len: 0,
            produced: 0,
            done: false,
            verdict: None,
            rounds: VecDeque::new(),
            odds: Odds::default(),
            matched: None,
            promised: 0.0,
        }
    }

    /// Cached context tokens.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Rounds that ended since the last call, oldest first.
    pub(super) fn take_rounds(&mut self) -> Vec<Round> {
        self.rounds.drain(..).collect()
    }

    /// Forgets everything of earlier requests. What is left in the caches lies past the context.
    pub(super) fn begin(&mut self, request: RequestSpec) {
        self.request = Some(request);
        self.history.clear();
        self.rounds.clear();
        self.verdict = None;
        self.odds = Odds::default();
        (self.matched, self.promised) = (None, 0.0);
        (self.len, self.produced, self.done) = (0, 0, false);
    }

    /// `rows` := prompt tokens after the context.
    pub(super) fn prompt_rows(&mut self, ids: &[u32], rows: &mut RowSet) -> Result<(), String> {
        if self.idle()? {
            rows.clear();
            return Ok(());
        }
        let end = self.len + ids.len();
        if end > self.context {
            return Err(format!("{} tokens after {} do not fit a context of {}", ids.len(), self.len, self.context));
        }
        self.check_rows(ids.len())?;
        rows.set_chain(ids.to_vec(), self.len)
    }

    /// `rows` := the root, then mask tokens.
    pub(super) fn block_rows(&mut self, block: usize, mask_token: u32, rows: &mut RowSet) -> Result<(), String> {
        if self.idle()? {
            rows.clear();
            return Ok(());
        }
        self.check_rows(block)?;
        let mut ids = vec![mask_token; block];
        if let Some(first) = ids.first_mut() {
            *first = self.root()?;
        }
        rows.set_chain(ids, self.len)
    }

    /// `rows` := the tree of `proposal`; `logits` are those that it names, `[depths, vocab]`.
    pub(super) fn tree_rows(
        &mut self,
        proposal: &Proposal,
        logits: &[f32],
        vocab: usize,
        rows: &mut RowSet,
    ) -> Result<(), String> {
        if self.idle()? {
            rows.clear();
            return Ok(());
        }
        let root = self.root()?;
        (self.matched, self.promised) = (None, 0.0);
        // A tree of N nodes is at most N deep.
        let candidates = |k: usize, most: usize| {
            Candidates::from_logits(&logits[..logits.len().min(most.saturating_mul(vocab))], vocab, k.min(vocab))
        };
        let tree = match proposal {
            Proposal::Empty => Tree::root(root),
            Proposal::Chain { budget, .. } => chain(root, &candidates(1, *budget), *budget),
            Proposal::BestFirst { budget: Budget::Fixed(budget), .. } => {
                best_first(root, &candidates(*budget, *budget), *budget)
            }
            Proposal::BestFirst { budget: Budget::Auto { costs, trust }, .. } => {
                let most = costs.len().saturating_sub(1);
                let candidates = candidates(most, most);
                let nodes: Vec<_> = BestFirst::new(&candidates).take(most).collect();
                let probabilities = nodes.iter().map(|node| node.log_prob.exp());
                let budget = best_budget(probabilities.clone().map(|p| p * f64::from(*trust)), costs);
                self.promised = probabilities.take(budget).sum::<f64>() as f32;
                from_nodes(root, nodes.into_iter().take(budget))
            }
            Proposal::Ngram { budget: Budget::Fixed(budget) } => {
                ngram::propose(&self.history, *NGRAM.end(), *NGRAM.start(), *budget)
            }
            Proposal::Ngram { budget: Budget::Auto { costs, .. } } => {
                self.matched = ngram::longest_match(&self.history, LONGEST_MATCH);
                self.matched.as_ref().map_or_else(
                    || Tree::root(root),
                    |found| {
                        let probabilities = self.odds.probabilities(found.length).take(found.tokens.len());
                        let tokens = &found.tokens[..best_budget(probabilities, costs)];
                        Tree::chain(&[&[root], tokens].concat())
                    },
                )
            }
            Proposal::Given { tokens, parents } => given(root, tokens, parents)?,
        };
        self.check_rows(tree.len())?;
        let positions = tree.depths.iter().map(|depth| self.len + *depth as usize).collect();
        rows.set(RowValues { ids: tree.tokens, positions, parents: tree.parents })
    }

    /// Accepts every row; `logits` are the last row's, where the token after it is to be chosen.
    pub(super) fn walk_prompt(&mut self, rows: &RowSet, logits: Option<&[f32]>) -> Result<(), String> {
        let Some(last) = rows.len().checked_sub(1) else { return Ok(()) };
        let next = logits.map(|logits| self.choose(rows, last, logits)).transpose()?;
        self.verdict = Some(Verdict { path: (0..rows.len()).collect(), next, prompt: true });
        Ok(())
    }

    /// Accepts the path that the target chooses; `logits` are `[rows, vocab]`.
    pub(super) fn walk_path(&mut self, rows: &RowSet, logits: &[f32], vocab: usize) -> Result<(), String> {
        if rows.len() == 0 {
            return Ok(());
        }
        let RowValues { ids, parents, .. } = rows.values();
        let mut failure = None;
        let walk = walk(ids, parents, |row| {
            self.choose(rows, row, &logits[row * vocab..(row + 1) * vocab]).unwrap_or_else(|error| {
                failure.get_or_insert(error);
                0
            })
        });
        match failure {
            Some(error) => Err(error),
            None => {
                self.verdict = Some(Verdict { path: walk.path, next: Some(walk.bonus), prompt: false });
                Ok(())
            }
        }
    }

    /// Ends the round. `accepted` := the rows that became context; their numbers in `rows` are returned, so that what
    /// is stored by row can follow.
    pub(super) fn commit(&mut self, rows: &RowSet, accepted: &mut RowSet) -> Result<Vec<usize>, String> {
        accepted.clear();
        if rows.len() == 0 {
            let round = Round { idle: self.idle()?, ..Round::default() };
            self.rounds.push_back(round);
            return Ok(Vec::new());
        }
        let (Some(request), Some(verdict)) = (&self.request, self.verdict.take()) else {
            return Err(format!("{} rows were not walked", rows.len()));
        };
        let Verdict { mut path, next, prompt } = verdict;
        let ids = &rows.values().ids;
        if path.last().is_none_or(|last| *last >= ids.len()) {
            return Err(format!("the walk was over other rows than these {}", ids.len()));
        }

        let mut tokens: Vec<u32> = if prompt { Vec::new() } else { path[1..].iter().map(|row| ids[*row]).collect() };
        tokens.extend(next);
        // A round ends with the sequence: what drafting found past that is given up, as plain decode never gets there.
        let room = if prompt { usize::MAX } else { self.context - self.len };
        let stop = tokens.iter().position(|token| request.stop_ids.contains(token));
        let most = room.min(request.max_new_tokens - self.produced).min(stop.map_or(usize::MAX, |at| at + 1));
        tokens.truncate(most);
        if !prompt {
            path.truncate(tokens.len());
        }

        let start = self.len;
        self.history.truncate(start);
        self.history.extend(path.iter().map(|row| ids[*row]));
        self.len += path.len();
        self.produced += tokens.len();
        self.history.extend(next.and(tokens.last()));
        let full = self.produced >= request.max_new_tokens || self.len >= self.context;
        self.done = stop.is_some_and(|at| at < tokens.len()) || next.is_some() && full;
        accepted.set_chain(self.history[start..self.len].to_vec(), start)?;
        if let Some(ngram::Match { length, tokens: promised }) = self.matched.take() {
            self.odds.learn(length, &promised, &tokens);
        }
        self.rounds.push_back(Round {
            tokens,
            prompt_tokens: if prompt { path.len() } else { 0 },
            nodes: if prompt { 0 } else { ids.len() - 1 },
            promised: self.promised,
            idle: false,
        });
        Ok(path)
    }

    /// Bytes of the caches.
    pub(super) fn cache_bytes(&self) -> usize {
        let target = self.target.iter().map(|(_, cache)| cache.bytes());
        let draft = self.draft.iter().map(|(_, cache)| cache.bytes());
        target.chain(draft).sum()
    }

    /// The cache of a target layer, whose attention must be `mla`.
    pub(super) fn target_layer(&mut self, layer: usize, mla: Mla) -> Result<&mut MlaCache, String> {
        let layers = self.target.len();
        match self.target.get_mut(layer) {
            Some((own, cache)) if *own == mla => Ok(cache),
            Some(_) => Err("the sequence was made for another attention here".into()),
            None => Err(format!("the sequence has {layers} target layers")),
        }
    }

    /// The cache of a drafter layer, whose attention must be `attention`.
    pub(super) fn draft_layer(&mut self, layer: usize, attention: DraftAttention) -> Result<&mut DraftCache, String> {
        let layers = self.draft.len();
        match self.draft.get_mut(layer) {
            Some((own, cache)) if *own == attention => Ok(cache),
            Some(_) => Err("the sequence was made for another attention here".into()),
            None => Err(format!("the sequence has {layers} drafter layers")),
        }
    }

    /// The context's length, after which `rows` must start.
    pub(super) fn start_of(&self, rows: &RowSet) -> Result<usize, String> {
        self.check_rows(rows.len())?;
        match rows.values().positions.first() {
            Some(position) if *position != self.len => {
                Err(format!("rows start at position {position}, expected {} (the context's end)", self.len))
            }
            _ => Ok(self.len),
        }
    }

    /// Checks that the caches have the positions of `rows`.
    pub(super) fn check_positions(&self, rows: &RowSet) -> Result<(), String> {
        let (end, slots) = (rows.end(), self.context + self.max_rows);
        if end > slots {
            return Err(format!("rows end at position {end}, the caches at {slots}"));
        }
        Ok(())
    }

    /// Whether the sequence is done.
    fn idle(&self) -> Result<bool, String> {
        if self.request.is_none() {
            return Err("the sequence was never begun".into());
        }
        Ok(self.done)
    }

    fn root(&self) -> Result<u32, String> {
        self.history.get(self.len).copied().ok_or_else(|| "no token has been chosen after the prompt".into())
    }

    fn check_rows(&self, rows: usize) -> Result<(), String> {
        if rows > self.max_rows {
            return Err(format!("{rows} rows exceed the sequence's {}", self.max_rows));
        }
        Ok(())
    }

    /// The token after a row: every row of one depth draws with the same random number.
    fn choose(&self, rows: &RowSet, row: usize, logits: &[f32]) -> Result<u32, String> {
        let request = self.request.as_ref().ok_or("the sequence was never begun")?;
        // Without an early exit this is a vector comparison.
        if logits.iter().fold(false, |any, logit| any | logit.is_nan()) {
            let position = rows.values().positions[row];
            return Err(format!(
                "logits of row {row} (position {position}) hold NaN, expected numbers; {NOT_A_NUMBER}"
            ));
        }
        Ok(draw(logits, &request.sampling, rows.values().positions[row] as u64 + 1))
    }
}

/// The tree of nodes that the host made.
fn given(root: u32, tokens: &[u32], parents: &[u32]) -> Result<Tree, String> {
    let mut tree = Tree::root(root);
    tree.tokens.extend(tokens);
    for parent in parents {
        tree.parents.push(i32::try_from(*parent).map_err(|_| format!("parent {parent} is no row"))?);
        tree.depths.push(tree.depths.get(*parent as usize).map_or(0, |depth| depth + 1));
    }
    tree.validate()?;
    Ok(tree)
}
