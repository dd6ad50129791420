//! How long a run is, when it validates, and runs that only validate.

use serde_json::Value;
use tenterhook::train::config::ValidateEvery;
use tenterhook::train::data::Loader;
use tenterhook::train::{Settings, Trainer};

use crate::lab::{Lab, TINY};
use crate::recorder::Recorder;
use crate::small::{Chain, Notes, attach, bits, data, examples, sgd};

/// The steps at which validation began, and how many steps and epochs there were.
fn course(settings: Settings) -> (Vec<u64>, u64, usize) {
    let model = Chain::new(1);
    let trainer = Trainer::new(model.clone(), data(8, 2), sgd(&*model, 0.1), settings).unwrap();
    let mut trainer = trainer.with_validation(vec![Loader::new("val", examples(2), 2)]);
    let notes = Notes::default();
    attach(&mut trainer, Recorder::new(&notes));
    trainer.train().unwrap();
    let (mut step, mut validated, mut epochs) = (0, Vec::new(), 0);
    let mut rows_of_validations = 0;
    for line in notes.take() {
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("on_validation_start", _) => {
                validated.push(step);
                rows_of_validations += 1;
            }
            ("on_metrics", _) if rows_of_validations > 0 => rows_of_validations -= 1,
            ("on_metrics", number) => step = number.parse().unwrap(),
            ("on_epoch_start", _) => epochs += 1,
            _ => {}
        }
    }
    (validated, trainer.step(), epochs)
}

#[test]
fn epochs_and_steps_and_when_to_validate() {
    let epochs = |count, accumulation| {
        let mut settings = Settings { grad_accumulation: accumulation, ..Settings::steps(0) };
        settings.set_epochs(count, &data(8, 2));
        settings
    };
    let every = |settings: Settings, every| Settings { validate_every: Some(every), ..settings };
    // An epoch has four batches.
    let table = [
        (Settings::steps(3), (vec![3], 3, 1)),
        (Settings::steps(9), (vec![9], 9, 3)),
        (epochs(2, 1), (vec![8], 8, 2)),
        (epochs(2, 3), (vec![4], 4, 2)),
        (every(epochs(2, 1), ValidateEvery::Epoch), (vec![4, 8], 8, 2)),
        (every(epochs(3, 3), ValidateEvery::Epoch), (vec![2, 4, 6], 6, 3)),
        (every(Settings::steps(6), ValidateEvery::Epoch), (vec![4, 6], 6, 2)),
        (every(Settings::steps(7), ValidateEvery::Steps(3)), (vec![3, 6], 7, 2)),
        (Settings { validate_first: true, ..Settings::steps(2) }, (vec![0, 2], 2, 1)),
    ];
    for (settings, expected) in table {
        assert_eq!(course(settings.clone()), expected, "{settings:?}");
    }
}

#[test]
fn a_fast_run_does_a_little_of_everything() {
    for (value, steps) in [("true", 3), ("2", 2)] {
        let lab = Lab::with(TINY);
        let fast = format!("train.fast_dev_run={value}");
        lab.ok(&["train", "run.toml", "--quiet", "--set", &fast]);
        let rows = lab.metrics("tiny");
        assert_eq!(rows.iter().filter(|row| row.get("loss").is_some()).count(), steps);
        assert_eq!(
            rows.iter().filter(|row| row.get("val/loss").is_some()).count(),
            1,
            "validation too: {rows:?}"
        );
        assert_eq!(lab.record("tiny")["status"], "completed");
        assert!(lab.checkpoints("tiny").contains(&format!("step-{steps:08}")));
    }
}

#[test]
fn an_epoch_in_a_configuration_is_all_of_the_data() {
    let lab = Lab::with(
        &TINY
            .replace("steps = 40", "epochs = 2")
            .replace("validate_every = 10", "validate_every = \"epoch\""),
    );
    lab.ok(&["train", "run.toml", "--quiet"]);
    let rows = lab.metrics("tiny");
    let validated: Vec<(&Value, &Value)> = rows
        .iter()
        .filter(|row| row.get("val/loss").is_some())
        .map(|row| (&row["epoch"], &row["step"]))
        .collect();
    let steps = rows.iter().filter(|row| row.get("loss").is_some()).count();
    assert!(steps.is_multiple_of(2), "{steps}");
    assert_eq!(validated, [(&0.into(), &(steps / 2).into()), (&1.into(), &steps.into())]);
}

/// There are more steps than anybody has time for.
#[test]
fn a_run_ends_in_good_order_when_its_time_is_over() {
    let lab = Lab::with(TINY);
    let ran = lab.ok(&[
        "train",
        "run.toml",
        "--json",
        "--set",
        "train.max_time=0.2",
        "--set",
        "train.steps=100000000",
    ]);
    let told: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(told["status"], "stopped");
    assert!(told["reason"].as_str().unwrap().contains("max_time"), "{told}");
    let (steps, record) = (told["steps"].as_u64().unwrap(), lab.record("tiny"));
    assert!(steps > 0 && record["status"] == "stopped", "{record}");
    assert!(lab.checkpoints("tiny").contains(&format!("step-{steps:08}")), "the last step is saved");
}

#[test]
fn evaluation_gives_what_training_gave_and_changes_nothing() {
    let lab = Lab::with(TINY);
    lab.ok(&["train", "run.toml", "--quiet"]);
    let rows = lab.metrics("tiny");
    let trained = rows.iter().rev().find(|row| row.get("val/loss").is_some()).unwrap();
    let before = lab.digest("tiny");
    let evaluated =
        |what: &str| -> Value { serde_json::from_str(&lab.ok(&["eval", what, "--json"]).stdout).unwrap() };
    let told = evaluated("tiny");
    let dir = lab.path().join("runs/tiny");
    assert_eq!(evaluated(dir.to_str().unwrap())["metrics"], told["metrics"], "by its directory");
    for name in ["val/loss", "val/accuracy"] {
        assert_eq!(told["metrics"][name], trained[name]);
    }
    assert_eq!(told["step"], 40);
    assert_eq!((lab.digest("tiny"), lab.metrics("tiny")), (before, rows));
    assert_ne!(
        evaluated("run.toml")["metrics"]["val/loss"],
        told["metrics"]["val/loss"],
        "an untrained model"
    );
}

#[test]
fn evaluation_in_the_library_fires_only_the_events_of_validation() {
    let model = Chain::new(2);
    let before = bits(&*model);
    let trainer = Trainer::new(model.clone(), data(8, 2), sgd(&*model, 0.1), Settings::steps(4)).unwrap();
    let mut trainer = trainer.with_validation(vec![Loader::new("val", examples(4), 2)]);
    let notes = Notes::default();
    attach(&mut trainer, Recorder::new(&notes));
    let metrics = trainer.evaluate().unwrap();
    assert!(metrics["val/loss"] > 0.0);
    let expected = [
        "on_validation_start 0",
        "on_validation_batch_start val 0",
        "on_validation_batch_end val 0",
        "on_validation_batch_start val 1",
        "on_validation_batch_end val 1",
        "on_validation_end",
        "on_metrics 0",
    ];
    assert_eq!(notes.take(), expected);
    assert_eq!(bits(&*model), before);
}
