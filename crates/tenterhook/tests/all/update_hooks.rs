//! What update hooks leave is what the optimizer uses.

use std::sync::{Arc, Mutex};

use candle_core::{DType, Tensor};
use tenterhook::hooks::{ClipInfo, Cx, Hook, HookOptions, HookResult, NamedGrads};
use tenterhook::train::hooks::{IdentityUpdate, IdentityUpdateOptions};
use tenterhook::train::optim::Clip;
use tenterhook::train::{Settings, TrainModel};

use crate::small::{Bits, Chain, bits, trainer_of};

type Change = Box<dyn FnMut(&mut NamedGrads) -> HookResult + Send>;

/// An update hook of a closure.
struct Update(Change);

impl Hook for Update {
    fn kind(&self) -> &str {
        "update"
    }

    fn update(&mut self, grads: &mut NamedGrads, _cx: &mut Cx) -> HookResult {
        (self.0)(grads)
    }
}

/// Every gradient through a function.
fn each(change: impl Fn(&Tensor) -> candle_core::Result<Tensor> + Send + 'static) -> Change {
    Box::new(move |grads| {
        let names: Vec<String> = grads.iter().map(|(name, _)| name.to_string()).collect();
        for name in names {
            let changed = change(grads.get(&name).ok_or("it was there")?)?;
            grads.set(&name, changed)?;
        }
        Ok(())
    })
}

fn constant(value: f64) -> Change {
    each(move |grad| grad.ones_like()? * value)
}

/// The weights after three steps of plain gradient descent with these update hooks, and the failures of hooks.
fn weights_with(hooks: Vec<Change>) -> (Bits, Vec<String>) {
    let model = Chain::new(3);
    let mut trainer = trainer_of(&model, Settings::steps(3));
    for hook in hooks {
        trainer.add_hook(Update(hook)).unwrap();
    }
    trainer.train().unwrap();
    (bits(&*model), trainer.errors().iter().map(ToString::to_string).collect())
}

/// Three steps of `w - lr * grad` in f32, with the same gradient throughout.
fn by_hand(grad: f32) -> Bits {
    let step = |w: f32| w - 0.1f64 as f32 * grad;
    let descend = |w: u32| step(step(step(f32::from_bits(w)))).to_bits();
    let first = bits(&*Chain::new(3));
    Bits(
        first
            .0
            .into_iter()
            .map(|(name, weights)| (name, weights.into_iter().map(descend).collect()))
            .collect(),
    )
}

#[test]
fn replaced_gradients_give_the_weights_computed_by_hand() {
    let (weights, errors) = weights_with(vec![constant(0.37)]);
    assert_eq!(weights, by_hand(0.37));
    assert!(errors.is_empty(), "{errors:?}");
    assert_ne!(weights, weights_with(vec![]).0);
}

#[test]
fn several_hooks_are_a_chain_in_order() {
    let triple = || each(|grad| grad * 3.0);
    assert_eq!(weights_with(vec![constant(0.5), triple()]).0, by_hand(1.5));
    assert_eq!(weights_with(vec![triple(), constant(0.5)]).0, by_hand(0.5), "the last one has the last word");
}

#[test]
fn identity_changes_nothing_bit_for_bit() {
    let model = Chain::new(3);
    let mut bare = trainer_of(&model, Settings::steps(3));
    bare.hooks().remove_all();
    bare.train().unwrap();
    let bare = bits(&*model);
    assert_eq!(weights_with(vec![]).0, bare, "with the identity that every trainer has");
    let same: Change = Box::new(|_| Ok(()));
    let copies = each(|grad| grad.copy());
    assert_eq!(weights_with(vec![same, copies]).0, bare);

    let model = Chain::new(3);
    let mut trainer = trainer_of(&model, Settings::steps(3));
    let identity = IdentityUpdate::new(IdentityUpdateOptions::default()).unwrap();
    let id = trainer.add_hook_with(identity, HookOptions::id("same")).unwrap();
    trainer.train().unwrap();
    assert_eq!(bits(&*model), bare);
    let calls = trainer.hooks().with_hook(&id, |hook: &mut IdentityUpdate| hook.calls()).unwrap();
    assert_eq!(calls, 3, "it was asked at every step");
}

/// Changes some gradients, and then it goes wrong: nothing of it remains.
#[test]
fn a_hook_that_fails_leaves_the_gradients_as_they_were() {
    let plain = weights_with(vec![]).0;
    let half_done = |end: fn() -> HookResult| -> Change {
        Box::new(move |grads| {
            constant(9.0)(grads)?;
            end()
        })
    };
    let panics = || -> HookResult { std::panic::resume_unwind(Box::new("lost it")) };
    let nan = || each(|grad| grad / 0.0);
    let wrong: [(Change, &str); 6] = [
        (half_done(|| Err("no".into())), "no"),
        (half_done(panics), "panicked: lost it"),
        (nan(), "NaN or infinity"),
        (each(|grad| grad.unsqueeze(0)), "returned shape"),
        (each(|grad| grad.to_dtype(DType::F64)), "returned dtype"),
        (
            Box::new(|grads| {
                grads.retain(|name| name.ends_with("bias"));
                Ok(())
            }),
            "took away gradients",
        ),
    ];
    for (hook, message) in wrong {
        let (weights, errors) = weights_with(vec![hook]);
        assert_eq!(weights, plain, "{message}");
        assert_eq!(errors.len(), 3, "{errors:?}");
        assert!(errors[0].contains("hook `update`") && errors[0].contains(message), "{errors:?}");
    }
    // The others of the chain are used all the same.
    assert_eq!(weights_with(vec![constant(0.5), nan(), each(|grad| grad * 2.0)]).0, by_hand(1.0));
}

#[test]
fn clipping_is_of_what_the_hooks_leave() {
    struct Norms(Arc<Mutex<Vec<ClipInfo>>>);
    impl Hook for Norms {
        fn kind(&self) -> &str {
            "norms"
        }
        fn on_gradient_clip(&mut self, clip: ClipInfo, _cx: &mut Cx) -> HookResult {
            self.0.lock().unwrap().push(clip);
            Ok(())
        }
    }
    let model = Chain::new(3);
    let mut trainer = trainer_of(&model, Settings { clip: Clip::Norm(1.0), ..Settings::steps(1) });
    let seen = Arc::new(Mutex::new(Vec::new()));
    trainer.add_hook(Norms(seen.clone())).unwrap();
    trainer.add_hook(Update(constant(2.0))).unwrap();
    trainer.train().unwrap();
    let before = 2.0 * (model.params().element_count() as f64).sqrt();
    let clip = seen.lock().unwrap()[0];
    assert!((clip.before - before).abs() < 1e-9 && (clip.after - 1.0).abs() < 1e-6, "{clip:?}");
}
