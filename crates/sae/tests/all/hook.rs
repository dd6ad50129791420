//! Autoencoders inside a model: against SAELens and transformers, and what always holds.

use std::path::Path;

use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};
use tenterhook_hooks::{Gradients, HookRegistry, PassSetup};
use tenterhook_lens::{CacheOptions, GenerateOptions, LanguageModel};
use tenterhook_models::next_token_loss;
use tenterhook_sae::{
    EvalOptions, LatentEdit, Sae, SaeHook, SaeOptions, TopOptions, evaluate, register_kinds, top_texts,
};

use crate::support::*;

fn lm() -> LanguageModel {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data/gpt2");
    LanguageModel::from_pretrained(dir.to_str().unwrap()).unwrap()
}

/// What transformers gives with SAELens' autoencoder in the model.
fn expected() -> Value {
    serde_json::from_slice(&std::fs::read(data("inside/expected.json")).unwrap()).unwrap()
}

fn sequences(expected: &Value) -> Vec<Vec<u32>> {
    serde_json::from_value(expected["sequences"].clone()).unwrap()
}

fn registry() -> HookRegistry {
    let mut registry = HookRegistry::standard();
    register_kinds(&mut registry).unwrap();
    registry
}

/// The model with the hook of these options.
fn with(mut options: Value) -> LanguageModel {
    let lm = lm();
    options["kind"] = "sae".into();
    options["path"] = json!(data("inside"));
    options["on_error"] = "abort".into();
    registry().attach(lm.hooks(), &options).unwrap();
    lm
}

fn logits(lm: &LanguageModel, ids: &[u32]) -> Tensor {
    lm.forward(&lm.batch_of(ids).unwrap()).unwrap().0
}

#[test]
fn evaluation_is_that_of_saelens() {
    let want = expected();
    let (lm, sae) = (lm(), Sae::load(&data("inside")).unwrap());
    let options = EvalOptions { batch_size: 2, ..EvalOptions::default() };
    let (found, report) = evaluate(&lm, &sae, &sequences(&want), &options, |_| {}).unwrap();
    let found = serde_json::to_value(&found).unwrap();
    for name in ["l0", "mse", "explained_variance", "cossim", "l2_ratio", "dead_share"] {
        let (got, want) = (found[name].as_f64().unwrap(), want["eval"][name].as_f64().unwrap());
        assert!((got - want).abs() <= 1e-4 * (1.0 + want.abs()), "{name}: {got}, not {want}");
    }
    for name in ["ce_loss_without_sae", "ce_loss_with_sae", "ce_loss_with_ablation", "ce_loss_score"] {
        let (got, want) =
            (found["cross_entropy"][name].as_f64().unwrap(), want["eval"][name].as_f64().unwrap());
        assert!((got - want).abs() <= 1e-4 * (1.0 + want.abs()), "{name}: {got}, not {want}");
    }
    assert!(report.hooks.iter().any(|hook| hook.kind == "sae" && hook.receipt.edits > 0));
}

#[test]
fn edited_latents_give_the_logits_of_saelens_and_transformers() {
    let want = expected();
    let ids = sequences(&want)[0].clone();
    for case in want["cases"].as_array().unwrap() {
        let lm = with(case["options"].clone());
        let rows: Vec<Vec<f32>> = serde_json::from_value(case["logits"].clone()).unwrap();
        let expected = Tensor::new(rows, &Device::Cpu).unwrap();
        let got = logits(&lm, &ids).get(0).unwrap();
        let got = got.narrow(0, ids.len() - expected.dim(0).unwrap(), expected.dim(0).unwrap()).unwrap();
        assert_close(&case["options"].to_string(), &got, &expected, 1e-4);
    }
}

#[test]
fn a_cache_changes_nothing() {
    let want = expected();
    let prompt = sequences(&want)[0][..4].to_vec();
    for options in [
        json!({"error_term": false}),
        json!({"latents": [{"latent": 5, "add": 8.0}]}),
        json!({"latents": [{"latent": 5, "set": 8.0}], "positions": [2, 6], "strength": 0.5}),
    ] {
        let lm = with(options.clone());
        let run = |use_cache: bool| {
            let options = GenerateOptions {
                max_new_tokens: 6,
                use_cache,
                keep_logits: true,
                stop_tokens: Some(vec![]),
                ..GenerateOptions::default()
            };
            lm.generate_tokens(vec![prompt.clone()], &options, |_| std::ops::ControlFlow::Continue(()))
                .unwrap()
        };
        let (cached, whole) = (run(true), run(false));
        assert_eq!(cached.new_tokens, whole.new_tokens, "{options}");
        let (a, b) = (cached.logits[0].as_ref().unwrap(), whole.logits[0].as_ref().unwrap());
        assert_close(&options.to_string(), a, b, 1e-5);
    }
}

