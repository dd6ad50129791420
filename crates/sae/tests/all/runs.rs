//! Runs of autoencoders: resumed, several at once, watched.

use std::path::Path;
use std::sync::Arc;

use candle_core::Device;
use tenterhook_hooks::hook_fn;
use tenterhook_record::run::RunDir;
use tenterhook_sae::training::{RunOptions, SaeTask, SaeTraining, trainer};
use tenterhook_sae::{Architecture, Normalize, SaeConfig};
use tenterhook_train::data::{Dataset, InMemory};
use tenterhook_train::{Run, RunFacts, TrainModel, Trainer};

use crate::support::*;
use crate::toy::{WIDTH, activations, world};

const TOP_K: Architecture = Architecture::TopK { k: 2, rescale_acts_by_decoder_norm: true };
const BATCH_TOP_K: Architecture = Architecture::BatchTopK { k: 1.5, rescale_acts_by_decoder_norm: true };

fn options() -> SaeTraining {
    SaeTraining {
        dead_after_tokens: 64,
        resample_every: Some(5),
        l1_coefficient: 0.2,
        ..SaeTraining::default()
    }
}

fn task(architecture: Architecture) -> Arc<SaeTask> {
    let config = SaeConfig {
        normalize_activations: Normalize::ExpectedAverageOnlyIn,
        ..SaeConfig::new(WIDTH, 40, architecture)
    };
    let task = Arc::new(SaeTask::single(config, options(), 7).unwrap());
    task.find_scale(&*world(256), 256, &Device::Cpu).unwrap();
    task
}

fn run(steps: u64) -> RunOptions {
    RunOptions { lr: 1e-2, shuffle: true, checkpoint_every: Some(4), ..RunOptions::new(steps, 32) }
}

/// Everything that decides how it goes on, as bits.
fn bits(task: &SaeTask) -> Vec<(String, Vec<u64>)> {
    let weights = task.params().iter().map(|param| (param.name().to_string(), param.value().clone()));
    let saved = (0..task.names().count()).flat_map(|i| {
        let sae = task.to_sae(i).unwrap();
        let params = sae
            .params()
            .iter()
            .map(move |param| (format!("saved {i} {}", param.name()), param.value().clone()));
        params.collect::<Vec<_>>()
    });
    weights.chain(saved).map(|(name, x)| (name, values(&x).into_iter().map(f64::to_bits).collect())).collect()
}

fn begin(trainer: Trainer, dir: &Path) -> Trainer {
    let dir = RunDir::create(dir, Some("run")).unwrap();
    let lock = dir.lock().unwrap();
    trainer.with_run(Run::start(dir, lock, &RunFacts::default()).unwrap())
}

#[test]
fn p04_a_resumed_run_ends_bit_for_bit_as_an_uninterrupted_one() {
    for architecture in
        [Architecture::Standard, TOP_K, BATCH_TOP_K, Architecture::JumpRelu, Architecture::Gated]
    {
        let straight = task(architecture);
        trainer(&straight, world(256), &run(14)).unwrap().train().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let first = task(architecture);
        begin(trainer(&first, world(256), &run(10)).unwrap(), dir.path()).train().unwrap();
        let second = task(architecture);
        let mut trainer = trainer(&second, world(256), &run(14)).unwrap();
        let checkpoint = dir.path().join("run/checkpoints/step-00000008");
        trainer.restore(&checkpoint).unwrap();
        assert!(!trainer.train().unwrap().degraded);
        assert_eq!(bits(&second), bits(&straight), "{}", architecture.name());
        assert!(checkpoint.join("saes.json").is_file());
    }
}

#[test]
fn several_at_once_are_what_each_is_alone() {
    let named = |names: &[&str]| -> (Arc<SaeTask>, Arc<dyn Dataset>) {
        let x = activations(256);
        let set = names.iter().enumerate().map(|(i, name)| {
            let i = if *name == "a" { 0 } else { 1 + i };
            (name.to_string(), x.affine(1.0 + i as f64, 0.0).unwrap())
        });
        let saes = names.iter().map(|name| (name.to_string(), SaeConfig::new(WIDTH, 40, TOP_K)));
        let task = SaeTask::new(saes.collect(), options(), 7, &Device::Cpu).unwrap();
        (Arc::new(task), Arc::new(InMemory::new(set.collect()).unwrap()))
    };
    let train = |names: &[&str]| {
        let (task, data) = named(names);
        let mut trainer = trainer(&task, data, &run(12)).unwrap();
        trainer.train().unwrap();
        (task, trainer)
    };
    let ((alone, _), (both, trainer)) = (train(&["a"]), train(&["a", "blocks.1.hook_resid_post"]));
    let own = |task: &SaeTask| -> Vec<_> {
        bits(task)
            .into_iter()
            .filter(|(name, _)| name.starts_with("a.") || name.starts_with("saved 0"))
            .collect()
    };
    assert!(own(&alone).len() >= 8);
    assert_eq!(own(&both), own(&alone));
    let metrics = &trainer.state().metrics;
    assert!(
        metrics.contains_key("sae/a/l0") && metrics.contains_key("sae/blocks.1.hook_resid_post/dead_share")
    );
    assert!(both.points().find("blocks.1.hook_resid_post.hook_sae_acts_post").is_some());
}

