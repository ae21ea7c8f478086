//! Worker threads of the CPU backend, and safe ways for their tasks to write disjoint parts of one output.
//!
//! What the tasks compute lives elsewhere. A small model runs some seventy parallel regions in the half millisecond of a
//! token, so this pool is built for regions of a few microseconds: workers spin briefly between regions and park when no
//! work comes. On two cores a region of 4.5 us of work takes 2.6 us; in a rayon pool 3.3 us, called from inside it.

#![allow(unsafe_code)]

use std::any::Any;
use std::cell::UnsafeCell;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::simd::Isa;

/// How long a thread spins for the next region, or for the end of this one, before it parks: longer than the serial work
/// between two regions of a token, far shorter than a scheduler's time slice.
const SPIN: Duration = Duration::from_micros(60);

/// After a region whose owner waited in vain for a worker, regions run on their callers alone for this many times as long
/// as it waited: under lasting load the trials that follow cost at most a fifth of the time.
const ALONE: u32 = 4;

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

/// On its own cache line.
#[repr(align(128))]
struct Padded<T>(T);

struct Shared {
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

/// Worker threads of the CPU backend. Dropping the pool joins them.
pub struct Pool {
    shared: Arc<Shared>,
    busy: AtomicBool,
    workers: Vec<JoinHandle<()>>,
    isa: Isa,
    crowd: Crowd,
}

/// What the owners of regions learned about other load on the machine: a worker that the system takes off its core in the
/// middle of a task holds its region up for a time slice, which is a thousand times the region's own time. While that
/// happens, regions do better on one thread. Owners of regions write it, one at a time.
struct Crowd {
    epoch: Instant,
    /// Nanoseconds after `epoch` until which regions run alone.
    alone_until: AtomicU64,
}

impl Crowd {
    fn new() -> Crowd {
        Crowd { epoch: Instant::now(), alone_until: AtomicU64::new(0) }
    }

    fn nanoseconds(&self, time: Instant) -> u64 {
        time.duration_since(self.epoch).as_nanos() as u64
    }

    /// Whether a region that starts at `now` is to run alone.
    fn is_present(&self, now: Instant) -> bool {
        self.nanoseconds(now) < self.alone_until.load(Ordering::Relaxed)
    }

    /// Takes note of a region that started at `start` and whose owner then waited for workers, beyond its spinning.
    fn note(&self, start: Instant, waited: Duration) {
        // A wait no longer than the owner's own work is the last task of a worker.
        if !waited.is_zero() && 2 * waited > start.elapsed() {
            let until = self.nanoseconds(Instant::now()) + self.nanoseconds(self.epoch + ALONE * waited);
            self.alone_until.store(until, Ordering::Relaxed);
        }
    }
}

impl Pool {
    /// A pool of `threads` threads, the calling one included, with the widest instruction set this CPU has.
    pub fn new(threads: usize) -> Pool {
        Self::with_isa(threads, Isa::detect())
    }

    /// A pool whose kernels use `isa`. If the system grants fewer threads than asked for, the pool has those.
    pub fn with_isa(threads: usize, isa: Isa) -> Pool {
        let shared = Arc::new(Shared {
            state: Padded(AtomicU64::new(0)),
            next: Padded(AtomicUsize::new(0)),
            job: UnsafeCell::new(Job { call: call::<fn(usize)>, closure: std::ptr::null(), tasks: 0 }),
            parked: AtomicUsize::new(0),
            gate: Mutex::new(()),
            opened: Condvar::new(),
            emptied: Condvar::new(),
            panic: Mutex::new(None),
        });
        let workers = (1..threads.min(INSIDE as usize))
            .map_while(|i| {
                let shared = Arc::clone(&shared);
                std::thread::Builder::new().name(format!("cpu-{i}")).spawn(move || shared.serve()).ok()
            })
            .collect();
        Pool { shared, busy: AtomicBool::new(false), workers, isa, crowd: Crowd::new() }
    }

    /// Threads that work on a region, the caller's included.
    pub fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Instruction set of the kernels run on this pool.
    pub fn isa(&self) -> Isa {
        self.isa
    }

    /// Calls `task(i)` for every i in `0..tasks`, on all threads, and returns when all are done. Which thread runs which
    /// task never affects results. A worker that the system does not schedule is not waited for: the caller takes its
    /// share. While a region runs, further calls (nested, or from other threads) run their tasks on their own thread.
    pub fn run(&self, tasks: usize, task: impl Fn(usize) + Sync) {
        if tasks <= 1 || self.workers.is_empty() || self.busy.swap(true, Ordering::Acquire) {
            (0..tasks).for_each(task);
            return;
        }
        let _busy = Busy(&self.busy);
        let start = Instant::now();
        if self.crowd.is_present(start) {
            (0..tasks).for_each(task);
        } else {
            let waited = self.shared.region(&task, tasks);
            self.crowd.note(start, waited);
        }
    }

