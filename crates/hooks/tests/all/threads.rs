//! Registering and removing while others run forwards.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};
use std::sync::mpsc;
use std::time::Duration;

use tenterhook_hooks::{HookManager, HookOptions, PassSetup, hook_fn};

use crate::support::{LAYERS, Mlp, Notes};

const FORWARDS: u64 = 1500;

/// Fails instead of hanging when something is stuck.
fn within(limit: Duration, body: impl FnOnce() + Send + 'static) {
    let (done, finished) = mpsc::channel();
    let worker = std::thread::spawn(move || {
        body();
        let _ = done.send(());
    });
    let outcome = finished.recv_timeout(limit);
    assert!(!matches!(outcome, Err(mpsc::RecvTimeoutError::Timeout)), "stuck for {limit:?}");
    worker.join().unwrap();
}

#[test]
fn p19_no_deadlock_and_no_lost_hook_under_threads() {
    within(Duration::from_secs(120), || {
        let model = Mlp::new();
        let hooks = HookManager::new(model.table.clone());
        let calls = Arc::new(AtomicU64::new(0));
        let counter = calls.clone();
        let count = hook_fn::observe("layers.*.hook_out", move |_, _, _| {
            counter.fetch_add(1, SeqCst);
            Ok(())
        });
        hooks.register_with(count, HookOptions::id("counter")).unwrap();
        let (done, churned) = (AtomicBool::new(false), AtomicU64::new(0));
        std::thread::scope(|scope| {
            for worker in 0..4 {
                let (hooks, done, churned) = (&hooks, &done, &churned);
                scope.spawn(move || {
                    let notes = Notes::default();
                    while !done.load(SeqCst) {
                        let options = HookOptions { builtin: worker % 2 == 0, ..HookOptions::default() };
                        let id = hooks.register_with(notes.observer("passing by", "*"), options).unwrap();
                        let capture = hooks.register_capture_hook("*", None, None, false, true).unwrap();
                        hooks.disable_hook(&id).unwrap();
                        hooks.list_hooks();
                        let _scope = hooks.scoped(notes.controller("scoped", "layers.0")).unwrap();
                        hooks.enable_hook(&id).unwrap();
                        hooks.remove_hook(&id).unwrap();
                        hooks.remove_hook(&capture).unwrap();
                        hooks.clear_captured_states(Some(&capture)).unwrap();
                        notes.take();
                        churned.fetch_add(1, SeqCst);
                    }
                });
            }
            let runners: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        for step in 0..FORWARDS {
                            let pass = hooks.pass(PassSetup::train(step));
                            let loss = model.forward(&pass).unwrap();
                            if step % 10 == 0 {
                                loss.backward().unwrap();
                            }
                            let fired = pass.report().receipt("counter").unwrap().fired;
                            assert_eq!(fired, LAYERS as u64, "lost in step {step}");
                        }
                    })
                })
                .collect();
            let outcomes: Vec<_> = runners.into_iter().map(|runner| runner.join()).collect();
            done.store(true, SeqCst); // also when one of them failed: else the others would never end
            outcomes.into_iter().for_each(|outcome| outcome.unwrap());
        });
        assert_eq!(calls.load(SeqCst), 4 * FORWARDS * LAYERS as u64);
        let left: Vec<String> = hooks.list_hooks().into_iter().map(|hook| hook.id).collect();
        assert_eq!(left, ["counter"]);
        assert!(churned.load(SeqCst) > 10, "the others hardly ran");
        assert!(!hooks.report().degraded());
    });
}

#[test]
fn a_slow_hook_keeps_other_threads_waiting_but_is_not_called_slow_for_it() {
    let model = Mlp::new();
    let hooks = HookManager::new(model.table.clone());
    let nap = hook_fn::observe("layers.0.hook_in", |_, _, _| {
        std::thread::sleep(Duration::from_millis(30));
        Ok(())
    });
    let id = hooks.register_with(nap, HookOptions { slow_after_ms: 1000, ..HookOptions::default() }).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..48 {
            scope.spawn(|| model.forward(&hooks.pass(PassSetup::default())).unwrap());
        }
    });
    let report = hooks.report();
    let receipt = report.receipt(&id).unwrap();
    assert_eq!(receipt.fired, 48);
    // The last ones waited for more than a second, and napped for a fraction of one.
    assert_eq!(receipt.slow_calls, 0, "waiting was counted: {} ns", receipt.nanoseconds);
}
