//! However a run ends, every hook hears of it.

use std::sync::Arc;

use candle_core::Device;
use serde_json::Value;
use tenterhook::hooks::{Batch, Cx, HookOptions, HookResult, OnError, hook_fn};
use tenterhook::record::run::RunDir;
use tenterhook::train::data::{DataError, Dataset, Loader};
use tenterhook::train::{Run, RunFacts, Settings, TrainError, Trainer};

use crate::recorder::Recorder;
use crate::small::{Chain, Notes, attach, examples, one, record_in, sgd, trainer_of};

fn trainer() -> Trainer {
    trainer_of(&Chain::new(2), Settings::steps(4)).with_validation(vec![Loader::new("val", examples(2), 2)])
}

/// The lines about the end.
fn ends(notes: &Notes) -> Vec<String> {
    let mut lines = notes.take();
    lines.retain(|line| line.starts_with("on_exception") || line.starts_with("on_train_end"));
    lines
}

/// A run that fails with this message, of which two hooks are told in this order.
fn assert_fails(mut trainer: Trainer, message: &str) -> TrainError {
    let (first, last) = (Notes::default(), Notes::default());
    attach(&mut trainer, Recorder::new(&first));
    attach(&mut trainer, Recorder::new(&last));
    let error = trainer.train().unwrap_err();
    assert!(error.to_string().contains(message), "{error}");
    for notes in [first, last] {
        assert_eq!(ends(&notes), [format!("on_exception {error}"), "on_train_end error".to_string()]);
    }
    error
}

#[test]
fn a_good_end_is_no_exception() {
    let notes = Notes::default();
    let mut completed = trainer();
    attach(&mut completed, Recorder::new(&notes));
    completed.train().unwrap();
    assert_eq!(ends(&notes), ["on_train_end completed"]);

    let mut interrupted = trainer();
    attach(&mut interrupted, Recorder::new(&notes));
    interrupted.interrupt().raise();
    interrupted.train().unwrap();
    assert_eq!(ends(&notes), ["on_train_end interrupted"]);
}

/// Everything a hook can hear in such a run.
fn places() -> Vec<String> {
    let (dir, notes) = (tempfile::tempdir().unwrap(), Notes::default());
    let mut trainer = trainer().with_run(record_in(dir.path()));
    attach(&mut trainer, Recorder::new(&notes).at("layers.0"));
    trainer.train().unwrap();
    let mut lines = notes.take();
    lines.retain(|line| !line.starts_with("on_train_end"));
    lines.sort();
    lines.dedup();
    lines
}

#[test]
fn when_a_hook_aborts_or_fails_for_good_anywhere_all_are_told() {
    for place in places() {
        for how in ["asks", "fails", "panics"] {
            let dir = tempfile::tempdir().unwrap();
            let mut trainer = trainer().with_run(record_in(dir.path()));
            let (here, told) = (place.clone(), Notes::default());
            let react = move |line: &str, cx: &mut Cx| -> HookResult {
                match how {
                    _ if line != here => {}
                    "asks" => cx.abort("no more"),
                    "fails" => return Err("no more".into()),
                    _ => std::panic::resume_unwind(Box::new("no more")), // a panic that prints nothing
                }
                Ok(())
            };
            let hook = Recorder::reacting(&told, react).at("layers.0");
            let options = HookOptions { on_error: OnError::Abort, ..HookOptions::id("wrecker") };
            trainer.add_hook_with(hook, options).unwrap();
            let error = assert_fails(trainer, "no more");
            assert!(error.to_string().contains("hook `wrecker`"), "{place}: {error}");
            assert_eq!(ends(&told).len(), 2, "{place}: {how}");
            let record = std::fs::read(dir.path().join("run/run.json")).unwrap();
            let record: Value = serde_json::from_slice(&record).unwrap();
            assert_eq!((&record["status"], &record["reason"]), (&"error".into(), &error.to_string().into()));
        }
    }
}