    /// Calls `task(i, part)` for the i-th part of `out`; parts have `chunk` elements, the last one what is left.
    pub fn run_on_chunks(&self, out: &mut [f32], chunk: usize, task: impl Fn(usize, &mut [f32]) + Sync) {
        let len = out.len();
        let chunk = chunk.max(1);
        let base = SharedMut(out.as_mut_ptr());
        self.run(len.div_ceil(chunk), |i| {
            let range = i * chunk..len.min((i + 1) * chunk);
            // SAFETY: the ranges of different i are disjoint parts of `out`, which is borrowed for the whole call.
            task(i, unsafe { std::slice::from_raw_parts_mut(base.get().add(range.start), range.len()) });
        });
    }

    /// Calls `task` for every slab of `slab` columns (the last one narrower) of the row-major matrix `out`
    /// `[rows, width]`. A last row that `out` holds only in part is left alone.
    pub fn run_on_columns(&self, out: &mut [f32], width: usize, slab: usize, task: impl Fn(Slab<'_>) + Sync) {
        let slab = slab.max(1);
        let out = SharedMatrix::new(out, width);
        self.run(width.div_ceil(slab), |i| {
            // SAFETY: slabs of different i are disjoint.
            task(unsafe { out.slab(0..out.rows, i * slab..width.min((i + 1) * slab)) });
        });
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        {
            let _gate = lock(&self.shared.gate);
            self.shared.state.0.fetch_or(STOP, Ordering::SeqCst);
            self.shared.opened.notify_all();
        }
        for worker in self.workers.drain(..) {
            // A worker's panics were caught and handed to the caller of `run`.
            let _ = worker.join();
        }
    }
}

/// A row-major matrix `[rows, width]` that tasks write in disjoint slabs.
pub struct SharedMatrix<'a> {
    base: SharedMut,
    width: usize,
    rows: usize,
    matrix: PhantomData<&'a mut [f32]>,
}

impl<'a> SharedMatrix<'a> {
    /// The whole rows of `values`.
    pub fn new(values: &'a mut [f32], width: usize) -> Self {
        let rows = values.len().checked_div(width).unwrap_or(0);
        SharedMatrix { base: SharedMut(values.as_mut_ptr()), width, rows, matrix: PhantomData }
    }

    /// The given columns of the given rows.
    ///
    /// # Safety
    /// No two slabs that are alive at a time overlap.
    ///
    /// # Panics
    /// If the ranges are not within the matrix.
    pub unsafe fn slab(&self, rows: Range<usize>, columns: Range<usize>) -> Slab<'a> {
        assert!(rows.start <= rows.end && rows.end <= self.rows, "rows {rows:?} of {}", self.rows);
        assert!(columns.start <= columns.end && columns.end <= self.width, "columns {columns:?} of {}", self.width);
        // SAFETY: within the matrix.
        let base = unsafe { self.base.get().add(rows.start * self.width + columns.start) };
        Slab { base, stride: self.width, rows: rows.len(), columns, matrix: PhantomData }
    }
}

/// A range of columns of some rows of a row-major matrix, writable.
pub struct Slab<'a> {
    base: *mut f32,
    stride: usize,
    rows: usize,
    columns: Range<usize>,
    matrix: PhantomData<&'a mut [f32]>,
}

impl<'a> Slab<'a> {
    /// A matrix `[rows, columns]` that holds these columns and no others.
    pub fn dense(out: &'a mut [f32], columns: Range<usize>) -> Self {
        let rows = out.len().checked_div(columns.len()).unwrap_or(0);
        Slab { base: out.as_mut_ptr(), stride: columns.len(), rows, columns, matrix: PhantomData }
    }

    /// Rows of the slab.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Its columns, as the matrix numbers them.
    pub fn columns(&self) -> Range<usize> {
        self.columns.clone()
    }

    /// The slab's part of its row `row`.
    ///
    /// # Panics
    /// If there is no such row.
    pub fn row(&mut self, row: usize) -> &mut [f32] {
        assert!(row < self.rows, "row {row} of a slab of {} rows", self.rows);
        // SAFETY: the row is in bounds, and only this slab may touch these columns of it.
        unsafe { std::slice::from_raw_parts_mut(self.base.add(row * self.stride), self.columns.len()) }
    }
}

/// A pointer that tasks may share because each uses a part of its own.
#[derive(Clone, Copy)]
struct SharedMut(*mut f32);

impl SharedMut {
    /// A method, so that closures capture the wrapper and not the bare pointer.
    fn get(self) -> *mut f32 {
        self.0
    }
}

// SAFETY: users of the pointer derive disjoint slices from it.
unsafe impl Sync for SharedMut {}
// SAFETY: as above.
unsafe impl Send for SharedMut {}

/// Frees the pool for the next caller.
struct Busy<'a>(&'a AtomicBool);

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

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
    /// Runs a region; the caller holds `Pool::busy`. Returns what [`Shared::close`] does.
    fn region<F: Fn(usize) + Sync>(&self, task: &F, tasks: usize) -> Duration {
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
    fn serve(&self) {
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

#[cfg(test)]
mod tests;
