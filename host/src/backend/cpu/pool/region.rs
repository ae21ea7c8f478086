//! One parallel region: tasks that the owner and the workers take one by one.

#![allow(unsafe_code)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a thread spins for the next region, or for the end of this one, before it parks: longer than the serial work
/// between two regions of a token, far shorter than a scheduler's time slice.
pub(super) const SPIN: Duration = Duration::from_micros(60);

/// A task: its function and the closure it is called on.
#[derive(Clone, Copy)]
struct Job {
    call: unsafe fn(*const (), usize),
    closure: *const (),
    tasks: usize,
}

// `Shared::state`: the generation of the region in the upper half, then two flags and the number of workers inside.
const GENERATION: u64 = 1 << 32;
/// Workers may enter the region.
const OPEN: u64 = 1 << 31;
/// The owner of the region is parked until the last worker leaves.
const OWNER_PARKED: u64 = 1 << 30;
/// Workers must return.
const STOP: u64 = 1 << 29;
const INSIDE: u64 = (1 << 16) - 1;

/// Most threads that work on a region.
pub(super) const MOST_THREADS: usize = INSIDE as usize;

/// On its own cache line.
#[repr(align(128))]
struct Padded<T>(T);

/// What the owner of a region and the workers share.
pub(super) struct Shared {
    state: Padded<AtomicU64>,
    /// The next task to be taken.
    next: Padded<AtomicUsize>,
    /// Written by the owner while the region is closed and no worker is inside; read by workers inside.
    job: UnsafeCell<Job>,
    /// Workers parked, or about to be.
    parked: AtomicUsize,
    gate: Mutex<()>,
    opened: Condvar,
    emptied: Condvar,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `job` is the only field that is not `Sync` by itself. It is written only by the thread that holds `Pool::busy`,
// while `state` is closed with no worker inside, and read only by workers that entered through `state` (acquire after the
// owner's release), who leave (release) before the owner may write again. The closure it points to is `Sync`.
unsafe impl Sync for Shared {}
// SAFETY: as above.
unsafe impl Send for Shared {}

/// Closes the region when a task panics on the owner's thread.
struct Close<'a>(&'a Shared);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.close();
        // One panic is enough to report.
        lock(&self.0.panic).take();
    }
}

