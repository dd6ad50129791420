use std::process::{Command, Stdio};

use serde_json::json;

use super::*;

#[test]
fn a_run_is_made_recorded_and_found_again() {
    let root = tempfile::tempdir().unwrap();
    let runs = root.path().join("deep/runs");
    let run = RunDir::create(&runs, Some("first")).unwrap();
    assert_eq!((run.id(), run.path()), ("first", runs.join("first").as_path()));
    let mut record = RunRecord::new(run.id());
    record.seed = u64::MAX;
    record.status = Status::Interrupted;
    record.attempts.push(Attempt { from_step: 3, args: vec!["train".to_string()], ..Attempt::begin() });
    record.write(&run).unwrap();
    assert_eq!(RunRecord::read(&run).unwrap(), record);
    let json: serde_json::Value = serde_json::from_slice(&fs::read(run.record_path()).unwrap()).unwrap();
    assert_eq!(json["status"], "interrupted");
    assert_eq!(json["attempts"][0]["pid"], std::process::id());
    assert_eq!(json["commit"], "unknown");
    let again = RunDir::open(run.path()).unwrap();
    assert_eq!(again.id(), "first");
}

#[test]
fn a_run_without_a_name_has_an_id_that_sorts_by_age() {
    let runs = tempfile::tempdir().unwrap();
    let made: Vec<String> =
        (0..5).map(|_| RunDir::create(runs.path(), None).unwrap().id().to_string()).collect();
    let mut sorted = made.clone();
    sorted.sort();
    assert_eq!(made, sorted);
    assert_eq!(Uuid::parse_str(&made[0]).unwrap().get_version_num(), 7);
}

#[test]
fn an_existing_run_is_not_written_over() {
    let runs = tempfile::tempdir().unwrap();
    RunDir::create(runs.path(), Some("a")).unwrap();
    let error = RunDir::create(runs.path(), Some("a")).unwrap_err().to_string();
    assert!(error.contains("`--resume a`") && error.contains("another name"), "{error}");
}

#[test]
fn p32_a_run_cannot_be_made_outside() {
    let root = tempfile::tempdir().unwrap();
    let runs = root.path().join("runs");
    for name in ["../up", "/tmp/x", "..", "", "a/b", "CON", "a\0"] {
        assert!(matches!(RunDir::create(&runs, Some(name)), Err(RunError::Name(_))), "{name:?}");
    }
    #[cfg(unix)]
    {
        let outside = root.path().join("outside");
        fs::create_dir(&outside).unwrap();
        fs::create_dir_all(&runs).unwrap();
        std::os::unix::fs::symlink(&outside, runs.join("link")).unwrap();
        assert!(matches!(RunDir::create(&runs, Some("link")), Err(RunError::Exists { .. })));
        assert!(list(&runs).unwrap().is_empty());
        assert!(find(&runs, "link").is_err());
    }
}

#[test]
fn p09_a_second_writer_is_told_who_the_first_one_is() {
    let runs = tempfile::tempdir().unwrap();
    let run = RunDir::create(runs.path(), Some("a")).unwrap();
    let lock = run.lock().unwrap();
    let error = run.lock().unwrap_err();
    assert!(matches!(error, RunError::Locked { .. }));
    let words = error.to_string();
    assert!(words.contains(&format!("process {} on {}", std::process::id(), host())), "{words}");
    drop(lock);
    drop(run.lock().unwrap());
    // What the last holder left in the file does not matter.
    fs::write(run.path().join("run.lock"), "{ nonsense").unwrap();
    run.lock().unwrap();
}

#[test]
fn p09_the_lock_of_a_killed_process_is_free() {
    let runs = tempfile::tempdir().unwrap();
    let run = RunDir::create(runs.path(), Some("a")).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "run::tests::lock_in_a_child", "--quiet"])
        .env("TENTERHOOK_TEST_DIR", run.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let holder = format!("process {} on", child.id());
    while !matches!(run.lock(), Err(RunError::Locked { holder: words, .. }) if words.contains(&holder)) {
        assert!(child.try_wait().unwrap().is_none(), "the child ended early");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    run.lock().unwrap();
}

/// Does nothing but in a child process of another test.
#[test]
fn lock_in_a_child() {
    let Some(dir) = std::env::var_os("TENTERHOOK_TEST_DIR") else { return };
    let run = RunDir::open(dir.as_ref()).unwrap();
    // The parent may be trying the lock at this moment.
    let _lock = loop {
        match run.lock() {
            Err(RunError::Locked { .. }) => std::thread::yield_now(),
            lock => break lock.unwrap(),
        }
    };
    // Until the parent kills this process, or is gone itself.
    io::stdin().read_line(&mut String::new()).unwrap();
}

#[test]
fn a_run_that_says_it_is_training_and_has_no_lock_was_killed() {
    let runs = tempfile::tempdir().unwrap();
    let run = RunDir::create(runs.path(), Some("r")).unwrap();
    let mut record = RunRecord::new("r");
    record.write(&run).unwrap();
    let killed = || RunRecord::read_with_fate(&run).unwrap().1;
    assert!(killed(), "there is not even a lock");
    let lock = run.lock().unwrap();
    assert!(run.is_locked() && !killed() && !list(runs.path()).unwrap()[0].killed);
    assert!(matches!(run.lock(), Err(RunError::Locked { .. })), "looking at a lock does not take it away");
    drop(lock);
    assert!(!run.is_locked() && killed() && list(runs.path()).unwrap()[0].killed);
    record.status = Status::Interrupted;
    record.write(&run).unwrap();
    assert!(!killed());
}

#[test]
fn who_looks_at_a_lock_keeps_nobody_from_taking_it() {
    let runs = tempfile::tempdir().unwrap();
    let run = RunDir::create(runs.path(), Some("r")).unwrap();
    drop(run.lock().unwrap());
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                run.is_locked();
                std::thread::sleep(std::time::Duration::from_micros(50));
            }
        });
        let taken = (0..200).all(|_| run.lock().is_ok());
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(taken);
    });
}

