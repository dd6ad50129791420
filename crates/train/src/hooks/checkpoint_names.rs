//! Names of checkpoints: all hooks that save share one directory, and none may take or remove another's.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use tenterhook_hooks::{Cx, Request};

/// The names that hooks hold, in lower case because some file systems do not tell cases apart, and those they gave up at a step.
#[derive(Default)]
struct Claims(Mutex<BTreeMap<String, Option<u64>>>);

impl Claims {
    fn of(cx: &Cx) -> Arc<Self> {
        cx.board().get::<Self>().unwrap_or_else(|| {
            cx.board().put_for_run(Self::default());
            cx.board().get::<Self>().unwrap_or_default()
        })
    }

    fn set(&self, name: &str, given_up: Option<u64>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(name.to_lowercase(), given_up);
    }

    /// A name that was given up at this very step is still being removed.
    fn is_free(&self, name: &str, step: u64) -> bool {
        let claims = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        claims
            .get(&name.to_lowercase())
            .is_none_or(|given_up| given_up.is_some_and(|given_up| given_up < step))
    }
}

/// Takes a name that nobody holds: this one, or with `-v1`, `-v2`, ...
pub(crate) fn claim(wanted: &str, step: u64, cx: &Cx) -> String {
    let claims = Claims::of(cx);
    let mut name = wanted.to_string();
    let mut version = 0u64;
    while !claims.is_free(&name, step) {
        version += 1;
        name = format!("{wanted}-v{version}");
    }
    claims.set(&name, None);
    name
}

/// Asks for a checkpoint to be removed and gives up its name.
pub(crate) fn remove(name: String, step: u64, cx: &mut Cx) {
    Claims::of(cx).set(&name, Some(step));
    cx.request(Request::Remove { name });
}

/// Holds a name that was taken before a restart.
pub(crate) fn hold(name: &str, cx: &Cx) {
    Claims::of(cx).set(name, None);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_free_again_only_after_the_step_it_was_given_up_at() {
        let claims = Claims::default();
        assert!(claims.is_free("a", 0));
        claims.set("A", None);
        assert!(!claims.is_free("a", 5), "cases are one");
        claims.set("a", Some(5));
        assert!(!claims.is_free("a", 5) && claims.is_free("a", 6));
    }
}
