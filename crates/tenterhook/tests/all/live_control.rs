//! Hooks of a run that goes on, switched from outside.

use std::fs;
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::lab::{Lab, TINY};

const HOOK: &str = r#"
[[hooks]]
kind = "scale"
id = "half"
points = "blocks.0.hook_mlp_out"
factor = 0.5
"#;

/// A run that takes long enough to be talked to.
fn begin(lab: &Lab, name: &str) -> Child {
    let name = format!("run.name={name}");
    let long = ["--set", "train.steps=800", "--set", "train.grad_accumulation=1", "--quiet"];
    let mut command = lab.command(&["train", "run.toml", "--set", &name]);
    command.args(long).spawn().unwrap()
}

fn wait_for_step(lab: &Lab, run: &str, step: u64) {
    let limit = Instant::now() + Duration::from_secs(120);
    let metrics = lab.run_dir(run).join("metrics.jsonl");
    let reached = || fs::read_to_string(&metrics).is_ok_and(|log| log.lines().count() as u64 > step);
    while !reached() {
        assert!(Instant::now() < limit, "{run} does not come to step {step}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What `runs hooks` tells of the hook.
fn receipt(lab: &Lab, run: &str) -> Value {
    let listed: Value = serde_json::from_str(&lab.ok(&["runs", "hooks", run, "--json"]).stdout).unwrap();
    let half = listed["hooks"].as_array().unwrap().iter().find(|hook| hook["id"] == "half").cloned();
    half.unwrap()["receipt"].take()
}

fn switch(lab: &Lab, run: &str, to: &str) -> Value {
    let ran = lab.ok(&["runs", "hooks", run, to, "half", "--json"]);
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn p40_a_hook_is_switched_at_the_next_step_and_a_rerun_does_the_same() {
    let lab = Lab::with(&format!("{TINY}{HOOK}"));
    let mut child = begin(&lab, "live");
    wait_for_step(&lab, "live", 20);
    let off = switch(&lab, "live", "disable");
    let seen = off["step"].as_u64().unwrap();
    assert_eq!(
        (&off["hook"], &off["enabled"], &off["by"]),
        (&json!("half"), &json!(false), &json!("command line"))
    );
    wait_for_step(&lab, "live", seen + 30);
    let on = switch(&lab, "live", "enable");
    assert!(on["step"].as_u64().unwrap() > seen);
    let listed = lab.ok(&["runs", "hooks", "live"]).stdout;
    assert!(listed.contains(&format!("after step {seen}: hook half off (command line)")), "{listed}");
    assert_eq!(child.wait().unwrap().code(), Some(0));
    assert_eq!(lab.record("live")["hook_changes"], json!([off, on]));
    assert_eq!(
        fs::read_dir(lab.run_dir("live/control")).unwrap().count(),
        0,
        "requests that were heeded are gone"
    );

    let again = lab.ok(&["runs", "rerun", "live", "--name", "again", "--quiet", "--json"]);
    let told: Value = serde_json::from_str(&again.stdout).unwrap();
    assert_eq!(told["comparison"]["identical"], true);
    assert_eq!(lab.digest("live"), lab.digest("again"), "the same weights");
    assert_eq!(lab.record("again")["hook_changes"], json!([off, on]), "so that it can be repeated as well");
    // The hook matters: a run in which nobody touched it has other losses, from that step on.
    assert_eq!(begin(&lab, "alone").wait().unwrap().code(), Some(0));
    let losses =
        |run: &str| -> Vec<Value> { lab.metrics(run).iter().map(|row| row["loss"].clone()).collect() };
    let first = losses("live").iter().zip(losses("alone")).position(|(a, b)| *a != b);
    assert_eq!(first, Some(lab.metrics("live").iter().position(|row| row["step"] == seen + 1).unwrap()));
}

#[test]
fn a_killed_run_that_goes_on_makes_the_changes_after_its_checkpoint_again() {
    let lab = Lab::with(&format!("{TINY}{HOOK}"));
    let mut child = begin(&lab, "live");
    wait_for_step(&lab, "live", 20);
    let off = switch(&lab, "live", "disable");
    child.kill().unwrap();
    child.wait().unwrap();
    // Nobody was left to hear of this.
    let late = json!({"hook": "half", "enabled": true, "by": "test"});
    fs::write(lab.run_dir("live/control/late.json"), late.to_string()).unwrap();
    let args = ["train", "run.toml", "--resume", "live", "--quiet", "--set", "run.name=live"];
    let long = ["--set", "train.steps=800", "--set", "train.grad_accumulation=1"];
    lab.ok(&[&args[..], &long[..]].concat());
    let changes = lab.record("live")["hook_changes"].clone();
    assert_eq!((&changes[0], changes.as_array().unwrap().len()), (&off, 2));
    assert!(changes[1]["refused"].as_str().unwrap().contains("`half` was not switched"), "{changes}");
    assert!(
        lab.record("live")["attempts"][0]["last_seen"].is_string(),
        "when the killed one was last heard of"
    );
    lab.ok(&["runs", "rerun", "live", "--name", "again", "--quiet"]);
    assert_eq!(lab.digest("live"), lab.digest("again"), "the same weights as without the kill");
}

#[test]
fn what_cannot_be_switched_is_told() {
    let lab = Lab::with(&format!("{TINY}{HOOK}"));
    lab.ok(&["train", "run.toml", "--quiet"]);
    let ran = lab.run(&["runs", "hooks", "tiny", "disable", "half"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("run tiny is not training (completed)"), "{}", ran.stderr);
    let ran = lab.run(&["runs", "hooks", "nobody"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);

    let mut child = begin(&lab, "live");
    wait_for_step(&lab, "live", 5);
    let ran = lab.run(&["runs", "hooks", "live", "disable", "halve"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("has no hook `halve`; it has: identity_update, "), "{}", ran.stderr);
    // A request that is no request, and one for a hook that is not there, change nothing and are told.
    fs::create_dir_all(lab.run_dir("live/control")).unwrap();
    fs::write(lab.run_dir("live/control/a.json"), "no request").unwrap();
    let wrong = json!({"hook": "nobody", "enabled": true, "by": "test"});
    fs::write(lab.run_dir("live/control/b.json"), wrong.to_string()).unwrap();
    let output = child_output(&mut child, &lab);
    assert!(output.contains("a.json is left out: it is no request"), "{output}");
    let changes = lab.record("live")["hook_changes"].clone();
    assert!(changes[0]["refused"].as_str().unwrap().contains("nobody"), "{changes}");

    let receipt = receipt(&lab, "tiny");
    assert_eq!(receipt["enabled"], true);
    assert!(receipt["share"].as_f64().unwrap() > 0.0);
}

/// Waits for the end, and returns what the run said.
fn child_output(child: &mut Child, lab: &Lab) -> String {
    use std::io::Read;
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let mut said = String::new();
    child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
    assert_eq!(lab.record("live")["status"], "completed");
    said
}

#[test]
fn receipts_are_shown_while_a_run_goes_on() {
    let lab = Lab::with(&format!("{TINY}{HOOK}"));
    let set = ["--set", "run.name=live", "--set", "train.steps=100000000"];
    let mut child = lab.command(&[&["train", "run.toml", "--quiet"][..], &set[..]].concat()).spawn().unwrap();
    let limit = Instant::now() + Duration::from_secs(60);
    while !(lab.run_dir("live/receipts.json").exists() && receipt(&lab, "live")["fired"].as_u64() > Some(0)) {
        assert!(Instant::now() < limit, "no receipts");
        std::thread::sleep(Duration::from_millis(50));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}
