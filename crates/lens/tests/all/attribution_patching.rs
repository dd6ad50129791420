//! Attribution patching is exact where the model is linear.

use std::collections::BTreeMap;

use candle_core::{DType, Device};
use tenterhook_hooks::hook_fn;
use tenterhook_lens::patching::{By, Contrast, Direction, LogitMetric, Method, Sweep};
use tenterhook_lens::{CacheOptions, LanguageModel};
use tenterhook_models::Transformer;
use tenterhook_models::config::TransformerConfig;

use crate::support::*;

/// A model of attention alone whose patterns and norms are what they are on one prompt, whatever the prompt: all that is left of it is
/// linear in the residual stream.
fn linear_model(config: TransformerConfig, frozen_at: &[u32]) -> LanguageModel {
    let config = TransformerConfig { mlp_width: 0, ..config };
    let lm = LanguageModel::new(Transformer::init(config, 5, DType::F32, &Device::Cpu).unwrap()).unwrap();
    let points: Vec<String> = lm.model().points().iter().map(|(_, point)| point.name.clone()).collect();
    let frozen: Vec<String> = points
        .into_iter()
        .filter(|name| name.ends_with(".hook_scale") || name.ends_with(".hook_pattern"))
        .collect();
    let options = CacheOptions::points(frozen.clone());
    let (_, cache, _) = lm.run_with_cache(&lm.batch_of(frozen_at).unwrap(), &options).unwrap();
    let values: BTreeMap<String, _> = cache.iter().map(|(name, x)| (name.to_string(), x.clone())).collect();
    assert_eq!(values.len(), frozen.len());
    lm.hooks().register(hook_fn::edit(frozen, move |at, _, _| Ok(values.get(at.name()).cloned()))).unwrap();
    lm
}

#[test]
fn it_is_exact_on_a_linear_model() {
    let (clean, corrupted) = (ids(7, 3), ids(7, 8));
    for config in [TransformerConfig::gpt2(61, 16, 24, 3, 4), TransformerConfig::llama(61, 16, 24, 3, 4)] {
        let lm = linear_model(TransformerConfig { init_std: 0.2, ..config }, &corrupted);
        let contrast = Contrast::new(clean.clone(), corrupted.clone(), LogitMetric::logit_diff(7, 23));
        for direction in [Direction::Denoise, Direction::Noise] {
            let contrast = contrast.clone().direction(direction);
            for sweep in [
                Sweep::of("resid_pre"),
                Sweep::of("resid_post"),
                Sweep::of("attn_out"),
                Sweep::of("z"),
                Sweep::of("v"),
                Sweep::of("z").by(By::HeadPosition),
                Sweep::of("blocks.*.attn.hook_result"),
            ] {
                let (exact, _) = lm.activation_patching(&contrast, &sweep, |_, _| ()).unwrap();
                let (estimate, report) = lm.attribution_patching(&contrast, &sweep).unwrap();
                assert!(!report.degraded());
                assert_eq!(
                    (estimate.method, &estimate.rows, &estimate.columns),
                    (Method::Attribution, &exact.rows, &exact.columns)
                );
                let scale = (exact.clean - exact.corrupted).abs();
                assert!(scale > 0.05, "{scale}");
                for (exact, estimate) in exact.values.iter().flatten().zip(estimate.values.iter().flatten()) {
                    assert!(
                        (exact - estimate).abs() < 1e-4 * scale.max(1.0),
                        "{}: {exact} {estimate}",
                        sweep.name
                    );
                }
            }
        }
    }
}

#[test]
fn it_is_only_an_estimate_elsewhere() {
    let lm = lm("gpt2");
    let contrast = Contrast::new(ids(7, 3), ids(7, 8), LogitMetric::logit_diff(7, 23));
    let (exact, _) = lm.activation_patching(&contrast, &Sweep::of("resid_pre"), |_, _| ()).unwrap();
    let (estimate, _) = lm.attribution_patching(&contrast, &Sweep::of("resid_pre")).unwrap();
    let worst =
        exact.values.iter().flatten().zip(estimate.values.iter().flatten()).map(|(a, b)| (a - b).abs());
    assert!(worst.fold(0.0, f32::max) > 1e-3, "so the linear model's test can fail");
}

/// Masked scores are minus infinity in both runs: no difference, and not NaN.
#[test]
fn scores_that_are_masked_have_no_effect() {
    let lm = lm("llama");
    let contrast = Contrast::new(ids(5, 3), ids(5, 8), LogitMetric::logit_diff(7, 23));
    let (grid, _) = lm.attribution_patching(&contrast, &Sweep::of("attn_scores")).unwrap();
    assert!(grid.values.iter().flatten().all(|value| value.is_finite()), "{:?}", grid.values);
}
