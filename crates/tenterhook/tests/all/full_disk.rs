//! Disks that are really full or really read-only, where the machine lets a test have one, and a limit on the size of files.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tenterhook::record::checkpoints;

use crate::lab::{Lab, TINY};
use crate::support::Ran;

/// Something mounted, until it is dropped.
struct Mounted(PathBuf);

impl Mounted {
    /// `None` where mounting is not allowed.
    fn new(at: PathBuf, args: &[&str]) -> Option<Self> {
        std::fs::create_dir_all(&at).unwrap();
        let mounted = mount(args, &at);
        if !mounted {
            println!("skipped: this process may not mount {}", at.display());
        }
        mounted.then_some(Self(at))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Nothing more can be done about one that stays.
        let _ = Command::new("umount").arg("-l").arg(&self.0).status();
    }
}

fn mount(args: &[&str], at: &Path) -> bool {
    let ran = Command::new("mount").args(args).arg(at).stderr(Stdio::null()).status();
    ran.is_ok_and(|status| status.success())
}

/// Three checkpoints need more than a small disk has, one does not.
fn config(policy: &str) -> String {
    TINY.replace("[train]", &format!("[train]\non_checkpoint_failure = \"{policy}\"\nkeep_checkpoints = 9"))
}

fn straight() -> Lab {
    let lab = Lab::with(&config("stop"));
    lab.ok(&["train", "run.toml"]);
    lab
}

/// The bytes of a run's checkpoints on a disk with blocks of 4 KiB.
fn size(lab: &Lab) -> u64 {
    let blocks = |bytes: u64| bytes.div_ceil(4096) * 4096;
    lab.tree().iter().map(|(path, _)| blocks(std::fs::metadata(path).unwrap().len())).sum()
}

#[test]
fn p03_a_full_disk_keeps_the_last_good_checkpoint() {
    let straight = straight();
    let room = size(&straight) / 2;
    for policy in ["stop", "continue"] {
        let lab = Lab::with(&config(policy));
        let options = format!("size={room}");
        let Some(disk) = Mounted::new(lab.path().join("runs"), &["-t", "tmpfs", "-o", &options, "tmpfs"])
        else {
            return;
        };
        let ran = lab.run(&["train", "run.toml"]);
        assert_eq!(ran.code, Some(1), "{policy}: {}", ran.stderr);
        assert!(ran.stderr.contains("No space left on device"), "{policy}: {}", ran.stderr);
        let found = checkpoints::newest_good(&lab.run_dir("tiny").join("checkpoints")).unwrap();
        assert!(found.skipped.is_empty(), "{policy}: {:?}", found.skipped);
        let step = found.checkpoint.unwrap().1.step;
        assert!((10..40).contains(&step), "{policy}: step {step}");
        // As long as the disk is full nothing gets worse.
        let ran = lab.run(&["train", "run.toml", "--resume"]);
        assert!(matches!(ran.code, Some(1 | 2)), "{policy}: {}", ran.stderr);
        assert!(
            checkpoints::newest_good(&lab.run_dir("tiny").join("checkpoints")).unwrap().checkpoint.is_some()
        );
        // With room again the run goes on.
        assert!(mount(&["-o", "remount,size=64m"], &disk.0));
        lab.ok(&["train", "run.toml", "--resume"]);
        assert_eq!(lab.digest("tiny"), straight.digest("tiny"), "{policy}");
        assert_eq!(lab.metrics("tiny"), straight.metrics("tiny"), "{policy}");
    }
}

#[test]
fn p03_a_read_only_disk_is_told_before_any_work() {
    let straight = straight();
    let lab = Lab::with(&config("stop"));
    let mut cut_off = lab.command(&["train", "run.toml"]);
    cut_off.env("TENTERHOOK_FAULTS", "save.synced=eio@4");
    assert_eq!(Ran::of(cut_off).code, Some(1));
    let before = lab.tree();
    let runs = lab.path().join("runs");
    let Some(disk) = Mounted::new(runs.clone(), &["--bind", runs.to_str().unwrap()]) else { return };
    assert!(mount(&["-o", "remount,ro,bind"], &runs));
    for args in [&["train", "run.toml", "--resume"][..], &["train", "run.toml", "--set", "run.name=other"]] {
        let ran = lab.run(args);
        assert_eq!(ran.code, Some(2), "{args:?}: {}", ran.stderr);
        assert!(ran.stderr.contains("Read-only file system"), "{args:?}: {}", ran.stderr);
        assert_eq!(lab.tree(), before);
    }
    lab.ok(&["eval", "tiny"]);
    drop(disk);
    lab.ok(&["train", "run.toml", "--resume"]);
    assert_eq!(lab.metrics("tiny"), straight.metrics("tiny"));
}

/// The optimizer's file, which is empty at first, grows past the limit.
#[test]
fn p03_a_limit_on_the_size_of_files_is_an_error_like_any_other() {
    let lab = Lab::with(TINY);
    let direct = lab.command(&["train", "run.toml"]);
    let mut limited = Command::new("sh");
    limited
        .args(["-c", "ulimit -f 32; exec \"$0\" \"$@\""])
        .arg(direct.get_program())
        .args(direct.get_args());
    limited.current_dir(lab.path());
    let ran = Ran::of(limited);
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("optimizer.safetensors") && ran.stderr.contains("too large"),
        "{}",
        ran.stderr
    );
    assert_eq!(lab.checkpoints("tiny"), ["step-00000000"]);
    lab.ok(&["train", "run.toml", "--resume"]);
}