#[test]
fn what_is_not_changed_stays_bit_for_bit() {
    let ids = sequences(&expected())[0].clone();
    let plain = logits(&lm(), &ids);
    let same = |options: Value| {
        assert_eq!(values(&logits(&with(options.clone()), &ids)), values(&plain), "{options}")
    };
    same(json!({"latents": [{"latent": 5, "scale": 1.0}]}));
    same(json!({"latents": [{"latent": 5, "add": 9.0}], "strength": 0.0}));
    // A change at one position leaves earlier ones as they were.
    let late = with(json!({"latents": [{"latent": 5, "add": 9.0}], "positions": [-1]}));
    let (late, n) = (logits(&late, &ids), ids.len() - 1);
    let earlier = |x: &Tensor| values(&x.narrow(1, 0, n).unwrap());
    assert_eq!(earlier(&late), earlier(&plain));
    assert_ne!(values(&late), values(&plain));
}

/// While the model trains, gradients go through the autoencoder to what is before it.
#[test]
fn gradients_go_through() {
    let ids = sequences(&expected())[0].clone();
    for options in [json!({"error_term": false}), json!({"latents": [{"latent": 5, "add": 2.0}]})] {
        let lm = with(options);
        let ids = lm.batch_of(&ids).unwrap();
        let setup = PassSetup::train(0).gradients(Gradients::Parameters);
        let pass = lm.hooks().pass(setup);
        let loss = next_token_loss(&lm.model().forward(&ids, &pass).unwrap(), &ids).unwrap();
        let grads = tenterhook_nn::backward(&loss, lm.model().params(), None).unwrap();
        tenterhook_nn::check_coverage(&grads, lm.model().params()).unwrap();
    }
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let lm = lm();
    let refused = |mut options: Value, expected: &str| {
        options["kind"] = "sae".into();
        if options.get("path").is_none() {
            options["path"] = json!(data("inside"));
        }
        let error = registry().attach(lm.hooks(), &options).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    };
    refused(json!({}), "nothing would change");
    refused(json!({"path": "nowhere", "error_term": false}), "has no cfg.json");
    refused(json!({"latents": [{"latent": 99999, "add": 1.0}]}), "there is no latent 99999");
    refused(json!({"latents": [{"latent": "days", "add": 1.0}]}), "no latent is named `days`");
    refused(json!({"latents": [{"latent": 1}]}), "nothing is changed");
    refused(json!({"latents": [{"latent": 1, "add": 1.0}, {"latent": 1, "scale": 2.0}]}), "changed twice");
    refused(json!({"latents": [{"latent": 1, "min": 2.0, "max": 1.0}]}), "above `max`");
    refused(json!({"latents": [{"latent": -1, "add": 1.0}]}), "counted from 0");
    refused(json!({"latents": [{"latent": 1, "multiply": 1.0}]}), "multiply");
    refused(json!({"error_term": false, "points": "blocks.7.hook_resid_post"}), "blocks.7");
    refused(json!({"error_term": false, "positions": []}), "`positions` is empty");
    let names = data("names_a.csv");
    let named = SaeOptions {
        names: Some(names),
        latents: vec![LatentEdit { add: Some(1.0), ..LatentEdit::of("days") }],
        ..SaeOptions::new(data("inside"))
    };
    lm.hooks().register(SaeHook::new(named).unwrap()).unwrap();
    assert_eq!(lm.hooks().list_hooks()[0].matched, ["blocks.0.hook_resid_post"]);
}

#[test]
fn top_texts_are_those_of_all_activations() {
    let (lm, sae, all) = (lm(), Sae::load(&data("inside")).unwrap(), sequences(&expected()));
    let options = TopOptions { texts: 2, window: 3, batch_size: 2, skip: 1, ..TopOptions::default() };
    let found = top_texts(&lm, &sae, &all, &options, |_| {}).unwrap();
    assert_eq!(found.len(), sae.config().d_sae);
    let acts: Vec<Vec<Vec<f32>>> = all
        .iter()
        .map(|ids| {
            let points = CacheOptions::points("blocks.0.hook_resid_post");
            let (_, cache, _) = lm.run_with_cache(&lm.batch_of(ids).unwrap(), &points).unwrap();
            let x = cache.get("blocks.0.hook_resid_post").unwrap().get(0).unwrap();
            sae.encode(&x).unwrap().acts.to_dtype(DType::F32).unwrap().to_vec2().unwrap()
        })
        .collect();
    for top in &found {
        let mut best: Vec<(f32, usize)> = acts
            .iter()
            .enumerate()
            .map(|(i, rows)| (rows[1..].iter().map(|row| row[top.latent]).fold(0.0, f32::max), i))
            .filter(|(act, _)| *act > 0.0)
            .collect();
        best.sort_by(|a, b| b.0.total_cmp(&a.0));
        best.truncate(2);
        let got: Vec<usize> = top.texts.iter().map(|text| text.sequence).collect();
        assert_eq!(got, best.iter().map(|(_, i)| *i).collect::<Vec<_>>(), "latent {}", top.latent);
        for text in &top.texts {
            let row = &acts[text.sequence];
            assert!((f64::from(row[text.position][top.latent]) - text.activation).abs() < 1e-4);
            assert_eq!(text.tokens, all[text.sequence][text.start..text.start + text.tokens.len()]);
            for (i, act) in text.activations.iter().enumerate() {
                assert!((f64::from(row[text.start + i][top.latent]) - act).abs() < 1e-4);
            }
        }
    }
}