/// # Safety
/// `closure` points to a live `F`.
unsafe fn call<F: Fn(usize)>(closure: *const (), task: usize) {
    // SAFETY: the caller's promise.
    unsafe { (*closure.cast::<F>())(task) }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Spins until `done`, at most for [`SPIN`]; whether it was.
fn spin_until(mut done: impl FnMut() -> bool) -> bool {
    let mut start = None;
    loop {
        for _ in 0..16 {
            if done() {
                return true;
            }
            std::hint::spin_loop();
        }
        if start.get_or_insert_with(Instant::now).elapsed() > SPIN {
            return false;
        }
    }
}

impl Shared {
    /// No region yet.
    pub(super) fn new() -> Self {
        Self {
            state: Padded(AtomicU64::new(0)),
            next: Padded(AtomicUsize::new(0)),
            job: UnsafeCell::new(Job { call: call::<fn(usize)>, closure: std::ptr::null(), tasks: 0 }),
            parked: AtomicUsize::new(0),
            gate: Mutex::new(()),
            opened: Condvar::new(),
            emptied: Condvar::new(),
            panic: Mutex::new(None),
        }
    }

    /// Lets the workers return.
    pub(super) fn stop(&self) {
        let _gate = lock(&self.gate);
        self.state.0.fetch_or(STOP, Ordering::SeqCst);
        self.opened.notify_all();
    }

    /// Runs a region; the caller holds `Pool::busy`. Returns what [`Shared::close`] does.
    pub(super) fn region<F: Fn(usize) + Sync>(&self, task: &F, tasks: usize) -> Duration {
        // SAFETY: the previous region was closed and emptied before its owner gave up `busy`, so no worker reads.
        unsafe { *self.job.get() = Job { call: call::<F>, closure: std::ptr::from_ref(task).cast(), tasks } };
        self.next.0.store(0, Ordering::Relaxed);
        let generation = self.state.0.load(Ordering::Relaxed) & !(GENERATION - 1);
        // SeqCst, as is the worker's registration in `parked` before its last look at the state: one of the two sees
        // the other.
        self.state.0.store(generation.wrapping_add(GENERATION) | OPEN, Ordering::SeqCst);
        let parked = self.parked.load(Ordering::SeqCst);
        if parked > 0 {
            let _gate = lock(&self.gate);
            for _ in 0..parked.min(tasks - 1) {
                self.opened.notify_one();
            }
        }
        let close = Close(self);
        while let Some(i) = self.take(tasks) {
            task(i);
        }
        std::mem::forget(close);
        let waited = self.close();
        if let Some(panic) = lock(&self.panic).take() {
            resume_unwind(panic);
        }
        waited
    }

    /// The next task of a region of `tasks`.
    fn take(&self, tasks: usize) -> Option<usize> {
        let i = self.next.0.fetch_add(1, Ordering::Relaxed);
        (i < tasks).then_some(i)
    }

    /// Lets no more workers in and waits for those inside; how long, or zero if they left before the owner parked.
    fn close(&self) -> Duration {
        self.state.0.fetch_and(!OPEN, Ordering::AcqRel);
        let empty = || self.state.0.load(Ordering::Acquire) & INSIDE == 0;
        if spin_until(empty) {
            return Duration::ZERO;
        }
        let start = Instant::now();
        let mut gate = lock(&self.gate);
        self.state.0.fetch_or(OWNER_PARKED, Ordering::SeqCst);
        while !empty() {
            gate = self.emptied.wait(gate).unwrap_or_else(PoisonError::into_inner);
        }
        self.state.0.fetch_and(!OWNER_PARKED, Ordering::SeqCst);
        SPIN + start.elapsed()
    }

    /// A worker's life.
    pub(super) fn serve(&self) {
        let mut seen = 0;
        while let Some(state) = self.wait_for_news(seen) {
            seen = state / GENERATION;
            if self.enter(state) {
                self.work();
                self.leave();
            }
        }
    }

    /// The state once its generation is not `seen`; `None` when the pool stops.
    fn wait_for_news(&self, seen: u64) -> Option<u64> {
        let mut state = 0;
        let mut news = || {
            state = self.state.0.load(Ordering::SeqCst);
            state & STOP != 0 || state / GENERATION != seen
        };
        if !spin_until(&mut news) {
            let mut gate = lock(&self.gate);
            self.parked.fetch_add(1, Ordering::SeqCst);
            while !news() {
                gate = self.opened.wait(gate).unwrap_or_else(PoisonError::into_inner);
            }
            self.parked.fetch_sub(1, Ordering::SeqCst);
        }
        (state & STOP == 0).then_some(state)
    }

    /// Counts this worker in, unless the region seen as `state` is closed or over.
    fn enter(&self, mut state: u64) -> bool {
        let generation = state / GENERATION;
        while state & OPEN != 0 && state / GENERATION == generation {
            match self.state.0.compare_exchange_weak(state, state + 1, Ordering::AcqRel, Ordering::Acquire) {
                Ok(_) => return true,
                Err(now) => state = now,
            }
        }
        false
    }

    fn work(&self) {
        // SAFETY: this worker is inside, so the owner does not write the job.
        let job = unsafe { *self.job.get() };
        let tasks = AssertUnwindSafe(|| {
            while let Some(i) = self.take(job.tasks) {
                // SAFETY: the owner keeps the closure alive until every worker has left.
                unsafe { (job.call)(job.closure, i) };
            }
        });
        if let Err(panic) = catch_unwind(tasks) {
            *lock(&self.panic) = Some(panic);
        }
    }

    fn leave(&self) {
        let before = self.state.0.fetch_sub(1, Ordering::AcqRel);
        if before & INSIDE == 1 && before & OWNER_PARKED != 0 {
            let _gate = lock(&self.gate);
            self.emptied.notify_all();
        }
    }
}
