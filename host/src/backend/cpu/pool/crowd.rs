//! Other load on the machine, as the owners of regions notice it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// After a region whose owner waited in vain for a worker, regions run on their callers alone for this many times as long
/// as it waited: under lasting load the trials that follow cost at most a fifth of the time.
pub(super) const ALONE: u32 = 4;

/// What the owners of regions learned about other load on the machine: a worker that the system takes off its core in the
/// middle of a task holds its region up for a time slice, which is a thousand times the region's own time. While that
/// happens, regions do better on one thread. Owners of regions write it, one at a time.
pub(super) struct Crowd {
    epoch: Instant,
    /// Nanoseconds after `epoch` until which regions run alone.
    pub(super) alone_until: AtomicU64,
}

impl Crowd {
    pub(super) fn new() -> Self {
        Self { epoch: Instant::now(), alone_until: AtomicU64::new(0) }
    }

    fn nanoseconds(&self, time: Instant) -> u64 {
        time.duration_since(self.epoch).as_nanos() as u64
    }

    /// Whether a region that starts at `now` is to run alone.
    pub(super) fn is_present(&self, now: Instant) -> bool {
        self.nanoseconds(now) < self.alone_until.load(Ordering::Relaxed)
    }

    /// Takes note of a region that started at `start` and whose owner then waited for workers, beyond its spinning.
    pub(super) fn note(&self, start: Instant, waited: Duration) {
        // A wait no longer than the owner's own work is the last task of a worker.
        if !waited.is_zero() && 2 * waited > start.elapsed() {
            let until = self.nanoseconds(Instant::now()) + self.nanoseconds(self.epoch + ALONE * waited);
            self.alone_until.store(until, Ordering::Relaxed);
        }
    }
}
