//! `tenterhook runs list`, `show` and `diff`.

use std::fs;
use std::process::Child;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::lab::{Lab, TINY};

fn json_of(lab: &Lab, args: &[&str]) -> Value {
    let args: Vec<&str> = args.iter().copied().chain(["--json"]).collect();
    serde_json::from_str(&lab.ok(&args).stdout).unwrap()
}

fn entry<'a>(listed: &'a Value, id: &str) -> &'a Value {
    listed.as_array().unwrap().iter().find(|run| run["id"] == id).unwrap()
}

/// A run that trains until it is ended.
fn endless(lab: &Lab, name: &str) -> Child {
    let (name, steps) = (format!("run.name={name}"), "train.steps=100000000");
    let mut command = lab.command(&["train", "run.toml", "--quiet", "--set", &name, "--set", steps]);
    command.spawn().unwrap()
}

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let limit = Instant::now() + Duration::from_secs(60);
    while !is_so() {
        assert!(Instant::now() < limit, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

#[test]
fn runs_are_listed_with_what_became_of_them() {
    let lab = Lab::with(TINY);
    assert_eq!(json_of(&lab, &["runs", "list"]), json!([]));
    assert!(lab.ok(&["runs", "list"]).stderr.contains("there are no runs in runs"));
    lab.ok(&["train", "run.toml", "--quiet"]);
    let mut child = endless(&lab, "endless");
    let status = || entry(&json_of(&lab, &["runs", "list"]), "endless")["status"].clone();
    wait_until("it trains", || {
        lab.run_dir("endless/metrics.jsonl").metadata().is_ok_and(|about| about.len() > 0)
    });
    assert_eq!(status(), "training");
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(status(), "interrupted", "a run that was killed does not train for ever");
    fs::create_dir_all(lab.run_dir("broken")).unwrap();
    fs::write(lab.run_dir("broken/run.json"), "{").unwrap();
    fs::create_dir_all(lab.run_dir("damaged")).unwrap();
    fs::copy(lab.run_dir("tiny/run.json"), lab.run_dir("damaged/run.json")).unwrap();
    fs::write(lab.run_dir("damaged/metrics.jsonl"), "no metrics\n").unwrap();

    let listed = json_of(&lab, &["runs", "list"]);
    let order: Vec<&str> = listed.as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap()).collect();
    assert_eq!((order[0], order[3], order.len()), ("endless", "broken", 4), "the newest first");
    let tiny = entry(&listed, "tiny");
    assert_eq!(
        (&tiny["status"], &tiny["steps"], &tiny["degraded"]),
        (&json!("completed"), &json!(40), &json!(false))
    );
    assert_eq!((&tiny["score"]["name"], &tiny["score"]["best"]), (&json!("val/loss"), &json!(true)));
    let best =
        lab.metrics("tiny").iter().filter_map(|row| row.get("val/loss")?.as_f64()).fold(f64::MAX, f64::min);
    assert_eq!(tiny["score"]["value"], best);
    assert!(tiny["seconds"].as_f64().unwrap() > 0.0);
    assert!(entry(&listed, "endless")["steps"].as_u64().unwrap() > 0);
    assert!(entry(&listed, "broken")["problem"].as_str().unwrap().contains("is no record of a run"));
    assert!(entry(&listed, "damaged")["problem"].as_str().unwrap().contains("metrics.jsonl: line 1"));

    let ran = lab.ok(&["runs", "list"]);
    let line = |id: &str| ran.stdout.lines().find(|line| line.starts_with(id)).unwrap().to_string();
    assert!(line("tiny").contains("completed") && line("tiny").contains("(best)"), "{}", ran.stdout);
    assert!(
        line("endless").contains("interrupted (killed)") && line("broken").contains("unreadable"),
        "{}",
        ran.stdout
    );
    assert!(
        ran.stderr.contains("WARNING: broken: ") && ran.stderr.contains("WARNING: damaged: "),
        "{}",
        ran.stderr
    );

    let shown = lab.ok(&["runs", "show", "endless"]).stdout;
    let path = lab.run_dir("endless").canonicalize().unwrap();
    let command = format!("to go on: tenterhook train {0}/config.toml --resume {0}", path.display());
    assert!(shown.contains("status    interrupted (killed)") && shown.contains(&command), "{shown}");
    let config = path.join("config.toml");
    lab.ok(&[
        "train",
        config.to_str().unwrap(),
        "--resume",
        path.to_str().unwrap(),
        "--quiet",
        "--set",
        "train.max_time=1",
    ]);
    assert_eq!(entry(&json_of(&lab, &["runs", "list"]), "endless")["status"], "stopped");
}

#[test]
fn a_run_is_shown_with_all_that_is_known() {
    let hook = "[[hooks]]\nkind = \"monitor\"\npoints = \"blocks.0.hook_resid_post\"\n[[hooks]]\nkind = \"lr_monitor\"\nenabled = false\n";
    let lab = Lab::with(&format!("{TINY}{hook}"));
    lab.ok(&["train", "run.toml", "--quiet"]);
    fs::write(lab.run_dir("tiny/checkpoints/step-00000040/config.json"), "{}").unwrap();
    let shown = json_of(&lab, &["runs", "show", "tin"]);
    for key in [
        "id",
        "status",
        "attempts",
        "commit",
        "config_hash",
        "seed",
        "host",
        "versions",
        "hooks",
        "metrics",
        "dir",
    ] {
        assert!(!shown[key].is_null(), "{key}: {shown}");
    }
    let hooks = shown["hooks"].as_array().unwrap();
    let hook = |id: &str| hooks.iter().find(|hook| hook["id"] == id).unwrap();
    assert!(hook("monitor")["receipt"]["fired"].as_u64() > Some(40), "at every step, and in validation");
    assert_eq!(hook("monitor")["matched"], json!(["blocks.0.hook_resid_post"]));
    let off = hook("lr_monitor");
    assert_eq!((&off["enabled"], &off["receipt"]["events"]), (&json!(false), &json!(0)));
    assert!(hook("grad_coverage")["receipt"]["events"].as_u64() > Some(40), "as every run has it");
    assert_eq!(
        shown["metrics"]["loss"],
        lab.metrics("tiny").iter().rev().find_map(|row| row.get("loss")).unwrap().clone()
    );
    let checkpoints = shown["checkpoints"].as_array().unwrap();
    let states: Vec<(&Value, &Value)> =
        checkpoints.iter().map(|found| (&found["step"], &found["verified"])).collect();
    assert_eq!(states, [(&json!(30), &json!(true)), (&json!(40), &json!(false))]);
    assert_eq!(shown["resume"], Value::Null, "it is completed");

    let text = lab.ok(&["runs", "show", "tiny"]).stdout;
    for part in [
        "status    completed",
        "seed      42",
        "candle 0.",
        "verified",
        "damaged: ",
        "config.json",
        "metrics.jsonl",
        "blocks.0.hook_resid_post",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let line = |id: &str| text.lines().find(|line| line.trim_start().starts_with(id)).unwrap();
    assert!(line("lr_monitor").contains(" off "), "{text}");
}

#[test]
fn failures_of_hooks_are_shown() {
    let lab = Lab::with(&format!("{TINY}[[hooks]]\nkind = \"early_stopping\"\nmonitor = \"not/there\"\n"));
    assert_eq!(lab.run(&["train", "run.toml", "--quiet"]).code, Some(1), "strict");
    let shown = json_of(&lab, &["runs", "show", "tiny"]);
    assert_eq!(shown["status"], "error");
    assert!(shown["reason"].as_str().unwrap().contains("not/there"), "{shown}");
    assert!(shown["resume"].as_str().unwrap().contains("--resume"), "{shown}");
}

#[test]
fn what_differs_between_two_runs_is_told() {
    let lab = Lab::with(TINY);
    lab.ok(&["train", "run.toml", "--quiet"]);
    lab.ok(&["train", "run.toml", "--quiet", "--set", "run.name=same"]);
    lab.ok(&[
        "train",
        "run.toml",
        "--quiet",
        "--set",
        "run.name=other",
        "--set",
        "optimizer.0.lr=0.01",
        "--set",
        "data.train.0.examples=32",
    ]);
    let keys = |found: &Value| -> Vec<String> {
        found.as_array().unwrap().iter().map(|one| one["key"].as_str().unwrap().to_string()).collect()
    };
    let same = json_of(&lab, &["runs", "diff", "tiny", "same"]);
    assert_eq!(same["config"], json!([{"key": "run.name", "a": "tiny", "b": "same"}]));
    assert_eq!((&same["commit"], &same["data"], &same["metrics"]), (&json!([]), &json!([]), &json!([])));
    let found = json_of(&lab, &["runs", "diff", "tiny", "other"]);
    assert_eq!(keys(&found["config"]), ["data.train[0].examples", "optimizer[0].lr", "run.name"]);
    assert_eq!(found["config"][1], json!({"key": "optimizer[0].lr", "a": 0.003, "b": 0.01}));
    assert_eq!(keys(&found["data"]), ["train[0].data.examples"]);
    assert!(keys(&found["metrics"]).contains(&"val/loss".to_string()), "{found}");
    let text = lab.ok(&["runs", "diff", "tiny", "other"]).stdout;
    assert!(
        text.lines().any(|line| line.split_whitespace().eq(["optimizer[0].lr", "0.003", "0.01"])),
        "{text}"
    );
    fs::create_dir_all(lab.path().join("more")).unwrap();
    let text = lab.ok(&["runs", "diff", "tiny", "tiny"]).stdout;
    assert!(text.contains("have the same configuration"), "{text}");
}

#[test]
fn runs_that_are_not_there_are_named_with_those_that_are() {
    let lab = Lab::with(TINY);
    lab.ok(&["train", "run.toml", "--quiet", "--set", "train.steps=6"]);
    fs::create_dir_all(lab.run_dir("tiny-broken")).unwrap();
    let cases: &[(&[&str], &[&str])] = &[
        (&["show", "nope"], &["no run is called \"nope\"", "tiny"]),
        (&["show", "tiny", "--runs-dir", "elsewhere"], &["there are no runs"]),
        (&["show", "tiny-broken"], &["run.json"]),
        (&["diff", "tiny", "nope"], &["no run is called \"nope\""]),
        (&["diff", "tiny"], &["<B>"]),
        (&["rerun", "nope"], &["no run is called \"nope\""]),
        (&["rerun", "tiny", "--set", "a=b"], &["--set"]),
        (&["rerun", "tiny", "--name", "tiny"], &["--name: there is such a run already"]),
        (&["rerun", "tiny", "--name", "../x"], &["--name: \"../x\" cannot be a name"]),
        (&["list", "--runs-dir", "run.toml"], &["run.toml", "cannot list"]),
    ];
    for (args, words) in cases {
        let ran = lab.run(&[&["runs"], *args].concat());
        assert_eq!(ran.code, Some(2), "{args:?}: {}{}", ran.stdout, ran.stderr);
        assert!(words.iter().all(|word| ran.stderr.contains(word)), "{args:?}: {}", ran.stderr);
    }
}

#[test]
fn resume_without_a_run_takes_the_newest_with_this_configuration() {
    let unnamed = TINY.replace("name = \"tiny\"", "");
    let lab = Lab::with(&unnamed);
    let ids = || -> Vec<String> {
        let listed = json_of(&lab, &["runs", "list"]);
        listed.as_array().unwrap().iter().map(|run| run["id"].as_str().unwrap().to_string()).collect()
    };
    lab.ok(&["train", "run.toml", "--quiet", "--set", "train.steps=6"]);
    let mine = ids()[0].clone();
    lab.ok(&["train", "run.toml", "--quiet", "--set", "train.steps=6", "--set", "optimizer.0.lr=1.0"]);
    let ran = lab.ok(&["train", "run.toml", "--resume", "--set", "train.steps=8", "--json", "--quiet"]);
    let told: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((told["run_id"].as_str(), &told["steps"]), (Some(mine.as_str()), &json!(8)));
    let ran = lab.run(&["train", "run.toml", "--resume", "--set", "model.d_mlp=16"]);
    assert_eq!(ran.code, Some(2));
    assert!(ran.stderr.contains("cannot go on with another configuration"), "{}", ran.stderr);
    assert!(ran.stderr.contains("model.d_mlp: was 32, is 16"), "{}", ran.stderr);
}
