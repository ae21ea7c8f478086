use super::*;
use crate::profile::gaps::{Options, analyse};
use crate::profile::lane::{HostSpan, Span, Track};

fn at(start: u64, end: u64) -> Interval {
    Interval::new(start, end)
}

fn recording(stages: &[(&'static str, u64, u64)], work: &[(u64, u64)]) -> Recording {
    let span = |(start, end): &(u64, u64)| Span {
        name: "linear".into(),
        stage: "verify",
        stream: 0,
        interval: at(*start, *end),
    };
    let stage = |(stage, start, end): &(&'static str, u64, u64)| HostSpan { stage, interval: at(*start, *end) };
    Recording {
        host: vec![Track { thread: "main".to_owned(), spans: stages.iter().map(stage).collect() }],
        lanes: vec![Lane {
            device: "cpu".to_owned(),
            spans: work.iter().map(span).collect(),
            covered: Cover::of([at(0, 1 << 40)]),
            ..Lane::default()
        }],
        sources: vec![],
    }
}

/// The band's rows, from the top.
fn band(recording: &Recording, marks: Marks) -> Vec<String> {
    whole(recording, marks).lines().skip(1).take(BAND).map(str::to_owned).collect()
}

#[test]
fn a_square_wave_shows_as_one() {
    // Ten periods of eight columns, the first half of each busy.
    let work: Vec<_> = (0..10).map(|i| (8000 * i, 8000 * i + 4000)).collect();
    let recording = recording(&[("request", 0, 80_000)], &work);
    let unicode = band(&recording, Marks::UNICODE);
    assert_eq!(unicode[BAND - 1], "⣿⣿⣿⣿····".repeat(10));
    assert_eq!(unicode[0], "⣿⣿⣿⣿    ".repeat(10).trim_end());
    assert_eq!(band(&recording, Marks::ASCII)[BAND - 1], "####____".repeat(10));
}

#[test]
fn a_wave_faster_than_a_column_shows_as_half_a_band() {
    let work: Vec<_> = (0..8000).map(|i| (10 * i, 10 * i + 5)).collect();
    let rows = band(&recording(&[("request", 0, 80_000)], &work), Marks::UNICODE);
    assert_eq!(rows, [String::new(), String::new(), "⣿".repeat(80), "⣿".repeat(80)]);
}

#[test]
fn idle_not_sampled_and_lost_look_different() {
    let mut recording = recording(&[("request", 0, 80_000)], &[(0, 20_000)]);
    recording.lanes[0].covered = Cover::of([at(0, 40_000), at(60_000, 80_000)]);
    recording.lanes[0].lost = Cover::of([at(70_000, 80_000)]);
    let bottom = band(&recording, Marks::UNICODE).pop().unwrap();
    let want = ["⣿".repeat(20), "·".repeat(20), "?".repeat(20), "·".repeat(10), "×".repeat(10)].concat();
    assert_eq!(bottom, want);
    let legend = legend(Marks::UNICODE);
    assert!(["· idle", "? no sample", "× records lost"].iter().all(|mark| legend.contains(mark)), "{legend}");
}

#[test]
fn a_frame_without_a_sample_is_not_drawn_as_idle_even_beside_one() {
    for marks in [Marks::UNICODE, Marks::ASCII] {
        for pair in [[Bin::NoSample, Bin::Idle], [Bin::Idle, Bin::NoSample], [Bin::NoSample; 2]] {
            assert_eq!(marks.cell(pair, 0), marks.no_sample);
        }
        assert_eq!(marks.cell([Bin::Idle; 2], 0), marks.idle);
        assert_eq!(marks.cell([Bin::Lost, Bin::Idle], 0), marks.lost);
    }
}

#[test]
fn a_hole_of_40_us_in_a_round_shows_in_its_row() {
    let stages = [
        ("request", 0, 1_800_000),
        ("round", 0, 600_000),
        ("round", 600_000, 1_200_000),
        ("round", 1_200_000, 1_800_000),
    ];
    let recording = recording(&stages, &[(0, 800_000), (840_000, 1_800_000)]);
    let options = Options { threshold_ns: 1, longest: 1 };
    let rows = by_round(&recording, &analyse(&recording, 4, &[1, 1, 1], options), Marks::UNICODE);
    let rows: Vec<&str> = rows.lines().skip(2).collect();
    assert_eq!(rows.len(), 3);
    let idle = |row: &str| row.chars().filter(|c| *c == '·').count();
    assert_eq!(rows.iter().map(|row| idle(row)).collect::<Vec<_>>(), [0, 3, 0], "{rows:#?}");
    assert!(rows[1].contains("6.7%") && rows[0].contains("0.0%"), "{rows:#?}");
}

#[test]
fn rows_fit_80_columns_and_one_long_round_does_not_squeeze_the_others() {
    let mut stages = vec![("request", 0, 30_000_000)];
    stages.extend((0..20).map(|i| ("round", 500_000 * i, 500_000 * (i + 1))));
    let recording = recording(&stages, &[(0, 30_000_000)]);
    let options = Options { threshold_ns: 1, longest: 1 };
    let text = by_round(&recording, &analyse(&recording, 4, &[], options), Marks::UNICODE);
    let band = whole(&recording, Marks::UNICODE) + &legend(Marks::UNICODE);
    let wide: Vec<_> = text.lines().chain(band.lines()).filter(|line| line.chars().count() > WIDTH).collect();
    assert!(wide.is_empty(), "{wide:#?}");
    let rows: Vec<&str> = text.lines().skip(2).collect();
    assert!(rows[19].ends_with('…') && !rows[0].ends_with('…'));
    assert!(rows[0].chars().filter(|c| *c == '⣿').count() > 20, "{}", rows[0]);
}

#[test]
fn a_window_shorter_than_its_columns_is_drawn() {
    let rows = band(&recording(&[("request", 0, 3)], &[(0, 1)]), Marks::UNICODE);
    assert!(rows[BAND - 1].starts_with('⣿') && rows[BAND - 1].ends_with('·'), "{rows:?}");
    assert!(whole(&recording(&[], &[]), Marks::UNICODE).contains("0 ns"));
}
