//! A fork goes on from another run's checkpoint with a configuration of its own.

use serde_json::Value;

use crate::lab::{Lab, TINY};

#[test]
fn a_fork_learns_at_its_own_rate() {
    let lab = Lab::with(&TINY.replace("steps = 40", "steps = 10"));
    lab.ok(&["train", "run.toml"]);
    let config = ["--set", "run.name=branch", "--set", "optimizer.0.lr=3e-2", "--set", "train.steps=20"];
    lab.ok(&[&["train", "run.toml", "--fork", "tiny"][..], &config].concat());
    assert_eq!(lab.record("branch")["parent"], "tiny");

    // From scratch with the same configuration: the same rates at the same steps.
    let scratch = ["--set", "run.name=scratch", "--set", "optimizer.0.lr=3e-2", "--set", "train.steps=20"];
    lab.ok(&[&["train", "run.toml"][..], &scratch].concat());
    let rates = |run: &str| -> Vec<(Value, Value)> {
        let rows = lab.metrics(run).into_iter().filter(|row| row.get("lr").is_some());
        rows.map(|row| (row["step"].clone(), row["lr"].clone())).collect()
    };
    assert_eq!(rates("branch"), rates("scratch")[10..]);
}

/// A checkpoint that is refused leaves the record as it was: nobody is training.
#[test]
fn a_refused_resume_leaves_no_trace_in_the_record() {
    let lab = Lab::with(&TINY.replace("steps = 40", "steps = 10"));
    lab.ok(&["train", "run.toml"]);
    let before = lab.record("tiny");
    // The log is not the one that the checkpoint was written beside.
    std::fs::write(lab.run_dir("tiny").join("metrics.jsonl"), "").unwrap();
    let ran = lab.run(&["train", "run.toml", "--resume", "--set", "train.steps=20"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("metrics.jsonl"), "{}", ran.stderr);
    assert_eq!(lab.record("tiny"), before);
}
