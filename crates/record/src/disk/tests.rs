use super::*;

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<String> =
        fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn a_pending_file_is_not_there_until_it_is_published() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("a.txt");
    drop(PendingFile::write(&target, |to| to.write_all(b"dropped")).unwrap());
    assert_eq!(names(dir.path()), [""; 0]);
    let pending = PendingFile::write(&target, |to| to.write_all(b"published")).unwrap();
    assert!(!target.exists());
    pending.publish().unwrap();
    assert_eq!(names(dir.path()), ["a.txt"]);
    assert_eq!(fs::read(&target).unwrap(), b"published");
}

#[test]
fn an_error_in_the_contents_leaves_the_old_file_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("a.txt");
    atomic_write(&target, |to| to.write_all(b"old")).unwrap();
    let failed = atomic_write(&target, |to| {
        to.write_all(b"half of the new")?;
        Err(io::Error::other("no more"))
    });
    assert_eq!(failed.unwrap_err().to_string(), "no more");
    assert_eq!(names(dir.path()), ["a.txt"]);
    assert_eq!(fs::read(&target).unwrap(), b"old");
}

#[test]
fn only_files_are_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let error = atomic_write(dir.path(), |to| to.write_all(b"x")).unwrap_err();
    assert!(error.to_string().contains("not a file"), "{error}");
}

#[cfg(unix)]
#[test]
fn a_link_is_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (real, link) = (dir.path().join("real"), dir.path().join("link"));
    fs::write(&real, "old").unwrap();
    std::os::unix::fs::symlink(&real, &link).unwrap();
    atomic_write(&link, |to| to.write_all(b"new")).unwrap();
    assert!(link.is_symlink());
    assert_eq!(fs::read(&real).unwrap(), b"new");
}

#[cfg(unix)]
#[test]
fn p10_files_have_the_mode_of_the_umask_and_keep_the_one_they_had() {
    use std::os::unix::fs::PermissionsExt;
    let dir = tempfile::tempdir().unwrap();
    let mode = |name: &str| fs::metadata(dir.path().join(name)).unwrap().permissions().mode() & 0o7777;
    fs::write(dir.path().join("plain"), "x").unwrap();
    let atomic = dir.path().join("atomic");
    atomic_write(&atomic, |to| to.write_all(b"x")).unwrap();
    assert_eq!(mode("atomic"), mode("plain"));
    for kept in [0o600, 0o640, 0o664, 0o444] {
        fs::set_permissions(&atomic, fs::Permissions::from_mode(kept)).unwrap();
        atomic_write(&atomic, |to| to.write_all(b"y")).unwrap();
        assert_eq!(mode("atomic"), kept);
    }
}

#[cfg(unix)]
#[test]
fn p10_every_umask_is_honoured() {
    use std::os::unix::fs::PermissionsExt;
    for (umask, expected) in [("022", 0o644), ("027", 0o640), ("077", 0o600)] {
        let dir = tempfile::tempdir().unwrap();
        // A umask belongs to a whole process, so it is set for a child.
        let child = std::process::Command::new("sh")
            .arg("-c")
            .arg(format!("umask {umask} && exec \"$0\" --exact disk::tests::write_in_a_child"))
            .arg(std::env::current_exe().unwrap())
            .env("TENTERHOOK_TEST_DIR", dir.path())
            .output()
            .unwrap();
        assert!(child.status.success(), "{child:?}");
        for name in ["atomic", "step-1/model.safetensors", "step-1/manifest.json"] {
            let about = fs::metadata(dir.path().join(name)).unwrap();
            assert_eq!(about.permissions().mode() & 0o7777, expected, "{name} with umask {umask}");
        }
    }
}

/// Does nothing but in a child process of another test.
#[test]
fn write_in_a_child() {
    let Some(dir) = std::env::var_os("TENTERHOOK_TEST_DIR").map(PathBuf::from) else { return };
    atomic_write(&dir.join("atomic"), |to| to.write_all(b"x")).unwrap();
    let mut writer = crate::checkpoints::CheckpointWriter::begin(&dir, "step-1", 1).unwrap();
    writer.file("model.safetensors", |to| to.write_all(b"x")).unwrap();
    writer.finish(serde_json::Map::new()).unwrap();
}

#[test]
fn a_sweep_takes_temporary_names_only() {
    let dir = tempfile::tempdir().unwrap();
    for kept in ["a.tmp", ".a.tmp", ".a.1-x.tmp", ".a.1-2.tmp.txt", ".1-2.tmp", "b.1-2.tmp"] {
        fs::write(dir.path().join(kept), "x").unwrap();
    }
    let before = names(dir.path());
    let leftover = temporary_beside(&dir.path().join("run.json"));
    fs::write(&leftover, "x").unwrap();
    let directory = temporary_beside(&dir.path().join("step-00000001"));
    fs::create_dir_all(directory.join("ema")).unwrap();
    assert_eq!(sweep(dir.path()).unwrap(), [leftover, directory]);
    assert_eq!(names(dir.path()), before);
    assert_eq!(sweep(&dir.path().join("absent")).unwrap(), Vec::<PathBuf>::new());
}

#[test]
fn reading_has_a_limit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a");
    fs::write(&path, "12345").unwrap();
    assert_eq!(read_bounded(&path, 5).unwrap(), b"12345");
    assert!(read_bounded(&path, 4).unwrap_err().to_string().contains("larger than 4 bytes"));
    assert!(read_bounded(dir.path(), 4).unwrap_err().to_string().contains("not a file"));
}

#[cfg(debug_assertions)]
mod faults {
    use super::*;

    #[test]
    fn the_order_of_an_atomic_write() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a");
        let trace = fault::trace();
        atomic_write(&target, |to| to.write_all(b"abc")).unwrap();
        let ops = trace.ops();
        let Some(Op::Create(temporary)) = ops.first().cloned() else { panic!("{ops:?}") };
        assert_eq!(
            ops,
            [
                Op::Create(temporary.clone()),
                Op::Write(temporary.clone(), 3),
                Op::Sync(temporary.clone()),
                Op::Rename(temporary, target),
                Op::SyncDir(dir.path().to_path_buf()),
            ]
        );
        assert_eq!(
            trace.points(),
            ["disk.create", "disk.write", "disk.sync", "disk.rename", "disk.sync_dir"]
        );
    }

    #[test]
    fn p03_a_failing_disk_leaves_the_old_file_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let target = dir.path().join("a");
        for action in ["enospc", "eacces", "eio", "short"] {
            for point in ["disk.create", "disk.write", "disk.sync", "disk.rename", "disk.sync_dir"] {
                fs::write(&target, "old").unwrap();
                let faults = fault::install(&format!("{point}={action}")).unwrap();
                let error = atomic_write(&target, |to| to.write_all(b"new!")).unwrap_err();
                drop(faults);
                assert!(error.to_string().contains(point), "{error}");
                let expected: &[u8] = if point == "disk.sync_dir" { b"new!" } else { b"old" };
                assert_eq!(fs::read(&target).unwrap(), expected, "{point}={action}");
                assert_eq!(names(dir.path()), ["a"], "{point}={action}");
            }
        }
    }

    #[test]
    fn a_short_write_puts_half_into_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let mut file = DiskFile::append(&path).unwrap();
        let faults = fault::install("disk.write=short@2").unwrap();
        file.write_all(b"whole.").unwrap();
        assert_eq!(file.write_all(b"halved").unwrap_err().kind(), io::ErrorKind::StorageFull);
        drop(faults);
        assert_eq!(fs::read(&path).unwrap(), b"whole.hal");
    }
}