/// Where nobody looks at the latents, they are never a tensor; the bits are the same all the same.
#[test]
fn p16_watching_changes_nothing_of_the_step_in_one_op() {
    for dead_after_tokens in [64, 1 << 40] {
        let train = |points: Option<&str>| {
            let options = SaeTraining { dead_after_tokens, resample_every: None, ..options() };
            let task = Arc::new(SaeTask::single(SaeConfig::new(WIDTH, 240, TOP_K), options, 7).unwrap());
            let mut trainer = trainer(&task, world(256), &run(8)).unwrap();
            if let Some(points) = points {
                trainer.add_hook(hook_fn::observe(points.to_string(), |_, _, _| Ok(()))).unwrap();
            }
            assert!(!trainer.train().unwrap().degraded);
            bits(&task)
        };
        let silent = train(None);
        for points in ["hook_sae_*", "hook_sae_acts_post", "hook_sae_recons", "hook_sae_input"] {
            assert!(train(Some(points)) == silent, "{points}");
        }
    }
}

#[test]
fn p16_watching_changes_nothing() {
    for architecture in [TOP_K, BATCH_TOP_K, Architecture::JumpRelu] {
        let train = |watched: bool| {
            let task = task(architecture);
            let mut trainer = trainer(&task, world(256), &run(8)).unwrap();
            if watched {
                trainer.add_hook(hook_fn::observe("hook_sae_*", |_, _, _| Ok(()))).unwrap();
                trainer.add_hook(hook_fn::observe_gradient("hook_sae_acts_p*", |_, _, _| Ok(()))).unwrap();
            }
            assert!(!trainer.train().unwrap().degraded);
            for hook in trainer.list_hooks().iter().filter(|hook| !hook.matched.is_empty()) {
                assert!(hook.receipt.fired >= 8 * hook.matched.len() as u64, "{hook:?}");
            }
            bits(&task)
        };
        assert_eq!(train(true), train(false), "{}", architecture.name());
    }
}

#[test]
fn dead_latents_are_counted_and_start_anew() {
    // Nothing can be active under such a penalty: everything dies, and is given new directions again and again.
    let dying = SaeTraining { l1_coefficient: 1e4, ..options() };
    let with = |resample_every| {
        let options = SaeTraining { resample_every, ..dying.clone() };
        let task =
            Arc::new(SaeTask::single(SaeConfig::new(WIDTH, 40, Architecture::Standard), options, 7).unwrap());
        let mut trainer = trainer(&task, world(256), &run(40)).unwrap();
        trainer.train().unwrap();
        let dead = trainer.state().metrics["sae/dead_share"];
        let decoder = values(task.to_sae(0).unwrap().params().get("W_dec").unwrap().value());
        (dead, decoder)
    };
    let (dead, without) = with(None);
    assert!(dead > 0.5, "{dead}");
    let (fewer, resampled) = with(Some(5));
    assert!(fewer < dead && without != resampled, "{fewer} {dead}");
}

#[test]
fn the_norm_of_decoder_rows_can_be_kept_at_one() {
    let options = SaeTraining { unit_norm_decoder: true, ..options() };
    let task =
        Arc::new(SaeTask::single(SaeConfig::new(WIDTH, 40, Architecture::Standard), options, 7).unwrap());
    trainer(&task, world(256), &run(12)).unwrap().train().unwrap();
    let rows = values(task.params().get("W_dec").unwrap().value());
    for row in rows.chunks_exact(WIDTH) {
        let norm = row.iter().map(|x| x * x).sum::<f64>().sqrt();
        assert!((norm - 1.0).abs() < 1e-5, "{norm}");
    }
}

#[test]
fn what_cannot_be_trained_is_refused_before() {
    let refused = |config: SaeConfig, options: SaeTraining, expected: &str| {
        let error = SaeTask::single(config, options, 1).map(|_| ()).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    let config = SaeConfig::new(4, 8, TOP_K);
    refused(
        SaeConfig {
            architecture: Architecture::TopK { k: 9, rescale_acts_by_decoder_norm: true },
            ..config.clone()
        },
        options(),
        "`k` is 9",
    );
    refused(
        SaeConfig { normalize_activations: Normalize::LayerNorm, ..config.clone() },
        options(),
        "`aux_loss_coefficient`",
    );
    refused(config.clone(), SaeTraining { l1_coefficient: f64::NAN, ..options() }, "`l1_coefficient`");
    refused(config, SaeTraining { metrics_every: 0, clip_norm: Some(-1.0), ..options() }, "2 problems");
}
