//! Long runs need no more memory and no more files than short ones.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tenterhook::training::registry;

use crate::example_files::quoted;
use crate::lab::Lab;
use crate::receiver::{Answer, Receiver};
use crate::support::campaign;

const MODEL: &str = r#"
[run]
name = "long"

[model]
kind = "gpt"
vocab = 6
context = 3
d_model = 8
n_heads = 1
n_layers = 1
d_mlp = 4

[data.train]
kind = "modular_addition"
modulus = 5
batch = 2

[data.val]
kind = "modular_addition"
modulus = 5
batch = 2

[train]
steps = 1
validate_every = 500
validate_batches = 1
checkpoint_every = 1000
grad_clip = 1.0

[[optimizer]]
kind = "adamw"
lr = 1e-4
"#;

/// Every built-in kind, with options that make it do something all the time and never end the run.
fn all_hooks(port: u16) -> String {
    let options = [
        ("activation_stats", String::new()),
        ("capture", "points = \"*hook_resid_post\"\nretention = \"last\"\ngradients = true".to_string()),
        ("console_log", "log_every_n_batches = 1000".to_string()),
        ("csv_log", String::new()),
        ("debug", "gradients = true\nconditions = [{above = 0.0}]\nactions = [\"dump\"]".to_string()),
        ("early_stopping", "patience = 1000000".to_string()),
        ("ema", String::new()),
        ("freeze", "params = [\"*wpe*\"]".to_string()),
        ("grad_coverage", "every_step = true".to_string()),
        ("gradient_flow", "points = \"*hook_resid_post\"".to_string()),
        ("gradient_monitor", "log_frequency = 1\nlog_histogram = true\npercentiles = [50]".to_string()),
        ("head_scores", "validation = true".to_string()),
        ("identity_update", String::new()),
        ("json_log", "log_every_n_batches = 1".to_string()),
        ("knockout", "edges = [[2, 1]]\nstrength = 0.1".to_string()),
        ("lr_monitor", String::new()),
        ("max_time", "duration = \"10d\"".to_string()),
        ("mean_ablate", "points = \"*hook_mlp_out\"\nstrength = 0.01".to_string()),
        ("model_checkpoint", "monitor = \"val/loss\"\nsave_top_k = 2\nsave_last = true".to_string()),
        ("model_summary", String::new()),
        ("monitor", "points = \"*hook_mlp_out\"".to_string()),
        ("noise", "points = \"*hook_mlp_out\"\nstd = 0.01".to_string()),
        (
            "patch",
            format!(
                "points = \"blocks.0.hook_resid_post\"\nfrom = {}\nstrength = 0.01",
                quoted("clean.safetensors")
            ),
        ),
        ("progress", String::new()),
        ("reduce_lr_on_plateau", "patience = 1000000".to_string()),
        ("replace", "points = \"*hook_mlp_out\"\nvalue = 0.0\nneurons = [0]".to_string()),
        (
            "sae",
            format!(
                "path = {}\npoints = \"*hook_mlp_out\"\nlatents = [{{latent = 0, scale = 0.9}}]",
                quoted("sae")
            ),
        ),
        ("scale", "points = \"*hook_mlp_out\"\nfactor = 0.99".to_string()),
        (
            "steer",
            format!(
                "points = \"*hook_mlp_out\"\nvector = {}\nstrength = 0.01",
                quoted("direction.safetensors")
            ),
        ),
        ("tensorboard", String::new()),
        ("throughput", String::new()),
        ("webhook", format!("url = \"http://127.0.0.1:{port}/\"\nallow_local = true")),
        ("zero_ablate", "points = \"*hook_z\"\nheads = [0]\nstrength = 0.01".to_string()),
    ];
    let known: BTreeSet<String> = registry().kinds().map(|kind| kind.name.clone()).collect();
    let used: BTreeSet<String> = options.iter().map(|(kind, _)| kind.to_string()).collect();
    assert_eq!(used, known, "all built-in hooks are to be there");
    options.iter().map(|(kind, options)| format!("[[hooks]]\nkind = \"{kind}\"\n{options}\n")).collect()
}

/// A look at the process: the step it is at, its resident memory in KiB, its open files.
#[derive(Debug)]
struct Look {
    step: f64,
    rss: f64,
    files: usize,
}

/// The step in the last whole line of a CSV file.
fn last_step(csv: &Path) -> Option<f64> {
    let mut file = File::open(csv).ok()?;
    let length = file.metadata().ok()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(300))).ok()?;
    let mut end = String::new();
    file.read_to_string(&mut end).ok()?;
    let whole = end.rsplit_once('\n')?.0;
    whole.lines().last()?.split(',').next()?.parse().ok()
}

fn look(pid: u32, csv: &Path) -> Option<Look> {
    let step = last_step(csv)?;
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let rss = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.split_whitespace().next()?;
    let files = fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count();
    Some(Look { step, rss: rss.parse().ok()?, files })
}

/// The slope of the line that fits best.
fn slope(looks: &[&Look]) -> f64 {
    let n = looks.len() as f64;
    let mean = |of: fn(&Look) -> f64| looks.iter().map(|look| of(look)).sum::<f64>() / n;
    let (step, rss) = (mean(|look| look.step), mean(|look| look.rss));
    let along: f64 = looks.iter().map(|look| (look.step - step) * (look.rss - rss)).sum();
    along / looks.iter().map(|look| (look.step - step).powi(2)).sum::<f64>()
}

#[test]
#[allow(clippy::print_stdout)] // campaigns print what they counted
fn p23_a_long_run_with_all_hooks_is_flat_in_memory_and_open_files() {
    let steps = campaign(20_000, 100_000);
    let server = Receiver::new(Answer::Status(200));
    let lab = Lab::with(&format!("{MODEL}{}", all_hooks(server.port)));
    let mut command = lab.command(&["train", "run.toml", "--set", &format!("train.steps={steps}")]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let csv = lab.run_dir("long").join("logs/csv_log.csv");
    let mut looks = Vec::new();
    let ended = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        looks.extend(look(child.id(), &csv));
        std::thread::sleep(Duration::from_millis(50));
    };
    assert_eq!(ended.code(), Some(0), "{}", lab.record("long"));
    assert_eq!(lab.record("long")["status"], "completed");
    let receipts: Value =
        serde_json::from_slice(&fs::read(lab.run_dir("long").join("receipts.json")).unwrap()).unwrap();
    for hook in receipts.as_array().unwrap() {
        let calls = hook["fired"].as_u64().unwrap() + hook["events"].as_u64().unwrap();
        assert!(calls > 0 && hook["errors"] == 0, "{hook}");
    }

    // The first fifth is for warming up: buffers grow to their size, the allocator takes what it needs. At the end files are closed.
    let on_the_way = |look: &&Look| (0.2..0.97).contains(&(look.step / steps as f64));
    let warm: Vec<&Look> = looks.iter().filter(on_the_way).collect();
    assert!(warm.len() >= 20, "only {} looks", warm.len());
    let growth = slope(&warm);
    let half = warm.len() / 2;
    // Writing a checkpoint opens files for a moment: what counts is how many are open at least.
    let fewest = |looks: &[&Look]| looks.iter().map(|look| look.files).min();
    let (first, last) = (warm[0], warm[warm.len() - 1]);
    println!("{steps} steps: {growth:.4} KiB per step; from {first:?} to {last:?}");
    assert!(growth < 1.0, "{growth} KiB per step: from {first:?} to {last:?}");
    assert_eq!(fewest(&warm[..half]), fewest(&warm[half..]), "open files");
}
