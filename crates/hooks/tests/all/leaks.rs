//! Hooks never leak.

use std::panic::{AssertUnwindSafe, catch_unwind};

use tenterhook_hooks::{HookManager, HookOptions, HookResult, PassSetup, hook_fn};

use crate::support::{Mlp, Notes, in_child, memory};

const CYCLES: usize = 1_000_000;
const SCOPES: usize = 100_000;
const WARM_UP: usize = 20_000;

/// Runs `cycle` so many times; the resident memory after the warm-up stays where it is.
fn stays_flat(cycles: usize, mut cycle: impl FnMut(usize)) {
    (0..WARM_UP).for_each(&mut cycle);
    let before = memory("VmRSS");
    (WARM_UP..cycles).for_each(&mut cycle);
    let drift = memory("VmRSS").abs_diff(before);
    assert!(drift < 1 << 20, "resident memory moved by {drift} bytes");
}

#[test]
fn p18_hooks_never_leak() {
    in_child("leaks::p18_hooks_never_leak", || {
        let model = Mlp::new();
        let (hooks, notes) = (HookManager::new(model.table.clone()), Notes::default());
        hooks.register_with(notes.observer("outer", "layers.0"), HookOptions::id("outer")).unwrap();
        let weight = vec![0u8; 64];
        let heavy = || {
            let weight = weight.clone();
            hook_fn::observe("layers.*.hook_pre", move |_, _, _| {
                std::hint::black_box(&weight);
                Ok(())
            })
        };
        let run = |i: usize| {
            if i.is_multiple_of(1000) {
                model.forward(&hooks.pass(PassSetup::train(0))).unwrap().backward().unwrap();
            }
        };
        stays_flat(CYCLES, |i| {
            let id = hooks.register(heavy()).unwrap();
            run(i);
            hooks.remove_hook(&id).unwrap();
        });
        stays_flat(SCOPES, |i| {
            let failing_scope = || -> HookResult {
                let _scope = hooks.scoped(heavy())?;
                run(i);
                if i.is_multiple_of(2) { Err("in the scope".into()) } else { panic!("in the scope") }
            };
            let failed = catch_unwind(AssertUnwindSafe(failing_scope));
            assert!(failed.is_err() || failed.is_ok_and(|result| result.is_err()));
        });
        let left = hooks.list_hooks();
        assert_eq!(left.iter().map(|hook| hook.id.as_str()).collect::<Vec<_>>(), ["outer"]);
        assert_eq!(left[0].receipt.fired as usize, notes.take().len(), "the outer hook ran on undisturbed");
    });
}
