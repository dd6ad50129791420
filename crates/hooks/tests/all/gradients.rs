//! Hooks in the backward.

use candle_core::{DType, Device, Tensor, Var};
use tenterhook_hooks::{Gradients, HookManager, PassSetup, Point, PointTable, hook_fn};

use crate::support::{Mlp, Notes, bits, tensor, values};

/// An edited gradient is what everything upstream gets, and nothing downstream notices: as with PyTorch's tensor hooks.
#[test]
fn an_edited_gradient_scales_everything_upstream_and_nothing_downstream() {
    let model = Mlp::new();
    let silent = model.bits(&HookManager::new(model.table.clone()));
    let hooks = HookManager::new(model.table.clone());
    hooks.register(hook_fn::edit_gradient("layers.1.hook_out", |_, g, _| Ok(Some((g * 2.0)?)))).unwrap();
    let edited = model.bits(&hooks);
    let float = |bits: &[u32]| bits.iter().map(|bits| f32::from_bits(*bits)).collect::<Vec<_>>();
    let twice = |bits: &[u32]| float(bits).into_iter().map(|x| 2.0 * x).collect::<Vec<_>>(); // exact in floating point
    assert_eq!(edited[0], silent[0], "the loss");
    assert_eq!(float(&edited[1]), twice(&silent[1]), "layer 0");
    assert_eq!(float(&edited[2]), twice(&silent[2]), "layer 1");
    assert_eq!(edited[3], silent[3], "layer 2");
}

#[test]
fn gradient_controllers_run_in_order_and_observers_see_the_result() {
    let mut mock = tenterhook_hooks::Mock::new(["p"]).unwrap();
    let notes = Notes::default();
    let seen = notes.clone();
    mock.attach(hook_fn::observe_gradient("p", move |_, g, _| {
        seen.write(format!("{:?}", values(g)));
        Ok(())
    }))
    .unwrap();
    mock.attach(hook_fn::edit_gradient("p", |_, g, _| Ok(Some((g + 1.0)?)))).unwrap();
    mock.attach(hook_fn::edit_gradient("p", |_, g, _| Ok(Some((g * 10.0)?)))).unwrap();
    let upstream = mock.backward("p", &tensor(&[5.0]), &tensor(&[2.0])).unwrap();
    assert_eq!((values(&upstream), notes.take()), (vec![30.0], vec!["[30.0]".to_string()]));
}

#[test]
fn where_nothing_upstream_is_trained_the_value_becomes_a_leaf() {
    let model = Mlp::new();
    let hooks = HookManager::new(model.table.clone());
    let notes = Notes::default();
    let seen = notes.clone();
    hooks
        .register(hook_fn::observe_gradient("layers.0.hook_in", move |_, g, _| {
            seen.write(format!("{:?}", g.dims()));
            Ok(())
        }))
        .unwrap();
    model.forward(&hooks.pass(PassSetup::train(0))).unwrap().backward().unwrap();
    assert_eq!(notes.take(), ["[5, 8]"], "the input of the model is a plain tensor");
}

#[test]
fn passes_without_gradients_have_no_gradient_hooks() {
    let model = Mlp::new();
    let hooks = HookManager::new(model.table.clone());
    let id = hooks.register(hook_fn::observe_gradient("*", |_, _, _| Ok(()))).unwrap();
    let point = model.table.find("layers.0.hook_pre").unwrap();
    let off = hooks.pass(PassSetup::eval(0));
    assert!(!off.armed(point) && off.gradient_observer(point).is_none());
    model.forward(&off).unwrap().backward().unwrap();
    assert_eq!(off.report().receipt(&id).unwrap().fired, 0);
    let on = hooks.pass(PassSetup::eval(0).gradients(Gradients::Activations));
    assert!(on.armed(point) && on.listens(point).gradient_observed() && !on.listens(point).intervenes());
    model.forward(&on).unwrap().backward().unwrap();
    assert_eq!(on.report().receipt(&id).unwrap().fired, 9);
    on.gradient_observer(point).unwrap()(&tensor(&[1.0])).unwrap(); // what a fused kernel does
    assert_eq!(on.report().receipt(&id).unwrap().fired, 10);
}

#[test]
fn the_gradient_at_a_layers_input_is_not_that_at_its_output() {
    let model = Mlp::new();
    let hooks = HookManager::new(model.table.clone());
    let notes = Notes::default();
    let seen = notes.clone();
    let look = hook_fn::observe_gradient("layers.1", move |at, _, _| {
        seen.write(format!("{} {}", at.name(), at.site().as_str()));
        Ok(())
    });
    hooks.register(look.before()).unwrap();
    model.bits(&hooks);
    assert_eq!(notes.take(), ["layers.1.hook_in pre_gradient"]);
}

#[test]
fn integer_values_have_no_gradient_and_do_no_harm() {
    let mut points = PointTable::builder();
    let tokens = points.point(Point::new("tokens", "batch pos")).unwrap();
    let hooks = HookManager::new(points.build());
    let id = hooks.register(hook_fn::observe_gradient("*", |_, _, _| Ok(()))).unwrap();
    let pass = hooks.pass(PassSetup::train(0));
    let x = pass.tap(tokens, Tensor::zeros((1, 2), DType::U32, &Device::Cpu).unwrap()).unwrap();
    assert_eq!(x.dtype(), DType::U32);
    assert_eq!(pass.report().never_fired().map(|hook| hook.id.as_str()).collect::<Vec<_>>(), [id.as_str()]);
}

#[test]
fn the_tape_holds_gradient_hooks_weakly() {
    let mut points = PointTable::builder();
    let p = points.point(Point::new("p", "d")).unwrap();
    let hooks = HookManager::new(points.build());
    let notes = Notes::default();
    let inner = notes.clone();
    let id = hooks
        .register(hook_fn::edit_gradient("p", move |_, g, _| {
            inner.write("called");
            Ok(Some((g * 2.0)?))
        }))
        .unwrap();
    let leaf = Var::from_tensor(&tensor(&[1.0])).unwrap();
    let run = |keep_pass: bool| {
        let pass = hooks.pass(PassSetup::train(0));
        let y = pass.tap(p, leaf.as_tensor().clone()).unwrap();
        (y, keep_pass.then_some(pass))
    };
    let (y, pass) = run(false);
    drop(pass);
    hooks.remove_hook(&id).unwrap();
    let gradients = y.backward().unwrap();
    assert_eq!(bits(gradients.get(&leaf).unwrap()), bits(&tensor(&[1.0])));
    assert_eq!(notes.take(), [""; 0], "removed, and no pass holds it");
}
