//! Watching changes nothing.

use candle_core::Var;
use tenterhook_hooks::{Capture, CaptureOptions, HookManager, Mock, Retention, hook_fn};

use crate::support::{Mlp, tensor, values};

#[test]
fn p16_observers_change_no_bit_of_values_and_gradients() {
    let model = Mlp::new();
    let silent = model.bits(&HookManager::new(model.table.clone()));
    for count in [1usize, 100] {
        let hooks = HookManager::new(model.table.clone());
        for i in 0..count {
            match i % 4 {
                0 => {
                    let options = CaptureOptions {
                        gradients: true,
                        retention: Retention::Last,
                        ..CaptureOptions::new("*")
                    };
                    hooks.register(Capture::new(options).unwrap()).unwrap();
                }
                1 => drop(hooks.register_monitoring_hook("*", None, None).unwrap()),
                2 => drop(hooks.register_gradient_flow("*", None, 1e-9, 1e9).unwrap()),
                _ => drop(hooks.register_debug_hook("*", None, None).unwrap()),
            }
        }
        assert_eq!(model.bits(&hooks), silent, "{count} observers");
        let report = hooks.report();
        assert!(!report.degraded());
        assert_eq!(report.never_fired().count(), 0);
    }
}

#[test]
fn a_value_patched_with_itself_changes_no_bit() {
    let model = Mlp::new();
    let silent = model.bits(&HookManager::new(model.table.clone()));
    let hooks = HookManager::new(model.table.clone());
    hooks.register(hook_fn::edit("*", |_, x, _| Ok(Some(x.copy()?)))).unwrap();
    hooks.register(hook_fn::edit_gradient("*", |_, x, _| Ok(Some(x.copy()?)))).unwrap();
    assert_eq!(model.bits(&hooks), silent);
}

#[test]
fn an_observer_cannot_grow_the_tape_or_keep_the_graph() {
    let model = Mlp::new();
    let hooks = HookManager::new(model.table.clone());
    hooks
        .register(hook_fn::observe("*", |at, x, _| {
            assert!(!x.track_op() && at.input().is_none_or(|input| !input.track_op()));
            Ok(())
        }))
        .unwrap();
    let id = hooks.register_capture_hook("*", None, None, false, true).unwrap();
    model.bits(&hooks);
    assert!(!hooks.report().degraded());
    assert!(hooks.get_captured_states(&id).unwrap().iter().all(|state| !state.tensor.track_op()));
}

#[test]
fn captured_states_are_not_changed_by_what_happens_later() {
    let mut mock = Mock::new(["p", "q"]).unwrap();
    let parameter = Var::from_tensor(&tensor(&[1.0, 2.0])).unwrap();
    // A controller that hands out a parameter, and a hook that keeps one: either must get a copy.
    let (given, kept) = (parameter.clone(), parameter.clone());
    mock.attach(hook_fn::edit("p", move |_, _, _| Ok(Some(given.as_tensor().clone())))).unwrap();
    let keep = hook_fn::observe("q", move |at, _, cx| cx.keep(at, kept.as_tensor(), Retention::All, None));
    let keeper = mock.attach(keep).unwrap();
    let id = mock.hooks().register_capture_hook("*", None, None, false, true).unwrap();
    mock.step();
    for name in ["p", "q"] {
        let point = mock.hooks().points().find(name).unwrap();
        mock.pass().tap(point, tensor(&[1.0, 2.0])).unwrap();
    }
    parameter.set(&parameter.zeros_like().unwrap()).unwrap();
    for id in [id, keeper] {
        let states = mock.hooks().get_captured_states(&id).unwrap();
        assert!(!states.is_empty() && states.iter().all(|state| values(&state.tensor) == [1.0, 2.0]), "{id}");
    }
}
