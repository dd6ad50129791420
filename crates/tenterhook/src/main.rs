//! The `tenterhook` binary.

use std::process::ExitCode;

/// Training and inference allocate and free large buffers all the time: the system's allocator makes that several times dearer.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    tenterhook::cli::main()
}
