//! A save that fails or dies anywhere leaves the old checkpoint or the new one.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use super::*;
use crate::crash::{Tree, read_tree, states_after_power_cuts, write_tree};
use crate::fault::{self, Op};

/// The points that a save passes, in order.
fn points_of_a_save() -> Vec<String> {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), "old", 1).unwrap();
    let trace = fault::trace();
    save(dir.path(), "new", 2).unwrap();
    trace.points()
}

#[test]
fn p01_p3_an_error_at_any_point_of_a_save_is_reported_and_keeps_the_old_one() {
    let points = points_of_a_save();
    assert!(points.len() >= 25, "{points:?}");
    let dir = tempfile::tempdir().unwrap();
    let old = save(dir.path(), "old", 1).unwrap();
    for action in ["eio", "enospc", "eacces", "short"] {
        for (index, point) in points.iter().enumerate() {
            let faults = fault::install(&format!("*={action}@{}", index + 1)).unwrap();
            let outcome = save(dir.path(), "new", 2);
            drop(faults);
            let at = format!("{action} at {index}: {point}");
            assert!(outcome.is_err(), "{at}");
            verify(&old).unwrap();
            // Only after the rename is the new one there, and then it is whole.
            match points[..index].iter().any(|point| point == "disk.rename") {
                true => {
                    assert_eq!((newest(dir.path()), names(dir.path()).len()), (Some(2), 2), "{at}");
                    remove(&dir.path().join("new")).unwrap();
                }
                false => assert_eq!((newest(dir.path()), names(dir.path()).len()), (Some(1), 1), "{at}"),
            }
        }
    }
}

#[test]
fn p03_a_disk_that_stays_broken_keeps_the_old_one_and_leaves_nothing_selectable() {
    for action in ["eio", "enospc", "eacces", "short"] {
        let dir = tempfile::tempdir().unwrap();
        let old = save(dir.path(), "old", 1).unwrap();
        for point in ["disk.*", "disk.create", "disk.write", "disk.sync", "disk.rename"] {
            let faults = fault::install(&format!("{point}={action};disk.remove={action}")).unwrap();
            assert!(save(dir.path(), "new", 2).is_err());
            drop(faults);
            assert_eq!(newest(dir.path()), Some(1));
        }
        verify(&old).unwrap();
        sweep(dir.path()).unwrap();
        assert_eq!(names(dir.path()), ["old"]);
        save(dir.path(), "new", 2).unwrap();
        assert_eq!(newest(dir.path()), Some(2));
    }
}

#[test]
fn p03_an_error_that_the_contents_swallow_is_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = CheckpointWriter::begin(dir.path(), "a", 1).unwrap();
    let faults = fault::install("disk.write=enospc@1").unwrap();
    let outcome = writer.file("model.safetensors", |to| {
        let _ = to.write_all(&vec![7; 3 << 20]);
        Ok(())
    });
    drop(faults);
    assert!(outcome.unwrap_err().to_string().contains("model.safetensors"));
    assert!(writer.finish(serde_json::Map::new()).is_err());
}

#[test]
fn p01_a_process_that_dies_at_any_point_of_a_save_leaves_the_old_one_or_the_new_one() {
    let points = points_of_a_save();
    for (index, point) in points.iter().enumerate() {
        let dir = tempfile::tempdir().unwrap();
        let old = save(dir.path(), "old", 1).unwrap();
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "checkpoints::tests::faults::save_in_a_child", "--quiet"])
            .env("TENTERHOOK_FAULTS", format!("*=abort@{}", index + 1))
            .env("TENTERHOOK_TEST_DIR", dir.path())
            .output()
            .unwrap();
        assert!(!child.status.success(), "survived point {index}: {point}");
        verify(&old).unwrap();
        let renamed = points[..index].iter().any(|point| point == "disk.rename");
        assert_eq!(newest(dir.path()), Some(if renamed { 2 } else { 1 }), "died at {index}: {point}");
        sweep(dir.path()).unwrap();
        assert_eq!(names(dir.path()).len(), if renamed { 2 } else { 1 }, "died at {index}: {point}");
    }
}

/// Does nothing but in a child process of another test.
#[test]
fn save_in_a_child() {
    let Some(dir) = std::env::var_os("TENTERHOOK_TEST_DIR") else { return };
    save(dir.as_ref(), "new", 2).unwrap();
}

