//! The end of a round: which token follows each row, which rows become context, and where they go.

use coppice_gpu::{commit, round, sample};
use cuda_std::{Global, GlobalMut};

use super::super::{Place, error};
use super::machine::Machine;
use crate::backend::{Accept, Rows, Sequence, Tensor};
use crate::error::Result;

impl Machine {
    pub fn walk(&mut self, sequence: Sequence, rows: Rows, accept: Accept) -> Result<()> {
        let count = self.count(rows)?;
        let state = self.sequences.get(sequence.0).map_err(error)?;
        let (logits, count, rule) = match accept {
            Accept::Prompt { logits: None } => (None, 0, round::Accept::Chunk),
            Accept::Prompt { logits: Some(logits) } => (Some(logits), 1, round::Accept::LastChunk),
            Accept::Path { logits } => (Some(logits), count, round::Accept::Path),
        };
        if let Some(logits) = logits {
            let vocab = self.tensors.get(logits.0).map_err(error)?.width;
            let logits = self.full("logits", logits, count, vocab)?.full.ptr();
            if !vocab.is_multiple_of(4) {
                return Err(error(format!("the vocabulary has {vocab} tokens, expected a multiple of 4")));
            }
            let (capacity, last) = (self.count(rows)? as u32, rule == round::Accept::LastChunk);
            let set = self.rows.get(rows.0).map_err(error)?.words.ptr_mut();
            let (v, choices) = (vocab as u32, state.choices.ptr_mut());
            let arguments = (state.state_ptr(), set, logits, choices, capacity, v, v, last.into());
            let shape = sample::choose_shape(capacity, last);
            // SAFETY: logits and choices hold the rows.
            unsafe { self.place.queue(&sample::choose_tokens::KERNEL, shape, arguments, true)? };
        }
        self.sequences.get_mut(sequence.0).map_err(error)?.walked = Some(rule);
        Ok(())
    }

    pub fn commit(&mut self, sequence: Sequence, rows: Rows, features: Option<Tensor>, accepted: Rows) -> Result<()> {
        let (count, place) = (self.count(rows)?, self.place);
        let Some(rule) = self.sequences.get_mut(sequence.0).map_err(error)?.walked.take() else {
            return Err(error(format!("{count} rows were not walked")));
        };
        let chosen = self.set_rows(sequence, accepted, count)?;
        let state = self.sequences.get(sequence.0).map_err(error)?;
        let (ring, slots, slot_words) = state.ring();
        let n = count as u32;
        let arguments = (
            state.state_ptr(),
            self.rows.get(rows.0).map_err(error)?.words.ptr_mut(),
            state.choices.ptr(),
            chosen,
            state.verdict.ptr_mut(),
            state.history.ptr_mut(),
            ring,
            n,
            n,
            slots,
            slot_words,
            rule as u32,
        );
        // SAFETY: sets, choices, verdict and slots of the ring hold the rows; the two sets are different ones.
        unsafe { place.queue(&round::commit_round::KERNEL, round::commit_shape(n), arguments, true)? };
        // A chain that is accepted whole lies where it belongs.
        if rule != round::Accept::Path || count == 1 {
            return Ok(());
        }
        let bytes = state.stride * 2;
        let cache = state.cache.ptr_mut().cast();
        // SAFETY: slots are whole vectors; the path ascends and starts at the root.
        unsafe {
            compact(place, cache, state.moves(round::VerdictLayout::START), bytes, state.target.len(), state.slots)?
        };
        if let Some(features) = features {
            let width = self.tensors.get(features.0).map_err(error)?.width;
            let rows = self.full("features", features, count, width)?.full.ptr_mut().cast();
            let moves = state.moves(round::VerdictLayout::ZERO);
            // SAFETY: as above.
            unsafe { compact(place, rows, moves, width * 4, 1, count)? };
        }
        Ok(())
    }
}

/// Moves accepted rows to the front, in each of `layers` layers of `slots` rows of `row` bytes.
///
/// # Safety
/// The buffer is as large as that, and what the verdict says lies inside.
unsafe fn compact(
    place: Place<'static>,
    buffer: GlobalMut<u8>,
    [start, path, length]: [Global<u32>; 3],
    row: usize,
    layers: usize,
    slots: usize,
) -> Result<()> {
    if !row.is_multiple_of(16) {
        return Err(error(format!("rows of {row} B are moved, expected a multiple of 16")));
    }
    let arguments = (buffer, start, path, length, row as u32, (slots * row) as u64);
    let shape = commit::compact_shape(row as u32, layers as u32);
    // SAFETY: the caller's contract.
    unsafe { place.queue(&commit::compact_rows::KERNEL, shape, arguments, true) }
}
