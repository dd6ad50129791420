//! `tenterhook runs rerun`: a run is done again from its record.

use std::fs;

use serde_json::{Value, json};

use crate::lab::{Lab, TINY};
use crate::support::Ran;

/// Repeats a run under another name.
fn rerun(lab: &Lab, run: &str, name: &str) -> (Ran, Value) {
    let ran = lab.run(&["runs", "rerun", run, "--name", name, "--quiet", "--json"]);
    let told = serde_json::from_str(&ran.stdout).unwrap_or_default();
    (ran, told)
}

fn assert_identical(lab: &Lab, run: &str, name: &str, losses: usize) {
    let (ran, told) = rerun(lab, run, name);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(
        (&told["comparison"]["identical"], &told["comparison"]["compared"]),
        (&json!(true), &json!(losses))
    );
    assert_eq!((&told["parent"], &lab.record(name)["parent"]), (&json!(run), &json!(run)));
}

#[test]
fn p40_rerun_reproduces_the_losses_bit_for_bit() {
    let lab = Lab::with(TINY);
    lab.ok(&["train", "run.toml", "--quiet"]);
    // The file it was started with is not needed.
    fs::remove_file(lab.path().join("run.toml")).unwrap();
    assert_identical(&lab, "tiny", "again", 40 + 40 + 4);
    assert_eq!(lab.metrics("tiny"), lab.metrics("again"));
    assert_eq!(lab.digest("tiny"), lab.digest("again"));
    let ran = lab.ok(&["runs", "rerun", "again", "--quiet"]);
    assert!(ran.stderr.contains("identical to run again: 84 losses up to step 40"), "{}", ran.stderr);
}

#[test]
fn p40_the_record_has_all_that_decided_the_run() {
    let hook = "[[hooks]]\nkind = \"early_stopping\"\npatience = 50\n";
    let lab = Lab::with(&format!("{TINY}{hook}"));
    lab.ok(&["train", "run.toml", "--quiet", "--set", "run.seed=7", "--set", "train.threads=1"]);
    let record = lab.record("tiny");
    assert_eq!(
        (&record["id"], &record["name"], &record["seed"]),
        (&json!("tiny"), &json!("tiny"), &json!(7))
    );
    assert_eq!(
        (&record["commit"], &record["dirty"]),
        (&json!("unknown"), &Value::Null),
        "outside of a repository"
    );
    assert_eq!(record["threads"], 1);
    for (name, version) in [("tenterhook", env!("CARGO_PKG_VERSION")), ("candle", "0.")] {
        assert!(record["versions"][name].as_str().unwrap().starts_with(version), "{record}");
    }
    assert!(!record["host"].as_str().unwrap().is_empty());
    let args: Vec<&str> =
        record["attempts"][0]["args"].as_array().unwrap().iter().filter_map(Value::as_str).collect();
    assert_eq!(
        args[1..],
        ["train", "run.toml", "--quiet", "--set", "run.seed=7", "--set", "train.threads=1"]
    );
    assert_eq!(record["data"]["train"][0]["data"]["kind"], "induction");
    assert_eq!(record["data"]["train"][1]["name"], "sums");
    assert_eq!(record["data"]["val"][0]["data"]["examples"], 8);
    let hooks = record["hooks"].as_array().unwrap();
    assert_eq!(
        *hooks.iter().find(|hook| hook["id"] == "early_stopping").unwrap(),
        json!({
            "id": "early_stopping", "kind": "early_stopping", "enabled": true, "matched": [],
            "options": {"kind": "early_stopping", "patience": 50},
        })
    );
    let config = fs::read_to_string(lab.run_dir("tiny/config.toml")).unwrap();
    assert!(config.contains("deterministic = true") && config.contains("seed = 7"), "{config}");
    assert_eq!(record["config_hash"].as_str().unwrap().len(), 64);
    lab.ok(&["train", "run.toml", "--quiet", "--set", "run.name=other", "--set", "run.seed=8"]);
    assert_ne!(lab.record("other")["config_hash"], record["config_hash"]);
}

