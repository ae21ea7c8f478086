//! What handles name between operations: activations in two precisions, row sets, and what the host knows of both.

use coppice_gpu::columns;
use coppice_gpu::round::RowLayout;
use cuda_std::{Bf16, Global};

use super::super::{Memory, Place, error};
use super::weights::STEP;
use crate::backend::RowValues;
use crate::error::Result;

/// Which of its two buffers holds a tensor's rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// f32, rows as wide as they are.
    Full,
    /// bf16, rows padded to whole steps of a product.
    Rounded,
}

/// Activations `[rows, width]`. Products read them in bf16, everything else writes f32 or what products read.
#[derive(Debug)]
pub(super) struct Activations {
    pub rows: usize,
    pub width: usize,
    pub full: Memory<'static, f32>,
    pub rounded: Memory<'static, Bf16>,
}

impl Activations {
    pub fn new(place: Place<'static>, rows: usize, width: usize) -> Result<Self> {
        let full = place.output("activations", rows * width)?;
        // Nobody writes the padding, which products read.
        let rounded = place.zeroed("activations in bf16", rows * width.next_multiple_of(STEP))?;
        Ok(Self { rows, width, full, rounded })
    }

    /// Elements from one bf16 row to the next.
    pub fn stride(&self) -> usize {
        self.width.next_multiple_of(STEP)
    }

    /// Bytes held.
    pub fn bytes(&self) -> usize {
        self.full.bytes() + self.rounded.bytes()
    }

    /// Fails unless there is room for `rows` rows of `width`.
    pub fn check(&self, role: &str, rows: usize, width: usize) -> Result<()> {
        if self.width != width {
            return Err(error(format!("{role} has width {}, expected {width}", self.width)));
        }
        if self.rows < rows {
            return Err(error(format!("{role} has room for {} rows, expected at least {rows}", self.rows)));
        }
        Ok(())
    }

    /// Rounds the first `rows` rows for a product to read.
    pub fn round(&self, place: Place<'static>, rows: usize) -> Result<()> {
        if !self.width.is_multiple_of(4) {
            return Err(error(format!("activations have width {}, expected a multiple of 4", self.width)));
        }
        let [rows, width, stride] = [rows, self.width, self.stride()].map(|n| n as u32);
        let arguments = (self.full.ptr(), self.rounded.ptr_mut(), width, width, stride);
        // SAFETY: both buffers hold as many rows, `stride` not being less than the width; all are multiples of 4.
        unsafe { place.queue(&columns::round_columns::KERNEL, columns::shape(rows, width), arguments, true) }
    }

    /// The first `rows` rows.
    pub fn read(&self, form: Form, rows: usize) -> Result<Vec<f32>> {
        self.check("tensor", rows, self.width)?;
        Ok(match form {
            Form::Full => self.full.to_vec()?[..rows * self.width].to_vec(),
            Form::Rounded => {
                let values = self.rounded.to_vec()?;
                let rows = values.chunks(self.stride().max(1)).take(rows);
                rows.flat_map(|row| row[..self.width].iter().map(|value| value.to_f32())).collect()
            }
        })
    }
}

/// A row set: a count and, by row, token, position, parent, slot and mask, as [`RowLayout`] has it for as many rows as the
/// host knows it may have: the layout changes with the round's launches, the memory does not.
#[derive(Debug)]
pub(super) struct RowSet {
    pub capacity: usize,
    pub words: Memory<'static, u32>,
}

impl RowSet {
    pub fn new(place: Place<'static>, capacity: usize) -> Result<Self> {
        let words = RowLayout { capacity: capacity as u32 }.words() as usize;
        Ok(Self { capacity, words: place.zeroed("row set", words)? })
    }

    /// A field of a set laid out for `rows` rows.
    pub fn field(&self, word: u32) -> Global<u32> {
        self.words.ptr().add(word as usize)
    }

    /// The set laid out for `rows` rows, read back.
    pub fn read(&self, rows: u32) -> Result<RowValues> {
        let (words, layout) = (self.words.to_vec()?, RowLayout { capacity: rows });
        let count = words[RowLayout::COUNT as usize].min(rows) as usize;
        let field = |first: u32| &words[first as usize..][..count];
        Ok(RowValues {
            ids: field(RowLayout::IDS).to_vec(),
            positions: field(layout.positions()).iter().map(|position| *position as usize).collect(),
            parents: field(layout.parents()).iter().map(|parent| parent.cast_signed()).collect(),
        })
    }
}

/// What the host knows about the state between operations. Together with the operations it says what is launched.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Known {
    /// Where each tensor's rows are.
    pub forms: Vec<Form>,
    /// Most rows of each set as it is now.
    pub rows: Vec<u32>,
}
