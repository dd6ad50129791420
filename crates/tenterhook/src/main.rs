//! The `tenterhook` binary.

use std::process::ExitCode;

/// Training and inference allocate and free large buffers all the time: the system's allocator makes that several times dearer.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    keep_freed_memory();
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
