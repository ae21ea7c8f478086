//! One round's draft tree, read back as it was verified: for tools that show it. Nothing is decided here.

use super::request::{Generation, Observer, Request, RoundRecord, Verdict};
use super::session::Session;
use super::step::Step;
use crate::backend::{Backend, RowValues};
use crate::error::{Error, Result};
use crate::sampling::{LogSoftmax, Sampling, draw};
use crate::tree::{Tree, Walk, walk};

/// A round: its tree, what drafter and target think of each row, and what was accepted. Log-probabilities are natural and
/// at temperature 1.
#[derive(Debug, Clone, PartialEq)]
pub struct RoundTrace {
    /// The rows; row 0 is the root.
    pub tree: Tree,
    /// Absolute position of the root.
    pub position: usize,
    /// Of each row's token at its depth, under the drafter; 0 for the root. `None` where drafts come without probabilities.
    pub draft: Option<Vec<f64>>,
    /// Of each row's token under the target, given the path to its parent; 0 for the root.
    pub target: Vec<f64>,
    /// The rows that were accepted, and the token after them.
    pub walk: Walk,
    /// Of the bonus token under the target.
    pub bonus: f64,
}

impl RoundTrace {
    /// Log-probability of each row's whole path under the drafter, 0 for the root.
    pub fn draft_paths(&self) -> Option<Vec<f64>> {
        let draft = self.draft.as_ref()?;
        let mut paths = vec![0.0; draft.len()];
        for row in 1..paths.len() {
            // Parents precede children.
            paths[row] = paths[parent(&self.tree, row)] + draft[row];
        }
        Some(paths)
    }
}

fn parent(tree: &Tree, row: usize) -> usize {
    usize::try_from(tree.parents[row]).unwrap_or_default()
}

impl Session {
    /// Generates as [`Session::generate`] does up to the end of round `round`, the first being 1, and reads that round's
    /// tree back; `None` if the text ended before.
    ///
    /// # Errors
    /// Those of [`Session::generate`].
    pub fn trace_round(
        &mut self,
        request: &Request,
        observer: &mut dyn Observer,
        round: usize,
    ) -> Result<(Generation, Option<RoundTrace>)> {
        self.check(request)?;
        let speculation = request.speculation;
        let (mut submitted, mut trace) = (0, Ok(None));
        let generation =
            self.run(request, &mut Until { inner: observer, rounds: round }, &mut |step, backend, pilot, _| {
                step.round(backend, pilot.plan());
                submitted += 1;
                // Now, as a device may have the next round submitted before this one is polled.
                if submitted == round {
                    trace = read(step, backend, speculation.needs_drafter(), &request.sampling);
                }
            })?;
        Ok((generation, trace?))
    }
}

/// Ends a generation after some rounds.
struct Until<'a> {
    inner: &'a mut dyn Observer,
    /// Rounds left.
    rounds: usize,
}

impl Observer for Until<'_> {
    fn prefill(&mut self, done: usize, total: usize) -> Verdict {
        self.inner.prefill(done, total)
    }

    fn round(&mut self, record: &RoundRecord) {
        self.rounds -= 1;
        self.inner.round(record);
    }

    fn tokens(&mut self, generated: &[u32], new: usize) -> Verdict {
        let verdict = self.inner.tokens(generated, new);
        if verdict == Verdict::Continue && self.rounds == 0 { Verdict::Interrupt } else { verdict }
    }
}

/// Reads the round submitted last; `None` if the sequence was done before.
fn read(step: &Step, backend: &mut dyn Backend, drafted: bool, sampling: &Sampling) -> Result<Option<RoundTrace>> {
    let RowValues { ids: tokens, positions, parents } = backend.read_rows(step.rows)?;
    let (Some(&position), rows) = (positions.first(), tokens.len()) else { return Ok(None) };
    let depths = positions.iter().map(|at| (at - position) as u32).collect();
    let tree = Tree { tokens, parents, depths };
    tree.validate().map_err(|message| Error::Backend { backend: backend.name(), message })?;

    let logits = backend.read_tensor(step.logits, rows)?;
    let vocab = logits.len() / rows;
    let target: Vec<&[f32]> = logits.chunks_exact(vocab).collect();
    let deepest = tree.depths.iter().max().map_or(0, |depth| *depth as usize);
    let draft_logits = match &step.drafter {
        Some(drafter) if drafted => Some(backend.read_tensor(drafter.logits(), deepest)?),
        _ => None,
    };
    let draft = draft_logits.map(|logits| {
        let depths: Vec<&[f32]> = logits.chunks_exact(vocab).collect();
        log_probs(&tree, |row| depths[tree.depths[row] as usize - 1])
    });
    let walk = walk(&tree.tokens, &tree.parents, |row| {
        draw(target[row], sampling, (position as u64) + u64::from(tree.depths[row]) + 1)
    });
    let last = walk.path.last().copied().unwrap_or_default();
    Ok(Some(RoundTrace {
        position,
        draft,
        target: log_probs(&tree, |row| target[parent(&tree, row)]),
        bonus: log_prob(target[last], walk.bonus),
        walk,
        tree,
    }))
}

/// Log-probability of each row's token under the logits that `of` finds for it; 0 for the root.
fn log_probs<'a>(tree: &Tree, of: impl Fn(usize) -> &'a [f32]) -> Vec<f64> {
    let rows = (1..tree.len()).map(|row| log_prob(of(row), tree.tokens[row]));
    std::iter::once(0.0).chain(rows).collect()
}

fn log_prob(logits: &[f32], token: u32) -> f64 {
    LogSoftmax::of(logits).log_prob(logits[token as usize])
}
