//! No hook can silently do nothing.

use tenterhook_hooks::{
    AttachError, Control, HookManager, HookOptions, ManagerConfig, Mock, Point, PointTable, hook_fn,
};

use crate::support::tensor;

#[test]
fn hooks_that_did_nothing_are_named() {
    let mut mock = Mock::new(["p", "q"]).unwrap();
    let quiet = mock.attach(hook_fn::observe("q", |_, _, _| Ok(()))).unwrap();
    let idle = mock.attach(hook_fn::edit("p", |_, x, _| Ok(Some(x.copy()?)))).unwrap();
    let useful = mock.attach(hook_fn::edit("p", |_, x, _| Ok(Some((x + 1.0)?)))).unwrap();
    let off = HookOptions { enabled: false, ..HookOptions::id("off") };
    mock.attach_with(hook_fn::observe("q", |_, _, _| Ok(())), off).unwrap();
    mock.fire("p", &tensor(&[1.0, 2.0])).unwrap();

    let report = mock.report();
    assert_eq!(report.never_fired().map(|hook| &hook.id).collect::<Vec<_>>(), [&quiet]);
    assert_eq!(report.without_effect().map(|hook| &hook.id).collect::<Vec<_>>(), [&idle]);
    let receipt = report.receipt(&useful).unwrap();
    assert_eq!((receipt.fired, receipt.edits, receipt.elements_changed), (1, 1, 2));
    assert!(receipt.nanoseconds > 0);
    let text = report.to_string();
    assert!(text.contains(&format!("`{quiet}` was never called")), "{text}");
    assert!(text.contains(&format!("`{idle}` was called 1 times and changed no element")), "{text}");
    assert!(!text.contains("`off`"), "{text}");
}

#[test]
fn a_hook_that_listens_twice_at_a_point_names_it_once() {
    let mut mock = Mock::new(["p", "q"]).unwrap();
    let options =
        tenterhook_hooks::CaptureOptions { gradients: true, ..tenterhook_hooks::CaptureOptions::new("*") };
    mock.attach(tenterhook_hooks::Capture::new(options).unwrap()).unwrap();
    assert_eq!(mock.report().hooks[0].matched, ["p", "q"]);
}

#[test]
fn a_hook_can_ask_for_an_end_and_that_is_no_failure() {
    let mut mock = Mock::new(["p"]).unwrap();
    let id = mock
        .attach(hook_fn::observe("p", |_, _, cx| {
            match cx.clock().step {
                0 => cx.stop("enough"),
                _ => cx.abort("at once"),
            }
            Ok(())
        }))
        .unwrap();
    mock.fire("p", &tensor(&[1.0])).unwrap();
    let stop = Control::Stop { hook_id: id.clone(), reason: "enough".into() };
    assert_eq!(mock.pass().control(), Some(stop));
    mock.step();
    let error = mock.fire("p", &tensor(&[1.0])).unwrap_err().to_string();
    assert!(error.contains(&format!("hook `{id}` asked to abort: at once")), "{error}");
    assert!(mock.pass().fatal().is_none() && !mock.report().degraded());
}

#[test]
fn an_abort_counts_also_when_the_hook_fails_after_asking() {
    let mut mock = Mock::new(["p"]).unwrap();
    mock.attach(hook_fn::observe("p", |_, _, cx| {
        cx.abort("at once");
        Err("and it failed".into())
    }))
    .unwrap();
    assert!(mock.fire("p", &tensor(&[1.0])).is_err());
    assert!(mock.report().degraded());
}

#[test]
fn controllers_are_refused_where_they_must_not_edit() {
    let mut points = PointTable::builder();
    points.point(Point::new("scores", "d").read_only()).unwrap();
    points.point(Point::new("z", "d")).unwrap();
    let points = points.build();
    let edit = |at: &str| hook_fn::edit(at, |_, _, _| Ok(None));
    let hooks = HookManager::new(points.clone());
    assert_eq!(hooks.register(edit("scores")), Err(AttachError::NotWritable("scores".into())));
    hooks.register(edit("z")).unwrap();
    let config = ManagerConfig { enable_intervention: false, ..ManagerConfig::default() };
    let hooks = HookManager::with_config(points, config);
    assert_eq!(hooks.register(edit("z")), Err(AttachError::InterventionRefused("edit_fn".into())));
    hooks.register(hook_fn::observe("z", |_, _, _| Ok(()))).unwrap();
}
