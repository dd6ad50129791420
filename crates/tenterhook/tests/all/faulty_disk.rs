//! A disk that fails at any of its operations: the last good checkpoint survives, success is never told falsely, and the run goes on later
//! as if nothing had been.

use std::fs;

use tenterhook::record::checkpoints;
use tenterhook::record::fault;

use crate::here::{SHORT, lab_here, train_here};
use crate::lab::{Lab, TINY, digest_of};
use crate::support::campaign;

const ACTIONS: [&str; 4] = ["enospc", "eacces", "eio", "short"];

/// What two runs must have in common where one of them knows that something went wrong on its way.
fn weights(lab: &Lab) -> Vec<(String, blake3::Hash)> {
    let mut files = digest_of(&lab.checkpoint("short"));
    files.retain(|(name, _)| name != "state.json");
    files
}

fn checkpoints_of(lab: &Lab) -> usize {
    let listed = checkpoints::list(&lab.run_dir("short").join("checkpoints")).unwrap();
    for one in &listed {
        checkpoints::verify(&one.path).unwrap();
    }
    listed.len()
}

/// The points that a run passes at the disk, in order.
fn points_of_a_run(config: &str) -> Vec<String> {
    let lab = lab_here(config);
    let trace = fault::trace();
    train_here(&lab, false).unwrap();
    trace.points().into_iter().filter(|point| point.starts_with("disk.")).collect()
}

/// Lets every operation of a run fail once, one per run, and returns how many runs there were.
fn fail_everywhere(config: &str, goes_on: bool) -> u64 {
    let straight = lab_here(config);
    train_here(&straight, false).unwrap();
    let points = points_of_a_run(config);
    assert!(points.len() > 100, "{}", points.len());
    // In the short form one action per operation, and a different one at the next.
    let all = campaign(0, 1) == 1;
    let mut runs = 0;
    for (index, point) in points.iter().enumerate() {
        let few = &ACTIONS[index % ACTIONS.len()..][..1];
        for action in if all { &ACTIONS[..] } else { few } {
            let what = format!("{action} at {index}, {point}");
            let lab = lab_here(config);
            let faults = fault::install(&format!("disk.*={action}@{}", index + 1)).unwrap();
            let result = train_here(&lab, false);
            drop(faults);
            runs += 1;
            check(&what, &lab, &straight, &result, goes_on);
        }
    }
    runs
}

fn check(
    what: &str,
    lab: &Lab,
    straight: &Lab,
    result: &Result<tenterhook::train::Finished, String>,
    goes_on: bool,
) {
    let left = checkpoints_of(lab);
    match result {
        // Something that is not needed any more could not be removed: nothing is missing.
        Ok(finished) if !finished.degraded => {
            assert_eq!(lab.digest("short"), straight.digest("short"), "{what}")
        }
        Ok(_) => {
            assert_eq!(lab.record("short")["degraded"], true, "{what}");
            assert_eq!(weights(lab), weights(straight), "{what}");
            let hook_failed = lab.record("short")["errors"][0]["hook_id"] == "json_log";
            assert!(goes_on || hook_failed, "{what}: only a hook's own log may fail and the run go on");
        }
        Err(error) => assert!(error.contains("injected"), "{what}: {error}"),
    }
    if result.is_ok() {
        return;
    }
    let resumed = train_here(lab, true);
    if left == 0 && resumed.is_err() {
        return; // there was nothing to go on from
    }
    resumed.unwrap_or_else(|error| panic!("{what}: {error}"));
    assert_eq!(weights(lab), weights(straight), "{what}");
    checkpoints_of(lab);
}

#[test]
fn p03_any_operation_may_fail_and_the_run_stops() {
    println!("p03: {} runs, each with one failure", fail_everywhere(SHORT, false));
}

#[test]
fn p03_any_operation_may_fail_and_the_run_goes_on() {
    let config = SHORT.replace("[train]", "[train]\non_checkpoint_failure = \"continue\"");
    println!("p03: {} runs, each with one failure", fail_everywhere(&config, true));
}

/// A run with faults in its environment.
fn faulty(lab: &Lab, faults: &str, args: &[&str]) -> crate::support::Ran {
    let mut command = lab.command(args);
    command.env("TENTERHOOK_FAULTS", faults);
    crate::support::Ran::of(command)
}

