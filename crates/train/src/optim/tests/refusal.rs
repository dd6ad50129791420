//! A step that would spoil a weight is refused, and every bit stays.

use proptest::prelude::*;
use serde_json::json;

use super::*;

/// Three good steps of two optimizers, then one that must be refused with all bits in place.
fn refused(
    dtype: DType,
    weight: f64,
    prepare: impl Fn(&mut [Optimizer]),
    grad: impl Fn(&str, usize) -> f64,
    scale: StepScale,
) -> String {
    let long = kernel::CHUNK + 3;
    let mut last = vec![0.5; long];
    last[long - 1] = weight;
    let params =
        params(&[("a", &[2, 2], vec![0.5; 4]), ("b", &[4], vec![0.5; 4]), ("c", &[long], last)], dtype);
    let first = json!({"kind": "adamw", "lr": 1e-3, "params": ["a", "b"]});
    let mut optimizers = build(&[first, json!({"kind": "adamw", "lr": 1.0, "params": "c"})], &params);
    let calm = grads(&params, |_, i| (i % 5) as f64 * 1e-3);
    for _ in 0..3 {
        Optimizer::step_all(&mut optimizers, &params, &calm, StepScale::default(), &never).unwrap();
    }
    prepare(&mut optimizers);
    let before = (bits(&params), state_bits(&optimizers));
    let grads = grads(&params, grad);
    let error = Optimizer::step_all(&mut optimizers, &params, &grads, scale, &never).unwrap_err();
    assert!((bits(&params), state_bits(&optimizers)) == before, "changed in spite of: {error}");
    // It is as if the refused step had not been.
    optimizers.iter_mut().for_each(|optimizer| optimizer.scale_lr(1.0));
    Optimizer::step_all(&mut optimizers, &params, &calm, StepScale::default(), &never).unwrap();
    error.to_string()
}

#[test]
fn nothing_changes_when_a_step_is_refused() {
    let one = StepScale::default();
    let nothing = |_: &mut [Optimizer]| {};
    let last = kernel::CHUNK + 2;
    let at_last =
        |value: f64| move |name: &str, i: usize| if name == "c" && i == last { value } else { 1e-3 };

    for value in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
        let error = refused(DType::F32, 0.5, nothing, at_last(value), one);
        assert!(error.starts_with("the gradient of `c` has NaN or infinity"), "{error}");
    }
    // Finite, but its square is not.
    let error = refused(DType::F32, 0.5, nothing, at_last(1e21), one);
    assert!(error.contains("make `exp_avg_sq` of `c` NaN or infinite"), "{error}");
    let error = refused(DType::F64, 0.5, nothing, at_last(1e160), one);
    assert!(error.contains("make `exp_avg_sq` of `c` NaN or infinite"), "{error}");
    // A rate so high that the weight overflows.
    let fast = |rate: f64| move |optimizers: &mut [Optimizer]| optimizers[1].set_lr(None, rate).unwrap();
    let error = refused(DType::F32, 0.5, fast(1e39), at_last(1.0), one);
    assert!(error.contains("make the weight of `c` NaN or infinite"), "{error}");
    let error = refused(DType::F32, -3.4e38, fast(1e37), at_last(1.0), one);
    assert!(error.contains("make the weight of `c` NaN or infinite"), "{error}");
    for rate in [f64::NAN, f64::INFINITY] {
        let error = refused(DType::F32, 0.5, fast(rate), at_last(1.0), one);
        assert!(error.starts_with("the learning rate of `adamw.1`, group `no_decay`, is "), "{error}");
    }
    for scale in [f64::NAN, f64::INFINITY] {
        let error = refused(DType::F32, 0.5, nothing, at_last(1.0), StepScale { scale, clamp: None });
        assert!(error.starts_with("the scale of the gradients is "), "{error}");
    }
    let error =
        refused(DType::F32, 0.5, nothing, at_last(1.0), StepScale { scale: 1.0, clamp: Some(f64::NAN) });
    assert!(error.starts_with("the clamp of the gradients is NaN"), "{error}");
    // Other devices' path refuses in the same way.
    let beside = |optimizers: &mut [Optimizer]| optimizers.iter_mut().for_each(|one| one.in_place = false);
    let error = refused(DType::F32, 0.5, beside, at_last(1e21), one);
    assert!(error.contains("make `exp_avg_sq` of `c` NaN or infinite"), "{error}");
    let error = refused(DType::F32, 0.5, beside, at_last(f64::NAN), one);
    assert!(error.starts_with("the gradient of `c` has NaN or infinity"), "{error}");
}

#[test]
fn clipping_lets_large_gradients_through() {
    for scale in [StepScale { scale: 1e-20, clamp: None }, StepScale { scale: 1.0, clamp: Some(0.1) }] {
        let params = params(&[("w", &[2], vec![1.0, 1.0])], DType::F32);
        let mut optimizers = build(&[json!({"kind": "adamw", "lr": 0.5})], &params);
        optimizers[0].step(&params, &grads(&params, |_, _| 1e21), scale, &never).unwrap();
        let weight = values(params.get("w").unwrap().value());
        assert!(weight.iter().all(|weight| (weight - 0.5).abs() < 1e-6), "{scale:?}: {weight:?}");
    }
}

