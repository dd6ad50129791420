//! Signs of life on a terminal while a command works.

use std::time::Duration;

use indicatif::ProgressBar;

/// Says what is being done until it is dropped. Only on a terminal, on standard error.
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
