//! Training is that of SAELens: losses, gradients and weights, step by step.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use candle_core::{DType, Device, Result, Tensor};
use serde_json::Value;
use tenterhook_hooks::{Cx, Hook, HookResult, MetricsRow, NamedGrads};
use tenterhook_nn::{Init, Weights};
use tenterhook_sae::training::{RunOptions, SaeTask, SaeTraining, trainer};
use tenterhook_sae::{Architecture, SaeConfig};
use tenterhook_train::TrainModel;
use tenterhook_train::data::InMemory;

use crate::support::*;

/// The weights a reference run begins with.
struct Before(HashMap<String, Tensor>);

impl Weights for Before {
    fn tensor(&mut self, name: &str, shape: &[usize], _: Init, _: DType, _: &Device) -> Result<Tensor> {
        let tensor = &self.0[&format!("before.{name}")];
        assert_eq!(tensor.dims(), shape);
        Ok(tensor.clone())
    }
}

/// Writes down metrics and the first gradients.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<(Vec<MetricsRow>, Option<NamedGrads>)>>);

impl Hook for Seen {
    fn kind(&self) -> &str {
        "seen"
    }

    fn on_metrics(&mut self, row: &MetricsRow, _cx: &mut Cx) -> HookResult {
        self.0.lock().unwrap().0.push(row.clone());
        Ok(())
    }

    fn on_after_backward(&mut self, grads: &NamedGrads, _cx: &mut Cx) -> HookResult {
        self.0.lock().unwrap().1.get_or_insert(grads.clone());
        Ok(())
    }
}

/// The settings of a run as ours.
fn settings(json: &Value) -> (Architecture, SaeTraining) {
    let rescale = json["rescale_acts_by_decoder_norm"].as_bool().unwrap_or(true);
    let k = json["k"].as_f64().unwrap_or_default();
    let architecture = match json["architecture"].as_str().unwrap() {
        "standard" => Architecture::Standard,
        "gated" => Architecture::Gated,
        "jumprelu" => Architecture::JumpRelu,
        "topk" => Architecture::TopK { k: k as usize, rescale_acts_by_decoder_norm: rescale },
        _ => Architecture::BatchTopK { k, rescale_acts_by_decoder_norm: rescale },
    };
    let mut options = json.as_object().unwrap().clone();
    options.retain(|key, _| {
        !["architecture", "lr", "window", "k", "rescale_acts_by_decoder_norm"].contains(&key.as_str())
    });
    options.insert("dead_after_tokens".into(), (json["window"].as_u64().unwrap() * 16).into());
    (architecture, serde_json::from_value(options.into()).unwrap())
}

fn check(name: &str) {
    let want = tensors(&data(&format!("train_{name}.safetensors")));
    let json: Value =
        serde_json::from_slice(&std::fs::read(data(&format!("train_{name}.json"))).unwrap()).unwrap();
    let (architecture, options) = settings(&json);
    let (steps, batch, width) = want["x"].dims3().unwrap();
    let config = SaeConfig::new(width, want["before.W_enc"].dim(1).unwrap(), architecture);
    let task =
        SaeTask::with_weights(vec![(String::new(), config)], options, Before(want.clone()), &Device::Cpu);
    let task = Arc::new(task.unwrap());
    let x = want["x"].reshape((steps * batch, width)).unwrap();
    let set = Arc::new(InMemory::new(vec![("inputs".to_string(), x)]).unwrap());
    let run = RunOptions { lr: json["lr"].as_f64().unwrap(), ..RunOptions::new(steps as u64, batch) };
    let mut trainer = trainer(&task, set, &run).unwrap();
    let seen = Seen::default();
    trainer.add_hook(seen.clone()).unwrap();
    assert!(!trainer.train().unwrap().degraded);
    let seen = seen.0.lock().unwrap();
    for param in task.params().iter() {
        let what = format!("{name}: the first gradient of {}", param.name());
        let grads = seen.1.as_ref().unwrap();
        assert_close(&what, grads.get(param.name()).unwrap(), &want[&format!("grad.{}", param.name())], 2e-5);
    }
    let names = [
        ("mse_loss", "mse"),
        ("l1_loss", "sparsity_loss"),
        ("l0_loss", "sparsity_loss"),
        ("auxiliary_reconstruction_loss", "aux_loss"),
        ("pre_act_loss", "pre_act_loss"),
    ];
    for (theirs, ours) in names {
        let Some(expected) = want.get(&format!("loss.{theirs}")) else { continue };
        for (step, expected) in values(expected).into_iter().enumerate() {
            let got = seen.0[step].values[&format!("sae/{ours}")];
            assert!(
                (got - expected).abs() <= 2e-4 * (1.0 + expected.abs()),
                "{name}: {theirs} of step {step}: {got}, not {expected}"
            );
        }
    }
    // What was dead before a step was counted after the one before it.
    for (step, expected) in values(&want["dead"]).into_iter().enumerate().skip(1) {
        let got = seen.0[step - 1].values["sae/dead_share"] * want["before.W_enc"].dim(1).unwrap() as f64;
        assert!((got - expected).abs() < 1e-6, "{name}: {got} dead before step {step}, not {expected}");
    }
    for param in task.params().iter() {
        let what = format!("{name}: {} in the end", param.name());
        assert_close(&what, param.value(), &want[&format!("after.{}", param.name())], 2e-3);
    }
    if let Some(threshold) = want.get("topk_threshold") {
        let sae = task.to_sae(0).unwrap();
        let got = values(sae.params().get("threshold").unwrap().value())[0];
        assert!((got - values(threshold)[0]).abs() < 1e-3, "{got}, not {threshold}");
    }
}

#[test]
fn p15_standard_and_gated_train_as_in_saelens() {
    ["standard", "gated"].into_iter().for_each(check);
}

#[test]
fn p15_top_k_trains_as_in_saelens() {
    ["topk", "topk_plain", "batchtopk"].into_iter().for_each(check);
}

#[test]
fn p15_jump_relu_trains_as_in_saelens() {
    ["jumprelu", "jumprelu_tanh", "jumprelu_quadratic"].into_iter().for_each(check);
}
