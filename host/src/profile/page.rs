//! A recording and its report as one page that needs nothing else: timeline, gap histogram, stages, causes. The page's
//! own code is `page.html`.

use serde_json::{Value, json};

use super::gaps::LaneGaps;
use super::interval::Interval;
use super::lane::{Lane, Recording, Track};

const TEMPLATE: &str = include_str!("page.html");
/// Where the data goes.
const PLACE: &str = "{/*DATA*/}";

/// The page; `report` is the report as JSON.
pub fn page(recording: &Recording, lanes: &[LaneGaps], report: &Value) -> String {
    let window = recording.window();
    let rounds = recording.rounds().iter().map(|round| round.start - window.start).collect::<Vec<_>>();
    let devices: Vec<Value> =
        recording.lanes.iter().zip(lanes).map(|(lane, gaps)| device(lane, gaps, window)).collect();
    let host: Vec<Value> = recording.host.iter().map(|track| thread(track, window)).collect();
    let data =
        json!({ "window": window.length(), "rounds": rounds, "devices": devices, "host": host, "report": report });
    // No text in the data may end the script.
    TEMPLATE.replacen(PLACE, &data.to_string().replace("</", "<\\/").replace("<!--", "<\\!--"), 1)
}

/// Strings by number.
#[derive(Default)]
struct Names(Vec<String>);

impl Names {
    fn number(&mut self, name: &str) -> usize {
        self.0.iter().position(|known| known == name).unwrap_or_else(|| {
            self.0.push(name.to_owned());
            self.0.len() - 1
        })
    }
}

fn from(window: Interval, time: u64) -> i64 {
    (i128::from(time) - i128::from(window.start)) as i64
}

/// Spans as [start, length, name, stage], gaps as [start, length, cause, round].
fn device(lane: &Lane, gaps: &LaneGaps, window: Interval) -> Value {
    let mut names = Names::default();
    let spans: Vec<Value> = lane
        .spans
        .iter()
        .map(|span| {
            let (start, length) = (from(window, span.interval.start), span.interval.length());
            json!([start, length, names.number(&span.name), names.number(span.stage)])
        })
        .collect();
    let gaps: Vec<Value> = gaps
        .gaps
        .iter()
        .map(|gap| json!([gap.start_ns, gap.idle_ns, names.number(&gap.cause.to_string()), gap.round]))
        .collect();
    let known = lane.known(window);
    let unknown = known.outside(window);
    let unknown: Vec<Value> =
        unknown.intervals().iter().map(|time| json!([from(window, time.start), time.length()])).collect();
    json!({ "device": lane.device, "names": names.0, "spans": spans, "gaps": gaps, "unknown": unknown })
}

/// Stages as [start, length, name, depth].
fn thread(track: &Track, window: Interval) -> Value {
    let mut names = Names::default();
    let mut spans = track.spans.clone();
    spans.sort_by_key(|span| (span.interval.start, std::cmp::Reverse(span.interval.end)));
    let mut open: Vec<u64> = Vec::new();
    let spans: Vec<Value> = spans
        .iter()
        .map(|span| {
            open.retain(|end| *end > span.interval.start);
            let depth = open.len();
            open.push(span.interval.end);
            json!([from(window, span.interval.start), span.interval.length(), names.number(span.stage), depth])
        })
        .collect();
    json!({ "thread": track.thread, "names": names.0, "spans": spans })
}
