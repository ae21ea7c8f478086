//! When a device was busy, in characters: a band of the whole generation, or a row a round. What is idle, what was not
//! sampled and what was lost look different.

use super::gaps::LaneGaps;
use super::interval::{Cover, Interval};
use super::lane::{Lane, Recording};

/// Columns of a line.
const WIDTH: usize = 80;
/// Rows of the band.
const BAND: usize = 4;
/// Columns of what stands before a round's strip.
const LABEL: usize = 29;
/// Steps of a cell of Braille dots.
const STEPS: usize = 4;

/// Bits of the dots of a Braille cell, from the bottom, left and right.
const DOTS: [[u32; STEPS]; 2] = [[0x40, 0x04, 0x02, 0x01], [0x80, 0x20, 0x10, 0x08]];
const BRAILLE: u32 = 0x2800;

/// What is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Marks {
    /// Whether other characters than ASCII can be shown.
    unicode: bool,
    idle: char,
    no_sample: char,
    lost: char,
    cut: char,
}

impl Marks {
    /// For terminals that show UTF-8.
    pub const UNICODE: Self = Self { unicode: true, idle: '·', no_sample: '?', lost: '×', cut: '…' };
    /// For all others.
    pub const ASCII: Self = Self { unicode: false, idle: '_', no_sample: '?', lost: 'x', cut: '~' };

    /// A cell of the band's row `row` from the bottom.
    fn cell(&self, bins: [Bin; 2], row: usize) -> char {
        let any = |wanted: Bin| bins.contains(&wanted);
        let only_below = |mark| if row == 0 { mark } else { ' ' };
        if any(Bin::Lost) {
            return only_below(self.lost);
        }
        let steps = bins.map(|bin| match bin {
            Bin::Busy(steps) => steps.saturating_sub(row * STEPS).min(STEPS),
            _ => 0,
        });
        if !bins.iter().any(|bin| matches!(bin, Bin::Busy(_))) {
            return only_below(if any(Bin::NoSample) { self.no_sample } else { self.idle });
        }
        if !self.unicode {
            return match steps[0] + steps[1] {
                0 => ' ',
                1..=3 => '.',
                4..=6 => '+',
                _ => '#',
            };
        }
        let dots = (0..2).flat_map(|side| DOTS[side][..steps[side]].iter()).sum::<u32>();
        match dots {
            0 => ' ',
            dots => char::from_u32(BRAILLE + dots).unwrap_or(self.no_sample),
        }
    }
}

/// What is known of a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Bin {
    /// The source was not recording.
    NoSample,
    /// Records of this time were lost.
    Lost,
    /// Nothing ran in all of it.
    Idle,
    /// Something ran: for so many steps of its height of the time.
    Busy(usize),
}

/// A device's lane, ready to be cut into moments.
struct Strip<'a> {
    lane: &'a Lane,
    known: Cover,
    busy: Cover,
}

impl<'a> Strip<'a> {
    fn new(lane: &'a Lane, window: Interval) -> Self {
        let known = lane.known(window);
        Self { lane, busy: lane.busy(&known), known }
    }

    /// The moment, in `height` steps.
    fn bin(&self, time: Interval, height: usize) -> Bin {
        let known = self.known.overlap(time);
        let busy = self.busy.overlap(time);
        match (known, busy) {
            (0, _) if self.lane.lost.overlap(time) > 0 => Bin::Lost,
            (0, _) => Bin::NoSample,
            (_, 0) => Bin::Idle,
            // What ran at all shows; what ran half of the time shows half.
            _ => Bin::Busy(((busy as f64 / known as f64 * height as f64).round() as usize).clamp(1, height)),
        }
    }

    /// `time` in two moments a column of `columns`, as rows from the top.
    fn rows(&self, time: Interval, columns: usize, rows: usize, marks: Marks) -> Vec<String> {
        let count = 2 * columns;
        let edge = |i: usize| time.start + (u128::from(time.length()) * i as u128 / count as u128) as u64;
        let bins: Vec<Bin> = (0..count)
            .map(|i| {
                // Where a moment is shorter than a nanosecond it is that nanosecond.
                let (start, end) = (edge(i), edge(i + 1));
                self.bin(Interval::new(start, end.max(start + 1)), rows * STEPS)
            })
            .collect();
        let row = |row: usize| bins.chunks(2).map(|pair| marks.cell([pair[0], pair[1]], row)).collect();
        (0..rows).rev().map(row).collect()
    }
}

