//! Activation functions, fused and vectorised.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp1, Layout, Result, Shape, Tensor, WithDType};

use super::cpu::{self, CHUNK, dispatch};
use super::real::Real;

/// The activation functions of the supported models.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Activation {
    /// `x * Phi(x)`, with the error function.
    Gelu,
    /// GELU's tanh form, `x * sigmoid(2u)` with `u = sqrt(2/pi) (x + 0.044715 x^3)`.
    GeluTanh,
    /// `x * sigmoid(x)`, also called swish.
    Silu,
    /// `max(x, 0)`.
    Relu,
    /// `x * sigmoid(1.702 x)`.
    QuickGelu,
}

impl Activation {
    /// The activation a Hugging Face configuration means by this name.
    pub fn parse(name: &str) -> Option<Self> {
        Some(match name {
            "gelu" | "gelu_python" => Self::Gelu,
            "gelu_new" | "gelu_pytorch_tanh" | "gelu_fast" => Self::GeluTanh,
            "silu" | "swish" => Self::Silu,
            "relu" => Self::Relu,
            "quick_gelu" => Self::QuickGelu,
            _ => return None,
        })
    }
}

/// Applies the activation to every element.
pub fn activate(x: &Tensor, act: Activation) -> Result<Tensor> {
    match cpu::fused(x) {
        true => x.contiguous()?.apply_op1(ActivationOp(act)),
        false => composed(x, act),
    }
}

pub(crate) fn composed(x: &Tensor, act: Activation) -> Result<Tensor> {
    match act {
        Activation::Gelu => x.gelu_erf(),
        Activation::GeluTanh => x.gelu(),
        Activation::Silu => x.silu(),
        Activation::Relu => x.relu(),
        Activation::QuickGelu => x * ((x * -1.702)?.exp()? + 1.0)?.recip()?,
    }
}

/// Binds `$f` to the function behind `$act`, so that every kernel is compiled, and vectorised, for each of them.
macro_rules! with_curve {
    ($act:expr, $f:ident => $body:expr) => {{
        use crate::ops::activation::{Activation, gelu, gelu_tanh, quick_gelu, relu, silu};
        match $act {
            Activation::Gelu => {
                let $f = gelu;
                $body
            }
            Activation::GeluTanh => {
                let $f = gelu_tanh;
                $body
            }
            Activation::Silu => {
                let $f = silu;
                $body
            }
            Activation::Relu => {
                let $f = relu;
                $body
            }
            Activation::QuickGelu => {
                let $f = quick_gelu;
                $body
            }
        }
    }};
}
pub(crate) use with_curve;

// Each gives the value and the slope; where one is not used the compiler drops its computation.

#[inline(always)]
pub(crate) fn gelu<T: Real>(x: T) -> (T, T) {
    let half = T::of(0.5);
    let below = half + half * (x * T::of(std::f64::consts::FRAC_1_SQRT_2)).fast_erf();
    let density = T::of(0.398_942_280_401_432_7) * (-half * x * x).fast_exp(); // 1 / sqrt(2 pi)
    (x * below, below + x * density)
}

#[inline(always)]
pub(crate) fn gelu_tanh<T: Real>(x: T) -> (T, T) {
    let twice_root = T::of(1.595_769_121_605_730_8); // 2 sqrt(2 / pi)
    let square = x * x;
    let (s, rest) = sigmoid(twice_root * x * (T::one() + T::of(0.044_715) * square));
    let slope = twice_root * (T::one() + T::of(3.0 * 0.044_715) * square);
    (x * s, s + x * s * rest * slope)
}

#[inline(always)]
pub(crate) fn silu<T: Real>(x: T) -> (T, T) {
    let (s, rest) = sigmoid(x);
    (x * s, s + x * s * rest)
}

#[inline(always)]
pub(crate) fn relu<T: Real>(x: T) -> (T, T) {
    // Written so that NaN stays NaN.
    let value = if x < T::zero() { T::zero() } else { x };
    (value, if x > T::zero() { T::one() } else { T::zero() })
}

#[inline(always)]
pub(crate) fn quick_gelu<T: Real>(x: T) -> (T, T) {
    let steep = T::of(1.702);
    let (s, rest) = sigmoid(steep * x);
    (x * s, s + steep * x * s * rest)
}

/// The sigmoid and 1 minus it, neither of which loses digits or overflows.
#[inline(always)]
fn sigmoid<T: Real>(x: T) -> (T, T) {
    let e = (-x.abs()).fast_exp();
    let large = T::one() / (T::one() + e);
    let small = e * large;
    if x > T::zero() { (large, small) } else { (small, large) }
}

struct ActivationOp(Activation);

