//! Ctrl-C: the first asks the work to end with what it has, the second ends the process.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use std::{process, thread};

use super::messages;

/// What the process exits with after Ctrl-C, as shells have it.
pub const EXIT_CODE: u8 = 130;

/// How long a forward pass, or whatever else is under way, may go on after Ctrl-C: with what follows it, the process ends within a second.
const PATIENCE: Duration = Duration::from_millis(800);

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

/// Catches Ctrl-C from now on. The returned flag is set by it; the work should look at it between forward passes.
pub fn install() -> &'static AtomicBool {
    // Where no handler can be set, Ctrl-C ends the process at once, as it would without one.
    let _ = ctrlc::set_handler(|| {
        if INTERRUPTED.swap(true, Ordering::Relaxed) {
            exit();
        }
        thread::spawn(|| {
            thread::sleep(PATIENCE);
            messages::line(&"interrupted; what was under way would not end in time and was abandoned");
            exit();
        });
    });
    &INTERRUPTED
}

fn exit() -> ! {
    process::exit(EXIT_CODE.into())
}
