//! Running the binary.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output};

/// What a command did.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Ran {
    /// Runs a command to its end.
    pub(crate) fn of(mut command: Command) -> Self {
        Self::told(command.output().unwrap())
    }

    /// Waits for the end of a command that was started with its output piped.
    pub(crate) fn of_child(child: Child) -> Self {
        Self::told(child.wait_with_output().unwrap())
    }

    fn told(output: Output) -> Self {
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        Self { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
    }
}

pub(crate) fn tenterhook<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Ran {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tenterhook"));
    command.args(args);
    Ran::of(command)
}

/// The directory of a reference model.
pub(crate) fn model(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data").join(name)
}

/// A copy of a reference model that can be damaged.
pub(crate) fn copy_of(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for entry in std::fs::read_dir(model(name)).unwrap() {
        let path = entry.unwrap().path();
        std::fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    dir
}

/// The arguments of a capture that works, unless the model or the file of tokens is bad.
pub(crate) fn capture_args(model: &Path, tokens: &Path, out: &Path) -> Vec<String> {
    let text = |path: &Path| path.to_str().unwrap().to_string();
    let points = ["--points".to_string(), "blocks.*.hook_resid_post".to_string()];
    let mut args = vec![
        "capture".to_string(),
        text(model),
        "--tokens-file".into(),
        text(tokens),
        "--out".into(),
        text(out),
    ];
    args.extend(points);
    args
}

/// How many rounds a campaign goes: few in the ordinary suite, many when `TENTERHOOK_CAMPAIGN=long` (`scripts/campaign` sets it).
pub(crate) fn campaign(short: u64, long: u64) -> u64 {
    match std::env::var("TENTERHOOK_CAMPAIGN").as_deref() {
        Ok("long") => long,
        _ => short,
    }
}
