//! The `tenterhook` binary.

use std::process::ExitCode;

/// Training and inference allocate and free large buffers all the time: the system's allocator makes that several times dearer.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    keep_freed_memory();
    let_idle_threads_of_candle_sleep();
    tenterhook::cli::main()
}

/// Steps free what the next step asks for again. Memory that goes back to the system meanwhile comes back zeroed, page by page, which can take a
/// fifth of a training step.
fn keep_freed_memory() {
    /// `mi_option_purge_delay`, in milliseconds, which the bindings do not name.
    const PURGE_DELAY: libmimalloc_sys::mi_option_t = 15;
    if std::env::var_os("MIMALLOC_PURGE_DELAY").is_none() {
        // SAFETY: it sets a number.
        unsafe { libmimalloc_sys::mi_option_set(PURGE_DELAY, 60_000) };
    }
}

/// candle's threads for element-wise ops look out for more work for a good part of a millisecond, on processors that our own loops then miss: 3% of a
/// training step of GPT-2 small on two of them.
fn let_idle_threads_of_candle_sleep() {
    const SPIN_LIMIT: &str = "CANDLE_BARRIER_POOL_SPIN_LIMIT";
    if std::env::var_os(SPIN_LIMIT).is_none() {
        // SAFETY: there is no other thread yet that could read the environment.
        unsafe { std::env::set_var(SPIN_LIMIT, "1") };
    }
}