/// Too late for an exception, and still not the end that was promised.
#[test]
fn a_failure_at_the_very_end_is_a_failure_of_the_run() {
    let dir = tempfile::tempdir().unwrap();
    let mut trainer = trainer().with_run(record_in(dir.path()));
    let react =
        |line: &str, _: &mut Cx| if line.starts_with("on_train_end") { Err("late".into()) } else { Ok(()) };
    let abort = HookOptions { on_error: OnError::Abort, ..HookOptions::default() };
    trainer.add_hook_with(Recorder::reacting(&Notes::default(), react), abort).unwrap();
    let after = Notes::default();
    attach(&mut trainer, Recorder::new(&after));
    assert!(trainer.train().unwrap_err().to_string().contains("late"));
    assert_eq!(ends(&after), ["on_train_end completed"], "those behind it hear of the end as well");
    let record: Value =
        serde_json::from_slice(&std::fs::read(dir.path().join("run/run.json")).unwrap()).unwrap();
    assert_eq!(record["status"], "error");
}

/// Examples that can be read up to a place.
struct Broken(Arc<dyn Dataset>);

impl Dataset for Broken {
    fn len(&self) -> u64 {
        self.0.len()
    }

    fn batch(&self, indices: &[u64], device: &Device) -> Result<Batch, DataError> {
        match indices.contains(&5) {
            true => Err(DataError::NoExample { index: 5, len: 5 }),
            false => self.0.batch(indices, device),
        }
    }

    fn fingerprint(&self) -> Value {
        self.0.fingerprint()
    }

    fn vocab(&self) -> Option<u64> {
        None
    }

    fn sequence_length(&self) -> Option<usize> {
        None
    }
}

#[test]
fn when_data_fails_all_are_told() {
    let model = Chain::new(2);
    let data = one(Loader::new("train", Arc::new(Broken(examples(8))), 2));
    let trainer = Trainer::new(model.clone(), data, sgd(&*model, 0.1), Settings::steps(4)).unwrap();
    assert!(matches!(assert_fails(trainer, "example 5"), TrainError::Data(_)));

    let set = vec![Loader::new("val", Arc::new(Broken(examples(8))) as Arc<dyn Dataset>, 2)];
    let trainer = trainer_of(&model, Settings::steps(2)).with_validation(set);
    assert!(matches!(assert_fails(trainer, "example 5"), TrainError::Data(_)));
}

#[test]
fn when_a_save_fails_all_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let settings = Settings { checkpoint_every: Some(2), ..Settings::steps(4) };
    let mut trainer = trainer_of(&Chain::new(2), settings).with_run(record_in(dir.path()));
    let place = dir.path().join("run/checkpoints");
    attach(
        &mut trainer,
        hook_fn::observe("layers.0", move |_, _, cx| {
            // In the way of every further checkpoint.
            if cx.clock().step == 1 {
                std::fs::remove_dir_all(&place)?;
                std::fs::write(&place, "not a directory")?;
            }
            Ok(())
        }),
    );
    let error = assert_fails(trainer, "the checkpoint could not be written");
    assert!(matches!(error, TrainError::Save(_)), "{error}");
}

#[test]
fn a_resumed_run_hears_of_its_checkpoint_before_it_starts() {
    let (dir, notes) = (tempfile::tempdir().unwrap(), Notes::default());
    let mut first = trainer_of(&Chain::new(2), Settings::steps(2)).with_run(record_in(dir.path()));
    first.train().unwrap();
    drop(first);
    let run = dir.path().join("run");
    let opened = RunDir::open(&run).unwrap();
    let lock = opened.lock().unwrap();
    let resumed = Run::resume(opened, lock, &RunFacts::default()).unwrap();
    let mut second = trainer_of(&Chain::new(2), Settings::steps(3)).with_run(resumed);
    attach(&mut second, Recorder::new(&notes));
    second.restore(&run.join("checkpoints/step-00000002")).unwrap();
    second.train().unwrap();
    let heard = notes.take();
    assert_eq!(
        heard[..4],
        [
            "on_checkpoint_load step-00000002",
            "on_train_start",
            "on_checkpoint_save step-00000002",
            "on_epoch_start 0"
        ]
    );
    assert_eq!(heard[4], "on_train_batch_start train 2", "the next batch of the same epoch");
}
