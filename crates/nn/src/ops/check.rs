//! What the tests of the ops share: reproducible random tensors, comparison of bits and of values, and the
//! comparison of a backward with finite differences.
#![allow(clippy::unwrap_used)]

use candle_core::{DType, Device, Result, Shape, Tensor, Var};

/// Inputs up to this size have every element checked, larger ones this many evenly spread elements.
const MAX_ELEMENTS: usize = 400;
/// Step of the fourth-order central difference: truncation and rounding both stay near 1e-12.
const STEP: f64 = 1e-3;
const TOLERANCE: f64 = 1e-6;

/// A tensor of reproducible numbers, uniform in -1..1.
pub(crate) fn random(shape: impl Into<Shape>, seed: u64, dtype: DType) -> Tensor {
    let shape = shape.into();
    let values: Vec<f64> = (0..shape.elem_count() as u64).map(|i| uniform(seed, i)).collect();
    Tensor::from_vec(values, shape, &Device::Cpu).unwrap().to_dtype(dtype).unwrap()
}

fn uniform(seed: u64, index: u64) -> f64 {
    let mut z =
        (index + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (seed + 1).wrapping_mul(0xD1B5_4A32_D192_ED03);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^= z >> 31;
    (z >> 11) as f64 / (1u64 << 52) as f64 - 1.0
}

/// The elements in row-major order, as f64 (exact for f32).
pub(crate) fn values(t: &Tensor) -> Vec<f64> {
    t.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// The largest absolute difference; equal infinities count as equal.
pub(crate) fn max_difference(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.dims(), b.dims(), "shapes differ");
    let pairs = values(a).into_iter().zip(values(b));
    pairs
        .map(|(a, b)| if a == b { 0.0 } else { (a - b).abs() })
        .fold(0.0, |worst, d| if d.is_nan() { f64::INFINITY } else { worst.max(d) })
}

/// Panics unless the two tensors have the same shape and the same bits.
pub(crate) fn assert_same_bits(name: &str, a: &Tensor, b: &Tensor) {
    assert_eq!(a.dims(), b.dims(), "{name}: shapes differ");
    assert_eq!(a.dtype(), b.dtype(), "{name}: dtypes differ");
    for (i, (a, b)) in values(a).into_iter().zip(values(b)).enumerate() {
        assert!(a.to_bits() == b.to_bits(), "{name}: element {i} differs: {a:e} and {b:e}");
    }
}

/// The output of `f` and the gradients of all inputs for a fixed random gradient of the output.
pub(crate) fn gradients(
    inputs: &[Tensor],
    f: impl Fn(&[Var]) -> Result<Tensor>,
) -> Result<(Tensor, Vec<Tensor>)> {
    let vars = inputs.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
    let output = f(&vars)?;
    let store = contract(&output)?.backward()?;
    let gradient = |(i, var): (usize, &Var)| match store.get(var) {
        Some(gradient) => Ok(gradient.clone()),
        None => candle_core::bail!("no gradient reached input {i}"),
    };
    let gradients = vars.iter().enumerate().map(gradient).collect::<Result<_>>()?;
    Ok((output, gradients))
}

/// Compares the backward of `f` with central differences in f64: for every input, the error relative to its
/// largest gradient entry must stay below 1e-6. `f` may take views of its inputs to try strided layouts.
pub(crate) fn check_gradients(name: &str, inputs: &[Tensor], f: impl Fn(&[Var]) -> Result<Tensor>) {
    let (_, analytic) = gradients(inputs, &f).unwrap();
    let loss = |which: usize, values: &[f64]| -> f64 {
        let replaced = Tensor::from_slice(values, inputs[which].shape(), &Device::Cpu).unwrap();
        let vars: Vec<Var> = (0..inputs.len())
            .map(|i| Var::from_tensor(if i == which { &replaced } else { &inputs[i] }).unwrap())
            .collect();
        contract(&f(&vars).unwrap()).unwrap().to_scalar().unwrap()
    };
    for (which, gradient) in analytic.iter().enumerate() {
        assert_eq!(inputs[which].dtype(), DType::F64, "{name}: finite differences need f64");
        assert_eq!(gradient.dims(), inputs[which].dims(), "{name}: shape of the gradient of input {which}");
        let gradient = values(gradient);
        let scale = gradient.iter().fold(1e-12, |largest: f64, g| largest.max(g.abs()));
        let mut point = values(&inputs[which]);
        for i in (0..point.len()).step_by(point.len().div_ceil(MAX_ELEMENTS).max(1)) {
            let centre = point[i];
            let mut at = |steps: f64| {
                point[i] = centre + steps * STEP;
                let value = loss(which, &point);
                point[i] = centre;
                value
            };
            let numeric = (8.0 * (at(1.0) - at(-1.0)) - (at(2.0) - at(-2.0))) / (12.0 * STEP);
            let error = (numeric - gradient[i]).abs() / scale;
            assert!(
                error <= TOLERANCE,
                "{name}: input {which}, element {i}: backward says {}, differences say {numeric} (error {error:e})",
                gradient[i]
            );
        }
    }
}

/// A scalar that weighs every output element differently.
fn contract(output: &Tensor) -> Result<Tensor> {
    (output * random(output.shape(), 0xC0FFEE, output.dtype()))?.sum_all()
}

#[test]
fn a_right_backward_passes() {
    check_gradients("square", &[random((3, 2), 1, DType::F64)], |x| x[0].t()?.sqr());
}

#[test]
#[should_panic(expected = "backward says")]
fn a_wrong_backward_is_found() {
    check_gradients("square", &[random((3, 2), 1, DType::F64)], |x| {
        x[0].as_tensor() * x[0].as_tensor().detach()
    });
}