#[test]
fn p02_the_order_of_a_save() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), "old", 1).unwrap();
    let trace = fault::trace();
    let place = save(dir.path(), "new", 2).unwrap();
    let ops = trace.ops();
    let Some(Op::CreateDir(hidden)) = ops.first().cloned() else { panic!("{ops:?}") };
    let mut expected = vec![Op::CreateDir(hidden.clone())];
    let files = [
        ("config.json", 2),
        ("model.safetensors", 320),
        ("ema/model.safetensors", 33),
        ("state.json", 10),
        (MANIFEST, 0),
    ];
    for (name, bytes) in files {
        let path = hidden.join(name);
        if name.starts_with("ema") {
            expected.push(Op::CreateDir(hidden.join("ema")));
        }
        let bytes =
            if name == MANIFEST { fs::metadata(place.join(name)).unwrap().len() as usize } else { bytes };
        expected.extend([Op::Create(path.clone()), Op::Write(path.clone(), bytes), Op::Sync(path)]);
    }
    expected.extend([
        Op::SyncDir(hidden.join("ema")),
        Op::SyncDir(hidden.clone()),
        Op::Rename(hidden, place),
        Op::SyncDir(dir.path().to_path_buf()),
    ]);
    assert_eq!(ops, expected);
}

/// Runs `change` on a directory with two checkpoints and cuts the power after each of its operations. For every state
/// the disk may be in then: the step of what is found, and whether garbage is to be seen.
fn found_after_power_cuts(
    change: impl FnOnce(&Path),
    happened: fn(&Op) -> bool,
) -> BTreeSet<(Option<u64>, bool)> {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), "first", 1).unwrap();
    save(dir.path(), "old", 2).unwrap();
    let before = read_tree(dir.path());
    let trace = fault::trace();
    change(dir.path());
    let ops: Vec<Op> = trace.ops().into_iter().filter(happened).collect();
    let states = states_after_power_cuts(dir.path(), &before, &ops);
    assert!(states.len() > 50, "{}", states.len());
    // Of those that differ only in what is hidden, the fullest one stands for all.
    let is_hidden = |path: &Path| path.to_string_lossy().starts_with('.');
    let mut distinct: BTreeMap<Tree, Tree> = BTreeMap::new();
    for state in states {
        let visible = state.clone().into_iter().filter(|(path, _)| !is_hidden(path)).collect();
        let fullest = distinct.entry(visible).or_default();
        if state.len() > fullest.len() {
            *fullest = state;
        }
    }
    let look = |state: &Tree| {
        let found = tempfile::tempdir().unwrap();
        write_tree(found.path(), state);
        let good = newest_good(found.path()).unwrap();
        (good.checkpoint.map(|(_, manifest)| manifest.step), !good.skipped.is_empty())
    };
    distinct.values().map(look).collect()
}

#[test]
fn p02_a_power_cut_during_a_save_leaves_the_old_one_or_the_new_one() {
    let found = found_after_power_cuts(|dir| drop(save(dir, "new", 3).unwrap()), |_| true);
    assert_eq!(found, BTreeSet::from([(Some(2), false), (Some(3), false)]));
}

#[test]
fn p02_a_power_cut_while_the_old_one_is_removed_leaves_no_half() {
    let change = |dir: &Path| {
        save(dir, "new", 3).unwrap();
        remove(&dir.join("old")).unwrap();
        remove(&dir.join("first")).unwrap();
    };
    let found = found_after_power_cuts(change, |_| true);
    assert_eq!(found, BTreeSet::from([(Some(2), false), (Some(3), false)]));
}

#[test]
fn p02_a_save_that_would_not_sync_would_be_noticed() {
    let save_new = |dir: &Path| drop(save(dir, "new", 3).unwrap());
    let without_files = found_after_power_cuts(save_new, |op| !matches!(op, Op::Sync(_)));
    assert!(without_files.contains(&(Some(2), true)), "{without_files:?}");
    let without_directories = found_after_power_cuts(save_new, |op| !matches!(op, Op::SyncDir(_)));
    assert!(without_directories.contains(&(Some(2), true)), "{without_directories:?}");
}
