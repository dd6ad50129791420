//! Watching changes nothing, and putting back what was there changes nothing.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use candle_core::Tensor;
use tenterhook_hooks::{Gradients, HookManager, Pass, PassSetup, Retention, hook_fn};
use tenterhook_models::Transformer;
use tenterhook_nn::{GradBuffers, backward};

use crate::support::*;

/// Every point of the model, the costly ones included.
fn all_points(model: &Transformer) -> Vec<String> {
    model.points().iter().map(|(_, point)| point.name.clone()).collect()
}

/// Everything a training forward and backward give, to the bit.
fn run(
    reference: &Reference,
    pass: &Pass,
    buffers: &GradBuffers,
) -> (Vec<u32>, Vec<u32>, BTreeMap<String, Vec<u32>>) {
    let model = &reference.model;
    let logits = model.forward(&reference.ids, pass).unwrap();
    let loss = tenterhook_models::next_token_loss(&logits, &reference.ids).unwrap();
    let grads = backward(&loss, model.params(), Some(buffers)).unwrap();
    let grads = grads.iter().map(|(name, grad)| (name.to_string(), bits(grad))).collect();
    (bits(&logits), bits(&loss), grads)
}

fn tracked(buffers: &Arc<GradBuffers>) -> PassSetup {
    eval().gradients(Gradients::Parameters).with(buffers.clone())
}

fn check_observers(reference: &Reference, attach: impl Fn(&HookManager, Vec<String>)) {
    let model = &reference.model;
    let buffers = GradBuffers::new(model.params());
    let silent = run(reference, &Pass::silent(tracked(&buffers)), &buffers);
    let hooks = model.hook_manager();
    attach(&hooks, all_points(model));
    let pass = hooks.pass(tracked(&buffers));
    let watched = run(reference, &pass, &buffers);
    assert_eq!(silent.0, watched.0, "{}: logits", reference.name);
    assert_eq!(silent.1, watched.1, "{}: loss", reference.name);
    for (name, bits) in &silent.2 {
        assert_eq!(bits, &watched.2[name], "{}: gradient of {name}", reference.name);
    }
    assert!(!pass.report().degraded());
    let untracked = hooks.pass(eval());
    assert_eq!(
        silent.0,
        bits(&model.forward(&reference.ids, &untracked).unwrap()),
        "{}: inference",
        reference.name
    );
}

#[test]
fn p16_observers_change_no_bit_at_any_point() {
    for name in STRUCTURES {
        let reference = Reference::load(name);
        check_observers(&reference, |hooks, points| {
            hooks
                .register(hook_fn::observe(points.clone(), |at, x, cx| cx.keep(at, x, Retention::Last, None)))
                .unwrap();
            hooks
                .register(hook_fn::observe_gradient(points, |at, x, cx| {
                    cx.keep(at, x, Retention::Last, None)
                }))
                .unwrap();
        });
        check_observers(&reference, |hooks, points| {
            for _ in 0..100 {
                hooks.register(hook_fn::observe(points.clone(), |_, _, _| Ok(()))).unwrap();
            }
        });
        check_observers(&reference, |hooks, points| {
            hooks.register(hook_fn::observe_gradient(points, |_, _, _| Ok(()))).unwrap();
        });
    }
}

/// Each point alone, so that no listener elsewhere has already taken a kernel apart.
#[test]
fn p16_one_observer_at_a_time() {
    for name in ["gpt2", "gemma2"] {
        let reference = Reference::load(name);
        for point in all_points(&reference.model) {
            check_observers(&reference, |hooks, _| {
                hooks.register(hook_fn::observe(point.as_str(), |_, _, _| Ok(()))).unwrap();
                // A point without gradients says so.
                let _ = hooks.register(hook_fn::observe_gradient(point.as_str(), |_, _, _| Ok(())));
            });
        }
    }
}

#[test]
fn every_point_fires_once_in_each_direction() {
    for name in STRUCTURES {
        let reference = Reference::load(name);
        let model = &reference.model;
        let hooks = model.hook_manager();
        let counts: Arc<Mutex<BTreeMap<String, u32>>> = Arc::default();
        let count = |prefix: &'static str| {
            let counts = counts.clone();
            move |name: &str| *counts.lock().unwrap().entry(format!("{prefix}{name}")).or_default() += 1
        };
        let (forward, backward) = (count("value "), count("gradient "));
        hooks
            .register(hook_fn::observe(all_points(model), move |at, _, _| {
                forward(at.name());
                Ok(())
            }))
            .unwrap();
        hooks
            .register(hook_fn::observe_gradient(all_points(model), move |at, _, _| {
                backward(at.name());
                Ok(())
            }))
            .unwrap();
        let buffers = GradBuffers::new(model.params());
        run(&reference, &hooks.pass(tracked(&buffers)), &buffers);
        let counts = counts.lock().unwrap();
        for (_, point) in model.points().iter() {
            assert_eq!(
                counts.get(&format!("value {}", point.name)),
                Some(&1),
                "{name}: value at {}",
                point.name
            );
            let gradients = point.differentiable.then_some(&1);
            assert_eq!(
                counts.get(&format!("gradient {}", point.name)),
                gradients,
                "{name}: gradient at {}",
                point.name
            );
        }
    }
}

