//! Names that users give stay inside the run's directory, or are refused before anything is written.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use tenterhook::train::config::{Document, Format};

use crate::lab::{Lab, TINY};
use crate::support::Ran;

/// Three levels down, so that what climbs out of it still lands in the lab, where it is seen.
const RUNS: &str = "a/b/runs";

/// Names that lead out, hide, lie or break somewhere. `{lab}` is the lab's own path.
const HOSTILE: [&str; 16] = [
    "../up",
    "../../../escaped",
    "x/../../../../escaped",
    "{lab}/absolute",
    "..",
    "nul\0byte",
    "line\nfeed",
    "CON",
    "aux.txt",
    "evil\u{202e}txt.exe",
    "back\\slash",
    "C:\\windows",
    "~",
    "$HOME",
    "\u{1b}[31mred",
    "{long}",
];

fn hostile(lab: &Lab) -> Vec<String> {
    let path = lab.path().to_str().unwrap();
    HOSTILE.iter().map(|name| name.replace("{lab}", path).replace("{long}", &"x".repeat(4000))).collect()
}

/// A run of two steps with these tables added to its configuration, which is JSON, where any text can stand.
fn configured(lab: &Lab, change: impl FnOnce(&mut serde_json::Value)) {
    let mut config = Document::parse(TINY, Format::Toml).unwrap().value().clone();
    config["run"]["dir"] = RUNS.into();
    config["train"]["steps"] = 2.into();
    config["train"]["validate_every"] = 1.into();
    config["schedule"] = json!({});
    change(&mut config);
    lab.write("run.json", config.to_string());
}

/// Everything below the lab but the directory of runs: every file with its contents, every directory and link by its name.
fn outside(lab: &Lab) -> BTreeMap<PathBuf, Vec<u8>> {
    fn walk(dir: &Path, skip: &Path, found: &mut BTreeMap<PathBuf, Vec<u8>>) {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let kind = path.symlink_metadata().unwrap();
            let contents = if kind.is_file() { fs::read(&path).unwrap() } else { Vec::new() };
            found.insert(path.clone(), contents);
            if kind.is_dir() && path != skip {
                walk(&path, skip, found);
            }
        }
    }
    fs::create_dir_all(lab.path().join(RUNS)).unwrap();
    let mut found = BTreeMap::new();
    walk(lab.path(), &lab.path().join(RUNS), &mut found);
    found
}

/// Trains, and nothing but the directory of runs may have changed.
fn contained(lab: &Lab, what: &str, args: &[&str]) -> Ran {
    let before = outside(lab);
    let ran = lab.run(args);
    assert_eq!(outside(lab), before, "{what:?} wrote outside: {}", ran.stderr);
    assert!(!ran.stderr.contains("panicked"), "{what:?}: {}", ran.stderr);
    let unfit = |c: char| c.is_control() && c != '\n';
    assert!(!ran.stderr.contains(unfit), "{what:?}: not fit for a terminal: {:?}", ran.stderr);
    ran
}

fn refused(lab: &Lab, what: &str, args: &[&str], word: &str) {
    let ran = contained(lab, what, args);
    assert_eq!(ran.code, Some(2), "{what:?}: {}{}", ran.stdout, ran.stderr);
    assert!(ran.stderr.contains(word), "{what:?}: {}", ran.stderr);
}

