//! The state in a checkpoint, which decides where a run goes on, damaged and sealed again.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use candle_core::Device;
use serde_json::Map;
use tenterhook::record::checkpoints::{self, CheckpointWriter};
use tenterhook::train::config::{Document, Format};
use tenterhook::training::{Plan, Start, registry};

use crate::damage::feed;

const CONFIG: &str = r#"
run = { name = "a", dir = "DIR" }
model = { kind = "gpt", vocab = 11, context = 8, d_model = 8, n_heads = 2, n_layers = 1, d_mlp = 8 }
data.train = { kind = "modular_addition", modulus = 7, batch = 4 }
data.val = { kind = "modular_addition", modulus = 7, batch = 4 }
train = { steps = STEPS, validate_every = 1, checkpoint_every = 1 }
optimizer = [{ kind = "adamw", lr = 1e-3 }]
hooks = [
    { kind = "early_stopping", patience = 9 },
    { kind = "model_checkpoint", save_top_k = 2, save_every_n_steps = 1 },
    { kind = "reduce_lr_on_plateau" },
    { kind = "ema" },
    { kind = "json_log", log_every_n_batches = 1 },
    { kind = "csv_log" },
    { kind = "tensorboard" },
    { kind = "throughput" },
    { kind = "gradient_monitor" },
    { kind = "max_time", duration = "1h" },
]
"#;

fn plan(runs: &Path, steps: u64) -> Plan {
    let text = CONFIG.replace("DIR", runs.to_str().unwrap()).replace("STEPS", &steps.to_string());
    Plan::check(&Document::parse(&text, Format::Toml).unwrap(), &registry()).unwrap()
}

fn start<'a>(plan: &'a Plan, registry: &'a tenterhook::hooks::HookRegistry) -> Start<'a> {
    Start { plan, registry, device: &Device::Cpu, args: Vec::new(), parent: None }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        let target = to.join(path.file_name().unwrap());
        if path.is_dir() { copy(&path, &target) } else { fs::copy(&path, target).map(drop).unwrap() }
    }
}

/// Every path below a directory, but for what is below `skip`.
fn tree(dir: &Path, skip: &Path, found: &mut BTreeSet<PathBuf>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && path != skip {
            tree(&path, skip, found);
        }
        found.insert(path);
    }
}

#[test]
fn p31_p32_states_even_when_they_are_sealed() {
    let registry = registry();
    let lab = tempfile::tempdir().unwrap();
    let first = lab.path().join("first");
    let mut begun = start(&plan(&first, 2), &registry).new_one().unwrap();
    begun.trainer.train().unwrap();
    drop(begun);
    let newest = checkpoints::newest_good(&first.join("a/checkpoints")).unwrap().checkpoint.unwrap().0.path;
    let good = fs::read(newest.join("state.json")).unwrap();

    // A second run, with checkpoints of its own, that nobody may touch.
    let runs = lab.path().join("runs");
    copy(&first.join("a"), &runs.join("neighbour"));
    let went_on = std::cell::Cell::new(0);
    feed("state.json", &good, 60, |bytes| {
        let run = runs.join("a");
        copy(&first.join("a"), &run);
        let mut before = BTreeSet::new();
        tree(lab.path(), &run, &mut before);
        let mut writer = CheckpointWriter::begin(&run.join("checkpoints"), "planted", 999).unwrap();
        for name in ["model.safetensors", "optimizer.safetensors", "hooks.safetensors"] {
            let copied = fs::read(newest.join(name)).unwrap();
            writer.file(name, |to| to.write_all(&copied)).unwrap();
        }
        writer.file("state.json", |to| to.write_all(bytes)).unwrap();
        writer.finish(Map::new()).unwrap();

        let plan = plan(&runs, 4);
        if let Ok(mut begun) = start(&plan, &registry).resume(&run) {
            let _ = begun.trainer.train();
            went_on.set(went_on.get() + 1);
        }
        let mut after = BTreeSet::new();
        tree(lab.path(), &run, &mut after);
        assert_eq!(after, before, "something outside the run has changed");
        fs::remove_dir_all(&run).unwrap();
    });
    println!("{} of them went on", went_on.get());
    assert!(went_on.get() > 0, "the undamaged one must");
}
