//! What layer norm and RMS norm share: the checks, what can be watched inside, and the composed form.
//!
//! Whole, watched or split into pieces, a norm does the same arithmetic in the same order:
//! `centered = x - mean` (layer norm only), `scale = sqrt(mean(centered^2) + eps)`, `normalized = centered / scale`,
//! `y = normalized * gain + bias`. That is what keeps the three bitwise equal.

use candle_core::{Result, Shape, Tensor};
use std::sync::{Arc, OnceLock};

use super::cpu::{self, dispatch};
use super::linear::with_last;
use super::norm_kernel::{NormOp, normalized};
use super::norm_pieces::{center, norm_scale};
use super::real::Real;

/// Called in the backward with the gradient of a watched value.
pub type GradWatch = Arc<dyn Fn(&Tensor) -> Result<()> + Send + Sync>;

/// What to show of the inside of a norm. By default nothing; whatever is asked for, no other result changes a bit.
#[derive(Clone, Default)]
pub struct NormWatch {
    /// Give out the scale, `[.., 1]`.
    pub scale: bool,
    /// Give out the normalized input, `[.., d]`: what the gain is multiplied with.
    pub normalized: bool,
    /// Receives the gradient of the scale, `[.., 1]`.
    pub scale_grad: Option<GradWatch>,
    /// Receives the gradient of the normalized input, `[.., d]`.
    pub normalized_grad: Option<GradWatch>,
}

/// The result of a norm, with what was asked to be watched (detached from the tape).
#[derive(Debug)]
pub struct NormOutput {
    /// The normed tensor.
    pub y: Tensor,
    /// The divisor of every row, `[.., 1]`.
    pub scale: Option<Tensor>,
    /// The input after the division, before gain and bias, `[.., d]`.
    pub normalized: Option<Tensor>,
}

/// Which norm, and its constants.
#[derive(Clone, Copy)]
pub(crate) struct Norm {
    pub(crate) name: &'static str,
    /// Whether the mean is subtracted first.
    pub(crate) centered: bool,
    pub(crate) eps: f64,
    /// Added to the weight to give the gain.
    pub(crate) weight_offset: f64,
}

impl Norm {
    pub(crate) fn apply(
        self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        watch: &NormWatch,
    ) -> Result<NormOutput> {
        let name = self.name;
        let width = weight.dims1()?;
        if width == 0 || x.dims().last() != Some(&width) {
            candle_core::bail!("{name}: the last axis of {:?} is not the {width} of the weight", x.shape());
        }
        if let Some(bias) = bias.filter(|bias| bias.dims() != [width]) {
            candle_core::bail!("{name}: a bias of shape {:?} for a width of {width}", bias.shape());
        }
        match cpu::fused(x) {
            true => dispatch!(x.dtype(), T => self.fused::<T>(x, weight, bias, watch)),
            false => self.composed(x, weight, bias, watch),
        }
    }

    fn fused<T: Real>(
        self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        watch: &NormWatch,
    ) -> Result<NormOutput> {
        let x = x.contiguous()?;
        let weight = weight.contiguous()?;
        let stats = Arc::new(OnceLock::new());
        let op = NormOp::<T> { norm: self, stats: stats.clone(), watch: watch.clone() };
        let y = match bias {
            None => x.apply_op2(&weight, op)?,
            Some(bias) => x.apply_op3(&weight, &bias.contiguous()?, op)?,
        };
        let rows = stats.get().map_or(&[][..], Vec::as_slice);
        let scale = || cpu::tensor(rows.iter().map(|row| row.scale).collect(), per_row(&x));
        let normalized = || cpu::with_slice(&x, |values| cpu::tensor(normalized(values, rows), x.shape()));
        Ok(NormOutput {
            scale: watch.scale.then(scale).transpose()?,
            normalized: watch.normalized.then(normalized).transpose()?,
            y,
        })
    }

