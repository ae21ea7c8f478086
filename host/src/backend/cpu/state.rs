//! What handles name on the CPU: arenas, activation buffers, row sets. No operation lives here.

use crate::backend::{RowValues, Tensor};

/// Objects of one kind, by handle.
#[derive(Debug)]
pub(super) struct Arena<T> {
    kind: &'static str,
    items: Vec<T>,
}

impl<T> Arena<T> {
    /// An empty arena; `kind` names its objects in errors.
    pub(super) fn new(kind: &'static str) -> Self {
        Self { kind, items: Vec::new() }
    }

    /// Stores an object and returns its index.
    pub(super) fn push(&mut self, item: T) -> usize {
        self.items.push(item);
        self.items.len() - 1
    }

    pub(super) fn get(&self, index: usize) -> Result<&T, String> {
        self.items.get(index).ok_or_else(|| unknown(self.kind, index, self.items.len()))
    }

    pub(super) fn get_mut(&mut self, index: usize) -> Result<&mut T, String> {
        let len = self.items.len();
        self.items.get_mut(index).ok_or_else(|| unknown(self.kind, index, len))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.items.iter()
    }
}

fn unknown(kind: &str, index: usize, len: usize) -> String {
    format!("{kind} {index} is not of this backend, which has {len}")
}

/// An activation buffer `[rows, width]`.
#[derive(Debug)]
pub(super) struct Activations {
    data: Vec<f32>,
    rows: usize,
    width: usize,
}

impl Activations {
    pub(super) fn new(rows: usize, width: usize) -> Self {
        Self { data: vec![0.0; rows * width], rows, width }
    }

    pub(super) fn width(&self) -> usize {
        self.width
    }

    /// Bytes held.
    pub(super) fn bytes(&self) -> usize {
        size_of_val(self.data.as_slice())
    }

    /// Moves row `from[i]` to row i; `from` ascends.
    pub(super) fn gather(&mut self, from: &[usize]) -> Result<(), String> {
        if let Some(last) = from.last().filter(|last| **last >= self.rows) {
            return Err(format!("row {last} is beyond a tensor of {} rows", self.rows));
        }
        for (to, from) in from.iter().enumerate().filter(|(to, from)| to != *from) {
            self.data.copy_within(from * self.width..(from + 1) * self.width, to * self.width);
        }
        Ok(())
    }
}

/// What an operation expects of a buffer: its role in messages, and its shape.
#[derive(Debug, Clone, Copy)]
pub(super) struct Operand {
    pub(super) role: &'static str,
    pub(super) tensor: Tensor,
    pub(super) rows: usize,
    pub(super) width: usize,
}

impl Operand {
    pub(super) fn new(role: &'static str, tensor: Tensor, rows: usize, width: usize) -> Self {
        Self { role, tensor, rows, width }
    }

    fn check(&self, found: &Activations) -> Result<(), String> {
        let Self { role, rows, width, .. } = self;
        if found.width != *width {
            return Err(format!("{role} has width {}, expected {width}", found.width));
        }
        if found.rows < *rows {
            return Err(format!("{role} has room for {} rows, expected at least {rows}", found.rows));
        }
        Ok(())
    }
}

impl Arena<Activations> {
    /// The rows of a buffer that an operation reads.
    pub(super) fn read(&self, operand: Operand) -> Result<&[f32], String> {
        let found = self.get(operand.tensor.0)?;
        operand.check(found)?;
        let used = operand.rows * operand.width;
        found.data.get(..used).ok_or_else(|| format!("{} is also the output", operand.role))
    }

    /// Lends `work` the rows of a buffer to write, beside all others to read.
    pub(super) fn write(
        &mut self,
        operand: Operand,
        work: impl FnOnce(&Self, &mut [f32]) -> Result<(), String>,
    ) -> Result<(), String> {
        let found = self.get_mut(operand.tensor.0)?;
        operand.check(found)?;
        // Out of the arena while it is written, so that reading it as an input is noticed.
        let mut data = std::mem::take(&mut found.data);
        let result = work(self, &mut data[..operand.rows * operand.width]);
        self.get_mut(operand.tensor.0)?.data = data;
        result
    }
}

/// A row set.
#[derive(Debug)]
pub(super) struct RowSet {
    capacity: usize,
    values: RowValues,
}

impl RowSet {
    pub(super) fn new(capacity: usize) -> Self {
        Self { capacity, values: RowValues::default() }
    }

    /// Rows in the set.
    pub(super) fn len(&self) -> usize {
        self.values.ids.len()
    }

    pub(super) fn values(&self) -> &RowValues {
        &self.values
    }

    /// One past the last position, 0 for a set of no rows.
    pub(super) fn end(&self) -> usize {
        self.values.positions.iter().max().map_or(0, |position| position + 1)
    }

    /// Replaces the set.
    pub(super) fn set(&mut self, values: RowValues) -> Result<(), String> {
        if values.ids.len() > self.capacity {
            return Err(format!("{} rows do not fit a row set of {}", values.ids.len(), self.capacity));
        }
        self.values = values;
        Ok(())
    }

    /// Makes it a set of no rows.
    pub(super) fn clear(&mut self) {
        self.values = RowValues::default();
    }

    /// Replaces the set by tokens one below the other, the first at position `start`.
    pub(super) fn set_chain(&mut self, ids: Vec<u32>, start: usize) -> Result<(), String> {
        let rows = 0..ids.len();
        self.set(RowValues {
            positions: rows.clone().map(|row| start + row).collect(),
            parents: rows.map(|row| row as i32 - 1).collect(),
            ids,
        })
    }
}
