//! Running the binary.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What a command did.
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

pub(crate) fn tenterhook<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Ran {
    let output = Command::new(env!("CARGO_BIN_EXE_tenterhook")).args(args).output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    Ran { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
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
