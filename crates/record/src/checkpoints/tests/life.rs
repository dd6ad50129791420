//! What happens to a checkpoint when nothing goes wrong.

use super::*;

#[test]
fn a_checkpoint_is_written_listed_verified_and_removed() {
    let root = tempfile::tempdir().unwrap();
    let dir = root.path().join("run/checkpoints");
    assert_eq!(list(&dir).unwrap(), []);
    assert_eq!(newest(&dir), None);
    let path = save(&dir, "step-00000007", 7).unwrap();
    assert_eq!(path, dir.join("step-00000007"));
    assert_eq!(names(&path), ["config.json", "ema", "manifest.json", "model.safetensors", "state.json"]);
    let manifest = verify(&path).unwrap();
    assert_eq!((manifest.format, manifest.step), (1, 7));
    assert_eq!(manifest.meta["note"], "größe");
    let digest = blake3::hash(&[7; 33]).to_hex().to_string();
    let ema = FileEntry { name: "ema/model.safetensors".to_string(), bytes: 33, blake3: digest };
    assert_eq!(manifest.files[2], ema);
    remove(&path).unwrap();
    assert_eq!(names(&dir), [""; 0]);
}

#[test]
fn the_newest_is_the_highest_step_whatever_its_name_then_the_last_written() {
    let dir = tempfile::tempdir().unwrap();
    for (name, step) in [("z", 5), ("youth", 20), ("a", 9), ("same", 20), ("step-99", 1), ("same", 20)] {
        save(dir.path(), name, step).unwrap();
    }
    let listed: Vec<_> = list(dir.path()).unwrap().into_iter().map(|one| (one.name, one.step)).collect();
    let expected = [("step-99", 1), ("z", 5), ("a", 9), ("youth", 20), ("same", 20), ("same-v1", 20)];
    assert_eq!(listed, expected.map(|(name, step)| (name.to_string(), Some(step))));
    assert_eq!(newest_good(dir.path()).unwrap().checkpoint.unwrap().0.name, "same-v1");
}

#[test]
fn the_last_written_is_the_newest_also_when_the_clock_was_set_back() {
    let dir = tempfile::tempdir().unwrap();
    let early = save(dir.path(), "z", 1).unwrap();
    forge(&early, |manifest| manifest.written += 3_600_000_000);
    save(dir.path(), "a", 1).unwrap();
    assert_eq!(newest_good(dir.path()).unwrap().checkpoint.unwrap().0.name, "a");
}

#[test]
fn a_taken_name_gets_a_version() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("a")).unwrap();
    fs::write(dir.path().join("a-v1"), "a file of somebody").unwrap();
    assert_eq!(save(dir.path(), "a", 1).unwrap(), dir.path().join("a-v2"));
    assert_eq!(names(&dir.path().join("a")), [""; 0]);
}

#[test]
fn what_is_dropped_or_failed_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = CheckpointWriter::begin(dir.path(), "a", 1).unwrap();
    writer.file("x/y", |to| to.write_all(b"abc")).unwrap();
    assert_eq!(names(dir.path()).len(), 1);
    assert_eq!(list(dir.path()).unwrap(), []);
    drop(writer);
    assert_eq!(names(dir.path()), [""; 0]);

    let mut writer = CheckpointWriter::begin(dir.path(), "a", 1).unwrap();
    writer.file("x", |_| Err(io::Error::other("no weights"))).unwrap_err();
    writer.file("y", |to| to.write_all(b"abc")).unwrap();
    let error = writer.finish(serde_json::Map::new()).unwrap_err().to_string();
    assert!(error.contains("a file was not written"), "{error}");
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn p32_names_stay_inside() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["..", "a/b", "/abs", "", "a\0"] {
        assert!(CheckpointWriter::begin(dir.path(), name, 1).is_err(), "{name:?}");
    }
    for name in ["../x", "/etc/x", "a/b/c", "a//b", "manifest.json", "", "a\\b", ".hidden", "twice"] {
        let mut writer = CheckpointWriter::begin(dir.path(), "a", 1).unwrap();
        writer.file("twice", |_| Ok(())).unwrap();
        assert!(writer.file(name, |_| Ok(())).is_err(), "{name:?}");
    }
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn only_checkpoints_are_removed() {
    let root = tempfile::tempdir().unwrap();
    let notes = root.path().join("notes");
    fs::create_dir(&notes).unwrap();
    fs::write(notes.join("a.txt"), "precious").unwrap();
    assert!(remove(&notes).unwrap_err().to_string().contains("not a checkpoint"));
    assert!(remove(&root.path().join("absent")).is_err());
    assert!(notes.join("a.txt").is_file());
}

#[test]
fn leftovers_are_not_seen_and_can_be_swept() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path(), "a", 1).unwrap();
    let leftover = disk::temporary_beside(&dir.path().join("b"));
    fs::create_dir(&leftover).unwrap();
    fs::copy(dir.path().join("a/manifest.json"), leftover.join("manifest.json")).unwrap();
    assert_eq!(list(dir.path()).unwrap().len(), 1);
    assert_eq!(sweep(dir.path()).unwrap(), [leftover]);
    assert_eq!(names(dir.path()), ["a"]);
}
