//! Arithmetic of time intervals in whole nanoseconds: unions, complements, overlaps, who is innermost. Exact: nothing is
//! rounded, and what is covered and what is not add up to the window.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use serde::Serialize;

/// From `start` up to, not including, `end`, in nanoseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
pub struct Interval {
    /// The first nanosecond.
    pub start: u64,
    /// The first nanosecond after it.
    pub end: u64,
}

impl Interval {
    /// Between two times; empty if `end` does not come after `start`.
    pub fn new(start: u64, end: u64) -> Self {
        Self { start, end: end.max(start) }
    }

    /// Nanoseconds.
    pub fn length(&self) -> u64 {
        self.end - self.start
    }

    /// Whether it has no nanosecond.
    pub fn is_empty(&self) -> bool {
        self.start == self.end
    }

    /// Whether `time` lies in it.
    pub fn contains(&self, time: u64) -> bool {
        self.start <= time && time < self.end
    }

    /// The part inside `window`; empty, and at an edge of the window, if there is none.
    pub fn within(&self, window: Self) -> Self {
        let start = self.start.clamp(window.start, window.end);
        Self { start, end: self.end.clamp(start, window.end) }
    }

    /// Nanoseconds that both have.
    pub fn overlap(&self, other: Self) -> u64 {
        self.end.min(other.end).saturating_sub(self.start.max(other.start))
    }
}

/// A set of nanoseconds: disjoint intervals in ascending order, none empty, none touching the next.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Cover(Vec<Interval>);

impl Cover {
    /// The union of intervals in any order, overlapping or nested or not; empty ones add nothing.
    pub fn of(intervals: impl IntoIterator<Item = Interval>) -> Self {
        let mut sorted: Vec<_> = intervals.into_iter().filter(|interval| !interval.is_empty()).collect();
        sorted.sort_unstable();
        let mut union: Vec<Interval> = Vec::with_capacity(sorted.len());
        for interval in sorted {
            match union.last_mut() {
                Some(last) if interval.start <= last.end => last.end = last.end.max(interval.end),
                _ => union.push(interval),
            }
        }
        Self(union)
    }

    /// The intervals, ascending.
    pub fn intervals(&self) -> &[Interval] {
        &self.0
    }

    /// Nanoseconds covered.
    pub fn length(&self) -> u64 {
        self.0.iter().map(Interval::length).sum()
    }

    /// Nanoseconds covered within `window`.
    pub fn overlap(&self, window: Interval) -> u64 {
        self.touching(window).iter().map(|interval| interval.overlap(window)).sum()
    }

    /// The part inside `window`.
    pub fn within(&self, window: Interval) -> Self {
        let parts = self.touching(window).iter().map(|interval| interval.within(window));
        Self(parts.filter(|interval| !interval.is_empty()).collect())
    }

    /// What both cover.
    pub fn and(&self, other: &Self) -> Self {
        Self(other.0.iter().flat_map(|window| self.within(*window).0).collect())
    }

    /// What of `window` is not covered.
    pub fn outside(&self, window: Interval) -> Self {
        let mut from = window.start;
        let mut gaps = Vec::new();
        for interval in self.within(window).0 {
            gaps.push(Interval::new(from, interval.start));
            from = interval.end;
        }
        gaps.push(Interval::new(from, window.end));
        gaps.retain(|gap| !gap.is_empty());
        Self(gaps)
    }

    /// The intervals that share a nanosecond with `window`, found by halving.
    fn touching(&self, window: Interval) -> &[Interval] {
        if window.is_empty() {
            return &[];
        }
        let first = self.0.partition_point(|interval| interval.end <= window.start);
        let rest = &self.0[first..];
        &rest[..rest.partition_point(|interval| interval.start < window.end)]
    }
}

/// At each nanosecond that some interval covers, which of them is innermost: the one that started last; of those the one
/// that ends first; of those the last given. The parts come in ascending order, and touching parts of one interval are one.
pub fn innermost(intervals: &[Interval]) -> Vec<(Interval, usize)> {
    let mut order: Vec<usize> = (0..intervals.len()).filter(|i| !intervals[*i].is_empty()).collect();
    order.sort_by_key(|i| intervals[*i].start);
    let mut starts = order.into_iter().peekable();
    let mut active: BinaryHeap<(u64, Reverse<u64>, usize)> = BinaryHeap::new();
    let mut parts: Vec<(Interval, usize)> = Vec::new();
    let mut now = 0;
    loop {
        while active.peek().is_some_and(|(_, Reverse(end), _)| *end <= now) {
            active.pop();
        }
        if active.is_empty() {
            let Some(next) = starts.peek() else { return parts };
            now = intervals[*next].start;
        }
        while let Some(next) = starts.next_if(|next| intervals[*next].start <= now) {
            active.push((intervals[next].start, Reverse(intervals[next].end), next));
        }
        let Some((_, Reverse(end), top)) = active.peek().copied() else { continue };
        let until = starts.peek().map_or(end, |next| end.min(intervals[*next].start));
        match parts.last_mut() {
            Some((last, index)) if *index == top && last.end == now => last.end = until,
            _ => parts.push((Interval::new(now, until), top)),
        }
        now = until;
    }
}

#[cfg(test)]
mod tests;