/// With constant weights nothing upstream of the first listener has a gradient: it has to become a leaf, also inside a kernel.
fn check_gradients_arrive(reference: &Reference) {
    let model = &reference.model;
    let hooks = model.hook_manager();
    for (_, point) in model.points().iter().filter(|(_, point)| point.differentiable) {
        let scope = hooks.scoped(hook_fn::observe_gradient(point.name.as_str(), |_, _, _| Ok(()))).unwrap();
        let pass = hooks.pass(eval().gradients(Gradients::Activations));
        model.next_token_loss(&reference.ids, &pass).unwrap().backward().unwrap();
        let fired = pass.report().receipt(scope.id()).unwrap().fired;
        assert_eq!(fired, 1, "{}: gradient at {}", reference.name, point.name);
    }
}

#[test]
fn gradients_arrive_everywhere_without_trained_parameters() {
    for name in STRUCTURES {
        check_gradients_arrive(&Reference::load(name));
    }
    tenterhook_nn::ops::composed_only(|| check_gradients_arrive(&Reference::load("gpt2")));
}

#[test]
fn p21_putting_back_what_was_captured_changes_no_bit() {
    for name in STRUCTURES {
        let reference = Reference::load(name);
        let model = &reference.model;
        let hooks = model.hook_manager();
        let points = all_points(model);
        capture(&hooks, &points.iter().map(String::as_str).collect::<Vec<_>>());
        let logits = bits(&model.forward(&reference.ids, &hooks.pass(eval())).unwrap());
        let cache: BTreeMap<String, Tensor> = captured(&hooks, "observe_fn");
        hooks.remove_all();
        for point in points {
            let patch = cache[&point].clone();
            let scope =
                hooks.scoped(hook_fn::edit(point.as_str(), move |_, _, _| Ok(Some(patch.copy()?)))).unwrap();
            let pass = hooks.pass(eval());
            assert_eq!(logits, bits(&model.forward(&reference.ids, &pass).unwrap()), "{name}: {point}");
            let report = pass.report();
            let receipt = report.receipt(scope.id()).unwrap();
            assert_eq!(
                (receipt.edits, receipt.elements_changed, receipt.errors),
                (1, 0, 0),
                "{name}: {point}"
            );
        }
    }
}

/// An edit reaches the logits from everywhere: no point is a dead end.
#[test]
fn every_point_matters() {
    for name in STRUCTURES {
        let reference = Reference::load(name);
        let model = &reference.model;
        let hooks = model.hook_manager();
        let logits = bits(&model.forward(&reference.ids, &Pass::default()).unwrap());
        for (_, point) in model.points().iter().filter(|(_, point)| point.differentiable) {
            let _scope = hooks
                .scoped(hook_fn::edit(point.name.as_str(), |_, x, _| Ok(Some(x.affine(0.5, 0.0)?))))
                .unwrap();
            let edited = bits(&model.forward(&reference.ids, &hooks.pass(eval())).unwrap());
            // The scale of a norm whose input is scaled alike, or masked scores, still move the rest.
            assert_ne!(logits, edited, "{name}: halving {} changed nothing", point.name);
        }
    }
}

/// What a disabled hook costs is timed in the benchmarks; that it cannot cost anything is seen here: no point is armed.
#[test]
fn p24_disabled_hooks_arm_nothing() {
    let reference = Reference::load("gpt2");
    let hooks = reference.model.hook_manager();
    let ids: Vec<String> = (0..50)
        .map(|_| hooks.register(hook_fn::observe(all_points(&reference.model), |_, _, _| Ok(()))).unwrap())
        .collect();
    assert!(reference.model.points().iter().all(|(id, _)| hooks.pass(eval()).armed(id)));
    ids.iter().for_each(|id| hooks.disable_hook(id).unwrap());
    let pass = hooks.pass(eval().gradients(Gradients::Parameters));
    assert!(!reference.model.points().iter().any(|(id, _)| pass.armed(id)));
    reference.model.forward(&reference.ids, &pass).unwrap();
    assert!(pass.report().hooks.iter().all(|hook| !hook.enabled && hook.receipt.fired == 0));
}

#[test]
fn a_pass_of_another_model_is_refused() {
    let (a, b) = (Reference::load("gpt2"), Reference::load("llama"));
    let hooks = a.model.hook_manager();
    capture(&hooks, &["hook_embed"]);
    let error = b.model.forward(&b.ids, &hooks.pass(eval())).unwrap_err().to_string();
    assert!(error.contains("another model"), "{error}");
}
