//! The order in which a whole run reaches the disk.

use std::fs;
use std::path::{Path, PathBuf};

use tenterhook::record::fault::{self, Op};

use crate::here::{SHORT, lab_here, train_here};

fn position(ops: &[Op], what: &str, is: impl Fn(&Op) -> bool) -> usize {
    ops.iter().position(is).unwrap_or_else(|| panic!("no {what} in {ops:#?}"))
}

/// What an operation is about.
fn path_of(op: &Op) -> &Path {
    match op {
        Op::CreateDir(path) | Op::Create(path) | Op::Write(path, _) | Op::Truncate(path, _) => path,
        Op::Sync(path) | Op::SyncDir(path) | Op::Remove(path) | Op::Rename(path, _) => path,
    }
}

/// What happens next to the same files: checkpoints may be written beside the training, which writes its logs meanwhile.
fn next<'a>(ops: &'a [Op], at: usize, checkpoints: &'a Path) -> impl Iterator<Item = &'a Op> {
    let is_checkpoint = move |op: &Op| path_of(op).starts_with(checkpoints);
    let is_log = |op: &Op| path_of(op).extension().is_some_and(|end| end == "jsonl");
    let here = is_checkpoint(&ops[at]);
    ops[at + 1..].iter().filter(move |op| is_checkpoint(op) == here && !is_log(op))
}

fn last_write(ops: &[Op], path: &Path) -> Option<usize> {
    ops.iter().rposition(|op| matches!(op, Op::Write(written, _) if written == path))
}

/// What was written and not synced when the first of `ops[at..]` began.
fn is_synced(ops: &[Op], path: &Path, at: usize) -> bool {
    let synced = ops[..at].iter().rposition(|op| matches!(op, Op::Sync(synced) if synced == path));
    last_write(&ops[..at], path) <= synced
}

/// Everything in a checkpoint is on the disk before its manifest is begun, all of it before it has its name, and its name before anything
/// else happens.
fn check_save(ops: &[Op], from: &Path, renamed: usize) {
    let manifest = from.join("manifest.json");
    let begun = position(ops, "manifest", |op| *op == Op::Create(manifest.clone()));
    let created: Vec<&PathBuf> = ops[..renamed]
        .iter()
        .filter_map(|op| match op {
            Op::Create(path) if path.starts_with(from) => Some(path),
            _ => None,
        })
        .collect();
    assert!(created.len() >= 5 && created.last() == Some(&&manifest), "{created:?}");
    for file in &created[..created.len() - 1] {
        assert!(is_synced(ops, file, begun), "{}", file.display());
    }
    assert!(is_synced(ops, &manifest, renamed));
    let inside = position(ops, "sync of the directory", |op| *op == Op::SyncDir(from.to_path_buf()));
    assert!(begun < inside && inside < renamed);
    let parent = from.parent().unwrap().to_path_buf();
    let next = next(ops, renamed, &parent).next();
    assert_eq!(next, Some(&Op::SyncDir(parent.clone())), "a name that may not last");
}

/// How much of a log was on the disk when `ops[at]` began.
fn synced_bytes(ops: &[Op], path: &Path, at: usize) -> u64 {
    let synced = ops[..at].iter().rposition(|op| matches!(op, Op::Sync(synced) if synced == path));
    let written = ops[..synced.unwrap_or(0)].iter().map(|op| match op {
        Op::Write(written, bytes) if written == path => *bytes as u64,
        _ => 0,
    });
    written.sum()
}

/// The state says how long the log is, and hooks say it of theirs: so much was on the disk before the checkpoint had its name. Training may have
/// gone on meanwhile, and the logs with it.
fn check_logs(ops: &[Op], checkpoint: &Path, renamed: usize, run: &Path) {
    let state: serde_json::Value =
        serde_json::from_slice(&fs::read(checkpoint.join("state.json")).unwrap()).unwrap();
    let length = state["metrics_bytes"].as_u64().unwrap();
    assert!(length <= synced_bytes(ops, &run.join("metrics.jsonl"), renamed), "{}", checkpoint.display());
    let hooks = state["hooks"].as_array().unwrap();
    let log = hooks.iter().find(|hook| hook["id"] == "json_log").unwrap();
    let length = log["state"]["position"].as_u64().unwrap();
    assert!(
        length <= synced_bytes(ops, &run.join("logs/json_log.jsonl"), renamed),
        "{}",
        checkpoint.display()
    );
}

