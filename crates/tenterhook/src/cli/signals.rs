//! Being asked to leave, by a signal.

use std::sync::Arc;

use signal_hook::consts::{SIGINT, SIGTERM, SIGUSR1, SIGXFSZ};
use signal_hook::flag;
use tenterhook_train::Interrupt;

use super::error::CliError;

/// A file that grows past a limit of the system is an error that can be told, like a full disk, and not the end of the process.
pub(super) fn survive_file_size_limit() {
    // Without the handler everything works as before, but for that one case.
    let _ = flag::register(SIGXFSZ, Arc::default());
}

/// The first signal asks the run to save and leave; a second one ends the process at once.
pub(super) fn raise_on_signal(interrupt: &Interrupt) -> Result<(), CliError> {
    let failed = |error: std::io::Error| CliError::failed(format!("signals cannot be handled: {error}"));
    for signal in [SIGINT, SIGTERM, SIGUSR1] {
        // In this order: the second signal finds the flag raised, the first does not.
        flag::register_conditional_shutdown(signal, 128 + signal, interrupt.flag()).map_err(failed)?;
        flag::register(signal, interrupt.flag()).map_err(failed)?;
    }
    Ok(())
}