#[test]
fn the_time_between_attempts_does_not_count() {
    let attempt = |started: &str, finished: Option<&str>| Attempt {
        started: started.to_string(),
        finished: finished.map(str::to_string),
        ..Attempt::default()
    };
    let mut record = RunRecord::new("r");
    record.attempts = vec![
        attempt("1970-01-01T00:00:10Z", Some("1970-01-01T00:00:30.5Z")),
        attempt("1970-01-01T00:10:00Z", None),
        attempt("nonsense", None),
        Attempt {
            last_seen: Some("1970-01-01T00:20:01Z".to_string()),
            ..attempt("1970-01-01T00:20:00Z", None)
        },
    ];
    assert_eq!(record.seconds(605.0), 26.5);
    assert_eq!(record.seconds(0.0), 21.5, "nothing was heard of the second one");
}

#[test]
fn taking_the_lock_sweeps_what_was_left() {
    let runs = tempfile::tempdir().unwrap();
    let run = RunDir::create(runs.path(), Some("a")).unwrap();
    fs::create_dir_all(run.checkpoints().join(".step-1.77-0.tmp/ema")).unwrap();
    fs::write(run.path().join(".run.json.77-1.tmp"), "{").unwrap();
    let _lock = run.lock().unwrap();
    assert_eq!(fs::read_dir(run.checkpoints()).unwrap().count(), 0);
    assert!(!run.path().join(".run.json.77-1.tmp").exists());
}