/// The names of everything in a directory of the only run.
fn names(lab: &Lab, dir: &str) -> Vec<String> {
    let run = lab.path().join(RUNS).join("tiny").join(dir);
    let mut names: Vec<String> =
        fs::read_dir(run).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn p32_a_hostile_run_name_is_refused_and_nothing_is_made() {
    let lab = Lab::new();
    let names = hostile(&lab);
    // `~` and `$HOME` are ordinary names to a file system.
    for name in names.iter().filter(|name| !["~", "$HOME"].contains(&name.as_str())) {
        configured(&lab, |config| config["run"]["name"] = name.as_str().into());
        refused(&lab, name, &["train", "run.json"], "run.name");
    }
    assert_eq!(fs::read_dir(lab.path().join(RUNS)).unwrap().count(), 0);
}

/// One run with a hook per name, of every kind that makes files of its id or of a template.
#[test]
fn p32_hostile_ids_and_templates_become_plain_file_names() {
    let lab = Lab::new();
    let names_given = hostile(&lab);
    configured(&lab, |config| {
        let hooks = names_given.iter().enumerate().flat_map(|(i, name)| {
            // One id is one hook's.
            let id = |kind: &str| format!("{name}{kind}");
            [
                json!({ "kind": "json_log", "id": id("j"), "log_every_n_batches": 1 }),
                json!({ "kind": "csv_log", "id": id("c") }),
                json!({ "kind": "capture", "id": id("p"), "points": ["hook_embed"] }),
                json!({ "kind": "model_checkpoint", "id": format!("k{i}"), "save_top_k": 1,
                        "filename": format!("{}{{val/loss:.1f}}", name.replace(['{', '}'], "")) }),
            ]
        });
        config["hooks"] = hooks.collect();
    });
    let ran = contained(&lab, "ids and templates", &["train", "run.json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let plain = |name: &String| tenterhook::record::name::check_run_name(name).is_ok();
    for (dir, least) in
        [("logs", 2 * HOSTILE.len()), ("captures", HOSTILE.len()), ("checkpoints", HOSTILE.len())]
    {
        let found = names(&lab, dir);
        assert!(found.len() >= least && found.iter().all(plain), "{dir}: {found:?}");
    }
}

#[test]
fn p32_hostile_names_of_loaders_and_metrics_are_only_text() {
    let lab = Lab::new();
    let names_given = hostile(&lab);
    configured(&lab, |config| {
        let set = config["data"]["val"].clone();
        let named = names_given.iter().map(|name| {
            let mut set = set.clone();
            set["name"] = name.as_str().into();
            set
        });
        config["data"]["val"] = named.collect();
        config["data"]["train"][0]["name"] = "../../../escaped".into();
        config["hooks"] = json!([
            { "kind": "tensorboard" },
            { "kind": "csv_log", "columns": ["val/../../../escaped/loss", "val/CON/loss"] },
            { "kind": "model_checkpoint", "monitor": "val/../../../escaped/loss", "filename": "{val/../../../escaped/loss:.3f}",
              "auto_insert_metric_name": true },
        ]);
    });
    let ran = contained(&lab, "loaders", &["train", "run.json"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
    let saved = names(&lab, "checkpoints");
    assert!(saved.iter().any(|name| name.starts_with("val_.._.._.._escaped_loss=")), "{saved:?}");
    let metrics = fs::read_to_string(lab.path().join(RUNS).join("tiny/metrics.jsonl")).unwrap();
    assert!(metrics.contains("val/../../../escaped/loss") && metrics.lines().count() == 4, "{metrics}");
}

#[test]
fn p32_paths_of_logs_stay_inside_and_off_what_the_run_writes() {
    let lab = Lab::new();
    let absolute = lab.path().join("absolute.csv");
    for path in
        ["../up.csv", "logs/../../../escaped.csv", absolute.to_str().unwrap(), "nul\0", "metrics.jsonl"]
    {
        for kind in ["csv_log", "json_log"] {
            configured(&lab, |config| config["hooks"] = json!([{ "kind": kind, "path": path }]));
            refused(&lab, path, &["train", "run.json"], "path");
        }
    }
}

#[test]
fn p30_names_of_kinds_are_names_and_never_loaded() {
    let lab = Lab::new();
    for kind in ["../evil.so", "/lib/x86_64-linux-gnu/libc.so.6", "os.system", "early_stoping"] {
        configured(&lab, |config| config["hooks"] = json!([{ "kind": kind }]));
        refused(&lab, kind, &["train", "run.json"], "hooks");
        configured(&lab, |config| config["hooks_config"] = json!({ "hook_classes": [kind] }));
        refused(&lab, kind, &["train", "run.json"], "hook_classes");
    }
    configured(&lab, |config| config["hooks_config"] = json!({ "hook_configs": { "../x": { "a": 1 } } }));
    refused(&lab, "options of nobody", &["train", "run.json"], "would do nothing");
}

/// A run's directory that came from somewhere else must not lead the writing elsewhere.
#[cfg(unix)]
#[test]
fn p32_links_in_a_run_directory_are_refused() {
    use std::os::unix::fs::symlink;

    let lab = Lab::new();
    configured(&lab, |config| config["hooks"] = json!([{ "kind": "json_log", "log_every_n_batches": 1 }]));
    assert_eq!(contained(&lab, "first", &["train", "run.json"]).code, Some(0));
    let run = lab.path().join(RUNS).join("tiny");
    let prey = lab.path().join("prey");
    for name in [
        "metrics.jsonl",
        "run.json",
        "run.lock",
        "receipts.json",
        "logs",
        "logs/json_log.jsonl",
        "checkpoints",
    ] {
        let (place, aside) = (run.join(name), lab.path().join("aside"));
        fs::rename(&place, &aside).unwrap();
        match aside.is_dir() {
            true => fs::create_dir(&prey).unwrap(),
            false => fs::copy(&aside, &prey).map(drop).unwrap(),
        }
        symlink(&prey, &place).unwrap();
        refused(&lab, name, &["train", "run.json", "--resume", "--set", "train.steps=4"], name);
        fs::remove_file(&place).unwrap();
        fs::rename(&aside, &place).unwrap();
        if prey.is_dir() { fs::remove_dir(&prey).unwrap() } else { fs::remove_file(&prey).unwrap() }
    }
    // A link to a whole run is a way to name it; the files are still the run's own.
    symlink(&run, lab.path().join("my-run")).unwrap();
    let ran = lab.run(&["train", "run.json", "--resume", "my-run", "--set", "train.steps=4"]);
    assert_eq!(ran.code, Some(0), "{}", ran.stderr);
}
