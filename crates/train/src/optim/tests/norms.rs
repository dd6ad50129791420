//! Norms, their bits, and what is not finite.

use serde_json::json;

use super::*;

fn of(values: Vec<(&str, Tensor)>) -> NamedGrads {
    values.into_iter().map(|(name, grad)| (name.to_string(), grad)).collect()
}

#[test]
fn norms_by_hand() {
    let device = Device::Cpu;
    let grads = of(vec![
        ("b", Tensor::new(&[[2f64, 3.0], [6.0, 0.0]], &device).unwrap()),
        ("a", Tensor::new(&[0f32, -24.0], &device).unwrap()),
    ]);
    let norms = grad_norms(&grads).unwrap();
    assert_eq!(norms, Norms { total: 25.0, per_param: vec![("a".into(), 24.0), ("b".into(), 7.0)] });
    // Squares that f32 has no room for.
    let large = of(vec![("a", Tensor::new(&[3e30f32, 4e30], &device).unwrap())]);
    assert!((grad_norms(&large).unwrap().total / 5e30 - 1.0).abs() < 1e-7);
    let half = of(vec![("a", Tensor::new(&[1f32], &device).unwrap().to_dtype(DType::BF16).unwrap())]);
    assert!(grad_norms(&half).unwrap_err().to_string().contains("the gradient of `a` is BF16"));
}

#[test]
fn the_same_bits_with_any_number_of_threads() {
    let len = 5 * kernel::CHUNK + 13;
    let values: Vec<f32> = (0..len).map(|i| ((i * 7919) % 10007) as f32 * 1e-3 - 5.0).collect();
    let exact: f64 = values.iter().map(|x| f64::from(*x) * f64::from(*x)).sum();
    let grads = of(vec![("w", Tensor::from_vec(values, len, &Device::Cpu).unwrap())]);
    let norm = |threads| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| grad_norms(&grads).unwrap().total)
    };
    assert_eq!(norm(1).to_bits(), norm(4).to_bits());
    assert!((norm(1) / exact.sqrt() - 1.0).abs() < 1e-12);
}

#[test]
fn what_is_not_finite_is_found_and_named() {
    let mut values = vec![1f32; kernel::CHUNK + 9];
    let make = |values: &[f32]| {
        let clean = Tensor::ones(3, DType::F64, &Device::Cpu).unwrap();
        of(vec![("a", clean), ("b", Tensor::from_slice(values, values.len(), &Device::Cpu).unwrap())])
    };
    assert!(first_non_finite(&make(&values)).unwrap().is_none());
    values[kernel::CHUNK + 2] = f32::NEG_INFINITY;
    values[kernel::CHUNK + 5] = f32::NAN;
    let grads = make(&values);
    let found = first_non_finite(&grads).unwrap().unwrap();
    assert_eq!((found.param.as_str(), found.index, found.count), ("b", kernel::CHUNK + 2, 2));
    assert_eq!(found.value, f64::NEG_INFINITY);
    let norms = grad_norms(&grads).unwrap();
    assert!(norms.per_param[0].1.is_finite() && norms.per_param[1].1.is_nan() && norms.total.is_nan());
}

#[test]
fn scales_of_clipping() {
    assert_eq!(clip_scale(0.5, 1.0), 1.0);
    assert_eq!(clip_scale(0.0, 1.0), 1.0);
    // torch.nn.utils.clip_grad_norm_ multiplies by max / (norm + 1e-6).
    assert_eq!(clip_scale(4.0, 1.0), 1.0 / 4.000001);
    assert_eq!(clip_scale(f64::INFINITY, 1.0), 0.0);
    assert!(clip_scale(f64::NAN, 1.0).is_nan());
    assert_eq!(Clip::None.step_scale(9.0), StepScale { scale: 1.0, clamp: None });
    assert_eq!(Clip::Norm(2.0).step_scale(1.0), StepScale { scale: 1.0, clamp: None });
    assert_eq!(Clip::Value(0.5).step_scale(f64::NAN), StepScale { scale: 1.0, clamp: Some(0.5) });
}

/// An infinite norm scales to 0, and infinity times 0 is NaN: the step refuses it all the same.
#[test]
fn an_infinite_norm_is_no_way_around_the_check() {
    let params = params(&[("w", &[2], vec![1.0; 2])], DType::F32);
    let mut optimizers = build(&[json!({"kind": "sgd", "lr": 1.0})], &params);
    let grads = grads(&params, |_, i| if i == 0 { f64::INFINITY } else { 1.0 });
    let scale = Clip::Norm(1.0).step_scale(grad_norms(&grads).unwrap().total);
    assert!(optimizers[0].step(&params, &grads, scale, &never).is_err());
    assert_eq!(values(params.get("w").unwrap().value()), [1.0, 1.0]);
}
