//! Every file of a run has the mode that the umask says.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::lab::{Lab, TINY};
use crate::support::Ran;

const HOOKS: &str = r#"
[[hooks]]
kind = "json_log"
[[hooks]]
kind = "csv_log"
[[hooks]]
kind = "tensorboard"
[[hooks]]
kind = "ema"
[[hooks]]
kind = "model_checkpoint"
save_top_k = 2
[[hooks]]
kind = "capture"
points = "blocks.0.hook_resid_post"
"#;

fn all_in(dir: &Path) -> Vec<PathBuf> {
    let mut found = vec![dir.to_path_buf()];
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => found.extend(all_in(&path)),
            false => found.push(path),
        }
    }
    found
}

/// Runs it under a umask, through a shell.
fn under(umask: u32, lab: &Lab, args: &[&str]) -> Ran {
    let direct = lab.command(args);
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("umask {umask:03o}; exec \"$0\" \"$@\"")]);
    shell.arg(direct.get_program()).args(direct.get_args()).current_dir(lab.path());
    Ran::of(shell)
}

#[test]
fn p10_every_umask_is_honoured_by_all_files_of_a_run() {
    for umask in [0o022, 0o027, 0o077] {
        let lab = Lab::with(&format!("{TINY}{HOOKS}"));
        for args in
            [&["train", "run.toml", "--set", "train.steps=20"][..], &["train", "run.toml", "--resume"]]
        {
            let ran = under(umask, &lab, args);
            assert_eq!(ran.code, Some(0), "{umask:03o}: {}", ran.stderr);
        }
        let all = all_in(&lab.path().join("runs"));
        for name in [
            "run.json",
            "config.toml",
            "metrics.jsonl",
            "receipts.json",
            "run.lock",
            "logs/json_log.jsonl",
            "logs/csv_log.csv",
        ] {
            assert!(all.iter().any(|path| path.ends_with(name)), "{name}");
        }
        for name in ["tensorboard", "captures", "ema"] {
            assert!(all.iter().any(|path| path.parent().unwrap().ends_with(name)), "nothing in {name}");
        }
        for path in all {
            let (mode, most) = (
                fs::metadata(&path).unwrap().permissions().mode() & 0o7777,
                if path.is_dir() { 0o777 } else { 0o666 },
            );
            assert_eq!(mode, most & !umask, "{umask:03o}: {} has {mode:03o}", path.display());
        }
    }
}

#[test]
fn p10_a_file_keeps_the_mode_somebody_gave_it() {
    let lab = Lab::with(TINY);
    lab.ok(&["train", "run.toml", "--set", "train.steps=20"]);
    for name in ["run.json", "config.toml", "metrics.jsonl", "receipts.json"] {
        fs::set_permissions(lab.run_dir("tiny").join(name), fs::Permissions::from_mode(0o640)).unwrap();
    }
    lab.ok(&["train", "run.toml", "--resume"]);
    for name in ["run.json", "config.toml", "metrics.jsonl", "receipts.json"] {
        let mode = fs::metadata(lab.run_dir("tiny").join(name)).unwrap().permissions().mode() & 0o7777;
        assert_eq!(mode, 0o640, "{name}");
    }
}
