//! What a recording holds: the host's spans, the devices' lanes, what each source could tell.

use std::borrow::Cow;

use super::cause::Annotation;
use super::interval::{Cover, Interval};
use super::source::SourceReport;

/// A stage of the engine on the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HostSpan {
    /// Its name, one of [`super::stage`].
    pub stage: &'static str,
    /// When.
    pub interval: Interval,
}

/// The stages of one thread; they nest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Track {
    /// The thread's name.
    pub thread: String,
    /// In the order in which they ended.
    pub spans: Vec<HostSpan>,
}

/// Something a device did.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Span {
    /// The operation's or the kernel's name.
    pub name: Cow<'static, str>,
    /// The stage it is part of, one of [`super::stage`].
    pub stage: &'static str,
    /// Which of the device's queues it ran on.
    pub stream: u32,
    /// When.
    pub interval: Interval,
}

/// What a device did.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Lane {
    /// The device.
    pub device: String,
    /// It works behind the host, which submits ahead.
    pub asynchronous: bool,
    /// By start.
    pub spans: Vec<Span>,
    /// When the source was recording: outside nothing is known.
    pub covered: Cover,
    /// When records were lost for want of room.
    pub lost: Cover,
    /// Why it may have been idle, where a source knows.
    pub annotations: Vec<Annotation>,
}

impl Lane {
    /// When it is known what the device did.
    pub fn known(&self, window: Interval) -> Cover {
        let lost = self.lost.outside(window);
        self.covered.within(window).and(&lost)
    }

    /// When it did something, of what is known.
    pub fn busy(&self, known: &Cover) -> Cover {
        known.and(&Cover::of(self.spans.iter().map(|span| span.interval)))
    }
}

/// Everything that was recorded of one generation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Recording {
    /// Stages, the thread of the decode loop first.
    pub host: Vec<Track>,
    /// The devices.
    pub lanes: Vec<Lane>,
    /// What each source could tell, or why it could not.
    pub sources: Vec<SourceReport>,
}

impl Recording {
    /// Stages of the thread that ran the decode loop.
    pub fn stages(&self) -> &[HostSpan] {
        self.host.first().map_or(&[], |track| &track.spans)
    }

    /// The generation: its span, or all that was recorded where that was lost.
    pub fn window(&self) -> Interval {
        let request = self.stages().iter().find(|span| span.stage == super::stage::REQUEST);
        let all = || {
            let host = self.host.iter().flat_map(|track| &track.spans).map(|span| span.interval);
            let devices = self.lanes.iter().flat_map(|lane| &lane.spans).map(|span| span.interval);
            let all = Cover::of(host.chain(devices));
            match all.intervals() {
                [first, .., last] => Interval::new(first.start, last.end),
                [only] => *only,
                [] => Interval::new(0, 0),
            }
        };
        request.map_or_else(all, |span| span.interval)
    }

    /// The decode rounds: from the start of each to the start of the next, the last one to the end of the generation.
    pub fn rounds(&self) -> Vec<Interval> {
        let mut starts: Vec<u64> = self.stages().iter().filter_map(round_start).collect();
        starts.sort_unstable();
        let ends = starts.iter().skip(1).copied().chain([self.window().end]);
        starts.iter().zip(ends).map(|(start, end)| Interval::new(*start, end)).collect()
    }
}

fn round_start(span: &HostSpan) -> Option<u64> {
    (span.stage == super::stage::ROUND).then_some(span.interval.start)
}
