//! Progress bars on standard error, only when it is a terminal and only for work that takes a while.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Work that ends sooner shows no bar.
const DELAY: Duration = Duration::from_millis(500);

/// A bar that erases itself when dropped.
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
    shown: bool,
}

impl Progress {
    /// A bar named `label` that counts `unit`s; nothing is drawn yet.
    pub fn new(label: &'static str, unit: &'static str) -> Self {
        let bar =
            ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()).with_prefix(label).with_message(unit);
        if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:30}] {pos}/{len} {msg} {eta}") {
            bar.set_style(style.progress_chars("=> "));
        }
        Self { bar, started: Instant::now(), shown: false }
    }

    /// `done` of `total` are done.
    pub fn set(&mut self, done: usize, total: usize) {
        if !self.shown && self.started.elapsed() > DELAY && done < total {
            self.shown = true;
            self.bar.set_draw_target(ProgressDrawTarget::stderr());
        }
        self.bar.set_length(total as u64);
        self.bar.set_position(done as u64);
        if done >= total {
            self.bar.finish_and_clear();
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}
