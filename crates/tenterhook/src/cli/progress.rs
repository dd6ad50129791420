//! Signs of life while a command works: only on a terminal, on standard error, and gone when the work is done.

use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

/// Says what is being done, until it is dropped.
pub(super) struct Working(ProgressBar);

impl Working {
    pub(super) fn on(what: impl Into<String>) -> Self {
        let bar = ProgressBar::new_spinner(); // indicatif draws on standard error, and nowhere else than on a terminal
        bar.set_message(what.into());
        bar.enable_steady_tick(Duration::from_millis(100));
        Self(bar)
    }
}

impl Drop for Working {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// Shows how much of the work is done, until it is dropped.
pub(super) struct Counting(ProgressBar);

impl Counting {
    pub(super) fn of(what: impl Into<String>) -> Self {
        let bar = ProgressBar::new(0).with_message(what.into());
        let style = ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} {eta}");
        Self(bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar())))
    }

    /// So many of so many are done.
    pub(super) fn show(&self, done: usize, total: usize) {
        self.0.set_length(total as u64);
        self.0.set_position(done as u64);
    }

    /// Says something else about the work.
    pub(super) fn say(&self, what: impl Into<String>) {
        self.0.set_message(what.into());
    }
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