    fn composed(
        self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        watch: &NormWatch,
    ) -> Result<NormOutput> {
        if watch.scale_grad.is_some() || watch.normalized_grad.is_some() {
            candle_core::bail!("watching gradients inside a norm needs the CPU kernels");
        }
        let centered = if self.centered { center(x)? } else { x.clone() };
        let scale = norm_scale(&centered, self.eps)?;
        let normalized = centered.broadcast_div(&scale)?;
        let gain = if self.weight_offset == 0.0 { weight.clone() } else { (weight + self.weight_offset)? };
        let y = normalized.broadcast_mul(&gain)?;
        let y = match bias {
            Some(bias) => y.broadcast_add(bias)?,
            None => y,
        };
        Ok(NormOutput {
            y,
            scale: watch.scale.then(|| scale.detach()),
            normalized: watch.normalized.then(|| normalized.detach()),
        })
    }
}

/// The shape `[.., 1]` of one value per row.
pub(crate) fn per_row(x: &Tensor) -> Shape {
    with_last(x.dims(), 1)
}

#[cfg(test)]
mod tests {
    use super::super::check::{assert_same_bits, check_gradients, random, values};
    use super::super::compare::{fused_like_composed, same_on_any_threads};
    use super::super::{composed_only, layer_norm, rms_norm};
    use super::*;
    use candle_core::{DType, Var};
    use std::sync::Mutex;

    const EPS: f64 = 1e-5;

    /// Layer norm with a bias and without, RMS norm and Gemma's, on `[x, weight, bias]`.
    fn norm(case: usize, v: &[Var], watch: &NormWatch) -> Result<NormOutput> {
        match case {
            0 => layer_norm(&v[0], &v[1], Some(&v[2]), EPS, watch),
            1 => layer_norm(&v[0], &v[1], None, EPS, watch),
            2 => rms_norm(&v[0], &v[1], EPS, 0.0, watch),
            _ => rms_norm(&v[0], &v[1], EPS, 1.0, watch),
        }
    }

    fn inputs(case: usize, x: &[usize], dtype: DType) -> Vec<Tensor> {
        let width = x[x.len() - 1];
        let all = [random(x, 1, dtype), random(width, 2, dtype), random(width, 3, dtype)];
        all.into_iter().take(if case == 0 { 3 } else { 2 }).collect()
    }

    /// The norm made of its pieces: the result, the scale and the normalized input.
    fn split(case: usize, v: &[Var]) -> Result<[Tensor; 3]> {
        let centered = if case < 2 { center(&v[0])? } else { v[0].as_tensor().clone() };
        let scale = norm_scale(&centered, EPS)?;
        let normalized = centered.broadcast_div(&scale)?;
        let gain = if case == 3 { (v[1].as_tensor() + 1.0)? } else { v[1].as_tensor().clone() };
        let y = normalized.broadcast_mul(&gain)?;
        let y = if case == 0 { y.broadcast_add(&v[2])? } else { y };
        Ok([y, scale, normalized])
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for case in 0..4 {
            let shape = [3, 5, 37];
            check_gradients("norm", &inputs(case, &shape, DType::F64), |v| {
                Ok(norm(case, v, &NormWatch::default())?.y)
            });
            check_gradients("pieces", &inputs(case, &shape, DType::F64), |v| Ok(split(case, v)?[0].clone()));
            let strided = [random((7, 3, 5), 1, DType::F64), random(7, 2, DType::F64)];
            check_gradients("strided", &strided, |v| {
                let x = v[0].transpose(0, 2)?;
                let silent = NormWatch::default();
                match case % 2 {
                    0 => Ok(layer_norm(&x, &v[1], None, EPS, &silent)?.y),
                    _ => Ok(rms_norm(&x, &v[1], EPS, 0.0, &silent)?.y),
                }
            });
        }
    }

    #[test]
    fn fused_like_composed_on_any_threads() -> Result<()> {
        for case in 0..4 {
            let inputs = inputs(case, &[7, 43, 133], DType::F32);
            let f = |v: &[Var]| Ok(norm(case, v, &NormWatch::default())?.y);
            fused_like_composed("norm", &inputs, 2e-6, f)?;
            same_on_any_threads("norm", &inputs, f)?;
        }
        Ok(())
    }

