//! Training runs in a directory of their own.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tenterhook::record::checkpoints;

use crate::support::Ran;
use crate::traces::{Traces, files_of, timeless, traces_of};

/// A run that takes a fraction of a second: 40 steps, with dropout, two loaders, accumulation, validation and checkpoints.
pub(crate) const TINY: &str = r#"
[run]
name = "tiny"

[model]
kind = "gpt"
vocab = 17
context = 16
d_model = 16
n_heads = 2
n_layers = 1
d_mlp = 32
dropout = 0.1

[[data.train]]
name = "repeats"
kind = "induction"
examples = 24
block = 16
batch = 4

[[data.train]]
name = "sums"
kind = "modular_addition"
modulus = 11
batch = 4

[data.val]
kind = "induction"
examples = 8
block = 16
batch = 4

[train]
steps = 40
loader_strategy = "round_robin"
grad_accumulation = 2
grad_clip = 1.0
validate_every = 10
checkpoint_every = 10

[[optimizer]]
kind = "adamw"
lr = 3e-3

[schedule]
kind = "cosine"
warmup = 5
"#;

/// A directory to train in: configurations and `runs/`.
pub(crate) struct Lab {
    dir: tempfile::TempDir,
}

impl Lab {
    pub(crate) fn new() -> Self {
        Self { dir: tempfile::tempdir().unwrap() }
    }

    /// With this configuration as `run.toml`.
    pub(crate) fn with(config: &str) -> Self {
        let lab = Self::new();
        lab.write("run.toml", config);
        lab
    }

    /// The same configuration and runs in another directory.
    pub(crate) fn copy(&self) -> Self {
        let lab = Self::new();
        copy_dir(self.path(), lab.path());
        lab
    }

    /// Every file under `runs/` with its contents, hidden ones too; but for the lock, which says who held it last.
    pub(crate) fn tree(&self) -> Vec<(PathBuf, blake3::Hash)> {
        let mut files = Vec::new();
        let mut dirs = vec![self.dir.path().join("runs")];
        while let Some(dir) = dirs.pop() {
            for entry in fs::read_dir(&dir).unwrap() {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => dirs.push(path),
                    false if path.ends_with("run.lock") => {}
                    false => files.push((path.clone(), blake3::hash(&fs::read(&path).unwrap()))),
                }
            }
        }
        files.sort_by(|a, b| a.0.cmp(&b.0));
        files
    }

    /// The same in memory where the system has a directory for that: a campaign would spend its time waiting for the disk.
    pub(crate) fn in_memory(config: &str) -> Self {
        let lab = tempfile::tempdir_in("/dev/shm").map_or_else(|_| Self::new(), |dir| Self { dir });
        lab.write("run.toml", config);
        lab
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn write(&self, name: &str, contents: impl AsRef<[u8]>) -> PathBuf {
        let path = self.dir.path().join(name);
        fs::write(&path, contents).unwrap();
        path
    }

    /// The command as it would be run in this directory, on two threads.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenterhook"));
        command.args(args).current_dir(self.dir.path()).env("RAYON_NUM_THREADS", "2");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> Ran {
        Ran::of(self.command(args))
    }

    /// Runs it, and it must do what it was asked.
    pub(crate) fn ok(&self, args: &[&str]) -> Ran {
        let ran = self.run(args);
        assert_eq!(ran.code, Some(0), "{args:?}: {}{}", ran.stdout, ran.stderr);
        ran
    }

    /// The directory of a run.
    pub(crate) fn run_dir(&self, run: &str) -> PathBuf {
        self.dir.path().join("runs").join(run)
    }

    /// `run.json`.
    pub(crate) fn record(&self, run: &str) -> Value {
        serde_json::from_slice(&fs::read(self.run_dir(run).join("run.json")).unwrap()).unwrap()
    }

    /// The lines of `metrics.jsonl` without times: what two runs of the same must have in common.
    pub(crate) fn metrics(&self, run: &str) -> Vec<Value> {
        let text = fs::read_to_string(self.run_dir(run).join("metrics.jsonl")).unwrap();
        text.lines().map(|line| timeless(serde_json::from_str(line).unwrap())).collect()
    }

    /// The newest good checkpoint.
    pub(crate) fn checkpoint(&self, run: &str) -> PathBuf {
        let found = checkpoints::newest_good(&self.run_dir(run).join("checkpoints")).unwrap();
        found.checkpoint.unwrap().0.path
    }

    /// The names of all checkpoints, in order.
    pub(crate) fn checkpoints(&self, run: &str) -> Vec<String> {
        let listed = checkpoints::list(&self.run_dir(run).join("checkpoints")).unwrap();
        let mut names: Vec<String> = listed.into_iter().map(|checkpoint| checkpoint.name).collect();
        names.sort();
        names
    }

    /// Everything that must be the same, byte for byte, when two runs are the same: weights, optimizers, hooks' tensors and
    /// the state with the hooks' decisions, of the newest checkpoint.
    pub(crate) fn digest(&self, run: &str) -> Vec<(String, blake3::Hash)> {
        digest_of(&self.checkpoint(run))
    }

    /// Everything a run leaves behind.
    pub(crate) fn traces(&self, run: &str) -> Traces {
        traces_of(&self.run_dir(run))
    }
}

fn copy_dir(from: &Path, to: &Path) {
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let copy = to.join(path.file_name().unwrap());
        match path.is_dir() {
            true => {
                fs::create_dir(&copy).unwrap();
                copy_dir(&path, &copy);
            }
            false => drop(fs::copy(&path, &copy).unwrap()),
        }
    }
}

/// The digests of a checkpoint's files; of `state.json` without what differs from run to run.
pub(crate) fn digest_of(checkpoint: &Path) -> Vec<(String, blake3::Hash)> {
    let digest = |(name, contents): (String, String)| (name, blake3::hash(contents.as_bytes()));
    files_of(checkpoint).into_iter().map(digest).collect()
}

#[test]
fn a_tiny_run_trains_and_leaves_a_record() {
    let lab = Lab::with(TINY);
    let ran = lab.ok(&["train", "run.toml", "--json"]);
    let told: Value = serde_json::from_str(&ran.stdout).unwrap();
    assert_eq!((&told["status"], &told["steps"]), (&"completed".into(), &40.into()));
    assert_eq!(lab.record("tiny")["status"], "completed");
    let rows = lab.metrics("tiny");
    assert_eq!(rows.iter().filter(|row| row.get("loss").is_some()).count(), 40);
    assert_eq!(rows.iter().filter(|row| row.get("val/loss").is_some()).count(), 4);
    assert_eq!(lab.checkpoints("tiny"), ["step-00000030", "step-00000040"]);
}
