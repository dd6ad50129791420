//! What hooks share, and what they have to themselves.

use std::sync::{Arc, Mutex};

use tenterhook_hooks::random::Stream;
use tenterhook_hooks::{Clock, HookManager, HookOptions, Mock, PassSetup, hook_fn};

use crate::support::{Mlp, tensor};

#[test]
fn hooks_find_what_others_left_on_the_board() {
    struct Worst(&'static str);
    let mut mock = Mock::new(["p", "q"]).unwrap();
    mock.attach(hook_fn::observe("p", |_, _, cx| {
        cx.board().put_for_step(Worst("p"));
        Ok(())
    }))
    .unwrap();
    mock.attach(hook_fn::observe("q", |_, _, cx| {
        let found = cx.board().get::<Worst>().map_or("nothing", |worst| worst.0);
        cx.log(format!("found {found}"), 1.0);
        cx.log("others", cx.hooks().len() as f64);
        Ok(())
    }))
    .unwrap();
    mock.fire("p", &tensor(&[1.0])).unwrap();
    mock.fire("q", &tensor(&[1.0])).unwrap();
    assert_eq!((mock.metric("found p"), mock.metric("others")), (Some(1.0), Some(2.0)));
    mock.step();
    mock.fire("q", &tensor(&[1.0])).unwrap();
    assert_eq!(mock.metric("found nothing"), Some(1.0));
    mock.board().put_for_run(Worst("run"));
    mock.step();
    mock.fire("q", &tensor(&[1.0])).unwrap();
    assert_eq!(mock.metric("found run"), Some(1.0));
}

/// The random numbers that hooks `ids` draw at this time.
fn draws(ids: &[&str], clock: Clock, seed: u64) -> Vec<u64> {
    let mut mock = Mock::new(["p"]).unwrap();
    let drawn = Arc::new(Mutex::new(Vec::new()));
    for id in ids {
        let drawn = drawn.clone();
        let draw = hook_fn::observe("p", move |_, _, cx| {
            drawn.lock().unwrap().push(cx.random().bits(0));
            Ok(())
        });
        mock.attach_with(draw, HookOptions::id(*id)).unwrap();
    }
    mock.set_up(PassSetup { clock, seed, ..PassSetup::default() });
    mock.fire("p", &tensor(&[1.0])).unwrap();
    std::mem::take(&mut *drawn.lock().unwrap())
}

#[test]
fn random_streams_are_independent_and_reproducible() {
    let at = |step, micro_batch| Clock { step, micro_batch, ..Clock::default() };
    let alone = draws(&["a"], at(3, 0), 42)[0];
    assert_eq!(draws(&["b", "a"], at(3, 0), 42)[1], alone, "who else is there does not matter");
    let others = [
        draws(&["b"], at(3, 0), 42),
        draws(&["a"], at(4, 0), 42),
        draws(&["a"], at(3, 1), 42),
        draws(&["a"], at(3, 0), 43),
    ];
    assert!(others.iter().all(|other| other[0] != alone));
    let pass = HookManager::new(Mlp::new().table).pass(PassSetup { seed: 42, ..PassSetup::default() });
    assert_ne!(pass.random().bits(0), draws(&["a"], at(0, 0), 42)[0]);
    assert_ne!(pass.random(), Stream::new(42));
}

#[test]
fn a_pass_of_another_model_is_refused() {
    let (a, b) = (Mlp::new(), Mlp::new());
    let hooks = HookManager::new(a.table.clone());
    b.forward(&hooks.pass(PassSetup::default())).unwrap(); // without hooks it fits anywhere
    hooks.register_monitoring_hook("*", None, None).unwrap();
    let pass = hooks.pass(PassSetup::default());
    a.forward(&pass).unwrap();
    assert!(b.forward(&pass).unwrap_err().to_string().contains("another model"));
}

#[test]
fn two_passes_of_one_model_can_have_different_hooks() {
    let model = Mlp::new();
    let (plain, doubled) = (HookManager::new(model.table.clone()), HookManager::new(model.table.clone()));
    doubled.register(hook_fn::edit("layers.0", |_, x, _| Ok(Some((x * 2.0)?)))).unwrap();
    let run = |hooks: &HookManager| (0..50).map(|_| model.bits(hooks)[0].clone()).collect::<Vec<_>>();
    std::thread::scope(|scope| {
        let (a, b) = (scope.spawn(|| run(&plain)), scope.spawn(|| run(&doubled)));
        let (a, b) = (a.join().unwrap(), b.join().unwrap());
        assert!(a.iter().all(|loss| *loss == a[0]) && b.iter().all(|loss| *loss == b[0]));
        assert_ne!(a[0], b[0]);
    });
}
