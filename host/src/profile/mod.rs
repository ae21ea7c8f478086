//! Where the time of a generation went: what was recorded, when a device was busy, why it was idle. How it is told lives
//! in `report`, which flags ask for it in `cli`.
//!
//! A recording holds what the host did (spans of the engine's stages) and, for each device, a lane of what it did. The CPU
//! backend's lane is its operations. Nothing waits for a device in order to measure it: that would make the gaps that are
//! being looked for.

mod cause;
mod gaps;
mod histogram;
pub mod interval;
mod lane;
mod page;
mod record;
mod source;
pub mod stage;
mod trace;
mod waterfall;

pub use cause::{Annotation, Cause};
pub use gaps::{
    CauseShare, Ceiling, Gap, LaneGaps, OpShare, Options, Phase, PhaseShare, RoundShare, StageShare, analyse,
};
pub use histogram::{Bucket, histogram};
pub use lane::{HostSpan, Lane, Recording, Span, Track};
pub use page::page;
pub use record::Recorder;
pub use source::{Absent, HostSpans, Source, SourceReport, cuda_sources, record};
pub use trace::chrome_trace;
pub use waterfall::{Marks, by_round, legend, whole};
