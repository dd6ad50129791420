//! A signal in any phase: the run is saved, says where things are, and goes on as if nothing had been.

use std::process::Command;

use crate::lab::{Lab, TINY};
use crate::running::Running;
use crate::support::{Ran, campaign};

/// The phases: where the process is held, and the step after which it must have left.
const PHASES: [(&str, &str, u64); 8] = [
    ("data wait", "train.data", 7),
    ("forward", "train.forward", 4),
    ("hook", "log.append", 5),
    ("backward", "train.backward", 4),
    ("optimizer", "train.optimizer", 7),
    ("validation", "train.validation", 10),
    ("save", "train.save", 10),
    ("save, files written", "save.files.written", 10),
];

/// Which time a phase is reached: in the middle of a run, and of what it does several times.
fn hit(point: &str) -> u64 {
    match point {
        "train.forward" | "train.backward" | "train.data" | "train.optimizer" => 7,
        "log.append" => 5,
        _ => 2,
    }
}

fn config() -> String {
    format!("{TINY}\n[[hooks]]\nkind = \"json_log\"\nlog_every_n_batches = 1\n")
}

/// The run, held for so long where a phase begins.
fn held(lab: &Lab, point: &str, milliseconds: u64) -> Running {
    let mut command = lab.command(&["train", "run.toml"]);
    command.env("TENTERHOOK_FAULTS", format!("{point}=sleep:{milliseconds}@{}", hit(point)));
    let mut running = Running::start(command);
    running.wait_for(&format!("sleeps at `{point}`"));
    running
}

/// The hooks' logs have times in them, and positions that depend on those.
fn digest(lab: &Lab) -> Vec<(String, blake3::Hash)> {
    lab.digest("tiny")
}

fn straight() -> Lab {
    let lab = Lab::with(&config());
    lab.ok(&["train", "run.toml"]);
    lab
}

fn check_goes_on(what: &str, lab: &Lab, straight: &Lab) {
    let ran = lab.run(&["train", "run.toml", "--resume"]);
    assert_eq!(ran.code, Some(0), "{what}: {}", ran.stderr);
    assert_eq!(digest(lab), digest(straight), "{what}");
    assert_eq!(lab.metrics("tiny"), straight.metrics("tiny"), "{what}");
}

fn check_saved(what: &str, lab: &Lab, ran: &Ran, step: u64) {
    assert_eq!(ran.code, Some(75), "{what}: {}", ran.stderr);
    let record = lab.record("tiny");
    assert_eq!(record["status"], "interrupted", "{what}");
    assert_eq!(record["attempts"][0]["to_step"], step, "{what}: it left before or after the phase");
    let told = format!("interrupted after {step} steps");
    let to_go_on = "tenterhook train run.toml --resume";
    for words in [told.as_str(), "metrics.jsonl", "tiny/checkpoints", to_go_on] {
        assert!(ran.stderr.contains(words), "{what}: `{words}` is not in: {}", ran.stderr);
    }
}

#[test]
fn p11_a_signal_in_any_phase_saves_and_the_run_goes_on() {
    let straight = straight();
    let mut cases: Vec<(&str, &str, u64, &str)> =
        PHASES.iter().map(|(phase, point, step)| (*phase, *point, *step, "TERM")).collect();
    cases.extend([("forward", "train.forward", 4, "INT"), ("save", "train.save", 10, "USR1")]);
    let rounds = campaign(1, 100);
    for (phase, point, step, signal) in
        cases.iter().flat_map(|case| std::iter::repeat_n(case, rounds as usize))
    {
        let what = format!("SIG{signal} in {phase}");
        let lab = Lab::with(&config());
        let running = held(&lab, point, 1000);
        running.signal(signal);
        check_saved(&what, &lab, &running.finish(), *step);
        check_goes_on(&what, &lab, &straight);
    }
    println!("p11: {} signals, all saved", cases.len() as u64 * rounds);
}

#[test]
fn p11_a_second_signal_leaves_at_once() {
    let straight = straight();
    for (point, first, second, code) in [
        ("train.forward", "INT", "INT", 130),
        ("save.files.written", "TERM", "TERM", 143),
        ("train.validation", "TERM", "INT", 130),
    ] {
        let what = format!("SIG{first}, then SIG{second} at {point}");
        let lab = Lab::with(&config());
        // Whoever waited for the phase to end would wait for ten minutes.
        let running = held(&lab, point, 600_000);
        running.signal(first);
        running.signal(second);
        assert_eq!(running.finish().code, Some(code), "{what}");
        assert_eq!(lab.record("tiny")["status"], "training", "{what}: nothing was said about an end");
        check_goes_on(&what, &lab, &straight);
    }
}

#[test]
fn p11_checkpoints_beside_the_training_are_finished_first() {
    let lab = Lab::with(&config().replace("[train]", "[train]\nasync_checkpoints = true"));
    let straight = straight();
    let running = held(&lab, "save.files.written", 1000);
    running.signal("TERM");
    let ran = running.finish();
    assert_eq!(ran.code, Some(75), "{}", ran.stderr);
    assert!(lab.checkpoints("tiny").contains(&"step-00000010".to_string()), "{:?}", lab.checkpoints("tiny"));
    lab.ok(&["train", "run.toml", "--resume"]);
    assert_eq!(lab.metrics("tiny"), straight.metrics("tiny"));
}

/// A run that is over is not interrupted any more.
#[test]
fn p11_a_signal_after_the_last_step_changes_nothing() {
    let lab = Lab::with(&config());
    let mut command: Command = lab.command(&["train", "run.toml"]);
    command.env("TENTERHOOK_FAULTS", "save.files.written=sleep:1000@5");
    let mut running = Running::start(command);
    running.wait_for("sleeps at `save.files.written`");
    running.signal("TERM");
    let ran = running.finish();
    let status = lab.record("tiny")["status"].clone();
    assert!(matches!(ran.code, Some(0 | 75)), "{}", ran.stderr);
    assert_eq!(status, if ran.code == Some(0) { "completed" } else { "interrupted" });
    lab.ok(&["train", "run.toml", "--resume"]);
    assert_eq!(lab.record("tiny")["status"], "completed");
}