#[test]
fn p02_a_run_reaches_the_disk_in_the_right_order() {
    for config in [SHORT.to_string(), SHORT.replace("[train]", "[train]\nasync_checkpoints = true")] {
        let lab = lab_here(&config);
        let trace = fault::trace();
        train_here(&lab, false).unwrap();
        let ops = trace.ops();
        let dir = lab.run_dir("short");
        let checkpoints = dir.join("checkpoints");
        let (mut saves, mut kept) = (0, 0);
        for (at, op) in ops.iter().enumerate() {
            match op {
                Op::Rename(from, to) if to.parent() == Some(&checkpoints) => {
                    let hidden = to.file_name().unwrap().to_str().unwrap().starts_with('.');
                    if !hidden {
                        check_save(&ops, from, at);
                        if to.exists() {
                            check_logs(&ops, to, at, &dir);
                            kept += 1;
                        }
                        saves += 1;
                        continue;
                    }
                    // An old one goes only after a newer one is there for good.
                    let newer = ops[..at].iter().rposition(|op| *op == Op::SyncDir(checkpoints.clone()));
                    assert!(newer.is_some() && saves >= 2);
                    let next: Vec<&Op> = next(&ops, at, &checkpoints).take(2).collect();
                    let gone = [&Op::SyncDir(checkpoints.clone()), &Op::Remove(to.clone())];
                    assert_eq!(next, gone, "out of sight for good, then gone");
                }
                // run.json, config.toml, receipts.json: whole, on the disk, then in their place.
                Op::Rename(from, to) => {
                    assert!(is_synced(&ops, from, at) && last_write(&ops[..at], from).is_some(), "{op:?}");
                    let synced = Op::SyncDir(to.parent().unwrap().to_path_buf());
                    assert_eq!(next(&ops, at, &checkpoints).next(), Some(&synced), "{op:?}");
                }
                Op::Remove(path) => {
                    assert!(path.file_name().unwrap().to_str().unwrap().starts_with('.'), "{op:?}")
                }
                _ => {}
            }
        }
        assert_eq!((saves, kept), (3, 2), "at the start, after two steps and at the end; two stay");
        for name in ["run.json", "config.toml", "receipts.json"] {
            position(&ops, name, |op| matches!(op, Op::Rename(_, to) if *to == dir.join(name)));
        }
        assert!(is_synced(&ops, &dir.join("metrics.jsonl"), ops.len()), "the end of the log");
        assert!(is_synced(&ops, &dir.join("logs/json_log.jsonl"), ops.len()), "the end of a hook's log");
        // Nothing that was written got past the trace.
        let mut dirs = vec![dir];
        while let Some(dir) = dirs.pop() {
            for path in fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().path()) {
                match path.is_dir() {
                    true => dirs.push(path),
                    false => check_traced(&ops, &path, &checkpoints),
                }
            }
        }
    }
}

fn check_traced(ops: &[Op], path: &Path, checkpoints: &Path) {
    let name = path.file_name().unwrap();
    let known = ops.iter().any(|op| match op {
        Op::Create(created) if path.starts_with(checkpoints) => created.file_name() == Some(name),
        Op::Create(created) => created == path,
        Op::Rename(_, to) => to == path,
        _ => false,
    });
    assert!(known, "{} was not written through `disk`", path.display());
}

/// Whatever belongs to a run goes through `record::disk`, where each operation is synced in order and can be made to fail.
#[test]
fn p02_nothing_of_a_run_is_written_another_way() {
    let crates = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut sources =
        vec![crates.join("train/src"), crates.join("record/src"), crates.join("tenterhook/src/training")];
    let mut read = 0;
    while let Some(path) = sources.pop() {
        if path.is_dir() {
            sources.extend(fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
            continue;
        }
        let apart = ["record/src/disk.rs", "record/src/crash.rs", "tests.rs", "test_support.rs"];
        let in_tests = path.components().any(|part| part.as_os_str() == "tests");
        let beside = path.to_str().unwrap().ends_with("_tests.rs");
        if in_tests || beside || apart.iter().any(|name| path.ends_with(name)) {
            continue;
        }
        let text = fs::read_to_string(&path).unwrap();
        let product = text.split("#[cfg(test)]\nmod tests {").next().unwrap().replace("DiskFile::", "");
        for forbidden in [
            "fs::write",
            "File::create",
            "File::options",
            "OpenOptions",
            "fs::rename",
            "fs::remove",
            "fs::create_dir",
        ] {
            assert!(!product.contains(forbidden), "{}: {forbidden}", path.display());
        }
        read += 1;
    }
    assert!(read > 80, "{read}");
}
