//! Controllers do the same with a cache as without one, in padded batches as alone; what a cache would make wrong is refused.

use std::ops::ControlFlow;

use candle_core::{Device, Tensor};
use tenterhook_hooks::{Hook, Pass, PassSetup, hook_fn};
use tenterhook_lens::controllers::{self, Knockout, KnockoutOptions};
use tenterhook_lens::{GenerateOptions, Generation, InferenceOptions, LanguageModel, PaddingSide};
use tenterhook_models::KvCache;

use crate::support::*;

type Make = Box<dyn Fn(&LanguageModel) -> Box<dyn Hook>>;

fn vector(lm: &LanguageModel, size: f64) -> Tensor {
    let width = lm.model().config().width;
    let values: Vec<f32> = (0..width).map(|i| (size * (i as f64 * 0.7).sin()) as f32).collect();
    Tensor::from_vec(values, width, &Device::Cpu).unwrap()
}

/// Every kind, at places where the cache depends on it.
fn hooks() -> Vec<(&'static str, Make)> {
    vec![
        ("zero", Box::new(|_| Box::new(controllers::zero_ablate("blocks.0.attn.hook_z").heads([1])))),
        (
            "zero 2",
            Box::new(|_| Box::new(controllers::zero_ablate("blocks.0.hook_mlp_out").positions([1, 6]))),
        ),
        ("steer", Box::new(|lm| Box::new(controllers::steer("blocks.1.hook_resid_pre", vector(lm, 2.0))))),
        (
            "steer 2",
            Box::new(|lm| {
                Box::new(controllers::steer("blocks.0.hook_resid_post", vector(lm, 3.0)).positions([5]))
            }),
        ),
        ("scale", Box::new(|_| Box::new(controllers::scale("blocks.0.attn.hook_v", 2.0).heads([0])))),
        (
            "mean",
            Box::new(|lm| {
                Box::new(controllers::mean_ablate("blocks.0.hook_attn_out", Some(vector(lm, 1.0))))
            }),
        ),
        (
            "replace",
            Box::new(|lm| {
                Box::new(controllers::replace("blocks.1.hook_resid_pre", vector(lm, 1.0)).positions([2, 7]))
            }),
        ),
        ("noise", Box::new(|_| Box::new(controllers::noise("blocks.0.hook_resid_post", 0.3, 9)))),
        (
            "patch",
            Box::new(|lm| {
                let name = "blocks.0.hook_resid_post";
                let ids = lm.batch_of(&ids(6, 11)).unwrap();
                let options = tenterhook_lens::CacheOptions::points(name);
                let (_, cache, _) = lm.run_with_cache(&ids, &options).unwrap();
                Box::new(controllers::patch(name, cache.iter()).unwrap().positions([0, 3, 5, 8]))
            }),
        ),
        (
            "knockout",
            Box::new(|_| {
                let options = KnockoutOptions {
                    keys: Some([1].into()),
                    queries: Some([2, 3, 4, 5, 6, 7].into()),
                    ..KnockoutOptions::default()
                };
                Box::new(Knockout::new(options).unwrap())
            }),
        ),
    ]
}

fn generate(lm: &LanguageModel, prompts: Vec<Vec<u32>>, use_cache: bool) -> Result<Generation, String> {
    let options = GenerateOptions {
        max_new_tokens: 6,
        use_cache,
        keep_logits: true,
        stop_tokens: Some(Vec::new()),
        ..GenerateOptions::default()
    };
    lm.generate_tokens(prompts, &options, |_| ControlFlow::Continue(())).map_err(|error| error.to_string())
}

#[test]
fn a_cache_changes_nothing_of_what_controllers_do() {
    for family in FAMILIES {
        let lm = lm(family);
        let prompts = vec![ids(4, 3), ids(2, 8)];
        let plain = generate(&lm, prompts.clone(), true).unwrap();
        for (what, make) in hooks() {
            let with = lm.branch();
            with.hooks().register_boxed(make(&lm), Default::default()).unwrap();
            let cached = generate(&with, prompts.clone(), true).unwrap();
            let again = generate(&with, prompts.clone(), false).unwrap();
            assert_eq!(cached.new_tokens, again.new_tokens, "{family} {what}");
            for row in 0..2 {
                let logits = |run: &Generation| run.logits[row].clone().unwrap();
                let name = format!("{family} {what}, prompt {row}");
                assert_close(&name, &logits(&cached), &logits(&again), 1e-5);
                assert_ne!(values(&logits(&cached)), values(&logits(&plain)), "{name} has an effect");
            }
            assert!(cached.report.errors.is_empty() && cached.report.hooks[0].receipt.elements_changed > 0);
        }
    }
}

