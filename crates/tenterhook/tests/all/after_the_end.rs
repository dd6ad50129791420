//! What happens when a run that has ended is resumed.

use crate::lab::{Lab, TINY};
use crate::traces::assert_same;

fn steps_logged(lab: &Lab) -> Vec<u64> {
    let rows = lab.metrics("tiny");
    rows.iter().filter(|row| row.get("loss").is_some()).map(|row| row["step"].as_u64().unwrap()).collect()
}

#[test]
fn p05_a_run_that_was_stopped_early_stays_stopped() {
    let stopping =
        "\n[[hooks]]\nkind = \"early_stopping\"\nmonitor = \"val/loss\"\npatience = 1\nmin_delta = 100.0\n";
    let lab = Lab::with(&format!("{TINY}{stopping}"));
    let ran = lab.ok(&["train", "run.toml"]);
    assert!(ran.stderr.contains("stopped after 20 steps (hook `early_stopping`"), "{}", ran.stderr);
    let before = lab.digest("tiny");
    for more in [&["--resume"][..], &["--resume", "tiny", "--set", "train.steps=80"]] {
        let ran = lab.ok(&[&["train", "run.toml"], more].concat());
        assert!(ran.stderr.contains("stopped after 20 steps (hook `early_stopping`"), "{}", ran.stderr);
        assert_eq!(lab.record("tiny")["status"], "stopped");
        assert_eq!(lab.digest("tiny"), before, "still stopped");
    }
    assert_eq!(steps_logged(&lab), (1..=20).collect::<Vec<_>>());
}

#[test]
fn p04_a_run_that_is_done_stays_done_and_goes_on_when_there_are_more_steps() {
    let constant = TINY.replace("\"cosine\"", "\"constant\"");
    let lab = Lab::with(&constant);
    lab.ok(&["train", "run.toml", "--quiet"]);
    let before = lab.traces("tiny");
    let ran = lab.ok(&["train", "run.toml", "--resume", "--quiet"]);
    assert!(ran.stderr.contains("completed after 40 steps"), "{}", ran.stderr);
    assert_same(&lab.traces("tiny"), &before, "still done");

    lab.ok(&["train", "run.toml", "--resume", "--quiet", "--set", "train.steps=60"]);
    assert_eq!(steps_logged(&lab), (1..=60).collect::<Vec<_>>());
    let straight = Lab::with(&constant.replace("steps = 40", "steps = 60"));
    straight.ok(&["train", "run.toml", "--quiet"]);
    assert_same(&lab.traces("tiny"), &straight.traces("tiny"), "40 steps and 20 more");
}

#[test]
fn a_resume_warns_of_nothing_that_is_not_lost() {
    let lab = Lab::with(TINY);
    lab.ok(&["train", "run.toml"]);
    // The progress bar of the first start is in the checkpoint and has gathered nothing.
    let ran = lab.ok(&["train", "run.toml", "--resume", "tiny", "--set", "train.steps=50"]);
    assert!(
        !ran.stderr.contains("WARN") && ran.stderr.contains("completed after 50 steps"),
        "{}",
        ran.stderr
    );
}
