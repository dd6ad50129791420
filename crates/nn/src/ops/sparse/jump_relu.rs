//! JumpReLU and the step function, with the pseudo-derivatives by which their thresholds are trained.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, Layout, Result, Shape, Tensor};

use super::super::cpu::{self, dispatch};
use super::super::real::Real;

/// How a threshold is trained: both functions jump there and have no derivative. In its place stands a rectangle of this width around the
/// threshold, whose height follows from the height of the jump.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JumpSpec {
    /// The width of the rectangle.
    pub bandwidth: f64,
    /// Whether the pre-activations get that gradient too, and not the threshold alone.
    pub to_input: bool,
}

/// `x` where it is above the threshold `[columns]`, else 0.
pub fn jump_relu(x: &Tensor, threshold: &Tensor, spec: JumpSpec) -> Result<Tensor> {
    apply(x, threshold, JumpOp { spec, keeps_value: true })
}

/// 1 where `x` is above the threshold `[columns]`, else 0.
pub fn step(x: &Tensor, threshold: &Tensor, spec: JumpSpec) -> Result<Tensor> {
    apply(x, threshold, JumpOp { spec, keeps_value: false })
}

fn apply(x: &Tensor, threshold: &Tensor, op: JumpOp) -> Result<Tensor> {
    let columns = *x.dims().last().unwrap_or(&0);
    if threshold.dims() != [columns] {
        candle_core::bail!("a threshold of shape {:?} for {columns} columns", threshold.shape());
    }
    match cpu::fused(x) {
        true => x.contiguous()?.apply_op2(&threshold.contiguous()?, op),
        false => composed(x, threshold, op),
    }
}

/// The same of the engine's ops: terms that are 0 carry the pseudo-derivatives.
fn composed(x: &Tensor, threshold: &Tensor, JumpOp { spec, keeps_value }: JumpOp) -> Result<Tensor> {
    let (fixed, at) = (x.detach(), threshold.detach());
    let above = fixed.broadcast_gt(&at)?.to_dtype(x.dtype())?;
    let distance = (fixed.broadcast_sub(&at)? / spec.bandwidth)?;
    let near = (distance.gt(-0.5)? * distance.lt(0.5)?)?.to_dtype(x.dtype())?;
    let height = if keeps_value { at } else { at.ones_like()? };
    let slope = near.broadcast_mul(&(height / spec.bandwidth)?)?;
    let value = if keeps_value { (x * &above)? } else { above };
    let value = (value - slope.broadcast_mul(&(threshold - threshold.detach())?)?)?;
    let to_input = if spec.to_input { slope } else { slope.zeros_like()? };
    value + (to_input * (x - x.detach())?)?
}

struct JumpOp {
    spec: JumpSpec,
    /// JumpReLU, or the step function.
    keeps_value: bool,
}

impl JumpOp {
    fn forward<T: Real>(
        &self,
        (x, xl): (&CpuStorage, &Layout),
        (t, tl): (&CpuStorage, &Layout),
    ) -> Result<(CpuStorage, Shape)> {
        let (x, t) = (cpu::slice::<T>(x, xl)?, cpu::slice::<T>(t, tl)?);
        let columns = t.len();
        let mut y = vec![T::zero(); x.len()];
        cpu::for_chunks(&mut y, cpu::chunk_rows(columns) * columns, |start, y| {
            let rows = y.chunks_exact_mut(columns).zip(x[start..].chunks_exact(columns));
            for (y, x) in rows {
                for ((y, x), t) in y.iter_mut().zip(x).zip(t) {
                    let value = if self.keeps_value { *x } else { T::one() };
                    // Written so that NaN stays NaN.
                    *y = if *x <= *t { T::zero() } else { value };
                }
            }
        });
        Ok((T::to_cpu_storage_owned(y), xl.shape().clone()))
    }

