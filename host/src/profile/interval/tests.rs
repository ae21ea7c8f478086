use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn at(start: u64, end: u64) -> Interval {
    Interval::new(start, end)
}

fn cover(intervals: &[(u64, u64)]) -> Cover {
    Cover::of(intervals.iter().map(|(start, end)| at(*start, *end)))
}

fn parts(cover: &Cover) -> Vec<(u64, u64)> {
    cover.intervals().iter().map(|interval| (interval.start, interval.end)).collect()
}

#[test]
fn a_union_counts_a_nanosecond_once() {
    type Case = (&'static str, &'static [(u64, u64)], &'static [(u64, u64)], u64);
    let cases: &[Case] = &[
        ("nothing", &[], &[], 0),
        ("one", &[(3, 7)], &[(3, 7)], 4),
        ("zero length", &[(5, 5)], &[], 0),
        ("zero length inside another", &[(3, 7), (5, 5)], &[(3, 7)], 4),
        ("end before start", &[(7, 3)], &[], 0),
        ("apart", &[(0, 2), (4, 6)], &[(0, 2), (4, 6)], 4),
        ("touching", &[(0, 2), (2, 4)], &[(0, 4)], 4),
        ("one nanosecond apart", &[(0, 2), (3, 4)], &[(0, 2), (3, 4)], 3),
        ("overlapping streams", &[(0, 5), (3, 9)], &[(0, 9)], 9),
        ("nested", &[(0, 9), (3, 5)], &[(0, 9)], 9),
        ("twice the same", &[(1, 4), (1, 4)], &[(1, 4)], 3),
        ("same start", &[(1, 4), (1, 6)], &[(1, 6)], 5),
        ("same end", &[(1, 6), (4, 6)], &[(1, 6)], 5),
        ("unsorted", &[(8, 9), (0, 2), (4, 6), (1, 5)], &[(0, 6), (8, 9)], 7),
        ("three streams", &[(0, 3), (2, 5), (4, 8), (8, 9), (11, 12)], &[(0, 9), (11, 12)], 10),
        ("the last nanoseconds there are", &[(u64::MAX - 2, u64::MAX)], &[(u64::MAX - 2, u64::MAX)], 2),
    ];
    let failed: Vec<_> = cases
        .iter()
        .filter(|(_, input, want, length)| parts(&cover(input)) != *want || cover(input).length() != *length)
        .map(|(name, input, ..)| (name, cover(input)))
        .collect();
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn busy_and_idle_are_the_window_at_its_edges_too() {
    type Case = (&'static str, &'static [(u64, u64)], (u64, u64), &'static [(u64, u64)]);
    let cases: &[Case] = &[
        ("nothing in the window", &[], (10, 20), &[(10, 20)]),
        ("an empty window", &[(0, 30)], (10, 10), &[]),
        ("the whole window", &[(10, 20)], (10, 20), &[]),
        ("more than the window", &[(5, 25)], (10, 20), &[]),
        ("ends where the window starts", &[(5, 10)], (10, 20), &[(10, 20)]),
        ("starts where the window ends", &[(20, 25)], (10, 20), &[(10, 20)]),
        ("over the start", &[(5, 12)], (10, 20), &[(12, 20)]),
        ("over the end", &[(18, 25)], (10, 20), &[(10, 18)]),
        ("a nanosecond at each edge", &[(10, 11), (19, 20)], (10, 20), &[(11, 19)]),
        ("inside", &[(12, 14), (16, 17)], (10, 20), &[(10, 12), (14, 16), (17, 20)]),
        ("before, in and after", &[(0, 3), (12, 14), (30, 40)], (10, 20), &[(10, 12), (14, 20)]),
    ];
    let mut failed = Vec::new();
    for (name, busy, (start, end), want) in cases {
        let (busy, window) = (cover(busy), at(*start, *end));
        let idle = busy.outside(window);
        let total = busy.overlap(window) + idle.length();
        if parts(&idle) != *want || total != window.length() || busy.within(window).length() != busy.overlap(window) {
            failed.push((name, idle, total));
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
fn the_innermost_of_nested_spans_is_the_one_that_started_last() {
    let spans = [at(0, 100), at(10, 40), at(20, 30), at(40, 50), at(60, 60), at(120, 130)];
    let want = [
        (at(0, 10), 0),
        (at(10, 20), 1),
        (at(20, 30), 2),
        (at(30, 40), 1),
        (at(40, 50), 3),
        (at(50, 100), 0),
        (at(120, 130), 5),
    ];
    assert_eq!(innermost(&spans), want);
    assert_eq!(innermost(&[]), []);
    assert_eq!(innermost(&[at(3, 3)]), []);
}

#[test]
fn spans_that_start_together_nest_by_length_then_by_order() {
    assert_eq!(innermost(&[at(0, 9), at(0, 4)]), [(at(0, 4), 1), (at(4, 9), 0)]);
    assert_eq!(innermost(&[at(0, 4), at(0, 9)]), [(at(0, 4), 0), (at(4, 9), 1)]);
    assert_eq!(innermost(&[at(0, 4), at(0, 4)]), [(at(0, 4), 1)]);
    // Overlapping without nesting, as on two streams.
    assert_eq!(innermost(&[at(0, 6), at(4, 9)]), [(at(0, 4), 0), (at(4, 9), 1)]);
}

/// Nanoseconds of the brute-force models.
const SIZE: u64 = 48;

fn bitmap(intervals: &[Interval]) -> Vec<bool> {
    (0..SIZE).map(|time| intervals.iter().any(|interval| interval.contains(time))).collect()
}

fn some_interval() -> impl Strategy<Value = Interval> {
    (0..SIZE, 0..SIZE).prop_map(|(a, b)| at(a.min(b), a.max(b)))
}

proptest! {
    #[test]
    fn covers_are_bitmaps(a in vec(some_interval(), 0..12), b in vec(some_interval(), 0..12), window in some_interval()) {
        let (union, other) = (Cover::of(a.iter().copied()), Cover::of(b.iter().copied()));
        let (bits, other_bits) = (bitmap(&a), bitmap(&b));
        let count = |bits: &dyn Fn(usize) -> bool| (0..SIZE as usize).filter(|i| bits(*i)).count() as u64;
        let inside = |i: usize| window.contains(i as u64);

        prop_assert_eq!(bitmap(union.intervals()), bits.clone());
        prop_assert!(union.intervals().windows(2).all(|pair| pair[0].end < pair[1].start));
        prop_assert!(union.intervals().iter().all(|interval| !interval.is_empty()));
        prop_assert_eq!(union.length(), count(&|i| bits[i]));
        prop_assert_eq!(union.overlap(window), count(&|i| bits[i] && inside(i)));
        prop_assert_eq!(union.within(window).length(), count(&|i| bits[i] && inside(i)));
        prop_assert_eq!(union.outside(window).length(), count(&|i| !bits[i] && inside(i)));
        prop_assert_eq!(union.overlap(window) + union.outside(window).length(), window.length());
        let both: Vec<bool> = (0..SIZE as usize).map(|i| bits[i] && other_bits[i]).collect();
        prop_assert_eq!(bitmap(union.and(&other).intervals()), both);
    }

    #[test]
    fn innermost_parts_are_a_partition_of_the_union(spans in vec(some_interval(), 0..12)) {
        let parts = innermost(&spans);
        prop_assert!(parts.windows(2).all(|pair| pair[0].0.end <= pair[1].0.start));
        let top = |time: u64| {
            let covering = (0..spans.len()).filter(|i| spans[*i].contains(time));
            covering.max_by_key(|i| (spans[*i].start, Reverse(spans[*i].end), *i))
        };
        for time in 0..SIZE {
            let part = parts.iter().find(|(interval, _)| interval.contains(time)).map(|(_, index)| *index);
            prop_assert_eq!(part, top(time), "at {}", time);
        }
        let same_touching = parts.windows(2).any(|pair| pair[0].1 == pair[1].1 && pair[0].0.end == pair[1].0.start);
        prop_assert!(!same_touching);
    }
}
