//! The way to a failure, for those who ask for it.

use std::backtrace::Backtrace;
use std::cell::Cell;
use std::error::Error;
use std::fmt::Write;
use std::sync::Once;

use crate::error::PanicMessage;

thread_local! {
    /// Of the last panic on this thread.
    static OF_PANIC: Cell<Option<String>> = const { Cell::new(None) };
}

/// From now on a panic leaves its backtrace behind: when it is caught it is too late to take one. What the process did on a panic before,
/// it still does.
pub(crate) fn keep_those_of_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            let place = panic.location().map(|place| format!("at {place}\n")).unwrap_or_default();
            OF_PANIC.set(Some(format!("{place}{}", Backtrace::force_capture())));
            usual(panic);
        }));
    });
}

/// How it came to this error: of a panic from where it began, of another error its causes and from where the hook was called.
pub(crate) fn of(error: &(dyn Error + Send + Sync + 'static)) -> String {
    let of_panic = error.downcast_ref::<PanicMessage>().and_then(|_| OF_PANIC.take());
    let mut text = String::new();
    let mut cause = error.source();
    while let Some(error) = cause {
        let _ = writeln!(text, "caused by: {error}"); // writing into a string cannot fail
        cause = error.source();
    }
    text.push_str(&of_panic.unwrap_or_else(|| Backtrace::force_capture().to_string()));
    text
}
