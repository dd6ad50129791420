//! Training in this process: faults and traces of the calling thread reach it, and hundreds of runs take seconds.

use std::path::Path;
use std::time::{Duration, Instant};

use candle_core::Device;
use tenterhook::hooks::HookRegistry;
use tenterhook::record::run::RunError;
use tenterhook::train::config::Document;
use tenterhook::train::{Finished, Trainer};
use tenterhook::training::{BeginError, Begun, Plan, Start, registry};

use crate::lab::Lab;

/// A run of four steps with three checkpoints: few enough operations on the disk that each of them can fail once.
pub(crate) const SHORT: &str = r#"
[run]
name = "short"
dir = "RUNS"

[model]
kind = "gpt"
vocab = 11
context = 16
d_model = 8
n_heads = 1
n_layers = 1
d_mlp = 8
dropout = 0.1

[data.train]
kind = "induction"
examples = 8
block = 16
batch = 2

[data.val]
kind = "induction"
examples = 2
block = 16
batch = 2

[train]
steps = 4
validate_every = 2
checkpoint_every = 2
threads = 1

[[optimizer]]
kind = "adamw"
lr = 1e-2

[[hooks]]
kind = "json_log"
log_every_n_batches = 1
"#;

/// A directory with this configuration, whose runs are in it wherever the process stands.
pub(crate) fn lab_here(config: &str) -> Lab {
    let lab = Lab::new();
    let runs = lab.path().join("runs");
    lab.write("run.toml", config.replace("RUNS", runs.to_str().unwrap()));
    lab
}

fn plan(config: &Path, registry: &HookRegistry) -> Plan {
    Plan::check(&Document::read(config).unwrap(), registry).unwrap()
}

/// Trains a new run, or goes on with the one called `short`.
pub(crate) fn train_here(lab: &Lab, resume: bool) -> Result<Finished, String> {
    let registry = registry();
    let plan = plan(&lab.path().join("run.toml"), &registry);
    let start =
        Start { plan: &plan, registry: &registry, device: &Device::Cpu, args: Vec::new(), parent: None };
    let begun = match resume {
        true => resume_when_free(&start, &lab.run_dir("short")),
        false => start.new_one(),
    };
    begun.map_err(|error| error.to_string())?.trainer.train().map_err(|error| error.to_string())
}

/// A test beside this one that is just starting a process has, for a moment, a copy of every open file: that of a lock that was let go, too.
fn resume_when_free(start: &Start, run: &Path) -> Result<Begun, BeginError> {
    let began = Instant::now();
    loop {
        match start.resume(run) {
            Err(BeginError::Run(RunError::Locked { .. })) if began.elapsed() < Duration::from_secs(60) => {
                std::thread::sleep(Duration::from_millis(2));
            }
            begun => return begun,
        }
    }
}

/// A trainer without a record, to restore checkpoints into.
pub(crate) fn trainer_here(config: &Path) -> Trainer {
    let registry = registry();
    plan(config, &registry).evaluator(&registry, &Device::Cpu).unwrap()
}