/// The whole generation, a band a device.
pub fn whole(recording: &Recording, marks: Marks) -> String {
    let window = recording.window();
    let mut text = String::new();
    for lane in &recording.lanes {
        let column = window.length() as f64 / WIDTH as f64;
        text += &format!("{}: {}, {} a column\n", lane.device, span(window.length() as f64), span(column));
        for row in Strip::new(lane, window).rows(window, WIDTH, BAND, marks) {
            text += row.trim_end();
            text.push('\n');
        }
        text += &phases(recording, window, marks);
    }
    text
}

/// A line that says where prefill and decode are.
fn phases(recording: &Recording, window: Interval, marks: Marks) -> String {
    let Some(first) = recording.rounds().first().copied() else { return String::new() };
    let share = (first.start - window.start) as f64 / window.length().max(1) as f64;
    let at = ((share * WIDTH as f64) as usize).min(WIDTH);
    let bar = if marks.unicode { '│' } else { '|' };
    match at {
        0..8 => format!("{}{bar} decode\n", " ".repeat(at)),
        8..70 => format!("prefill{}{bar} decode\n", " ".repeat(at - 7)),
        _ => format!("prefill{}{bar}\n", " ".repeat(at.min(WIDTH - 1) - 7)),
    }
}

/// A row a round, all at one scale: that of the longest, but of no more than twice the median.
pub fn by_round(recording: &Recording, report: &[LaneGaps], marks: Marks) -> String {
    let rounds = recording.rounds();
    let mut lengths: Vec<u64> = rounds.iter().map(Interval::length).collect();
    lengths.sort_unstable();
    let (Some(longest), Some(median)) = (lengths.last(), lengths.get(lengths.len() / 2)) else {
        return "no decode rounds\n".to_owned();
    };
    let scale = (*longest).min(2 * median).max(1);
    let columns = WIDTH - LABEL;
    let column = scale as f64 / columns as f64;
    let mut text = String::new();
    for (lane, report) in recording.lanes.iter().zip(report) {
        text += &format!("{}: a row a round, {} a column\n", lane.device, span(column));
        text += &format!("{:>5} {:>11} {:>6} {:>3}\n", "round", "wall", "idle", "tok");
        for (i, (round, share)) in rounds.iter().zip(&report.rounds).enumerate() {
            let shown = Interval::new(round.start, round.end.min(round.start + scale));
            let used = ((shown.length() as f64 / column).round() as usize).clamp(1, columns);
            let cut = round.length() > scale;
            let used = if cut { columns - 1 } else { used };
            let strip = Strip::new(lane, *round).rows(shown, used, 1, marks).concat();
            let tokens = share.accepted.map_or("-".to_owned(), |tokens| tokens.to_string());
            let idle = match share.wall_ns {
                0 => "-".to_owned(),
                wall => format!("{:.1}%", 100.0 * share.idle_ns as f64 / wall as f64),
            };
            let cut = if cut { marks.cut.to_string() } else { String::new() };
            text += &format!("{:>5} {:>11} {idle:>6} {tokens:>3} {strip}{cut}\n", i + 1, span(round.length() as f64));
        }
    }
    text
}

/// What the marks mean.
pub fn legend(marks: Marks) -> String {
    let Marks { idle, no_sample, lost, .. } = marks;
    let busy = if marks.unicode { "⣿ busy  ⣤ half busy" } else { "# busy  + half busy" };
    format!("{busy}  {idle} idle  {no_sample} no sample  {lost} records lost\n")
}

/// Nanoseconds in a unit that suits them.
fn span(nanoseconds: f64) -> String {
    match nanoseconds {
        ..1e3 => format!("{nanoseconds:.0} ns"),
        ..1e6 => format!("{:.2} us", nanoseconds / 1e3),
        ..1e9 => format!("{:.2} ms", nanoseconds / 1e6),
        _ => format!("{:.2} s", nanoseconds / 1e9),
    }
}

#[cfg(test)]
mod tests;