    fn backward<T: Real>(
        &self,
        x: &Tensor,
        t: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let columns = t.elem_count();
        let (bandwidth, half) = (T::of(self.spec.bandwidth), T::of(0.5));
        let mut dx = vec![T::zero(); x.elem_count()];
        let mut slopes = vec![T::zero(); x.elem_count()];
        cpu::with_slice::<T, _>(x, |x| {
            cpu::with_slice::<T, _>(t, |t| {
                cpu::with_slice::<T, _>(g, |g| {
                    cpu::for_chunks(&mut slopes, cpu::chunk_rows(columns) * columns, |start, slopes| {
                        for (i, slope) in slopes.iter_mut().enumerate() {
                            let (x, t, g) = (x[start + i], t[i % columns], g[start + i]);
                            let distance = (x - t) / bandwidth;
                            if distance > -half && distance < half {
                                let height = if self.keeps_value { t } else { T::one() };
                                *slope = height / bandwidth * g;
                            }
                        }
                    });
                    cpu::for_chunks(&mut dx, cpu::chunk_rows(columns) * columns, |start, dx| {
                        for (i, dx) in dx.iter_mut().enumerate() {
                            let above = self.keeps_value && x[start + i] > t[i % columns];
                            let own = if above { g[start + i] } else { T::zero() };
                            *dx = if self.spec.to_input { own + slopes[start + i] } else { own };
                        }
                    });
                    Ok(())
                })
            })
        })?;
        let mut sums = vec![T::zero(); columns];
        cpu::add_column_sums(&mut sums, &slopes, columns);
        let dt = sums.into_iter().map(|sum| -sum).collect();
        Ok((Some(cpu::tensor(dx, x.shape())?), Some(cpu::tensor(dt, t.shape())?)))
    }
}

impl CustomOp2 for JumpOp {
    fn name(&self) -> &'static str {
        "jump_relu"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        t: &CpuStorage,
        tl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        dispatch!(x.dtype(), T => self.forward::<T>((x, xl), (t, tl)))
    }

    fn bwd(
        &self,
        x: &Tensor,
        t: &Tensor,
        _y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        dispatch!(x.dtype(), T => self.backward::<T>(x, t, g))
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::check::{check_gradients, gradients, random, values};
    use super::super::super::compare::{fused_like_composed, same_on_any_threads};
    use super::*;
    use candle_core::{DType, Device, Var};

    const SPECS: [JumpSpec; 2] =
        [JumpSpec { bandwidth: 0.2, to_input: false }, JumpSpec { bandwidth: 0.7, to_input: true }];

    #[test]
    fn above_the_threshold_the_gradient_is_that_of_finite_differences() {
        // Far from every threshold, where there is a derivative.
        let x = random((5, 17), 1, DType::F64).affine(1.0, 3.0).unwrap();
        let threshold = random(17, 2, DType::F64).abs().unwrap();
        let spec = JumpSpec { bandwidth: 0.1, to_input: false };
        check_gradients("jump_relu", &[x], |v| jump_relu(&v[0], &threshold, spec));
    }

    #[test]
    fn fused_like_composed_on_any_threads() -> Result<()> {
        for spec in SPECS {
            let inputs = [random((300, 70), 1, DType::F32), random(70, 2, DType::F32).abs()?];
            for f in [jump_relu, step] {
                let f = |v: &[Var]| f(&v[0], &v[1], spec);
                fused_like_composed("jump", &inputs, 1e-6, f)?;
                same_on_any_threads("jump", &inputs, f)?;
            }
        }
        Ok(())
    }

    /// By hand: a rectangle of width 0.5 around 1.
    #[test]
    fn pseudo_derivatives_are_a_rectangle_around_the_threshold() -> Result<()> {
        let x = Tensor::new(&[[0.5f64], [0.8], [1.0], [1.2], [2.0]], &Device::Cpu)?;
        let threshold = Tensor::new(&[1f64], &Device::Cpu)?;
        let one = |f: fn(&Tensor, &Tensor, JumpSpec) -> Result<Tensor>, to_input| {
            let spec = JumpSpec { bandwidth: 0.5, to_input };
            let (x, t) = (Var::from_tensor(&x)?, Var::from_tensor(&threshold)?);
            let y = f(&x, &t, spec)?;
            let store = y.sum_all()?.backward()?;
            let of = |var: &Var| store.get(var).map(values).unwrap_or_default();
            Ok::<_, candle_core::Error>((values(&y), of(&x), of(&t)))
        };
        assert_eq!(one(jump_relu, false)?, (vec![0., 0., 0., 1.2, 2.], vec![0., 0., 0., 1., 1.], vec![-6.]));
        assert_eq!(one(jump_relu, true)?.1, [0., 2., 2., 3., 1.]);
        assert_eq!(one(step, false)?, (vec![0., 0., 0., 1., 1.], vec![0.; 5], vec![-6.]));
        assert_eq!(one(step, true)?.1, [0., 2., 2., 2., 0.]);
        assert!(gradients(&[x.clone(), random(3, 1, DType::F64)], |v| step(&v[0], &v[1], SPECS[0])).is_err());
        Ok(())
    }
}
