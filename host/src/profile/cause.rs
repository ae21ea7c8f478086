//! Why a device was idle: one cause a gap.

use std::fmt;

use serde::{Serialize, Serializer};

use super::interval::{Interval, innermost};
use super::lane::HostSpan;
use super::stage;

/// Why nothing ran for a while.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Cause {
    /// The host waited for the device, or for something it had to hear from it.
    HostSync,
    /// A copy between host and device.
    Copy,
    /// Memory was allocated or freed.
    Allocation,
    /// The host was still submitting what the device waited for.
    LateLaunch,
    /// The host was busy with this stage.
    HostStage(&'static str),
    /// Shorter than what is taken for the distance of two operations that follow each other.
    BelowThreshold,
    /// Nothing recorded explains it.
    Unknown,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::HostSync => f.write_str("host sync"),
            Self::Copy => f.write_str("copy"),
            Self::Allocation => f.write_str("allocation"),
            Self::LateLaunch => f.write_str("late launch"),
            Self::HostStage(name) => write!(f, "host: {name}"),
            Self::BelowThreshold => f.write_str("below threshold"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

impl Serialize for Cause {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

/// A time for which a source knows why the device may have been idle; it outranks what the host's stages say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Annotation {
    /// When.
    pub interval: Interval,
    /// Why.
    pub cause: Cause,
}

/// What explains a device's gaps.
#[derive(Debug)]
pub struct Causes {
    /// Disjoint, ascending.
    parts: Vec<(Interval, Cause)>,
    threshold: u64,
}

impl Causes {
    /// Gaps shorter than `threshold` nanoseconds are not explained. `asynchronous`: the device works behind the host.
    pub fn new(host: &[HostSpan], annotations: &[Annotation], asynchronous: bool, threshold: u64) -> Self {
        let host_cause = |name: &'static str| match name {
            stage::POLL => Cause::HostSync,
            name if asynchronous && stage::SUBMITTING.contains(&name) => Cause::LateLaunch,
            name => Cause::HostStage(name),
        };
        let spans: Vec<Interval> = host.iter().map(|span| span.interval).collect();
        let marked: Vec<Interval> = annotations.iter().map(|annotation| annotation.interval).collect();
        let marked = innermost(&marked);
        let mut parts: Vec<(Interval, Cause)> =
            marked.iter().map(|(interval, index)| (*interval, annotations[*index].cause)).collect();
        let covered = super::interval::Cover::of(marked.iter().map(|(interval, _)| *interval));
        for (interval, index) in innermost(&spans) {
            let cause = host_cause(host[index].stage);
            parts.extend(covered.outside(interval).intervals().iter().map(|part| (*part, cause)));
        }
        parts.sort_unstable_by_key(|(interval, _)| *interval);
        Self { parts, threshold }
    }

    /// The cause of a gap: what took the most of it. Of equals, the first in the order of [`Cause`].
    pub fn of(&self, gap: Interval) -> Cause {
        if gap.length() < self.threshold {
            return Cause::BelowThreshold;
        }
        let first = self.parts.partition_point(|(part, _)| part.end <= gap.start);
        let mut shares: Vec<(u64, Cause)> = Vec::new();
        for (part, cause) in self.parts[first..].iter().take_while(|(part, _)| part.start < gap.end) {
            match shares.iter_mut().find(|(_, known)| known == cause) {
                Some((share, _)) => *share += part.overlap(gap),
                None => shares.push((part.overlap(gap), *cause)),
            }
        }
        let explained: u64 = shares.iter().map(|(share, _)| share).sum();
        shares.push((gap.length() - explained, Cause::Unknown));
        let most = shares.into_iter().max_by(|(a, x), (b, y)| a.cmp(b).then(y.cmp(x)));
        most.map_or(Cause::Unknown, |(_, cause)| cause)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(stage: &'static str, start: u64, end: u64) -> HostSpan {
        HostSpan { stage, interval: Interval::new(start, end) }
    }

    fn gap(start: u64, end: u64) -> Interval {
        Interval::new(start, end)
    }

    #[test]
    fn a_gap_of_the_threshold_is_explained_and_one_nanosecond_less_is_not() {
        let causes = Causes::new(&[host("print", 0, 1000)], &[], false, 100);
        assert_eq!(causes.of(gap(200, 299)), Cause::BelowThreshold);
        assert_eq!(causes.of(gap(200, 300)), Cause::HostStage("print"));
        assert_eq!(Causes::new(&[], &[], false, 0).of(gap(5, 6)), Cause::Unknown);
    }

    #[test]
    fn the_stage_that_took_most_of_a_gap_is_its_cause() {
        let spans = [host("round", 0, 1000), host("plan", 100, 130), host("print", 140, 200), host("poll", 500, 900)];
        let causes = Causes::new(&spans, &[], false, 1);
        let cases = [
            (gap(100, 200), Cause::HostStage("print")),
            (gap(100, 135), Cause::HostStage("plan")),
            (gap(0, 200), Cause::HostStage("round")),
            (gap(600, 700), Cause::HostSync),
            (gap(2000, 2100), Cause::Unknown),
            (gap(990, 1100), Cause::Unknown),
        ];
        let failed: Vec<_> = cases.iter().filter(|(gap, want)| causes.of(*gap) != *want).collect();
        assert!(failed.is_empty(), "{failed:?}");
    }

    #[test]
    fn what_a_source_knows_outranks_the_stage_around_it() {
        let spans = [host("commit", 0, 100)];
        let copy = Annotation { interval: gap(20, 90), cause: Cause::Copy };
        let causes = Causes::new(&spans, &[copy], false, 1);
        assert_eq!(causes.of(gap(10, 90)), Cause::Copy);
        assert_eq!(causes.of(gap(0, 25)), Cause::HostStage("commit"));
    }

    #[test]
    fn submitting_too_late_is_a_cause_of_its_own_where_the_device_works_behind_the_host() {
        let spans = [host("verify", 0, 100), host("print", 100, 200)];
        let of = |asynchronous| Causes::new(&spans, &[], asynchronous, 1);
        assert_eq!(of(true).of(gap(10, 90)), Cause::LateLaunch);
        assert_eq!(of(false).of(gap(10, 90)), Cause::HostStage("verify"));
        assert_eq!(of(true).of(gap(110, 190)), Cause::HostStage("print"));
    }

    #[test]
    fn equal_shares_have_one_cause_whatever_their_order() {
        for spans in [[host("plan", 0, 50), host("walk", 50, 100)], [host("walk", 0, 50), host("plan", 50, 100)]] {
            assert_eq!(Causes::new(&spans, &[], false, 1).of(gap(0, 100)), Cause::HostStage("plan"));
        }
    }
}
