//! Hooks that live as long as a scope.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tenterhook_hooks::{HookOptions, HookResult, Mock};

use crate::support::{Notes, tensor};

#[test]
fn a_scope_removes_its_hook_whatever_happens() {
    let mock = Mock::new(["p"]).unwrap();
    let (hooks, notes) = (mock.hooks(), Notes::default());
    hooks.register_with(notes.observer("outer", "p"), HookOptions::id("outer")).unwrap();
    let ids = || hooks.list_hooks().into_iter().map(|hook| hook.id).collect::<Vec<_>>();

    let early_return = || -> HookResult {
        let scope = hooks.scoped(notes.observer("inner", "p"))?;
        assert_eq!(ids(), ["outer", scope.id()]);
        Err("early".into())
    };
    assert!(early_return().is_err());
    assert_eq!(ids(), ["outer"]);

    let caught = catch_unwind(AssertUnwindSafe(|| {
        let _first = hooks.scoped(notes.observer("inner", "p")).unwrap();
        let _second = hooks.scoped(notes.observer("inner", "p")).unwrap();
        std::panic::resume_unwind(Box::new("in the scope")); // without the message of a panic
    }));
    assert!(caught.is_err());
    assert_eq!(ids(), ["outer"]);
}

#[test]
fn a_scope_never_removes_a_hook_that_is_not_its_own() {
    let mut mock = Mock::new(["p"]).unwrap();
    let notes = Notes::default();
    let scope = mock.hooks().scoped_with(notes.observer("scoped", "p"), HookOptions::id("x")).unwrap();
    mock.hooks().remove_hook("x").unwrap();
    mock.hooks().register_with(notes.observer("another", "p"), HookOptions::id("x")).unwrap();
    drop(scope);
    mock.step();
    mock.fire("p", &tensor(&[1.0])).unwrap();
    assert_eq!(notes.take(), ["another"]);

    let scope = mock.hooks().scoped_with(notes.observer("scoped", "p"), HookOptions::id("y")).unwrap();
    mock.hooks().replace_hook("y", notes.observer("in its place", "p")).unwrap();
    drop(scope);
    assert_eq!(mock.hooks().list_hooks().len(), 1, "what took its place goes with it");
}