#[test]
fn a_text_is_edited_alike_alone_and_in_a_padded_batch() {
    let lm = lm("llama");
    let texts = vec![ids(7, 1), ids(3, 2), ids(5, 3)];
    for (what, make) in hooks() {
        if what == "noise" {
            continue; // other sequences of a batch have other noise
        }
        let last: Box<dyn Hook> =
            Box::new(controllers::scale("blocks.0.hook_resid_post", -1.0).positions([-1]));
        for hook in [make(&lm), last] {
            let with = lm.branch();
            with.hooks().register_boxed(hook, Default::default()).unwrap();
            for padding in [PaddingSide::Left, PaddingSide::Right] {
                let options = InferenceOptions { padding, ..InferenceOptions::default() };
                let together = with.infer_tokens(texts.clone(), &options).unwrap();
                for (row, text) in texts.iter().enumerate() {
                    let (alone, _) = with.forward(&lm.batch_of(text).unwrap()).unwrap();
                    let name = format!("{what} {padding:?} {row}");
                    assert_close(&name, &together.outputs[row], &alone.squeeze(0).unwrap(), 2e-5);
                }
            }
        }
    }
}

#[test]
fn an_edit_that_would_change_what_is_cached_is_refused_with_the_reason() {
    for family in FAMILIES {
        let lm = lm(family);
        let last = lm.model().config().layers - 1;
        let prompts = || vec![ids(4, 3)];
        let outcome = |hook: Box<dyn Hook>, use_cache: bool| {
            let with = lm.branch();
            with.hooks().register_boxed(hook, Default::default()).unwrap();
            generate(&with, prompts(), use_cache)
        };
        let moving = |point: String| Box::new(controllers::scale(point, 2.0).positions([-1]));
        for point in ["blocks.0.hook_resid_post".to_string(), format!("blocks.{last}.attn.hook_k")] {
            let error = outcome(moving(point.clone()), true).unwrap_err();
            assert!(error.contains("in the cache") && error.contains(&point), "{error}");
            outcome(moving(point), false).unwrap();
        }
        // Nothing that is cached depends on these, so the cache gives what computing it all again gives.
        for point in [format!("blocks.{last}.hook_resid_post"), "ln_final.hook_out".to_string()] {
            let cached = outcome(moving(point.clone()), true).unwrap();
            let again = outcome(moving(point.clone()), false).unwrap();
            let logits = |run: &Generation| run.logits[0].clone().unwrap();
            assert_close(&point, &logits(&cached), &logits(&again), 1e-5);
        }
        let mean = || Box::new(controllers::mean_ablate("blocks.0.hook_mlp_out", None));
        assert!(outcome(mean(), true).unwrap_err().contains("the mean over the text"));
        outcome(mean(), false).unwrap();
        let edge = || Box::new(controllers::knockout([(-1, 0)]).unwrap());
        assert!(outcome(edge(), true).unwrap_err().contains("in the cache"));
        outcome(edge(), false).unwrap();
    }
}

#[test]
fn points_that_are_said_not_to_feed_the_cache_do_not() {
    for family in ["gpt2", "llama", "neox", "gemma2", "qwen3", "phi3", "mistral"] {
        let lm = lm(family);
        let (prompt, next) = (lm.batch_of(&ids(5, 3)).unwrap(), lm.batch_of(&[7]).unwrap());
        // What comes after a prompt that was edited at one point, by a forward that is not.
        let after = |point: Option<&str>| {
            let (with, mut cache) = (lm.branch(), KvCache::new());
            if let Some(point) = point {
                let edit = hook_fn::edit(point, |_, x, _| Ok(Some((x * 1.5)?)));
                with.hooks().register(edit).unwrap();
            }
            let pass = with.hooks().pass(PassSetup::default());
            lm.model().forward_cached(&prompt, &mut cache, &pass).unwrap();
            let pass = Pass::silent(PassSetup { first_position: 5, ..PassSetup::default() });
            values(&lm.model().forward_cached(&next, &mut cache, &pass).unwrap())
        };
        let plain = after(None);
        let (mut feeding, mut others) = (0, 0);
        for (_, point) in
            lm.hooks().points().iter().filter(|(_, point)| point.writable && point.differentiable)
        {
            let same = after(Some(&point.name)) == plain;
            match point.feeds_cache {
                true => feeding += usize::from(!same),
                false => {
                    assert!(same, "{family}: {} changes the cache", point.name);
                    others += 1;
                }
            }
        }
        assert!(feeding > 10 && others >= 15, "{family}: {feeding} {others}");
    }
}
