//! Steering vectors: what they are made of, their files, and what they do.

use candle_core::{Device, Tensor};
use tenterhook_lens::patching::LogitMetric;
use tenterhook_lens::steering::{Pool, SteeringOptions, SteeringSweepOptions, SteeringVector};
use tenterhook_lens::{CacheOptions, GenerateOptions, LanguageModel};

use crate::support::*;

const POINT: &str = "blocks.0.hook_resid_post";

fn prompts() -> (Vec<Vec<u32>>, Vec<Vec<u32>>) {
    (vec![ids(5, 1), ids(3, 9)], vec![ids(4, 2), ids(6, 7), ids(2, 5)])
}

fn activation(lm: &LanguageModel, prompt: &[u32], point: &str) -> Tensor {
    let (_, cache, _) =
        lm.run_with_cache(&lm.batch_of(prompt).unwrap(), &CacheOptions::points(point)).unwrap();
    cache.get(point).unwrap().get(0).unwrap()
}

fn mean(lm: &LanguageModel, prompts: &[Vec<u32>], point: &str, pool: Pool) -> Tensor {
    let one = |prompt: &Vec<u32>| {
        let x = activation(lm, prompt, point);
        if pool == Pool::Last { x.get(prompt.len() - 1).unwrap() } else { x.mean(0).unwrap() }
    };
    let all: Vec<Tensor> = prompts.iter().map(one).collect();
    Tensor::stack(&all, 0).unwrap().mean(0).unwrap()
}

#[test]
fn a_vector_is_the_difference_of_the_means() {
    let (positive, negative) = prompts();
    for name in FAMILIES {
        let lm = lm(name);
        for point in [POINT, "blocks.1.attn.hook_z"] {
            for pool in [Pool::Last, Pool::Mean] {
                let options = SteeringOptions { pool, ..SteeringOptions::at(point) };
                let (found, _) = lm.steering_vector(&positive, &negative, &options).unwrap();
                let want = (mean(&lm, &positive, point, pool) - mean(&lm, &negative, point, pool)).unwrap();
                assert_close(&format!("{name} {point}"), &found.vector, &want, 1e-5);
                assert_eq!((found.positive, found.negative, found.point.as_str()), (2, 3, point));
                let unit = SteeringOptions { normalise: true, ..options };
                let (unit, _) = lm.steering_vector(&positive, &negative, &unit).unwrap();
                assert!((unit.norm().unwrap() - 1.0).abs() < 1e-5 && unit.normalised);
                let norm = f64::from(found.norm().unwrap());
                assert_close("direction", &(unit.vector * norm).unwrap(), &want, 1e-4);
            }
        }
    }
}

#[test]
fn files_hold_the_vector_and_what_it_is() {
    let (lm, dir) = (lm("llama"), tempfile::tempdir().unwrap());
    let (positive, negative) = prompts();
    let options = SteeringOptions { pool: Pool::Mean, ..SteeringOptions::at(0) };
    let (vector, _) = lm.steering_vector(&positive, &negative, &options).unwrap();
    let path = dir.path().join("vector.safetensors");
    vector.save(&path).unwrap();
    let plain = candle_core::safetensors::load(&path, &Device::Cpu).unwrap();
    assert_eq!(values(&plain["vector"]), values(&vector.vector));
    let read = SteeringVector::load(&path, &Device::Cpu).unwrap();
    assert_eq!((read.point.as_str(), read.positive, read.negative, read.pool), (POINT, 2, 3, Pool::Mean));
    assert_eq!(values(&read.vector), values(&vector.vector));

    let told = |name: &str, bytes: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, bytes).unwrap();
        SteeringVector::load(&path, &Device::Cpu).unwrap_err().to_string()
    };
    assert!(told("torn", &std::fs::read(&path).unwrap()[..40]).contains("is no safetensors file"));
    assert!(
        SteeringVector::load(&dir.path().join("gone"), &Device::Cpu)
            .unwrap_err()
            .to_string()
            .contains("gone")
    );
    let other = dir.path().join("other");
    candle_core::safetensors::save(&plain, &other).unwrap();
    assert!(told("other", &std::fs::read(&other).unwrap()).contains("metadata does not say `point`"));
}

