//! A parameter that gets no gradient is named before anything changes.

use serde_json::json;
use tenterhook::hooks::HookOptions;
use tenterhook::train::hooks::{GradCoverage, GradCoverageOptions, OnZero};
use tenterhook::train::{Settings, TrainError, Trainer};
use tenterhook::training::registry;

use crate::lab::{Lab, TINY};
use crate::small::{Chain, Cut, bits, trainer_of};

fn ids(trainer: &Trainer) -> Vec<String> {
    trainer.list_hooks().into_iter().map(|hook| hook.id).collect()
}

#[test]
fn p14_a_severed_layer_stops_the_run_at_its_first_step() {
    const LAYERS: usize = 4;
    for after in 0..LAYERS {
        for cut in [Cut::Detach, Cut::NoBackward] {
            let model = Chain::severed(LAYERS, after, cut);
            let before = bits(&*model);
            // Nothing was attached by hand.
            let mut trainer = trainer_of(&model, Settings::steps(5));
            let error = trainer.train().unwrap_err();
            assert!(matches!(error, TrainError::Hook(_)), "{error}");
            let upstream =
                (0..=after).flat_map(|i| [format!("`layers.{i}.bias`"), format!("`layers.{i}.weight`")]);
            let upstream: Vec<String> = upstream.collect();
            let named = format!("no gradient arrives at {}:", upstream.join(", "));
            assert!(error.to_string().contains(&named), "{cut:?} after {after}: {error}");
            assert_eq!((trainer.step(), bits(&*model)), (0, before), "{cut:?} after {after}");
        }
    }
}

#[test]
fn p14_with_accumulation_it_is_found_before_the_first_step_too() {
    let model = Chain::severed(2, 0, Cut::Detach);
    let before = bits(&*model);
    let mut trainer = trainer_of(&model, Settings { grad_accumulation: 3, ..Settings::steps(5) });
    let error = trainer.train().unwrap_err().to_string();
    assert!(error.contains("`layers.0.bias`, `layers.0.weight`:"), "{error}");
    assert_eq!(bits(&*model), before);
}

#[test]
fn what_is_frozen_on_purpose_needs_no_gradient() {
    let model = Chain::severed(2, 0, Cut::Detach);
    let before = bits(&*model);
    let mut trainer = trainer_of(&model, Settings::steps(5));
    let freeze = json!({ "kind": "freeze", "params": ["layers.0.*"] });
    trainer.add_hook_from(&registry(), &freeze).unwrap();
    assert!(!trainer.train().unwrap().degraded);
    let after = bits(&*model);
    assert_eq!(before.0["layers.0.weight"], after.0["layers.0.weight"]);
    assert_ne!(before.0["layers.1.weight"], after.0["layers.1.weight"]);
}

#[test]
fn every_trainer_has_it_until_it_is_removed_or_replaced() {
    let model = Chain::severed(2, 0, Cut::Detach);
    let mut trainer = trainer_of(&model, Settings::steps(1));
    assert_eq!(ids(&trainer), ["identity_update", "grad_coverage"]);
    trainer.remove_hook("grad_coverage").unwrap();
    // The optimizer has the last word, and it does not step either.
    let error = trainer.train().unwrap_err();
    assert!(matches!(error, TrainError::Optimizer(_)), "{error}");

    let own = |zero| GradCoverage::new(GradCoverageOptions { zero, ..Default::default() }).unwrap();
    let mut trainer = trainer_of(&Chain::new(2), Settings::steps(1));
    trainer.add_hook(own(OnZero::Ignore)).unwrap();
    assert_eq!(
        ids(&trainer),
        ["grad_coverage", "identity_update"],
        "one of the user's in place of the usual one"
    );
    trainer.add_hook_with(own(OnZero::Stop), HookOptions::id("second")).unwrap();
    assert_eq!(ids(&trainer).len(), 3, "and more when they are asked for");
    trainer.add_hook_from(&registry(), &json!({ "kind": "identity_update", "enabled": false })).unwrap();
    assert_eq!(ids(&trainer), ["grad_coverage", "second", "identity_update"]);
    assert!(trainer.add_hook_from(&registry(), &json!({ "kind": "identity_update", "no": 1 })).is_err());
    trainer.train().unwrap();
}

#[test]
fn a_configuration_has_one_of_each_as_well() {
    let lab = Lab::with(&format!("{TINY}\n[[hooks]]\nkind = \"grad_coverage\"\nevery_step = true\n"));
    lab.ok(&["train", "run.toml", "--set", "train.steps=6", "--quiet"]);
    let hooks = lab.record("tiny")["hooks"].clone();
    let kinds: Vec<&str> =
        hooks.as_array().unwrap().iter().map(|hook| hook["kind"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["identity_update", "grad_coverage"]);
    assert_eq!(hooks[1]["id"], "grad_coverage");
    assert_eq!(lab.metrics("tiny")[1]["grad_coverage/zero"], 0.0, "it is the one with the options");
}
