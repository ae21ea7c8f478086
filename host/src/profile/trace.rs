//! A recording in the trace event format that Perfetto and Chrome's tracing page read: a track a thread, a track a stream,
//! a track of gaps a device. Events of one track nest.

use serde_json::{Value, json};

use super::gaps::LaneGaps;
use super::interval::Interval;
use super::lane::Recording;

/// Process number of the host; the devices follow.
const HOST: usize = 1;

/// The trace as JSON; times count from the start of the generation, `about` goes along.
pub fn chrome_trace(recording: &Recording, report: &[LaneGaps], about: &Value) -> Value {
    let zero = recording.window().start;
    let mut events = vec![named("process_name", HOST, 0, "host")];
    for (tid, track) in recording.host.iter().enumerate() {
        events.push(named("thread_name", HOST, tid, &track.thread));
        let mut spans = track.spans.clone();
        spans.sort_by_key(|span| (span.interval.start, std::cmp::Reverse(span.interval.end)));
        events.extend(spans.iter().map(|span| event(span.stage, "stage", span.interval, zero, (HOST, tid), json!({}))));
    }
    for (index, (lane, report)) in recording.lanes.iter().zip(report).enumerate() {
        let pid = HOST + 1 + index;
        events.push(named("process_name", pid, 0, &format!("device {}", lane.device)));
        events.push(named("thread_name", pid, 0, "gaps"));
        for gap in &report.gaps {
            let start = zero + gap.start_ns;
            let args = json!({ "round": gap.round, "before": gap.before, "after": gap.after });
            let interval = Interval::new(start, start + gap.idle_ns);
            events.push(event(&gap.cause.to_string(), "gap", interval, zero, (pid, 0), args));
        }
        let mut streams: Vec<u32> = lane.spans.iter().map(|span| span.stream).collect();
        streams.sort_unstable();
        streams.dedup();
        for (at, stream) in streams.iter().enumerate() {
            events.push(named("thread_name", pid, at + 1, &format!("stream {stream}")));
        }
        for span in &lane.spans {
            let tid = streams.partition_point(|stream| *stream < span.stream) + 1;
            events.push(event(&span.name, span.stage, span.interval, zero, (pid, tid), json!({ "stage": span.stage })));
        }
    }
    json!({ "traceEvents": events, "displayTimeUnit": "ns", "otherData": about })
}

fn named(what: &str, pid: usize, tid: usize, name: &str) -> Value {
    json!({ "ph": "M", "name": what, "pid": pid, "tid": tid, "args": { "name": name } })
}

/// A complete event. What began before the generation has a negative time.
fn event(name: &str, category: &str, time: Interval, zero: u64, (pid, tid): (usize, usize), args: Value) -> Value {
    let start = (time.start as i128 - i128::from(zero)) as f64 / 1e3;
    let length = time.length() as f64 / 1e3;
    json!({ "ph": "X", "name": name, "cat": category, "ts": start, "dur": length, "pid": pid, "tid": tid, "args": args })
}
