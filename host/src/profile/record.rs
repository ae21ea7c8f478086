//! A subscriber of `tracing` that keeps when spans of stages and operations began and ended, by thread. What they mean is
//! not its business.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use tracing::metadata::LevelFilter;
use tracing::span::{Attributes, Id, Record};
use tracing::subscriber::Interest;
use tracing::{Event, Metadata, Subscriber};

use super::interval::Interval;
use super::stage;

/// Operations that a thread's record has room for: 80 MB, and some minutes of decoding a small model.
const ROOM: usize = 2 << 20;

/// What makes recorders tell each other apart in a thread's memory.
static RECORDERS: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static LOCAL: RefCell<Local> = RefCell::default();
}

/// A subscriber that records spans. Clones are the same recorder.
#[derive(Debug, Clone)]
pub struct Recorder(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    number: u64,
    /// Nanosecond 0.
    epoch: Instant,
    /// Operations a thread has room for.
    room: usize,
    threads: Mutex<Vec<Arc<ThreadRecord>>>,
}

#[derive(Debug)]
struct ThreadRecord {
    name: String,
    spans: Mutex<Spans>,
}

/// What one thread did.
#[derive(Debug, Default)]
pub(super) struct Spans {
    /// By end.
    pub(super) stages: Vec<(&'static str, Interval)>,
    /// By end.
    pub(super) ops: Vec<(&'static str, Interval)>,
    /// Operations that there was no room for, and when the first of them began.
    pub(super) lost: usize,
    pub(super) lost_from: Option<u64>,
}

/// A thread's side of the recorder it last recorded for.
#[derive(Default)]
struct Local {
    recorder: u64,
    record: Option<Arc<ThreadRecord>>,
    open: Vec<Open>,
    ids: u64,
}

/// A span that has not been closed.
struct Open {
    id: u64,
    name: &'static str,
    is_op: bool,
    entered: u64,
}

impl Default for Recorder {
    fn default() -> Self {
        Self::with_room(ROOM)
    }
}

impl Recorder {
    /// A recorder with room for so many operations a thread.
    pub fn with_room(room: usize) -> Self {
        Self(Arc::new(Shared {
            number: RECORDERS.fetch_add(1, Ordering::Relaxed),
            epoch: Instant::now(),
            room,
            threads: Mutex::default(),
        }))
    }

    /// Nanoseconds since the recorder was made.
    pub fn now(&self) -> u64 {
        u64::try_from(self.0.epoch.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Takes out what was recorded: threads in the order of their first spans.
    pub(super) fn take(&self) -> Vec<(String, Spans)> {
        let threads = lock(&self.0.threads);
        threads.iter().map(|thread| (thread.name.clone(), std::mem::take(&mut *lock(&thread.spans)))).collect()
    }

    /// Runs `f` on this thread's record; not at all while it is already running there.
    fn with_local<T>(&self, f: impl FnOnce(&mut Local) -> T) -> Option<T> {
        LOCAL.try_with(|local| local.try_borrow_mut().ok().map(|mut local| f(&mut local))).ok().flatten()
    }

    fn join(&self, local: &mut Local) {
        let name = thread::current().name().unwrap_or("unnamed").to_owned();
        let record = Arc::new(ThreadRecord { name, spans: Mutex::default() });
        lock(&self.0.threads).push(Arc::clone(&record));
        local.open.clear();
        local.recorder = self.0.number;
        local.record = Some(record);
    }

    fn store(&self, record: &ThreadRecord, open: &Open, end: u64) {
        let mut spans = lock(&record.spans);
        let span = (open.name, Interval::new(open.entered, end));
        if !open.is_op {
            spans.stages.push(span);
        } else if spans.ops.len() < self.0.room {
            spans.ops.push(span);
        } else {
            spans.lost += 1;
            spans.lost_from.get_or_insert(open.entered);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_ours(metadata: &Metadata<'_>) -> bool {
    metadata.is_span() && [stage::STAGE, stage::OP].contains(&metadata.target())
}

impl Subscriber for Recorder {
    fn register_callsite(&self, metadata: &'static Metadata<'static>) -> Interest {
        if is_ours(metadata) { Interest::always() } else { Interest::never() }
    }

    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        is_ours(metadata)
    }

    fn max_level_hint(&self) -> Option<LevelFilter> {
        Some(LevelFilter::TRACE)
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let metadata = span.metadata();
        let id = self.with_local(|local| {
            if local.recorder != self.0.number {
                self.join(local);
            }
            local.ids += 1;
            let (name, is_op) = (metadata.name(), metadata.target() == stage::OP);
            local.open.push(Open { id: local.ids, name, is_op, entered: 0 });
            local.ids
        });
        Id::from_u64(id.unwrap_or(u64::MAX))
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, _: &Event<'_>) {}

    fn enter(&self, id: &Id) {
        self.with_local(|local| {
            if let Some(open) = local.open.iter_mut().rev().find(|open| open.id == id.into_u64()) {
                open.entered = self.now();
            }
        });
    }

    fn exit(&self, id: &Id) {
        let end = self.now();
        self.with_local(|local| {
            let open = local.open.iter().rev().find(|open| open.id == id.into_u64());
            if let (Some(open), Some(record)) = (open, &local.record) {
                self.store(record, open, end);
            }
        });
    }

    fn try_close(&self, id: Id) -> bool {
        self.with_local(|local| {
            if let Some(at) = local.open.iter().rposition(|open| open.id == id.into_u64()) {
                local.open.remove(at);
            }
        });
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{op, stage};

    fn names(spans: &[(&'static str, Interval)]) -> Vec<&'static str> {
        spans.iter().map(|(name, _)| *name).collect()
    }

    #[test]
    fn spans_are_kept_by_thread_with_their_nesting() {
        let recorder = Recorder::default();
        tracing::subscriber::with_default(recorder.clone(), || {
            let _outer = stage!("outer");
            {
                let _inner = stage!("inner");
                drop(op!("work"));
                // Not of this program's targets.
                tracing::trace_span!("foreign").in_scope(|| drop(op!("more work")));
            }
            let dispatch = tracing::dispatcher::get_default(Clone::clone);
            let other = move || tracing::dispatcher::with_default(&dispatch, || drop(op!("elsewhere")));
            thread::Builder::new().name("second".to_owned()).spawn(other).unwrap().join().unwrap();
        });
        let threads = recorder.take();
        let [(_, first), (second, other)] = &threads[..] else { panic!("{threads:?}") };
        assert_eq!(names(&first.stages), ["inner", "outer"]);
        assert_eq!(names(&first.ops), ["work", "more work"]);
        assert_eq!((second.as_str(), names(&other.ops)), ("second", vec!["elsewhere"]));
        let [(_, inner), (_, outer)] = first.stages[..] else { panic!() };
        assert!(outer.start <= inner.start && inner.end <= outer.end);
        assert!(first.ops.iter().all(|(_, work)| inner.start <= work.start && work.end <= inner.end));
    }

    #[test]
    fn what_there_is_no_room_for_is_counted_and_stages_always_have_room() {
        let recorder = Recorder::with_room(3);
        tracing::subscriber::with_default(recorder.clone(), || {
            for _ in 0..5 {
                let _stage = stage!("round");
                drop(op!("linear"));
            }
        });
        let threads = recorder.take();
        let spans = &threads[0].1;
        assert_eq!((spans.ops.len(), spans.lost, spans.stages.len()), (3, 2, 5));
        assert!(spans.lost_from.is_some_and(|from| from >= spans.ops[2].1.end));
    }

    #[test]
    fn recorders_that_follow_each_other_do_not_mix() {
        for _ in 0..2 {
            let recorder = Recorder::default();
            tracing::subscriber::with_default(recorder.clone(), || drop(op!("linear")));
            drop(op!("not recorded"));
            let threads = recorder.take();
            assert_eq!(threads.iter().map(|(_, spans)| names(&spans.ops)).collect::<Vec<_>>(), [["linear"]]);
        }
    }
}
