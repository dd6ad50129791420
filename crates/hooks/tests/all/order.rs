//! Who runs when.

use tenterhook_hooks::{HookOptions, Mock, hook_fn};

use crate::support::{Notes, tensor, values};

fn builtin() -> HookOptions {
    HookOptions { builtin: true, ..HookOptions::default() }
}

#[test]
fn controllers_before_observers_and_user_hooks_before_built_in_ones() {
    let mut mock = Mock::new(["p"]).unwrap();
    let notes = Notes::default();
    mock.attach_with(notes.observer("built-in observer", "p"), builtin()).unwrap();
    mock.attach_with(notes.controller("built-in controller", "p"), builtin()).unwrap();
    mock.attach(notes.observer("user observer 1", "p")).unwrap();
    mock.attach(notes.controller("user controller", "p")).unwrap();
    mock.attach(notes.observer("user observer 2, late", "p")).unwrap();
    mock.attach_with(notes.observer("built-in observer, late", "p"), builtin()).unwrap();
    mock.fire("p", &tensor(&[1.0])).unwrap();
    let want = [
        "user controller",
        "built-in controller",
        "user observer 1",
        "user observer 2, late",
        "built-in observer",
        "built-in observer, late",
    ];
    assert_eq!(notes.take(), want);
}

#[test]
fn observers_see_what_the_model_uses_unless_they_ask_for_what_was_before() {
    let mut mock = Mock::new(["p"]).unwrap();
    let see = |notes: Notes| {
        hook_fn::observe("p", move |_, x, _| {
            notes.write(format!("{:?}", values(x)));
            Ok(())
        })
    };
    let (before, after) = (Notes::default(), Notes::default());
    mock.attach(see(after.clone())).unwrap();
    let early = HookOptions { observe_before_edits: true, ..HookOptions::default() };
    mock.attach_with(see(before.clone()), early).unwrap();
    mock.attach(hook_fn::edit("p", |_, x, _| Ok(Some((x + 1.0)?)))).unwrap();
    mock.attach(hook_fn::edit("p", |_, x, _| Ok(Some((x * 10.0)?)))).unwrap();
    let y = mock.fire("p", &tensor(&[1.0])).unwrap();
    assert_eq!(values(&y), [20.0], "controllers run in order");
    assert_eq!((before.take(), after.take()), (vec!["[1.0]".to_string()], vec!["[20.0]".to_string()]));
}

#[test]
fn the_list_is_the_order() {
    let mut mock = Mock::new(["p"]).unwrap();
    let notes = Notes::default();
    mock.attach_with(notes.observer("a", "p"), HookOptions { id: Some("late".into()), ..builtin() }).unwrap();
    mock.attach_with(notes.observer("b", "p"), HookOptions::id("first")).unwrap();
    mock.attach_with(notes.observer("c", "p"), HookOptions::id("second")).unwrap();
    let ids: Vec<String> = mock.hooks().list_hooks().into_iter().map(|hook| hook.id).collect();
    assert_eq!(ids, ["first", "second", "late"]);
}
