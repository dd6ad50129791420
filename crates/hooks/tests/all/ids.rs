//! Names of hooks: unique, readable, never used twice.

use tenterhook_hooks::{AttachError, HookManager, HookOptions, Mock, Point, PointTable, hook_fn};

use crate::support::{Notes, tensor};

fn manager() -> HookManager {
    let mut points = PointTable::builder();
    points.point(Point::new("p", "d")).unwrap();
    HookManager::new(points.build())
}

#[test]
fn made_ids_are_the_kind_with_a_number_and_are_never_used_again() {
    let hooks = manager();
    let make = || hooks.register(hook_fn::observe("p", |_, _, _| Ok(()))).unwrap();
    assert_eq!([make(), make(), make()], ["observe_fn", "observe_fn-2", "observe_fn-3"]);
    hooks.remove_hook("observe_fn-3").unwrap();
    hooks.remove_hook("observe_fn").unwrap();
    assert_eq!([make(), make()], ["observe_fn-4", "observe_fn-5"]);
    hooks.remove_all();
    assert_eq!(make(), "observe_fn-6");
}

#[test]
fn a_made_id_never_meets_a_given_one_nor_one_of_another_kind() {
    struct Named(&'static str);
    impl tenterhook_hooks::Hook for Named {
        fn kind(&self) -> &str {
            self.0
        }
    }
    let hooks = manager();
    hooks.register_with(Named("a"), HookOptions::id("a-2")).unwrap();
    let make = |kind| hooks.register(Named(kind)).unwrap();
    assert_eq!([make("a"), make("a")], ["a", "a-3"]);
    assert_eq!(make("b-2"), "b-2");
    hooks.remove_all();
    assert_eq!([make("b"), make("b")], ["b", "b-3"], "kind `b-2` used `b-2` up");
    assert_eq!(make("a-3"), "a-3-2", "kind `a` used `a-3` up");
}

#[test]
fn duplicates_and_unknown_ids_are_errors() {
    let hooks = manager();
    let observer = || hook_fn::observe("p", |_, _, _| Ok(()));
    hooks.register_with(observer(), HookOptions::id("watcher")).unwrap();
    let again = hooks.register_with(observer(), HookOptions::id("watcher"));
    assert_eq!(again, Err(AttachError::DuplicateId("watcher".into())));
    let unknown = AttachError::UnknownId { id: "wacher".into(), nearest: vec!["watcher".into()] };
    assert_eq!(hooks.remove_hook("wacher"), Err(unknown.clone()));
    assert_eq!(hooks.enable_hook("wacher"), Err(unknown.clone()));
    assert_eq!(hooks.is_enabled("wacher"), Err(unknown.clone()));
    assert_eq!(hooks.replace_hook("wacher", observer()), Err(unknown));
    assert_eq!(
        hooks.monitoring("watcher").map(drop).unwrap_err().to_string().split(' ').next(),
        Some("hook")
    );
    hooks.remove_hook("watcher").unwrap();
    hooks.register_with(observer(), HookOptions::id("watcher")).unwrap();
}

#[test]
fn replacing_keeps_the_turn_the_options_and_the_switch() {
    let mut mock = Mock::new(["p"]).unwrap();
    let notes = Notes::default();
    for name in ["a", "b", "c"] {
        mock.attach_with(notes.observer(name, "p"), HookOptions::id(name)).unwrap();
    }
    mock.hooks().disable_hook("c").unwrap();
    for (id, name) in [("b", "new b"), ("c", "new c")] {
        mock.hooks().replace_hook(id, notes.observer(name, "p")).unwrap();
    }
    assert!(
        mock.hooks().replace_hook("b", notes.observer("lost", "nowhere")).is_err(),
        "and the old one stays"
    );
    mock.step();
    mock.fire("p", &tensor(&[1.0])).unwrap();
    assert_eq!(notes.take(), ["a", "new b"]);
    mock.hooks().enable_hook("c").unwrap();
    mock.step();
    mock.fire("p", &tensor(&[1.0])).unwrap();
    assert_eq!(notes.take(), ["a", "new b", "new c"]);
}

#[test]
fn a_hook_cannot_be_reached_from_inside_itself() {
    struct Plain;
    impl tenterhook_hooks::Hook for Plain {
        fn kind(&self) -> &str {
            "plain"
        }
    }
    let hooks = manager();
    let id = hooks.register(Plain).unwrap();
    let inner = hooks.with_hook(&id, |_: &mut Plain| hooks.with_hook(&id, |_: &mut Plain| ()).unwrap_err());
    assert_eq!(inner, Ok(AttachError::Busy("plain".into())));
}
