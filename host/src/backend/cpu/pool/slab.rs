//! Disjoint parts of one output, written by tasks that run at the same time.

#![allow(unsafe_code)]

use std::marker::PhantomData;
use std::ops::Range;

/// A row-major matrix `[rows, width]` that tasks write in disjoint slabs.
pub struct SharedMatrix<'a> {
    base: SharedMut,
    width: usize,
    rows: usize,
    matrix: PhantomData<&'a mut [f32]>,
}

impl<'a> SharedMatrix<'a> {
    /// The whole rows of `values`.
    pub fn new(values: &'a mut [f32], width: usize) -> Self {
        let rows = values.len().checked_div(width).unwrap_or(0);
        SharedMatrix { base: SharedMut(values.as_mut_ptr()), width, rows, matrix: PhantomData }
    }

    /// Rows of the matrix.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The given columns of the given rows.
    ///
    /// # Safety
    /// No two slabs that are alive at a time overlap.
    ///
    /// # Panics
    /// If the ranges are not within the matrix.
    pub unsafe fn slab(&self, rows: Range<usize>, columns: Range<usize>) -> Slab<'a> {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        assert!(columns.start <= columns.end && columns.end <= self.width, "columns {columns:?} of {}", self.width);
        // SAFETY: within the matrix.
        let base = unsafe { self.base.get().add(rows.start * self.width + columns.start) };
        Slab { base, stride: self.width, rows: rows.len(), columns, matrix: PhantomData }
    }
}

/// A range of columns of some rows of a row-major matrix, writable.
pub struct Slab<'a> {
    base: *mut f32,
    stride: usize,
    rows: usize,
    columns: Range<usize>,
    matrix: PhantomData<&'a mut [f32]>,
}

impl<'a> Slab<'a> {
    /// A matrix `[rows, columns]` that holds these columns and no others.
    pub fn dense(out: &'a mut [f32], columns: Range<usize>) -> Self {
        let rows = out.len().checked_div(columns.len()).unwrap_or(0);
        Slab { base: out.as_mut_ptr(), stride: columns.len(), rows, columns, matrix: PhantomData }
    }

    /// Rows of the slab.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Its columns, as the matrix numbers them.
    pub fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// The slab's part of its row `row`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "row {row} of a slab of {} rows", self.rows);
        // SAFETY: the row is in bounds, and only this slab may touch these columns of it.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(row * self.stride), self.columns.len()) }
    }
}

/// A pointer that tasks may share because each uses a part of its own.
#[derive(Clone, Copy)]
pub(super) struct SharedMut(pub(super) *mut f32);

impl SharedMut {
    /// A method, so that closures capture the wrapper and not the bare pointer.
    pub(super) fn get(self) -> *mut f32 {
        self.0
    }
}

// SAFETY: users of the pointer derive disjoint slices from it.
unsafe impl Sync for SharedMut {}
// SAFETY: as above.
unsafe impl Send for SharedMut {}
