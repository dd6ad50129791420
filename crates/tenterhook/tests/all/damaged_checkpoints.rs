//! Damaged checkpoints: the one before is used, loudly; with none left the run does not start; nothing is ever overwritten.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::damages::{DAMAGES, Damage, MISFITS, change, flip, reseal_state};
use crate::lab::{Lab, TINY};
use crate::support::Ran;

/// A finished run with three checkpoints.
fn trained() -> Lab {
    let lab =
        Lab::with(&TINY.replace("checkpoint_every = 10", "checkpoint_every = 10\nkeep_checkpoints = 3"));
    lab.ok(&["train", "run.toml"]);
    assert_eq!(lab.checkpoints("tiny"), ["step-00000020", "step-00000030", "step-00000040"]);
    lab
}

fn at(lab: &Lab, step: u64) -> PathBuf {
    lab.run_dir("tiny").join(format!("checkpoints/step-{step:08}"))
}

fn check_says(what: &str, ran: &Ran, words: &[&str]) {
    assert!(!ran.stderr.contains("panicked"), "{what}: {}", ran.stderr);
    for word in words {
        assert!(ran.stderr.contains(word), "{what}: `{word}` is not in: {}", ran.stderr);
    }
}

/// The newest checkpoint is damaged: whoever evaluates uses the one before, or not, and whoever goes on does and ends up where an
/// undisturbed run does.
fn check(straight: &Lab, Damage { what, words, does }: &Damage, evaluated: u64) {
    let lab = straight.copy();
    does(&at(&lab, 40), &at(&lab, 30));
    let loudly = ["WARNING", "step-00000040 is damaged", "step-00000030, step 30"];

    let ran = lab.ok(&["eval", "tiny", "--json"]);
    let told: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!(told["step"], evaluated, "{what}");
    if evaluated == 30 {
        check_says(what, &ran, words);
        check_says(what, &ran, &loudly);
    }

    let ran = lab.ok(&["train", "run.toml", "--resume"]);
    check_says(what, &ran, words);
    check_says(what, &ran, &loudly);
    assert_eq!(lab.digest("tiny"), straight.digest("tiny"), "{what}");
    assert_eq!(lab.metrics("tiny"), straight.metrics("tiny"), "{what}");
    let kept = lab.run_dir("tiny").join("checkpoints/.damaged-0-step-00000040");
    assert!(kept.is_dir(), "{what}: what was damaged is kept for whoever wants to look at it");
}

#[test]
fn p06_p07_every_kind_of_damage_is_named_and_the_one_before_is_used() {
    let straight = trained();
    DAMAGES.iter().for_each(|damage| check(&straight, damage, 30));
    MISFITS.iter().for_each(|damage| check(&straight, damage, 40));
}

#[test]
fn p07_two_damaged_ones_leave_the_third() {
    let straight = trained();
    let lab = straight.copy();
    flip(&at(&lab, 40).join("state.json"), 9);
    fs::remove_file(at(&lab, 30).join("model.safetensors")).unwrap();
    let ran = lab.ok(&["train", "run.toml", "--resume"]);
    check_says(
        "two",
        &ran,
        &["step-00000040 is damaged", "step-00000030 is damaged", "step-00000020, step 20"],
    );
    assert_eq!(lab.digest("tiny"), straight.digest("tiny"));
    assert_eq!(lab.metrics("tiny"), straight.metrics("tiny"));
}

#[test]
fn p07_with_none_left_nothing_starts_and_nothing_changes() {
    let lab = trained();
    flip(&at(&lab, 40).join("manifest.json"), 60);
    change(&at(&lab, 30).join("optimizer.safetensors"), |bytes| bytes.truncate(100));
    reseal_state(&at(&lab, 20), |state| state["format"] = json!(7));
    let before = lab.tree();
    for args in [
        &["train", "run.toml", "--resume"][..],
        &["train", "run.toml", "--resume", "tiny"],
        &["eval", "tiny"],
    ] {
        let ran = lab.run(args);
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.stderr);
        let words = [
            "no good checkpoint",
            "manifest.json",
            "optimizer.safetensors: has 100 bytes",
            "state.json: has format",
        ];
        check_says("all", &ran, &words);
        assert_eq!(lab.tree(), before, "{args:?}");
    }
    // Nor does a new run take its place.
    let ran = lab.run(&["train", "run.toml"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    check_says("new", &ran, &["there is a run `tiny` already"]);
    assert_eq!(lab.tree(), before);
}

#[test]
fn p06_another_configuration_is_no_damage() {
    let lab = trained();
    let before = lab.tree();
    for (set, words) in [
        ("model.d_model=32", &["model.d_model: was 16, is 32"][..]),
        ("train.grad_clip=2.0", &["train.grad_clip: was 1.0, is 2.0"]),
        ("run.seed=7", &["saved with the seed 42, and this run has 7"]),
    ] {
        let ran = lab.run(&["train", "run.toml", "--resume", "--set", set]);
        assert_eq!(ran.code, Some(2), "{set}: {}", ran.stderr);
        check_says(set, &ran, words);
        assert_eq!(lab.tree(), before, "{set}: good checkpoints stay where they are");
    }
    lab.ok(&["train", "run.toml", "--resume"]);
}

#[test]
fn p07_a_damaged_record_is_no_new_run() {
    let straight = trained();
    for (file, words) in [
        ("run.json", &["run.json"][..]),
        ("config.toml", &["config.toml"]),
        ("metrics.jsonl", &["metrics.jsonl"]),
    ] {
        let lab = straight.copy();
        change(&lab.run_dir("tiny").join(file), |bytes| bytes.truncate(20));
        let newest = lab.digest("tiny");
        let ran = lab.run(&["train", "run.toml", "--resume"]);
        assert_eq!(ran.code, Some(2), "{file}: {}", ran.stderr);
        check_says(file, &ran, words);
        assert_eq!(lab.digest("tiny"), newest, "{file}");
    }
}
