//! When a hook takes part: the options that every hook has.

use tenterhook_hooks::{Clock, Every, HookOptions, Mock, PassSetup, hook_fn};

use crate::support::tensor;

/// The steps, out of `epochs` of 5 batches each, in which a hook with these options ran.
fn steps(options: HookOptions, epochs: u64) -> Vec<u64> {
    let mut mock = Mock::new(["p"]).unwrap();
    let id = mock.attach_with(hook_fn::observe("p", |_, _, _| Ok(())), options).unwrap();
    let mut ran = Vec::new();
    for step in 0..epochs * 5 {
        let clock = Clock { step, epoch: step / 5, batch: step % 5, micro_batch: 0 };
        mock.set_up(PassSetup { clock, ..PassSetup::default() });
        mock.fire("p", &tensor(&[1.0])).unwrap();
        let report = mock.report();
        let fired = report.receipt(&id).unwrap().fired == 1;
        assert_eq!(report.hooks[0].due, fired);
        assert_eq!(report.never_fired().count(), 0, "a hook that is not due is no cause for alarm");
        ran.extend(fired.then_some(step));
    }
    ran
}

#[test]
fn hooks_run_when_their_options_say() {
    let default = HookOptions::default;
    assert_eq!(steps(default(), 1), [0, 1, 2, 3, 4]);
    assert_eq!(steps(HookOptions { every: Every::Steps(4), ..default() }, 2), [0, 4, 8]);
    assert_eq!(steps(HookOptions { every: Every::Epoch, ..default() }, 3), [0, 5, 10]);
    assert_eq!(steps(HookOptions { start_after_epoch: 2, ..default() }, 3), [10, 11, 12, 13, 14]);
    assert_eq!(steps(HookOptions { enabled: false, ..default() }, 1), [0u64; 0]);
    assert_eq!(steps(HookOptions { sample_rate: 0.0, ..default() }, 1), [0u64; 0]);
}

/// With accumulation the first step of an epoch has several batches, and the hook is there for all of them.
#[test]
fn the_first_step_of_an_epoch_is_a_whole_step() {
    let mut mock = Mock::new(["p"]).unwrap();
    let options = HookOptions { every: Every::Epoch, ..HookOptions::default() };
    let id = mock.attach_with(hook_fn::observe("p", |_, _, _| Ok(())), options).unwrap();
    let mut ran = Vec::new();
    for batch in 0..6 {
        let clock = Clock { step: batch / 3, epoch: 0, batch, micro_batch: batch % 3 };
        mock.set_up(PassSetup { clock, ..PassSetup::default() });
        mock.fire("p", &tensor(&[1.0])).unwrap();
        ran.push(mock.report().receipt(&id).unwrap().fired);
    }
    assert_eq!(ran, [1, 1, 1, 0, 0, 0]);
}

#[test]
fn sampling_is_a_share_and_the_same_every_time() {
    let sampled = |id: &str| steps(HookOptions { sample_rate: 0.25, ..HookOptions::id(id) }, 100);
    let (a, b) = (sampled("a"), sampled("b"));
    assert!((75..=175).contains(&a.len()), "{}", a.len());
    assert_eq!(a, sampled("a"));
    assert_ne!(a, b, "every hook has its own stream");
}

#[test]
fn switching_takes_effect_at_the_next_pass() {
    let mut mock = Mock::new(["p"]).unwrap();
    let id = mock.attach(hook_fn::observe("p", |_, _, _| Ok(()))).unwrap();
    let fired = |mock: &Mock| {
        mock.fire("p", &tensor(&[1.0])).unwrap();
        mock.report().receipt(&id).unwrap().fired
    };
    mock.hooks().disable_hook(&id).unwrap();
    assert_eq!(fired(&mock), 1, "this pass has begun already");
    mock.step();
    assert_eq!(fired(&mock), 0);
    assert!(!mock.pass().armed(mock.hooks().points().find("p").unwrap()));
    mock.hooks().enable_hook(&id).unwrap();
    mock.step();
    assert_eq!(fired(&mock), 1);
}

#[test]
fn senseless_options_are_refused() {
    let mut mock = Mock::new(["p"]).unwrap();
    let options = HookOptions {
        id: Some(String::new()),
        sample_rate: f64::NAN,
        every: Every::Steps(0),
        ..HookOptions::default()
    };
    let error = mock.attach_with(hook_fn::observe("p", |_, _, _| Ok(())), options).unwrap_err().to_string();
    assert!(["`id`", "`sample_rate`", "`every`"].iter().all(|name| error.contains(name)), "{error}");
}
