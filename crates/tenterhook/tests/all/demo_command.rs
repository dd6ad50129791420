//! `tenterhook demo`: what it claims holds, and what it prints works.

use std::process::Command;

use candle_core::Device;
use serde_json::Value;
use tenterhook::demo::{Demo, Finding};
use tenterhook::training::{Start, registry};

use crate::lab::Lab;
use crate::running::Running;
use crate::support::Ran;

/// The demonstration in this process, as the command does it.
fn finding(seed: u64, lab: &Lab) -> Finding {
    let demo = Demo { seed, runs_dir: lab.path().join("runs"), ..Demo::default() };
    let (registry, device) = (registry(), Device::Cpu);
    let plan = demo.plan(&registry).unwrap();
    let start = Start { plan: &plan, registry: &registry, device: &device, args: Vec::new(), parent: None };
    let mut begun = start.new_one().unwrap();
    let finished = begun.trainer.train().unwrap();
    assert!(!finished.degraded, "{:?}", begun.trainer.errors());
    Finding::of(&begun.run_dir, &registry, &device).unwrap()
}

/// The claim of the demonstration: heads form, and they are what the model repeats with.
#[test]
fn induction_heads_form_and_matter_with_three_seeds() {
    let lab = Lab::new();
    for seed in [42, 1, 2] {
        let finding = finding(seed, &lab);
        let (best, score) = finding.induction.best().unwrap();
        assert!(score > 0.8, "seed {seed}: {best} {score}");
        let (heads, others) = finding.rises().unwrap();
        let told =
            format!("seed {seed}: {:?} {:?} {:?}", finding.induction_heads, finding.others, finding.loss);
        assert!(heads > 1.0 && heads >= 5.0 * others, "{told}");
        let formed = finding.formed_at.unwrap();
        assert!((20..Demo::STEPS).contains(&formed), "{told}: they are not there from the beginning");
    }
    let patterns = lab.run_dir("demo").join("captures/patterns-00000000.safetensors");
    assert!(patterns.is_file(), "the patterns of a batch are captured");
}

fn json(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout).unwrap()
}

#[test]
fn a_short_demonstration_says_honestly_that_nothing_formed() {
    let lab = Lab::new();
    let ran = lab.ok(&["demo", "--steps", "12"]);
    assert!(ran.stdout.contains("No induction head has formed"), "{}", ran.stdout);
    assert!(ran.stdout.contains("Nothing was ablated"), "{}", ran.stdout);
    assert!(ran.stderr.contains("  step     0   loss "), "{}", ran.stderr);
    assert_eq!(lab.record("demo")["status"], "completed");

    let again = json(&lab.ok(&["demo", "--steps", "12", "--json"]));
    assert_eq!(again["run_id"], "demo-2", "it works twice in a row");
    assert_eq!(again["steps"], 12);
    assert_eq!(again["induction_heads"], serde_json::json!([]));
    assert_eq!(again["loss"]["without_induction_heads"], Value::Null);
    assert_eq!(again["formed_at"], Value::Null);
    assert_eq!(again["induction"].as_object().unwrap().len(), 8);
    assert!(again["seconds"].as_f64().unwrap() > 0.0);
    assert_eq!(lab.metrics("demo"), lab.metrics("demo-2"), "the same seed, the same run");
    assert_eq!(lab.digest("demo"), lab.digest("demo-2"));
}

#[test]
fn the_commands_it_prints_work_as_they_stand() {
    let lab = Lab::new();
    let ran = lab.ok(&["demo", "--steps", "2", "--runs-dir", "my runs", "--quiet"]);
    assert!(ran.stderr.is_empty(), "{}", ran.stderr);
    let next: Vec<&str> =
        ran.stdout.lines().skip_while(|line| *line != "Try next:").skip(1).map(str::trim).collect();
    assert_eq!(next.len(), 3, "{}", ran.stdout);
    for command in next {
        // The server would go on for ever: its options are looked at.
        let command =
            if command.contains(" serve ") { format!("{command} --help") } else { command.to_string() };
        let done = Command::new("sh").args(["-c", &command]).current_dir(lab.path()).output().unwrap();
        assert!(done.status.success(), "{command}: {}", String::from_utf8_lossy(&done.stderr));
    }
}

#[test]
fn it_is_interrupted_and_goes_on_like_any_run() {
    let lab = Lab::new();
    let mut command = lab.command(&["demo", "--steps", "12"]);
    command.env("TENTERHOOK_FAULTS", "train.forward=sleep:2000@5");
    let mut running = Running::start(command);
    running.wait_for("sleeps at `train.forward`");
    running.signal("INT");
    let ran = running.finish();
    assert_eq!(ran.code, Some(75), "{}", ran.stderr);
    let resume =
        ran.stderr.lines().find_map(|line| line.trim().strip_prefix("to go on")).unwrap().trim().to_string();
    let args: Vec<&str> = resume.strip_prefix("tenterhook ").unwrap().split(' ').collect();
    let ran = lab.ok(&args);
    assert!(!ran.stderr.contains("WARN"), "{}", ran.stderr);
    assert_eq!(lab.record("demo")["status"], "completed");
    let whole = Lab::new();
    whole.ok(&["demo", "--steps", "12", "--quiet"]);
    // Not the states of hooks: what shows the run is another hook in each.
    let weights = |lab: &Lab| {
        lab.digest("demo").into_iter().filter(|(name, _)| name.ends_with(".safetensors")).collect::<Vec<_>>()
    };
    assert_eq!(weights(&lab), weights(&whole));
}

#[test]
fn bad_usage_is_told_before_anything_is_made() {
    let lab = Lab::new();
    lab.write("file", "");
    for (args, words) in [
        (&["demo", "--steps", "0"][..], "0 is not in 1..=1000000"),
        (&["demo", "--seed", "x"], "invalid value 'x'"),
        (&["demo", "--runs-dir", "file"], "file is not a directory"),
    ] {
        let ran = lab.run(args);
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains(words), "{args:?}: {}", ran.stderr);
        assert!(ran.stdout.is_empty());
    }
    assert!(!lab.path().join("runs").exists());
    let help = lab.ok(&["demo", "--help"]).stdout;
    assert!(help.contains("Examples:") && help.contains("--no-serve"), "{help}");
}
