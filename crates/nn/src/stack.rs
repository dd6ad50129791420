//! A stack deep enough for candle's tape.

use std::io;

const BYTES: usize = 64 << 20;

/// Runs `f` on a thread with a 64 MiB stack and waits for it. candle walks and frees its tape recursively; a usual stack of 2 MiB ends, with
/// an abort, at a few thousand operations.
pub fn on_deep_stack<R: Send>(f: impl FnOnce() -> R + Send) -> io::Result<R> {
    std::thread::scope(|scope| {
        let thread =
            std::thread::Builder::new().name("tenterhook".into()).stack_size(BYTES).spawn_scoped(scope, f)?;
        match thread.join() {
            Ok(result) => Ok(result),
            Err(panic) => std::panic::resume_unwind(panic),
        }
    })
}