#[test]
fn a_sweep_measures_what_a_hook_does() {
    let (positive, negative) = prompts();
    for name in FAMILIES {
        let lm = lm(name);
        let (vector, _) = lm.steering_vector(&positive, &negative, &SteeringOptions::at(POINT)).unwrap();
        let prompt = ids(4, 11);
        let metric = LogitMetric::logit_diff(7, 23);
        let options = SteeringSweepOptions {
            strengths: vec![-3.0, 0.0, 3.0],
            metric: Some(metric.clone()),
            max_new_tokens: 5,
            ..Default::default()
        };
        let mut told = Vec::new();
        let (sweep, report) =
            lm.steering_sweep(&vector, &prompt, &options, |done, of| told.push((done, of))).unwrap();
        assert_eq!(told, [(1, 3), (2, 3), (3, 3)]);
        assert!(report.hooks.iter().any(|hook| hook.receipt.edits > 0), "steering has a receipt");
        assert_eq!(sweep.rows.len(), 3);
        let still = &sweep.rows[1];
        assert_eq!((still.kl, still.metric), (0.0, sweep.unsteered), "{name}");
        for row in &sweep.rows {
            // The same by hand, without a cache.
            let steered = lm.branch();
            steered.hooks().register(vector.hook(row.strength)).unwrap();
            let (logits, _) = steered.forward(&lm.batch_of(&prompt).unwrap()).unwrap();
            let value: f32 = metric.of(&logits.get(0).unwrap()).unwrap().to_scalar().unwrap();
            assert_eq!(row.metric, Some(value));
            let plain = GenerateOptions { max_new_tokens: 5, use_cache: false, ..Default::default() };
            let go_on = |_| std::ops::ControlFlow::Continue(());
            let text = steered.generate_tokens(vec![prompt.clone()], &plain, go_on).unwrap();
            assert_eq!(row.new_tokens, text.new_tokens[0], "{name} {}", row.strength);
            assert_eq!(row.new_tokens[0], row.top_token);
            assert!(
                row.kl >= 0.0 && (row.strength == 0.0 || row.kl > 1e-6),
                "{name} {}: {}",
                row.strength,
                row.kl
            );
        }
        assert!(lm.hooks().list_hooks().is_empty());
    }
}

#[test]
fn bad_input_is_named() {
    let lm = lm("gpt2");
    let (positive, negative) = prompts();
    let told = |positive: &[Vec<u32>], options: SteeringOptions| {
        lm.steering_vector(positive, &negative, &options).unwrap_err().to_string()
    };
    assert_eq!(told(&[], SteeringOptions::at(POINT)), "there are no positive prompts");
    assert!(told(&[vec![1], vec![]], SteeringOptions::at(POINT)).contains("positive prompt 1"));
    assert!(told(&[vec![1], vec![99]], SteeringOptions::at(POINT)).contains("positive prompt 1"));
    assert!(told(&positive, SteeringOptions::at("blocks.*.hook_resid_post")).contains("chooses 2 points"));
    assert!(
        told(&positive, SteeringOptions::at("blocks.0.attn.hook_pattern"))
            .contains("batch head query_pos key_pos")
    );
    assert!(told(&positive, SteeringOptions::at("nowhere")).contains("no point matches"));
    let unit = SteeringOptions { normalise: true, ..SteeringOptions::at(POINT) };
    let same = lm.steering_vector(&negative, &negative, &unit).unwrap_err().to_string();
    assert!(same.contains("no direction"), "{same}");
    let (vector, _) = lm.steering_vector(&positive, &negative, &SteeringOptions::at(POINT)).unwrap();
    let swept = |strengths: Vec<f64>| {
        let options = SteeringSweepOptions { strengths, ..Default::default() };
        lm.steering_sweep(&vector, &[1], &options, |_, _| ()).unwrap_err().to_string()
    };
    assert!(swept(vec![]).contains("no strength"));
    assert!(swept(vec![f64::NAN]).contains("NaN"));
}