    #[test]
    fn the_pieces_and_the_side_outputs_have_the_bits_of_the_whole() -> Result<()> {
        for (case, width) in [(0, 1), (0, 33), (0, 769), (1, 100), (2, 7), (2, 769), (3, 65)] {
            for rows in [1, 301] {
                let vars = inputs(case, &[rows, width], DType::F32);
                let vars = vars.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
                let watch = NormWatch { scale: true, normalized: true, ..NormWatch::default() };
                let whole = norm(case, &vars, &watch)?;
                let [y, scale, normalized] = split(case, &vars)?;
                assert_same_bits("y", &whole.y, &y);
                for (side, piece) in [(whole.scale, scale), (whole.normalized, normalized)] {
                    let Some(side) = side else { panic!("not given out") };
                    assert!(!side.track_op());
                    assert_same_bits("side output", &side, &piece);
                }
            }
        }
        Ok(())
    }

    fn recorder() -> (Arc<Mutex<Vec<Tensor>>>, GradWatch) {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let keep = seen.clone();
        let watch = move |g: &Tensor| {
            keep.lock().map_err(|e| candle_core::Error::msg(e.to_string()))?.push(g.clone());
            Ok(())
        };
        (seen, Arc::new(watch))
    }

    #[test]
    fn watching_changes_no_bit_and_sees_the_gradients_of_the_nodes() -> Result<()> {
        for case in 0..4 {
            let vars = inputs(case, &[5, 61, 47], DType::F32);
            let vars = vars.iter().map(Var::from_tensor).collect::<Result<Vec<_>>>()?;
            let (scales, scale_grad) = recorder();
            let (normals, normalized_grad) = recorder();
            let watch = NormWatch {
                scale: true,
                normalized: true,
                scale_grad: Some(scale_grad),
                normalized_grad: Some(normalized_grad),
            };
            let (silent, watched) =
                (norm(case, &vars, &NormWatch::default())?.y, norm(case, &vars, &watch)?.y);
            assert_same_bits("y", &silent, &watched);
            let (silent, watched) =
                (silent.sqr()?.sum_all()?.backward()?, watched.sqr()?.sum_all()?.backward()?);
            for var in &vars {
                let (Some(a), Some(b)) = (silent.get(var), watched.get(var)) else { panic!("no gradient") };
                assert_same_bits("gradient", a, b);
            }
            // The same norm with the scale and the normalized input as leaves.
            let [_, scale, normalized] = split(case, &vars)?;
            let (scale, normalized) =
                (Var::from_tensor(&scale.detach())?, Var::from_tensor(&normalized.detach())?);
            let x = vars[0].as_detached_tensor();
            let centered = if case < 2 { center(&x)? } else { x };
            let gain = if case == 3 { (vars[1].as_tensor() + 1.0)? } else { vars[1].as_tensor().clone() };
            let rest = |normalized: &Tensor| {
                let y = normalized.broadcast_mul(&gain)?;
                if case == 0 { y.broadcast_add(&vars[2])? } else { y }.sqr()?.sum_all()?.backward()
            };
            let of_scale = rest(&centered.broadcast_div(&scale)?)?;
            let of_normalized = rest(&normalized)?;
            let nodes = [(scales, of_scale.get(&scale)), (normals, of_normalized.get(&normalized))];
            for (seen, expected) in nodes {
                let seen = seen.lock().map_err(|e| candle_core::Error::msg(e.to_string()))?;
                let (1, Some(expected)) = (seen.len(), expected) else { panic!("one call per backward") };
                assert_eq!(seen[0].dims(), expected.dims());
                let close = |(a, b): (f64, f64)| (a - b).abs() <= 2e-5 * (1.0 + b.abs());
                assert!(values(&seen[0]).into_iter().zip(values(expected)).all(close), "case {case}");
            }
        }
        Ok(())
    }

    #[test]
    fn what_cannot_work_is_an_error() -> Result<()> {
        let (x, w) = (random((3, 4), 1, DType::F32), random(4, 2, DType::F32));
        let watch = NormWatch { scale_grad: Some(recorder().1), ..NormWatch::default() };
        let error = composed_only(|| rms_norm(&x, &w, EPS, 0.0, &watch)).err().map(|e| e.to_string());
        assert!(error.is_some_and(|e| e.contains("needs the CPU kernels")));
        assert!(layer_norm(&x, &random(3, 2, DType::F32), None, EPS, &NormWatch::default()).is_err());
        assert!(layer_norm(&x, &w, Some(&random(3, 2, DType::F32)), EPS, &NormWatch::default()).is_err());
        Ok(())
    }
}