#[test]
fn a_record_keeps_what_a_later_version_wrote() {
    let runs = tempfile::tempdir().unwrap();
    let run = RunDir::create(runs.path(), Some("a")).unwrap();
    fs::write(run.record_path(), r#"{"id": "a", "status": "completed", "energy": {"kwh": 3}}"#).unwrap();
    let record = RunRecord::read(&run).unwrap();
    assert_eq!((record.id.as_str(), record.status), ("a", Status::Completed));
    record.write(&run).unwrap();
    assert_eq!(RunRecord::read(&run).unwrap().others["energy"], json!({"kwh": 3}));
}

#[test]
fn a_bad_record_is_named() {
    let runs = tempfile::tempdir().unwrap();
    let run = RunDir::create(runs.path(), Some("a")).unwrap();
    assert!(RunRecord::read(&run).unwrap_err().to_string().contains("run.json: cannot read"));
    for bad in ["", "{", "[]", r#"{"status": "gone"}"#] {
        fs::write(run.record_path(), bad).unwrap();
        let error = RunRecord::read(&run).unwrap_err().to_string();
        assert!(error.contains("run.json: is no record of a run"), "{error}");
    }
}

#[test]
fn runs_are_listed_newest_first() {
    let runs = tempfile::tempdir().unwrap();
    assert!(list(&runs.path().join("absent")).unwrap().is_empty());
    let times =
        [("b", "2026-01-02T00:00:00Z"), ("a", "2026-01-02T00:00:00.5Z"), ("c", "2026-01-01T23:00:00Z")];
    for (name, started) in times {
        let run = RunDir::create(runs.path(), Some(name)).unwrap();
        RunRecord { started: started.to_string(), ..RunRecord::new(name) }.write(&run).unwrap();
    }
    RunDir::create(runs.path(), Some("z-broken")).unwrap();
    fs::create_dir(runs.path().join(".hidden")).unwrap();
    fs::write(runs.path().join("notes.txt"), "x").unwrap();
    let listed = list(runs.path()).unwrap();
    assert_eq!(listed.iter().map(Listed::id).collect::<Vec<_>>(), ["a", "b", "c", "z-broken"]);
    assert!(listed[3].record.as_ref().unwrap_err().contains("run.json"));
}

#[test]
fn a_run_is_found_by_id_by_its_beginning_and_by_path() {
    let root = tempfile::tempdir().unwrap();
    let runs = root.path().join("runs");
    let error = find(&runs, "x").unwrap_err().to_string();
    assert!(error.contains("there are no runs"), "{error}");
    for name in ["alpha", "alpha-2", "beta"] {
        let run = RunDir::create(&runs, Some(name)).unwrap();
        RunRecord::new(name).write(&run).unwrap();
    }
    for (wanted, expected) in [("alpha", "alpha"), ("alpha-", "alpha-2"), ("b", "beta")] {
        assert_eq!(find(&runs, wanted).unwrap(), runs.join(expected), "{wanted}");
    }
    let path = runs.join("beta");
    assert_eq!(find(Path::new("elsewhere"), path.to_str().unwrap()).unwrap(), path);
    let several = find(&runs, "al").unwrap_err().to_string();
    assert!(several.contains("alpha, alpha-2"), "{several}");
    for wanted in ["gamma", "", "..", "../runs"] {
        let error = find(&runs, wanted).unwrap_err().to_string();
        assert!(error.contains(&format!("{wanted:?}")) && error.contains("beta"), "{error}");
    }
}

#[test]
fn the_hash_of_a_configuration_ignores_the_order_of_keys() {
    let one = json!({"b": {"y": [1, {"q": 2, "p": null}], "x": 0.5}, "a": "ü"});
    let two = json!({"a": "ü", "b": {"x": 0.5, "y": [1, {"p": null, "q": 2}]}});
    assert_eq!(config_hash(&one), config_hash(&two));
    // printf '{"a":"ü","b":{"x":0.5,"y":[1,{"p":null,"q":2}]}}' | sha256sum
    assert_eq!(config_hash(&one), "54910eb1096cf4bf03a1dfe121fa23fdf0180c594b927f434ea8e8f8ed82c3d0");
    for other in [json!({"a": "ü"}), json!({"a": "ü", "b": {"x": 0.5, "y": [{"p": null, "q": 2}, 1]}})] {
        assert_ne!(config_hash(&one), config_hash(&other));
    }
}

fn run_git(dir: &Path, args: &[&str]) {
    let identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false"];
    let status = Command::new("git").arg("-C").arg(dir).args(identity).args(args).output().unwrap().status;
    assert!(status.success(), "{args:?}");
}

#[test]
fn p40_the_commit_is_known_inside_a_repository() {
    let dir = tempfile::tempdir().unwrap();
    assert_eq!(git_state(&dir.path().join("absent")), ("unknown".to_string(), None));
    if Command::new("git").arg("--version").output().is_err() {
        return;
    }
    run_git(dir.path(), &["init", "--quiet"]);
    assert_eq!(git_state(dir.path()), ("unknown".to_string(), None));
    fs::write(dir.path().join("a"), "1").unwrap();
    run_git(dir.path(), &["add", "a"]);
    run_git(dir.path(), &["commit", "--quiet", "-m", "a"]);
    let (commit, dirty) = git_state(dir.path());
    assert_eq!((commit.len(), dirty), (40, Some(false)));
    fs::write(dir.path().join("output of a run"), "1").unwrap();
    assert_eq!(git_state(dir.path()), (commit.clone(), Some(false)));
    fs::write(dir.path().join("a"), "2").unwrap();
    assert_eq!(git_state(dir.path()), (commit, Some(true)));
}

#[cfg(debug_assertions)]
#[test]
fn p03_a_record_that_cannot_be_written_keeps_the_old_one() {
    use crate::fault;
    let runs = tempfile::tempdir().unwrap();
    let run = RunDir::create(runs.path(), Some("a")).unwrap();
    let old = RunRecord::new("a");
    old.write(&run).unwrap();
    for point in ["disk.create", "disk.write", "disk.sync", "disk.rename"] {
        for action in ["enospc", "eacces", "eio", "short"] {
            let faults = fault::install(&format!("{point}={action}")).unwrap();
            let changed = RunRecord { status: Status::Completed, ..old.clone() };
            let error = changed.write(&run).unwrap_err().to_string();
            drop(faults);
            assert!(error.contains("run.json: cannot write"), "{error}");
            assert_eq!(RunRecord::read(&run).unwrap(), old, "{point}={action}");
        }
    }
}

#[cfg(debug_assertions)]
#[test]
fn p02_a_power_cut_while_the_record_is_written_leaves_the_old_or_the_new_one() {
    use crate::crash::{read_tree, states_after_power_cuts};
    use crate::fault;
    let runs = tempfile::tempdir().unwrap();
    let run = RunDir::create(runs.path(), Some("a")).unwrap();
    RunRecord::new("a").write(&run).unwrap();
    let before = read_tree(run.path());
    let trace = fault::trace();
    RunRecord { status: Status::Completed, ..RunRecord::new("a") }.write(&run).unwrap();
    let after = read_tree(run.path());
    let name = Path::new("run.json");
    for state in states_after_power_cuts(run.path(), &before, &trace.ops()) {
        let found = state.get(name);
        assert!(found == before.get(name) || found == after.get(name), "{found:?}");
    }
}
