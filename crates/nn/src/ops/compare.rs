//! Comparisons that the tests of the ops share: one op on different numbers of threads, fused and composed.

use candle_core::{DType, Error, Result, Tensor, Var};

use super::check::{assert_same_bits, gradients, max_difference, values};
use super::composed_only;

/// The output and the gradients of `f` have the same bits on 1, 2 and 4 threads.
pub(crate) fn same_on_any_threads(
    name: &str,
    inputs: &[Tensor],
    f: impl Fn(&[Var]) -> Result<Tensor> + Sync,
) -> Result<()> {
    let run = |threads: usize| {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().map_err(Error::wrap)?;
        pool.install(|| gradients(inputs, &f))
    };
    let (y, grads) = run(1)?;
    for threads in [2, 4] {
        let (other_y, other_grads) = run(threads)?;
        assert_same_bits(name, &y, &other_y);
        for (i, (grad, other)) in grads.iter().zip(&other_grads).enumerate() {
            assert_same_bits(&format!("{name}, gradient {i}, {threads} threads"), grad, other);
        }
    }
    Ok(())
}

/// The fused f32 kernel agrees with the composed path in f64 within `tolerance`, relative to the largest value of each
/// result, and with the composed path in f32 nearly as well (its own rounding counts there).
pub(crate) fn fused_like_composed(
    name: &str,
    inputs: &[Tensor],
    tolerance: f64,
    f: impl Fn(&[Var]) -> Result<Tensor>,
) -> Result<()> {
    let run = |inputs: &[Tensor]| -> Result<Vec<Tensor>> {
        let (y, grads) = gradients(inputs, &f)?;
        Ok(std::iter::once(y).chain(grads).collect())
    };
    let fused = run(inputs)?;
    for (dtype, tolerance) in [(DType::F64, tolerance), (DType::F32, 5.0 * tolerance)] {
        let inputs = inputs.iter().map(|x| x.to_dtype(dtype)).collect::<Result<Vec<_>>>()?;
        let composed = composed_only(|| run(&inputs))?;
        for (i, (fused, composed)) in fused.iter().zip(&composed).enumerate() {
            let scale = values(composed).iter().fold(1e-3, |largest: f64, v| largest.max(v.abs()));
            let error = max_difference(fused, composed) / scale;
            assert!(error <= tolerance, "{name}: result {i} differs by {error:e} from the {dtype:?} one");
        }
    }
    Ok(())
}
