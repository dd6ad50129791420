//! `tenterhook config`, where nothing is wrong; what is wrong is in `broken_configurations.rs`.

use std::fs;

use serde_json::Value;

use crate::lab::{Lab, TINY};

#[test]
fn the_first_configuration_trains_as_it_is() {
    let lab = Lab::new();
    let printed = lab.ok(&["config", "init"]).stdout;
    lab.ok(&["config", "init", "--out", "written.toml"]);
    assert_eq!(fs::read_to_string(lab.path().join("written.toml")).unwrap().trim_end(), printed.trim_end());
    lab.write("run.toml", &printed);
    lab.ok(&["config", "check", "run.toml"]);
    assert!(!lab.path().join("runs").exists(), "a check makes nothing");
    // As it is, but not to the end: it is 300 steps long.
    let few = ["train.fast_dev_run=2", "train.validate_batches=1"].map(|set| ["--set", set]).concat();
    lab.ok(&[&["train", "run.toml", "--quiet"], &few[..]].concat());
    let listed: Vec<Value> = serde_json::from_str(&lab.ok(&["runs", "list", "--json"]).stdout).unwrap();
    assert_eq!((listed.len(), &listed[0]["status"]), (1, &"completed".into()));
}

#[test]
fn init_never_writes_over_a_file() {
    let lab = Lab::with("mine");
    let ran = lab.run(&["config", "init", "--out", "run.toml"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stdout);
    assert!(ran.stderr.contains("run.toml is there already"), "{}", ran.stderr);
    assert_eq!(fs::read_to_string(lab.path().join("run.toml")).unwrap(), "mine");
    let ran = lab.run(&["config", "init", "--out", "not/there/run.toml"]);
    assert_eq!(ran.code, Some(2), "{}", ran.stdout);
    assert!(ran.stderr.contains("cannot be written"), "{}", ran.stderr);
}

#[test]
fn a_good_configuration_is_told_in_numbers() {
    let lab = Lab::with(TINY);
    let ran = lab.ok(&["config", "check", "run.toml", "--set", "train.steps=7", "--json"]);
    let told: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&told["ok"], &told["outline"]["steps"]), (&true.into(), &7.into()));
    assert_eq!(told["outline"]["hooks"], serde_json::json!(["identity_update", "grad_coverage"]));
    assert!(told["outline"]["parameters"].as_u64().unwrap() > 1000);
    let ran = lab.ok(&["config", "check", "run.toml"]);
    assert!(ran.stdout.starts_with("run.toml is good"), "{}", ran.stdout);
    let left: Vec<_> = fs::read_dir(lab.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[test]
fn the_schema_is_json_and_knows_every_kind() {
    let lab = Lab::new();
    let schema: Value = serde_json::from_str(&lab.ok(&["config", "schema"]).stdout).unwrap();
    let kinds = schema["$defs"]["hook"]["oneOf"].as_array().unwrap();
    assert_eq!(kinds.len(), tenterhook::training::registry().kinds().count());
    assert!(schema["properties"]["train"]["properties"]["steps"].is_object());
}
