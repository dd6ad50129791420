//! A bar for work that can be counted.

use indicatif::{ProgressBar, ProgressStyle};

/// Shows how much of the work is done. Only on a terminal, on standard error.
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
}

impl Drop for Counting {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
