//! Runs from configurations: `[model]`, `[data]`, `[[hooks]]` and the rest become a trainer with a record.

mod begin;
mod hooks_file;
mod place;
mod plan;
mod task;
mod together;

pub use begin::{BeginError, Begun, Origin, Start};
pub(crate) use begin::{newest_checkpoint, put_aside};
pub use hooks_file::{Attached, HooksFile};
pub use place::Place;
pub use plan::{Outline, Plan, schema};
pub use task::LanguageTask;
pub use together::How;

use tenterhook_hooks::HookRegistry;

/// Every kind of hook there is.
pub fn registry() -> HookRegistry {
    let mut registry = tenterhook_train::hooks::registry();
    let added = tenterhook_lens::controllers::register_kinds(&mut registry)
        .and_then(|()| tenterhook_lens::analysis::register_kinds(&mut registry))
        .and_then(|()| tenterhook_sae::register_kinds(&mut registry));
    if let Err(error) = added {
        // Two kinds of the same name are a mistake in the code; every test that uses the registry finds it.
        tracing::error!("{error}");
    }
    registry
}