#[test]
fn gradients_that_do_not_fit() {
    let params = params(&[("a", &[2], vec![1.0; 2]), ("b", &[2], vec![1.0; 2])], DType::F32);
    let mut optimizers = build(&[json!({"kind": "sgd", "lr": 1.0})], &params);
    let before = bits(&params);
    let fits = || Tensor::ones(2, DType::F32, &Device::Cpu).unwrap();
    let mut step = |b: Option<Tensor>| {
        let grads = [("a".to_string(), fits())].into_iter().chain(b.map(|b| ("b".to_string(), b))).collect();
        optimizers[0].step(&params, &grads, StepScale::default(), &never).unwrap_err().to_string()
    };
    let error = step(Some(Tensor::ones((1, 2), DType::F32, &Device::Cpu).unwrap()));
    assert_eq!(error, "the gradient of `b` is f32 [1, 2] on Cpu, the parameter is f32 [2] on Cpu");
    let error = step(Some(Tensor::ones(2, DType::F64, &Device::Cpu).unwrap()));
    assert_eq!(error, "the gradient of `b` is f64 [2] on Cpu, the parameter is f32 [2] on Cpu");
    assert_eq!(step(None), "no gradient for `b`: freeze what the loss does not reach");
    assert_eq!(bits(&params), before);
}

/// AdamW on one number, in the same order of operations.
fn one_number(weight: f32, [mean, square]: [f32; 2], grad: f32, lr: f64, step: i32) -> (f32, [f32; 2]) {
    let mean = mean + 0.1 * (grad - mean);
    let square = square * 0.95 + (1.0 - 0.95_f64) as f32 * grad * grad;
    let root = (1.0 - 0.95_f64.powi(step)).sqrt() as f32;
    let step_size = (lr / (1.0 - 0.9_f64.powi(step))) as f32;
    let weight = weight * (1.0 - lr * 0.1) as f32 - step_size * mean / (square.sqrt() / root + 1e-8);
    (weight, [mean, square])
}

/// SGD with Nesterov's momentum on one number.
fn one_number_sgd(weight: f32, buffer: f32, grad: f32, lr: f64) -> (f32, f32) {
    let grad = grad + 0.1 * weight;
    let buffer = buffer * 0.9 + grad;
    (weight - lr as f32 * (grad + 0.9 * buffer), buffer)
}

proptest! {
    /// Over all magnitudes: refused exactly when plain arithmetic overflows, else exactly its result.
    #[test]
    fn refused_exactly_when_arithmetic_overflows(
        weight in -38.5..38.5f64, grads_log in prop::collection::vec(-30.0..25.0f64, 1..4), lr in -9.0..40.0f64,
    ) {
        let (weight, lr) = (10f64.powf(weight), 10f64.powf(lr));
        let params = params(&[("w", &[1, 1], vec![weight])], DType::F32);
        let settings = json!({"kind": "adamw", "lr": lr, "betas": [0.9, 0.95], "weight_decay": 0.1});
        let mut optimizers = build(&[settings], &params);
        let (mut weight, mut state, mut steps) = (weight as f32, [0f32; 2], 0);
        for grad in grads_log {
            let grad = 10f64.powf(grad) as f32;
            let (new, new_state) = one_number(weight, state, grad, lr, steps + 1);
            let finite = new.is_finite() && new_state.iter().all(|x| x.is_finite());
            let grads = grads(&params, |_, _| f64::from(grad));
            let done = optimizers[0].step(&params, &grads, StepScale::default(), &never);
            prop_assert_eq!(done.is_ok(), finite, "{:?} {} {:?}", done, new, new_state);
            if finite {
                (weight, state, steps) = (new, new_state, steps + 1);
            }
            prop_assert_eq!(values(params.get("w").unwrap().value()), [f64::from(weight)]);
        }
    }

    #[test]
    fn sgd_is_refused_exactly_when_arithmetic_overflows(
        weight in -38.5..38.5f64, grads_log in prop::collection::vec(-30.0..38.5f64, 1..4), lr in -9.0..40.0f64,
    ) {
        let (weight, lr) = (10f64.powf(weight), 10f64.powf(lr));
        let params = params(&[("w", &[1, 1], vec![weight])], DType::F32);
        let settings = json!({"kind": "sgd", "lr": lr, "momentum": 0.9, "nesterov": true, "weight_decay": 0.1});
        let mut optimizers = build(&[settings], &params);
        let (mut weight, mut buffer) = (weight as f32, 0f32);
        for grad in grads_log {
            let grad = 10f64.powf(grad) as f32;
            let (new, new_buffer) = one_number_sgd(weight, buffer, grad, lr);
            let finite = new.is_finite() && new_buffer.is_finite();
            let grads = grads(&params, |_, _| f64::from(grad));
            let done = optimizers[0].step(&params, &grads, StepScale::default(), &never);
            prop_assert_eq!(done.is_ok(), finite, "{:?} {} {}", done, new, new_buffer);
            if finite {
                (weight, buffer) = (new, new_buffer);
            }
            prop_assert_eq!(values(params.get("w").unwrap().value()), [f64::from(weight)]);
        }
    }
}
