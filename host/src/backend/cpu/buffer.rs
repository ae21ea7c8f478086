//! Scratch memory for kernels: aligned to cache lines, kept by each thread for its next use.

#![allow(unsafe_code)]

use std::cell::RefCell;

const LINE: usize = 16;

#[derive(Clone, Copy)]
#[repr(C, align(64))]
struct Line([f32; LINE]);

thread_local! {
    /// Memory that buffers of this thread gave back.
    static STOCK: RefCell<Vec<Vec<Line>>> = const { RefCell::new(Vec::new()) };
}

/// f32 scratch aligned to cache lines. Memory comes from the stock of the thread that makes the buffer, and goes to that
/// of the thread that drops it.
pub(crate) struct Buffer {
    lines: Vec<Line>,
    len: usize,
}

impl Default for Buffer {
    fn default() -> Self {
        let lines = STOCK.try_with(|stock| stock.borrow_mut().pop()).ok().flatten().unwrap_or_default();
        Buffer { lines, len: 0 }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let lines = std::mem::take(&mut self.lines);
        // A thread that ends has no stock any more: then the memory is freed.
        let _ = STOCK.try_with(|stock| stock.borrow_mut().push(lines));
    }
}

impl Buffer {
    /// The first `len` elements, contents unspecified.
    pub(crate) fn get(&mut self, len: usize) -> &mut [f32] {
        let lines = len.div_ceil(LINE);
        if self.lines.len() < lines {
            self.lines.resize(lines, Line([0.0; LINE]));
        }
        self.len = len;
        // SAFETY: a `Line` is sixteen f32 without padding, and there are enough of them.
        unsafe { std::slice::from_raw_parts_mut(self.lines.as_mut_ptr().cast(), len) }
    }

    /// What the last `get` returned.
    pub(crate) fn filled(&self) -> &[f32] {
        // SAFETY: as in `get`.
        unsafe { std::slice::from_raw_parts(self.lines.as_ptr().cast(), self.len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buffers_are_aligned_to_cache_lines_and_used_again() {
        let mut first = Buffer::default();
        let at = first.get(1000).as_ptr() as usize;
        assert_eq!(at % 64, 0);
        let mut second = Buffer::default();
        assert_ne!(second.get(1000).as_ptr() as usize, at);
        drop(first);
        let mut third = Buffer::default();
        assert_eq!(third.get(900).as_ptr() as usize, at);
        assert_eq!(third.filled().len(), 900);
    }
}
