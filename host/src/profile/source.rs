//! Where recordings come from. A source that cannot record says why; the report then stands on the others.

use serde::Serialize;
use tracing::dispatcher::{self, DefaultGuard, Dispatch};

use super::interval::{Cover, Interval};
use super::lane::{HostSpan, Lane, Recording, Span, Track};
use super::record::Recorder;
use super::stage::StageOfOps;
use crate::backend::cuda;

/// Why a source cannot record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Absent(pub String);

/// What a source told, or why it could not.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SourceReport {
    /// Its name.
    pub source: &'static str,
    /// Why it could not record; null if it could.
    pub absent: Option<String>,
    /// Records that it delivered.
    pub records: usize,
    /// Records that were lost for want of room.
    pub lost: usize,
}

impl SourceReport {
    /// Of a source that could not record.
    pub fn absent(source: &'static str, why: Absent) -> Self {
        Self { source, absent: Some(why.0), records: 0, lost: 0 }
    }
}

/// Something that records while a generation runs.
pub trait Source {
    /// Its name in reports.
    fn name(&self) -> &'static str;

    /// Begins to record.
    ///
    /// # Errors
    /// Why it cannot.
    fn start(&mut self) -> Result<(), Absent>;

    /// Ends, and adds what was recorded, with a [`SourceReport`].
    fn finish(self: Box<Self>, recording: &mut Recording);
}

/// Runs `work` while every source that can records it.
pub fn record<T>(sources: Vec<Box<dyn Source>>, work: impl FnOnce() -> T) -> (T, Recording) {
    let mut recording = Recording::default();
    let mut started = Vec::new();
    for mut source in sources {
        match source.start() {
            Ok(()) => started.push(source),
            Err(why) => recording.sources.push(SourceReport::absent(source.name(), why)),
        }
    }
    let done = work();
    let mut present = Recording { sources: Vec::new(), ..Recording::default() };
    started.into_iter().rev().for_each(|source| source.finish(&mut present));
    present.sources.extend(recording.sources);
    (done, present)
}

/// Stages of the engine, and operations of a backend that runs them on the host: that backend is a device of its own.
pub struct HostSpans {
    recorder: Recorder,
    device: String,
    guard: Option<DefaultGuard>,
    started: u64,
}

impl HostSpans {
    /// Spans of the calling thread; the lane of operations is called `device`.
    pub fn new(device: &str) -> Self {
        Self::with_recorder(device, Recorder::default())
    }

    /// As [`HostSpans::new`], by a recorder of one's own.
    pub fn with_recorder(device: &str, recorder: Recorder) -> Self {
        Self { recorder, device: device.to_owned(), guard: None, started: 0 }
    }
}

impl Source for HostSpans {
    fn name(&self) -> &'static str {
        "host spans"
    }

    fn start(&mut self) -> Result<(), Absent> {
        self.guard = Some(dispatcher::set_default(&Dispatch::new(self.recorder.clone())));
        self.started = self.recorder.now();
        Ok(())
    }

    fn finish(mut self: Box<Self>, recording: &mut Recording) {
        self.guard = None;
        let whole = Interval::new(self.started, self.recorder.now());
        // Callsites forget that someone listened.
        tracing::callsite::rebuild_interest_cache();
        let (mut records, mut lost, mut lost_times) = (0, 0, Vec::new());
        let mut ops = Vec::new();
        for (thread, spans) in self.recorder.take() {
            records += spans.stages.len() + spans.ops.len();
            lost += spans.lost;
            lost_times.extend(spans.lost_from.map(|from| Interval::new(from, whole.end)));
            ops.extend(spans.ops);
            let stages = spans.stages.into_iter().map(|(stage, interval)| HostSpan { stage, interval });
            recording.host.push(Track { thread, spans: stages.collect() });
        }
        ops.sort_by_key(|(_, interval)| *interval);
        let mut stages = StageOfOps::default();
        let spans = ops.into_iter().map(|(name, interval)| Span {
            name: name.into(),
            stage: stages.next(name),
            stream: 0,
            interval,
        });
        recording.lanes.push(Lane {
            device: self.device.clone(),
            asynchronous: false,
            spans: spans.collect(),
            covered: Cover::of([whole]),
            lost: Cover::of(lost_times),
            annotations: Vec::new(),
        });
        recording.sources.push(SourceReport { source: self.name(), absent: None, records, lost });
    }
}

/// A source that cannot record.
struct Missing {
    name: &'static str,
    why: String,
}

impl Source for Missing {
    fn name(&self) -> &'static str {
        self.name
    }

    fn start(&mut self) -> Result<(), Absent> {
        Err(Absent(self.why.clone()))
    }

    fn finish(self: Box<Self>, _: &mut Recording) {}
}

/// Names of the sources of a GPU.
const CUDA_SOURCES: [&str; 3] = ["CUPTI activity", "CUDA events", "PM sampling"];

/// The sources of a GPU for a generation on `backend`, with what keeps each from recording.
pub fn cuda_sources(backend: &str) -> Vec<Box<dyn Source>> {
    let why = cuda::cupti::absence();
    let missing = |name| -> Box<dyn Source> {
        let ours = format!("the {backend} backend uses no GPU");
        let why = match (&why, name) {
            (Some(why), "CUPTI activity" | "PM sampling") => format!("{ours}; {why}"),
            _ => ours,
        };
        Box::new(Missing { name, why })
    };
    CUDA_SOURCES.into_iter().map(missing).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{op, stage};

    #[test]
    fn a_source_that_cannot_record_says_why_and_the_others_stand() {
        let missing: Box<dyn Source> = Box::new(Missing { name: "PM sampling", why: "no permission".to_owned() });
        let ((), recording) = record(vec![missing, Box::new(HostSpans::new("cpu"))], || {
            let _request = stage!("request");
            drop(op!("linear"));
        });
        let [host, absent] = &recording.sources[..] else { panic!("{recording:?}") };
        assert_eq!((host.source, host.records, &host.absent), ("host spans", 2, &None));
        assert_eq!(absent.absent.as_deref(), Some("no permission"));
        assert_eq!((recording.lanes.len(), recording.lanes[0].spans.len()), (1, 1));
    }

    #[test]
    fn lost_operations_make_their_time_unknown_not_idle() {
        let source = HostSpans::with_recorder("cpu", Recorder::with_room(1));
        let ((), recording) = record(vec![Box::new(source)], || {
            let _request = stage!("request");
            drop(op!("linear"));
            drop(op!("linear"));
        });
        let lane = &recording.lanes[0];
        let window = recording.window();
        let known = lane.known(window);
        assert!(known.length() < window.length());
        assert_eq!(known.length() + lane.lost.overlap(window), window.length());
        assert_eq!(recording.sources[0].lost, 1);
    }
}