fn values<T: Real>(x: &[T], f: impl Fn(T) -> (T, T) + Sync) -> Vec<T> {
    // SAFETY: every element is written.
    let mut y = unsafe { cpu::uninit::<T>(x.len()) };
    cpu::for_chunks(&mut y, CHUNK, |start, y| {
        cpu::wide(
            #[inline(always)]
            || {
                for (y, &x) in y.iter_mut().zip(&x[start..]) {
                    *y = f(x).0;
                }
            },
        );
    });
    y
}

/// The gradient of the input from that of the output.
pub(crate) fn gradients<T: Real>(x: &[T], g: &[T], f: impl Fn(T) -> (T, T) + Sync) -> Vec<T> {
    // SAFETY: every element is written.
    let mut dx = unsafe { cpu::uninit::<T>(x.len()) };
    cpu::for_chunks(&mut dx, CHUNK, |start, dx| {
        cpu::wide(
            #[inline(always)]
            || {
                for ((dx, &x), &g) in dx.iter_mut().zip(&x[start..]).zip(&g[start..]) {
                    *dx = g * f(x).1;
                }
            },
        );
    });
    dx
}

impl CustomOp1 for ActivationOp {
    fn name(&self) -> &'static str {
        "activation"
    }

    fn cpu_fwd(&self, x: &CpuStorage, layout: &Layout) -> Result<(CpuStorage, Shape)> {
        dispatch!(x.dtype(), T => {
            let x = cpu::slice::<T>(x, layout)?;
            let y = with_curve!(self.0, f => values(x, f));
            Ok((T::to_cpu_storage_owned(y), layout.shape().clone()))
        })
    }

    fn bwd(&self, x: &Tensor, _y: &Tensor, g: &Tensor) -> Result<Option<Tensor>> {
        let dx = dispatch!(x.dtype(), T => cpu::with_slice::<T, _>(x, |xs| cpu::with_slice::<T, _>(g, |g| {
            cpu::tensor(with_curve!(self.0, f => gradients(xs, g, f)), x.shape())
        })));
        dx.map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{check_gradients, gradients, max_difference, random, values};
    use super::super::compare::{fused_like_composed, same_on_any_threads};
    use super::*;
    use candle_core::{DType, Device};

    const ALL: [Activation; 5] =
        [Activation::Gelu, Activation::GeluTanh, Activation::Silu, Activation::Relu, Activation::QuickGelu];

    #[test]
    fn gradients_are_those_of_finite_differences() -> Result<()> {
        for act in ALL {
            let x = (random((5, 7, 3), 4, DType::F64) * 4.0)?;
            check_gradients("activation", &[x], |v| activate(&v[0].transpose(0, 2)?, act));
        }
        Ok(())
    }

    #[test]
    fn fused_like_composed_on_any_threads() -> Result<()> {
        for act in ALL {
            let x = [(random((211, 307), 4, DType::F32) * 6.0)?];
            // The constants in candle's own backward have six digits.
            fused_like_composed("activation", &x, 3e-6, |v| activate(&v[0].t()?, act))?;
            same_on_any_threads("activation", &x, |v| activate(&v[0], act))?;
        }
        Ok(())
    }

    #[test]
    fn single_precision_is_close_to_double() -> Result<()> {
        for act in ALL {
            let x = (random(20_000, 4, DType::F32) * 9.0)?;
            let (y, slopes) = gradients(std::slice::from_ref(&x), |v| activate(&v[0], act))?;
            let (exact_y, exact_slopes) = gradients(&[x.to_dtype(DType::F64)?], |v| activate(&v[0], act))?;
            assert!(max_difference(&y, &exact_y) < 2e-6, "{act:?}");
            assert!(max_difference(&slopes[0], &exact_slopes[0]) < 1e-6, "{act:?}");
        }
        Ok(())
    }

    #[test]
    fn far_out_values_neither_overflow_nor_hide_nan() -> Result<()> {
        for act in ALL {
            let x = Tensor::new(&[-1e4f32, -90.0, 90.0, 1e4, f32::NAN], &Device::Cpu)?;
            let y = values(&activate(&x, act)?);
            assert_eq!(y[..4], [0.0, 0.0, 90.0, 1e4], "{act:?}");
            assert!(y[4].is_nan(), "{act:?}");
        }
        Ok(())
    }

    #[test]
    fn names_of_hugging_face() {
        assert_eq!(Activation::parse("gelu_new"), Some(Activation::GeluTanh));
        assert_eq!(Activation::parse("gelu"), Some(Activation::Gelu));
        assert_eq!(Activation::parse("swish"), Some(Activation::Silu));
        assert_eq!(Activation::parse("tanh"), None);
    }
}
