//! A hook that fails does not take the run down, and does not go unnoticed.

use serde_json::Value;
use tenterhook::hooks::{Cx, HookOptions, OnError, RunStatus};
use tenterhook::train::Settings;

use crate::lab::{Lab, TINY};
use crate::recorder::Recorder;
use crate::small::{Chain, Notes, attach, bits, record_in, trainer_of};

/// A hook that panics at the end of every batch.
fn panicking(notes: &Notes) -> Recorder {
    Recorder::reacting(notes, |line, _: &mut Cx| match line.starts_with("on_train_batch_end") {
        true => std::panic::resume_unwind(Box::new("dropped the ball")), // a panic that prints nothing
        false => Ok(()),
    })
}

#[test]
fn with_a_panicking_hook_training_completes_and_says_so() {
    let model = Chain::new(2);
    let mut good = trainer_of(&model, Settings::steps(6));
    good.train().unwrap();
    let expected = bits(&*model);

    let (dir, model, notes) = (tempfile::tempdir().unwrap(), Chain::new(2), Notes::default());
    let mut trainer = trainer_of(&model, Settings::steps(6)).with_run(record_in(dir.path()));
    trainer.add_hook_with(panicking(&notes), HookOptions::id("clumsy")).unwrap();
    let finished = trainer.train().unwrap();
    assert_eq!((finished.status, finished.degraded, finished.steps), (RunStatus::Completed, true, 6));
    assert_eq!(bits(&*model), expected);

    let record: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("run/run.json")).unwrap()).unwrap();
    assert_eq!((&record["status"], &record["degraded"]), (&"completed".into(), &true.into()));
    let errors = record["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 3, "after three failures in a row it is disabled: {errors:?}");
    for key_and_value in [
        ("hook_id", "clumsy"),
        ("hook_type", "recorder"),
        ("event", "on_train_batch_end"),
        ("error", "panicked: dropped the ball"),
    ] {
        assert_eq!(errors[0][key_and_value.0], key_and_value.1);
    }
    let hook = trainer.list_hooks().into_iter().find(|hook| hook.id == "clumsy").unwrap();
    assert!(hook.quarantined && !hook.enabled);
    assert_eq!(hook.receipt.errors, 3);
    let heard = notes.take();
    assert_eq!(heard.iter().filter(|line| line.starts_with("on_train_batch_end")).count(), 3);
    assert_eq!(heard.last().unwrap(), "on_train_batch_end train 2", "nothing after that");
}

/// Other events that go well say nothing about the one that fails; the same one does.
#[test]
fn only_failures_in_a_row_of_the_same_event_disable_a_hook() {
    let fails_at = |steps: &'static [u64]| {
        Recorder::reacting(&Notes::default(), move |line, cx: &mut Cx| {
            let bad = line.starts_with("on_before_backward") && steps.contains(&cx.clock().step);
            if bad { Err("again".into()) } else { Ok(()) }
        })
    };
    for (steps, disabled) in [(&[0, 1, 3, 4, 6, 7][..], false), (&[0, 2, 3, 4][..], true)] {
        let mut trainer = trainer_of(&Chain::new(2), Settings::steps(8));
        let id = attach(&mut trainer, fails_at(steps));
        trainer.train().unwrap();
        let hook = trainer.list_hooks().into_iter().find(|hook| hook.id == id).unwrap();
        assert_eq!((hook.quarantined, trainer.errors().len()), (disabled, steps.len()), "{steps:?}");
    }
}

#[test]
fn told_to_abort_it_ends_the_run_and_hears_of_the_end() {
    let notes = Notes::default();
    let mut trainer = trainer_of(&Chain::new(2), Settings::steps(6));
    let abort = HookOptions { on_error: OnError::Abort, ..HookOptions::id("clumsy") };
    trainer.add_hook_with(panicking(&notes), abort).unwrap();
    let error = trainer.train().unwrap_err().to_string();
    assert_eq!(error, "hook `clumsy` (recorder) failed in on_train_batch_end: panicked: dropped the ball");
    let heard = notes.take();
    assert_eq!(heard[heard.len() - 2..], [format!("on_exception {error}"), "on_train_end error".to_string()]);
}

/// A hook of the configuration that cannot do what it is told: no metric has that name.
fn with_unknown_metric(rest: &str) -> Lab {
    Lab::with(&format!(
        "{TINY}\n[[hooks]]\nkind = \"model_checkpoint\"\nid = \"best\"\nmonitor = \"acuracy\"\n{rest}\n\
         [[hooks]]\nkind = \"console_log\"\n"
    ))
}

#[test]
fn a_failed_hook_is_exit_code_4() {
    let lab = with_unknown_metric("");
    let ran = lab.run(&["train", "run.toml"]);
    assert_eq!(ran.code, Some(4), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("hook `best` (model_checkpoint) failed in on_validation_end"),
        "{}",
        ran.stderr
    );
    let record = lab.record("tiny");
    assert_eq!((&record["status"], &record["degraded"]), (&"completed".into(), &true.into()));
    let errors = record["errors"].as_array().unwrap();
    assert_eq!(errors.len(), 3, "{errors:?}");
    assert_eq!(errors[0]["hook_id"], "best");
    assert!(errors[0]["error"].as_str().unwrap().contains("no metric is called `acuracy`"), "{errors:?}");
    assert_eq!(
        (&errors[0]["step"], &errors[2]["step"]),
        (&10.into(), &30.into()),
        "the fourth time it was off"
    );
    let receipts = std::fs::read(lab.run_dir("tiny").join("receipts.json")).unwrap();
    let receipts: Value = serde_json::from_slice(&receipts).unwrap();
    let best = receipts.as_array().unwrap().iter().find(|hook| hook["id"] == "best").unwrap();
    assert_eq!((&best["quarantined"], &best["errors"]), (&true.into(), &3.into()));
}

#[test]
fn a_failed_hook_that_is_to_abort_is_exit_code_1() {
    let lab = with_unknown_metric("on_error = \"abort\"");
    let ran = lab.run(&["train", "run.toml"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let said = format!("{}{}", ran.stdout, ran.stderr);
    assert!(said.contains("training error at"), "`console_log` hears of the end: {said}");
    let record = lab.record("tiny");
    assert_eq!((&record["status"], &record["degraded"]), (&"error".into(), &true.into()));
    assert!(record["reason"].as_str().unwrap().contains("hook `best`"), "{record}");
    assert_eq!(record["attempts"][0]["to_step"], 10);
}

/// Nothing has failed: the run was told to end when its metric is not there.
#[test]
fn a_strict_hook_asks_for_the_end_and_is_exit_code_1() {
    let lab = Lab::with(&format!("{TINY}\n[[hooks]]\nkind = \"early_stopping\"\nmonitor = \"val/los\"\n"));
    let ran = lab.run(&["train", "run.toml"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("`val/los`") && ran.stderr.contains("`val/loss`"), "{}", ran.stderr);
    let record = lab.record("tiny");
    assert_eq!((&record["status"], &record["degraded"]), (&"error".into(), &false.into()));
    assert!(record["errors"].as_array().unwrap().is_empty(), "{record}");
}
