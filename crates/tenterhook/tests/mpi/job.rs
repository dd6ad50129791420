//! Jobs of several ranks, and what they leave.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The same losses on any number of ranks, but for rounding.
pub(crate) const CLOSE: f64 = 1e-5;

/// A run with everything that could depend on how a batch is divided: dropout, targets that do not count, accumulation, a last batch that is smaller,
/// several sets, validation, hooks.
pub(crate) const CONFIG: &str = r#"
[run]
name = "job"

[model]
kind = "gpt"
vocab = 17
context = 16
d_model = 16
n_heads = 2
n_layers = 2
d_mlp = 32
dropout = 0.1

[[data.train]]
name = "repeats"
kind = "induction"
examples = 46
block = 16
batch = 8
predict = "repeats"

[[data.train]]
name = "sums"
kind = "modular_addition"
modulus = 11
batch = 8

[data.val]
kind = "induction"
examples = 22
block = 16
batch = 4

[train]
steps = 200
loader_strategy = "round_robin"
grad_accumulation = 2
grad_clip = 1.0
validate_every = 50
checkpoint_every = 20
threads = 1

[[optimizer]]
kind = "adamw"
lr = 3e-3

[schedule]
kind = "cosine"
warmup = 5

[ranks]
check_every = 10

[[hooks]]
kind = "json_log"
log_every_n_batches = 1

[[hooks]]
kind = "ema"
decay = 0.9

[[hooks]]
kind = "model_checkpoint"
monitor = "val/loss"

[[hooks]]
kind = "gradient_monitor"

[[hooks]]
kind = "activation_stats"
points = "blocks.*.hook_resid_post"
"#;

/// A directory with a configuration and its runs.
pub(crate) struct Job {
    dir: tempfile::TempDir,
}

impl Job {
    pub(crate) fn new(config: &str) -> Self {
        let job = Self { dir: tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()).unwrap() };
        fs::write(job.path().join("run.toml"), config).unwrap();
        job
    }

    pub(crate) fn path(&self) -> &Path {
        self.dir.path()
    }

    pub(crate) fn run_dir(&self) -> PathBuf {
        self.path().join("runs/job")
    }

    /// `tenterhook` with these words; a single process.
    pub(crate) fn alone(&self, words: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tenterhook"));
        self.prepare(command.args(words));
        command
    }

    /// The same on so many ranks.
    pub(crate) fn ranks(&self, ranks: usize, words: &[&str]) -> Command {
        let mut command = self.launcher();
        command.args(["-n", &ranks.to_string(), env!("CARGO_BIN_EXE_tenterhook")]).args(words);
        command
    }

    /// A test of this program as a program of its own, on so many ranks.
    pub(crate) fn ranks_of_test(&self, ranks: usize, test: &str) -> Command {
        let mut command = self.launcher();
        command.args(["-n", &ranks.to_string()]).arg(std::env::current_exe().unwrap());
        command.args(["--exact", test, "--nocapture"]);
        command
    }

    /// `mpirun`, to which ranks are added.
    pub(crate) fn launcher(&self) -> Command {
        let mut command = Command::new("mpirun");
        self.prepare(&mut command);
        command
    }

    /// `train --ranks`, which starts `mpirun` itself.
    pub(crate) fn launched(&self, ranks: usize, restarts: usize, words: &[&str]) -> Command {
        let (ranks, restarts) = (ranks.to_string(), restarts.to_string());
        let mut all = vec!["train", "run.toml", "-q", "--ranks", &ranks, "--restarts", &restarts];
        all.extend(words);
        self.alone(&all)
    }

    fn prepare(&self, command: &mut Command) {
        command.current_dir(self.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // More ranks than cores, in a container, maybe as root.
        command.env("OMPI_ALLOW_RUN_AS_ROOT", "1").env("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1");
        command
            .env("OMPI_MCA_rmaps_base_oversubscribe", "1")
            .env("OMPI_MCA_hwloc_base_binding_policy", "none");
        command.env("OMPI_MCA_btl_vader_single_copy_mechanism", "none").env("TENTERHOOK_RANK_SILENCE", "2");
    }

    /// Trains to the end and returns what the log has.
    pub(crate) fn train(&self, ranks: usize, words: &[&str]) -> Vec<Row> {
        let words = [&["train", "run.toml", "-q"], words].concat();
        let done = if ranks == 1 { self.alone(&words) } else { self.ranks(ranks, &words) }.output().unwrap();
        assert!(done.status.success(), "{ranks} ranks: {}", text(&done));
        self.rows()
    }

    pub(crate) fn rows(&self) -> Vec<Row> {
        let log = fs::read_to_string(self.run_dir().join("metrics.jsonl")).unwrap();
        log.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }

    pub(crate) fn record(&self) -> Value {
        serde_json::from_slice(&fs::read(self.run_dir().join("run.json")).unwrap()).unwrap()
    }

    /// The bytes of the weights of a checkpoint; of the last one.
    pub(crate) fn weights(&self) -> Vec<u8> {
        let checkpoints = tenterhook::record::checkpoints::list(&self.run_dir().join("checkpoints")).unwrap();
        let last = checkpoints.iter().max_by_key(|one| one.step).unwrap();
        fs::read(last.path.join("model.safetensors")).unwrap()
    }

    /// Checks every checkpoint that can be seen.
    pub(crate) fn check_checkpoints(&self) {
        let dir = self.run_dir().join("checkpoints");
        for checkpoint in tenterhook::record::checkpoints::list(&dir).unwrap_or_default() {
            tenterhook::record::checkpoints::verify(&checkpoint.path).unwrap();
        }
    }
}