#[test]
fn p03_the_command_says_what_happened_and_never_that_all_is_well() {
    let straight = Lab::with(TINY);
    straight.ok(&["train", "run.toml"]);
    // From the first operation of the second save on, for good: the disk is full, broken, or not ours any more.
    for (faults, words) in [
        ("save.files.written=enospc@2", "no space left on device"),
        ("save.manifest.written=eio@3", "input/output error"),
        ("save.synced=eacces@2", "permission denied"),
    ] {
        let lab = Lab::with(TINY);
        let ran = faulty(&lab, faults, &["train", "run.toml"]);
        assert_eq!(ran.code, Some(1), "{faults}: {}", ran.stderr);
        for words in [words, "the checkpoint could not be written", "to go on", "--resume"] {
            assert!(ran.stderr.contains(words), "{faults}: `{words}` is not in: {}", ran.stderr);
        }
        assert_eq!(lab.record("tiny")["status"], "error");
        lab.checkpoint("tiny");
        lab.ok(&["train", "run.toml", "--resume"]);
        assert_eq!(lab.digest("tiny"), straight.digest("tiny"), "{faults}");
        assert_eq!(lab.metrics("tiny"), straight.metrics("tiny"), "{faults}");

        let lab = Lab::with(&TINY.replace("[train]", "[train]\non_checkpoint_failure = \"continue\""));
        let ran = faulty(&lab, faults, &["train", "run.toml"]);
        assert_eq!(ran.code, Some(4), "{faults}: {}", ran.stderr);
        assert!(
            ran.stderr.contains(words) && ran.stderr.contains("training goes on"),
            "{faults}: {}",
            ran.stderr
        );
        let record = lab.record("tiny");
        assert_eq!((&record["status"], &record["degraded"]), (&"completed".into(), &true.into()));
        assert!(record["errors"][0]["error"].as_str().unwrap().contains(words), "{record}");
    }
}

/// With nothing to go on with, "continue" does not mean that a lost result is a success.
#[test]
fn p03_the_last_checkpoint_has_to_be_written() {
    let lab = Lab::with(&TINY.replace("[train]", "[train]\non_checkpoint_failure = \"continue\""));
    let ran =
        faulty(&lab, "save.synced=enospc@5", &["train", "run.toml", "--set", "train.checkpoint_every=13"]);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(ran.stderr.contains("the checkpoint could not be written"), "{}", ran.stderr);
    assert_eq!(lab.record("tiny")["status"], "error");
    assert_eq!(lab.checkpoints("tiny"), ["step-00000026", "step-00000039"]);
    lab.ok(&["train", "run.toml", "--resume"]);
}

#[test]
fn p03_a_run_that_could_not_begin_leaves_nothing_to_mistake_for_one() {
    let lab = Lab::with(TINY);
    for faults in ["disk.create=eacces@1", "disk.*=enospc@9", "disk.rename=eio@1"] {
        let ran = faulty(&lab, faults, &["train", "run.toml"]);
        assert_eq!(ran.code, Some(2), "{faults}: {}", ran.stderr);
        assert!(ran.stderr.contains("injected"), "{faults}: {}", ran.stderr);
        assert!(!lab.run_dir("tiny").exists(), "{faults}");
    }
    lab.ok(&["train", "run.toml"]);
}

#[test]
fn p03_a_directory_that_vanishes_is_not_made_again() {
    let straight = Lab::with(TINY);
    straight.ok(&["train", "run.toml"]);
    for policy in ["stop", "continue"] {
        let lab =
            Lab::with(&TINY.replace("[train]", &format!("[train]\non_checkpoint_failure = \"{policy}\"")));
        let mut command = lab.command(&["train", "run.toml"]);
        command.env("TENTERHOOK_FAULTS", "train.forward=sleep:1000@45");
        let mut running = crate::running::Running::start(command);
        running.wait_for("sleeps at `train.forward`");
        fs::rename(lab.path().join("runs"), lab.path().join("elsewhere")).unwrap();
        let ran = running.finish();
        assert_eq!(ran.code, Some(1), "{policy}: {}", ran.stderr);
        assert!(ran.stderr.contains("metrics.jsonl: cannot go on"), "{policy}: {}", ran.stderr);
        assert!(!lab.path().join("runs").exists(), "{policy}: the run is somewhere else");
        // Back again, it goes on.
        fs::rename(lab.path().join("elsewhere"), lab.path().join("runs")).unwrap();
        lab.ok(&["train", "run.toml", "--resume"]);
        assert_eq!(lab.digest("tiny"), straight.digest("tiny"), "{policy}");
        assert_eq!(lab.metrics("tiny"), straight.metrics("tiny"), "{policy}");
    }
}
