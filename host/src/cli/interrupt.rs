//! Ctrl-C: it asks work that has something to keep to end with what it has, and ends the process where there is nothing, or
//! when it comes again.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{process, thread};

/// What the process exits with after Ctrl-C, as shells have it.
pub const EXIT_CODE: u8 = 130;

/// How long a forward pass, or whatever else is under way, may go on after Ctrl-C: with what follows it, the process ends
/// within a second.
const PATIENCE: Duration = Duration::from_millis(800);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// Nothing would be lost.
    Idle,
    /// Work is under way that has something to keep.
    Working,
    /// It was asked to end.
    Asked,
}

static STATE: Mutex<State> = Mutex::new(State::Idle);
static CHANGED: Condvar = Condvar::new();
/// [`State::Asked`], for a look between forward passes.
static ASKED: AtomicBool = AtomicBool::new(false);

/// Catches Ctrl-C from now on.
pub fn install() {
    // Where no handler can be set, Ctrl-C ends the process at once, as it would without one.
    let _ = ctrlc::set_handler(|| {
        let working = *state() == State::Working;
        if !working {
            exit();
        }
        ASKED.store(true, Ordering::Relaxed);
        set(State::Asked);
    });
}

/// Runs work that has something to keep when Ctrl-C comes. It should look at the flag between forward passes; if it does
/// not end in time, `abandon` saves what can be saved and the process ends.
pub fn guard<T>(work: impl FnOnce(&AtomicBool) -> T, abandon: impl FnOnce() + Send) -> T {
    thread::scope(|scope| {
        set(State::Working);
        let _ended = Ended;
        scope.spawn(|| {
            let asked = CHANGED.wait_while(state(), |state| *state == State::Working);
            let asked = asked.unwrap_or_else(PoisonError::into_inner);
            let waited = CHANGED.wait_timeout_while(asked, PATIENCE, |state| *state == State::Asked);
            let (state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
            drop(state);
            if waited.timed_out() {
                abandon();
                exit();
            }
        });
        work(&ASKED)
    })
}

/// Ends [`State::Working`] however the work ends.
struct Ended;

impl Drop for Ended {
    fn drop(&mut self) {
        set(State::Idle);
    }
}

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn set(new: State) {
    *state() = new;
    CHANGED.notify_all();
}

fn exit() -> ! {
    process::exit(EXIT_CODE.into())
}