/// A line of the log.
pub(crate) type Row = BTreeMap<String, Value>;

/// The values of one metric.
pub(crate) fn all(rows: &[Row], name: &str) -> Vec<f64> {
    rows.iter().filter_map(|row| row.get(name)?.as_f64()).collect()
}

pub(crate) fn assert_close(a: &[Row], b: &[Row], name: &str, context: &str) {
    let (a, b) = (all(a, name), all(b, name));
    assert_eq!(a.len(), b.len(), "{context}: {name}");
    assert!(!a.is_empty(), "{context}: no {name}");
    for (i, (a, b)) in a.iter().zip(&b).enumerate() {
        assert!((a - b).abs() <= CLOSE * b.abs(), "{context}: {name} of row {i}: {a} and {b}");
    }
}

/// The rows without what says how long something took.
pub(crate) fn timeless(rows: Vec<Row>) -> Vec<Row> {
    let keep =
        |row: Row| row.into_iter().filter(|(name, _)| name != "time" && !name.starts_with("time/")).collect();
    rows.into_iter().map(keep).collect()
}

pub(crate) fn text(done: &Output) -> String {
    let (out, err) = (String::from_utf8_lossy(&done.stdout), String::from_utf8_lossy(&done.stderr));
    format!("{}\n{out}{err}", done.status)
}

/// Waits for the end of a job, not longer than it may take.
pub(crate) fn end_within(mut job: Child, limit: Duration) -> Output {
    let began = Instant::now();
    while job.try_wait().unwrap().is_none() {
        if began.elapsed() > limit {
            let _ = job.kill();
            panic!("it goes on after {limit:?}: {}", text(&job.wait_with_output().unwrap()));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    job.wait_with_output().unwrap()
}

/// The processes of the ranks of a job, which the launcher has started.
pub(crate) fn processes_of(job: &Child) -> Vec<i32> {
    let mut below = vec![job.id() as i32];
    let mut found = Vec::new();
    let all: Vec<(i32, i32)> =
        fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| parent_of(&entry.path())).collect();
    while let Some(parent) = below.pop() {
        for (pid, _) in all.iter().filter(|(_, of)| *of == parent) {
            if is_there(*pid) { found.push(*pid) } else { below.push(*pid) }
        }
    }
    found.sort_unstable();
    found
}

/// Whether a rank is still running.
pub(crate) fn is_there(process: i32) -> bool {
    fs::read_link(format!("/proc/{process}/exe"))
        .is_ok_and(|exe| exe == Path::new(env!("CARGO_BIN_EXE_tenterhook")))
}

fn parent_of(process: &Path) -> Option<(i32, i32)> {
    let pid = process.file_name()?.to_str()?.parse().ok()?;
    let stat = fs::read_to_string(process.join("stat")).ok()?;
    let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
    Some((pid, parent))
}

/// Sends a signal.
pub(crate) fn signal(process: i32, signal: i32) {
    // SAFETY: it sends a signal to a process that this test has started.
    unsafe { libc::kill(process, signal) };
}
