//! What a hook asks for is done, whenever it asks.

use std::sync::{Arc, Mutex};

use tenterhook::hooks::{BatchInfo, Cx, Hook, HookResult, MetricsRow, Request, RunStatus};
use tenterhook::record::checkpoints;
use tenterhook::train::config::ValidateEvery;
use tenterhook::train::data::Loader;
use tenterhook::train::{Finished, Settings, Trainer};

use crate::recorder::Recorder;
use crate::small::{Chain, Notes, attach, examples, record_in, trainer_of};

/// Two epochs of two steps, with a set to validate on that is never due.
fn trainer() -> Trainer {
    let settings = Settings {
        grad_accumulation: 2,
        validate_every: Some(ValidateEvery::Steps(1000)),
        ..Settings::steps(4)
    };
    trainer_of(&Chain::new(2), settings).with_validation(vec![Loader::new("val", examples(2), 2)])
}

/// All lines that such a run says, to ask at each of them.
fn lines(mut trainer: Trainer) -> Vec<String> {
    let notes = Notes::default();
    attach(&mut trainer, Recorder::new(&notes).at("layers.1.hook_out"));
    trainer.train().unwrap();
    notes.take()
}

/// Runs with a hook that asks for something when it hears line number `at`, and returns what it heard from then on.
fn asking(
    mut trainer: Trainer,
    at: usize,
    ask: impl Fn(&mut Cx) + Send + 'static,
) -> (Vec<String>, Finished) {
    let (notes, mut heard) = (Notes::default(), 0);
    let react = move |_: &str, cx: &mut Cx| {
        if heard == at {
            ask(cx);
        }
        heard += 1;
        Ok(())
    };
    attach(&mut trainer, Recorder::reacting(&notes, react).at("layers.1.hook_out"));
    let finished = trainer.train().unwrap();
    assert!(!finished.degraded, "{:?}", trainer.errors());
    (notes.take().split_off(at), finished)
}

#[test]
fn another_learning_rate_holds_from_the_next_event_on() {
    let all = lines(trainer());
    for (at, line) in all.iter().enumerate().take(all.len() - 1) {
        let (rates, mut heard) = (Arc::new(Mutex::new(Vec::new())), 0);
        let seen = rates.clone();
        let react = move |_: &str, cx: &mut Cx| {
            if heard == at {
                cx.set_lr(0.025);
            }
            if heard > at {
                seen.lock().unwrap().extend(cx.state().and_then(|state| state.lr()));
            }
            heard += 1;
            Ok(())
        };
        let mut trainer = trainer();
        attach(&mut trainer, Recorder::reacting(&Notes::default(), react).at("layers.1.hook_out"));
        trainer.train().unwrap();
        let rates = rates.lock().unwrap();
        assert!(!rates.is_empty() && rates.iter().all(|lr| *lr == 0.025), "at {line}: {rates:?}");
        assert_eq!(trainer.optimizers()[0].groups()[0].lr, 0.025);
    }
}

#[test]
fn a_checkpoint_is_written_whenever_it_is_asked_for() {
    let recorded = |dir: &tempfile::TempDir| trainer().with_run(record_in(dir.path()));
    let dir = tempfile::tempdir().unwrap();
    let all = lines(recorded(&dir));
    assert!(all.last().unwrap().starts_with("on_train_end"));
    for (at, line) in all.iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let wish = |cx: &mut Cx| cx.request(Request::Save { name: Some("wish".to_string()) });
        let (after, _) = asking(recorded(&dir), at, wish);
        assert_eq!(after.iter().filter(|heard| *heard == "on_checkpoint_save wish").count(), 1, "at {line}");
        let saved = dir.path().join("run/checkpoints/wish");
        checkpoints::verify(&saved).unwrap();
        // Before the next step: no batch of another step lies between.
        let waited = after.iter().take_while(|heard| *heard != "on_checkpoint_save wish");
        let steps = waited.filter(|heard| heard.starts_with("on_metrics")).count();
        assert!(steps <= 1, "at {line}: {after:?}");
    }
}

#[test]
fn a_validation_comes_whenever_it_is_asked_for() {
    let all = lines(trainer());
    for (at, line) in all.iter().enumerate().take(all.len() - 1) {
        let (after, _) = asking(trainer(), at, |cx| cx.request(Request::Validate));
        let validations = after.iter().filter(|line| line.starts_with("on_validation_start")).count();
        assert_eq!(validations, 1, "at {line}: {after:?}");
        let waited = after.iter().take_while(|line| !line.starts_with("on_validation_start"));
        let steps = waited.filter(|line| line.starts_with("on_metrics")).count();
        assert!(steps <= 1, "at {line}: {after:?}");
    }
}

#[test]
fn the_run_ends_after_the_step_in_which_a_hook_asks_for_it() {
    let all = lines(trainer());
    for (at, line) in all.iter().enumerate().take(all.len() - 1) {
        let (after, finished) = asking(trainer(), at, |cx| cx.stop("enough"));
        assert_eq!(finished.status, RunStatus::Stopped, "at {line}");
        assert_eq!(finished.reason.as_deref(), Some("hook `recorder`: enough"));
        let steps = after.iter().filter(|line| line.starts_with("on_metrics")).count();
        assert!(steps <= 1, "at {line}: {after:?}");
        assert_eq!(after.last().unwrap(), "on_train_end stopped");
    }
}

/// No such optimizer: a failure of the hook that asked, and of nobody else.
#[test]
fn a_request_that_cannot_be_is_the_hooks_failure() {
    let mut trainer = trainer();
    let react = |line: &str, cx: &mut Cx| {
        if line == "on_epoch_end 0" {
            cx.request(Request::ScaleLr { optimizer: Some(7), group: None, factor: 0.5 });
        }
        Ok(())
    };
    attach(&mut trainer, Recorder::reacting(&Notes::default(), react));
    let finished = trainer.train().unwrap();
    assert_eq!((finished.status, finished.degraded, finished.steps), (RunStatus::Completed, true, 4));
    let error = trainer.errors()[0].to_string();
    assert!(
        error.contains("hook `recorder`") && error.contains("no optimizer") && error.contains('7'),
        "{error}"
    );
}

/// The hook of the mock trainer's documentation.
#[derive(Default)]
struct Careful(u32);

impl Hook for Careful {
    fn kind(&self) -> &str {
        "careful"
    }

    fn on_train_batch_end(&mut self, batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        self.0 += u32::from(batch.metrics["loss"] > 1e-6);
        if self.0 > 10 {
            cx.scale_lr(0.5);
            self.0 = 0;
        }
        Ok(())
    }
}

#[test]
fn a_hook_that_halves_the_rate_after_ten_high_losses_really_does() {
    struct Rates(Arc<Mutex<Vec<f64>>>);
    impl Hook for Rates {
        fn kind(&self) -> &str {
            "rates"
        }
        fn on_metrics(&mut self, row: &MetricsRow, _cx: &mut Cx) -> HookResult {
            self.0.lock().unwrap().push(row.values["lr"]);
            Ok(())
        }
    }
    let mut trainer = trainer_of(&Chain::new(2), Settings::steps(25));
    attach(&mut trainer, Careful::default());
    let rates = Arc::new(Mutex::new(Vec::new()));
    attach(&mut trainer, Rates(rates.clone()));
    trainer.train().unwrap();
    let expected = [vec![0.1; 11], vec![0.05; 11], vec![0.025; 3]].concat();
    assert_eq!(*rates.lock().unwrap(), expected, "what the optimizer used at each step");
}