#[test]
fn p40_the_commit_is_in_the_record() {
    let lab = Lab::with(TINY);
    let git = |args: &[&str]| {
        let config = ["-c", "user.name=a", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"];
        let mut command = std::process::Command::new("git");
        command.args(config).args(args).current_dir(lab.path());
        let ran = Ran::of(command);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        ran.stdout.trim().to_string()
    };
    git(&["init", "--quiet"]);
    git(&["add", "run.toml"]);
    git(&["commit", "--quiet", "-m", "first"]);
    lab.ok(&["train", "run.toml", "--quiet", "--set", "train.steps=6"]);
    let record = lab.record("tiny");
    assert_eq!((&record["commit"], &record["dirty"]), (&json!(git(&["rev-parse", "HEAD"])), &json!(false)));
    lab.write("run.toml", format!("{TINY}# more\n"));
    lab.ok(&["train", "run.toml", "--quiet", "--set", "train.steps=6", "--set", "run.name=dirty"]);
    assert_eq!(lab.record("dirty")["dirty"], true);
}

#[test]
fn p40_other_losses_are_told_with_the_first_step_that_differs() {
    let lab = Lab::with(TINY);
    lab.ok(&["train", "run.toml", "--quiet"]);
    let path = lab.run_dir("tiny/metrics.jsonl");
    let text = fs::read_to_string(&path).unwrap();
    let row =
        text.lines().find(|line| line.starts_with("{\"step\":17,") && line.contains("\"loss\":")).unwrap();
    let mut changed: Value = serde_json::from_str(row).unwrap();
    let loss = changed["loss"].as_f64().unwrap();
    let next = f64::from_bits(loss.to_bits() + 1);
    changed["loss"] = json!(next);
    fs::write(&path, text.replace(row, &changed.to_string())).unwrap();
    let (ran, told) = rerun(&lab, "tiny", "again");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert_eq!(
        told["comparison"]["first"],
        json!({"step": 17, "name": "loss", "original": next, "rerun": loss})
    );
    let expected = format!("`loss` at step 17: {next:?} then, {loss:?} now");
    assert!(ran.stderr.contains(&expected), "{}", ran.stderr);
}

#[test]
fn p40_a_fork_is_repeated_from_the_checkpoint_it_began_with() {
    let lab = Lab::with(TINY);
    lab.ok(&["train", "run.toml", "--quiet", "--set", "train.steps=20"]);
    let fork = [
        "train",
        "run.toml",
        "--fork",
        "tiny",
        "--quiet",
        "--set",
        "run.name=fork",
        "--set",
        "optimizer.0.lr=0.01",
    ];
    lab.ok(&fork);
    let attempt = &lab.record("fork")["attempts"][0];
    assert_eq!((&attempt["from_step"], &attempt["resumed_from"]), (&json!(20), &json!("tiny/step-00000020")));
    assert_identical(&lab, "fork", "again", 20 + 20 + 2);
    assert_identical(&lab, "again", "and-again", 20 + 20 + 2);
    assert_eq!(lab.metrics("fork"), lab.metrics("and-again"));
    assert_eq!(lab.record("and-again")["attempts"][0]["resumed_from"], "tiny/step-00000020");

    fs::remove_dir_all(lab.run_dir("tiny/checkpoints/step-00000020")).unwrap();
    for gone in ["it is no longer in", "no run is called \"tiny\""] {
        let (ran, _) = rerun(&lab, "fork", "never");
        assert_eq!(ran.code, Some(2), "{}", ran.stderr);
        assert!(
            ran.stderr.contains("run fork is a fork of run tiny: it began with the checkpoint step-00000020"),
            "{}",
            ran.stderr
        );
        assert!(ran.stderr.contains(gone), "{}", ran.stderr);
        let _ = fs::remove_dir_all(lab.run_dir("tiny"));
    }
    assert!(!lab.run_dir("never").exists());
}

#[test]
fn p40_a_resumed_run_is_repeated_from_its_beginning() {
    let lab = Lab::with(&TINY.replace("kind = \"cosine\"\nwarmup = 5", "kind = \"constant\""));
    lab.ok(&["train", "run.toml", "--quiet", "--set", "train.steps=7"]);
    lab.ok(&["train", "run.toml", "--quiet", "--resume"]);
    let (ran, told) = rerun(&lab, "tiny", "again");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(told["comparison"]["up_to_step"], 40);
}

#[test]
fn p40_a_run_whose_configuration_changed_on_the_way_is_told_of() {
    // The rates of a cosine depend on the length of the run, and the first steps were taken when it was to be short.
    let lab = Lab::with(TINY);
    lab.ok(&["train", "run.toml", "--quiet", "--set", "train.steps=10"]);
    lab.ok(&["train", "run.toml", "--quiet", "--resume"]);
    let (ran, told) = rerun(&lab, "tiny", "again");
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(
        told["comparison"]["first"]["step"].as_u64().is_some_and(|step| (6..=10).contains(&step)),
        "{told}"
    );
    let doubt = "the run was resumed with a changed configuration, of which the last form is recorded";
    assert_eq!(ran.stderr.matches(doubt).count(), 2, "before the work and with the result: {}", ran.stderr);
}

#[test]
fn p40_other_data_is_known_before_the_work() {
    let text = "the same words again and again, until it is learned. ".repeat(40);
    let config = "[model]\nkind = \"gpt\"\nvocab = 256\ncontext = 16\nd_model = 16\nn_heads = 2\nn_layers = 1\n\
        [data.train]\nkind = \"text\"\ntokenizer = \"byte\"\npath = \"words.txt\"\nbatch = 4\n[train]\nsteps = 2\n\
        [[optimizer]]\nkind = \"sgd\"\nlr = 0.1\n[run]\nname = \"tiny\"\n";
    let lab = Lab::with(config);
    lab.write("words.txt", &text);
    lab.ok(&["train", "run.toml", "--quiet"]);
    assert_identical(&lab, "tiny", "again", 4);
    lab.write("words.txt", text.replace("same", "sane"));
    let (ran, _) = rerun(&lab, "tiny", "never");
    assert_eq!(ran.code, Some(2), "{}", ran.stderr);
    assert!(ran.stderr.contains("the data is not what the run was trained on"), "{}", ran.stderr);
    assert!(ran.stderr.contains("train[0].data") && !lab.run_dir("never").exists(), "{}", ran.stderr);
}

#[test]
fn p34_a_secret_address_is_neither_recorded_nor_posted_to() {
    let hook = "[[hooks]]\nkind = \"webhook\"\nurl = \"http://127.0.0.1:9/hunter2\"\nallow_local = true\ntimeout_s = 0.1\n";
    let lab = Lab::with(&format!("{TINY}{hook}"));
    let ran = lab.ok(&["train", "run.toml", "--quiet"]);
    assert!(!ran.stderr.contains("hunter2"), "{}", ran.stderr);
    let (ran, told) = rerun(&lab, "tiny", "again");
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    assert_eq!(told["comparison"]["identical"], true);
    assert!(ran.stderr.contains("WARNING: the hook `webhook` is left out"), "{}", ran.stderr);
    let kinds: Vec<Value> =
        lab.record("again")["hooks"].as_array().unwrap().iter().map(|hook| hook["kind"].clone()).collect();
    assert!(!kinds.contains(&json!("webhook")), "{kinds:?}");
    lab.ok(&["eval", "tiny"]);
    let found = Ran::of({
        let mut grep = std::process::Command::new("grep");
        grep.args(["-r", "hunter2", "runs"]).current_dir(lab.path());
        grep
    });
    assert_eq!(found.stdout, "");
}
