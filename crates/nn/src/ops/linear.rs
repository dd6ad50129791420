//! `x @ W + b` in one product, with the gradients of the parameters added straight into their buffers.

use candle_core::backend::BackendStorage;
use candle_core::{CpuStorage, CustomOp2, CustomOp3, Layout, Result, Shape, Tensor};
use std::sync::Arc;

use super::GradBuffer;
use super::cpu::{self, dispatch};
use super::grad_buffer::{deliver, deliver_written};
use super::product::{Finish, Mat, MatMut, Product};
use super::real::Real;

/// How the matrix of a linear layer is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WeightLayout {
    /// `[out, in]`, as in `nn.Linear`.
    OutIn,
    /// `[in, out]`, as in GPT-2's `Conv1D`.
    InOut,
}

impl WeightLayout {
    /// The sizes `(in, out)` of a weight in this layout.
    pub(crate) fn sizes(self, weight: &Shape) -> Result<(usize, usize)> {
        let (rows, cols) = weight.dims2()?;
        if rows == 0 || cols == 0 {
            candle_core::bail!("linear: an empty weight, {weight:?}");
        }
        Ok(match self {
            Self::OutIn => (cols, rows),
            Self::InOut => (rows, cols),
        })
    }

    /// The weight as an `[in, out]` matrix.
    pub(crate) fn in_out<T: Real>(self, weight: &[T], inputs: usize, outputs: usize) -> Mat<'_, T> {
        match self {
            Self::OutIn => Mat::new(weight, outputs, inputs).t(),
            Self::InOut => Mat::new(weight, inputs, outputs),
        }
    }

    /// Writes `x @ W + b`, and calls `finish` with its parts as they are complete.
    pub(crate) fn product<T: Real>(
        self,
        x: &[T],
        weight: &[T],
        bias: Option<&[T]>,
        (inputs, outputs): (usize, usize),
        finish: Option<&Finish<T>>,
        y: &mut [T],
    ) {
        let rows = x.len() / inputs;
        let product = Product::of(Mat::new(x, rows, inputs), self.in_out(weight, inputs, outputs));
        product.plus_row(bias).then(finish).write(MatMut::new(y, rows, outputs));
    }

    /// The gradient of the weight from `x [rows, in]` and the gradient of the output `g [rows, out]`.
    pub(crate) fn weight_grad<T: Real>(
        self,
        dst: &mut [T],
        accumulate: bool,
        (inputs, outputs): (usize, usize),
        x: Mat<T>,
        g: Mat<T>,
    ) {
        let (dst, a, b) = match self {
            Self::OutIn => (MatMut::new(dst, outputs, inputs), g.t(), x),
            Self::InOut => (MatMut::new(dst, inputs, outputs), x.t(), g),
        };
        match accumulate {
            true => Product::of(a, b).add_to(dst),
            false => Product::of(a, b).write(dst),
        }
    }
}

/// Where the gradients of a linear layer's parameters are added up; without a buffer they go to candle's tape.
#[derive(Clone, Debug, Default)]
pub struct LinearGrads {
    /// For the matrix.
    pub weight: Option<Arc<GradBuffer>>,
    /// For the bias.
    pub bias: Option<Arc<GradBuffer>>,
}

/// `x @ W + b` for `x [.., in]`, giving `[.., out]`.
///
/// A parameter that is a `Var` and has a buffer in `grads` gets its gradient there and none from `backward`'s store.
/// Other devices than the CPU know no buffers: there every gradient goes to the store.
pub fn linear(
    x: &Tensor,
    weight: &Tensor,
    bias: Option<&Tensor>,
    layout: WeightLayout,
    grads: &LinearGrads,
) -> Result<Tensor> {
    let op = LinearOp::checked(x, weight, bias, layout, grads)?;
    if !cpu::fused(x) {
        return composed(x, weight, bias, layout);
    }
    let x = x.contiguous()?;
    let weight = weight.contiguous()?;
    match bias {
        None => x.apply_op2(&weight, op),
        Some(bias) => x.apply_op3(&weight, &bias.contiguous()?, op),
    }
}

fn composed(x: &Tensor, weight: &Tensor, bias: Option<&Tensor>, layout: WeightLayout) -> Result<Tensor> {
    let (_, outputs) = layout.sizes(weight.shape())?;
    let weight = match layout {
        WeightLayout::OutIn => weight.t()?,
        WeightLayout::InOut => weight.clone(),
    };
    // One two-dimensional product: a broadcast one would copy the weight for every batch entry.
    let y = x.reshape(((), weight.dim(0)?))?.matmul(&weight)?;
    let y = match bias {
        Some(bias) => y.broadcast_add(bias)?,
        None => y,
    };
    y.reshape(with_last(x.dims(), outputs))
}

/// The shape with its last axis replaced.
pub(crate) fn with_last(dims: &[usize], last: usize) -> Shape {
    let mut dims = dims.to_vec();
    if let Some(size) = dims.last_mut() {
        *size = last;
    }
    Shape::from(dims)
}

pub(super) struct LinearOp {
    layout: WeightLayout,
    grads: LinearGrads,
}

impl LinearOp {
    /// The op for operands whose sizes fit.
    pub(super) fn checked(
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        layout: WeightLayout,
        grads: &LinearGrads,
    ) -> Result<Self> {
        let (inputs, outputs) = layout.sizes(weight.shape())?;
        if x.dims().last() != Some(&inputs) {
            candle_core::bail!(
                "linear: the last axis of {:?} is not the {inputs} inputs of the weight",
                x.shape()
            );
        }
        if let Some(bias) = bias.filter(|bias| bias.dims() != [outputs]) {
            candle_core::bail!("linear: a bias of shape {:?} for {outputs} outputs", bias.shape());
        }
        Ok(Self::new(layout, grads))
    }

    pub(super) fn new(layout: WeightLayout, grads: &LinearGrads) -> Self {
        Self { layout, grads: grads.clone() }
    }

    pub(super) fn layout(&self) -> WeightLayout {
        self.layout
    }

    fn forward<T: Real>(
        &self,
        x: (&CpuStorage, &Layout),
        w: (&CpuStorage, &Layout),
        bias: Option<(&CpuStorage, &Layout)>,
    ) -> Result<(CpuStorage, Shape)> {
        let (_, outputs) = self.layout.sizes(w.1.shape())?;
        let shape = with_last(x.1.dims(), outputs);
        // SAFETY: the product writes every element.
        let mut y = unsafe { cpu::uninit::<T>(shape.elem_count()) };
        self.product(x, w, bias, None, &mut y)?;
        Ok((T::to_cpu_storage_owned(y), shape))
    }

    /// Writes the product, and calls `finish` with its parts as they are complete.
    pub(super) fn product<T: Real>(
        &self,
        (x, xl): (&CpuStorage, &Layout),
        (w, wl): (&CpuStorage, &Layout),
        bias: Option<(&CpuStorage, &Layout)>,
        finish: Option<&Finish<T>>,
        y: &mut [T],
    ) -> Result<()> {
        let sizes = self.layout.sizes(wl.shape())?;
        let bias = bias.map(|(bias, layout)| cpu::slice::<T>(bias, layout)).transpose()?;
        self.layout.product(cpu::slice::<T>(x, xl)?, cpu::slice::<T>(w, wl)?, bias, sizes, finish, y);
        Ok(())
    }

    pub(super) fn backward<T: Real>(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: Option<&Tensor>,
        g: &Tensor,
    ) -> Result<[Option<Tensor>; 3]> {
        cpu::with_slice::<T, _>(g, |gs| {
            let dx = match x.track_op() {
                false => None,
                true => Some(cpu::tensor(self.input_grad(weight, gs, None)?, x.shape())?),
            };
            let [dw, db] = cpu::with_slice::<T, _>(x, |x| self.parameter_grads::<T>(x, gs, weight, bias))?;
            Ok([dx, dw, db])
        })
    }

    /// The gradient of the input from that of the output; `finish` is called with its parts as they are complete.
    pub(super) fn input_grad<T: Real>(
        &self,
        weight: &Tensor,
        g: &[T],
        finish: Option<&Finish<T>>,
    ) -> Result<Vec<T>> {
        let (inputs, outputs) = self.layout.sizes(weight.shape())?;
        let rows = g.len() / outputs;
        cpu::with_slice::<T, _>(weight, |w| {
            // SAFETY: the product writes every element.
            let mut dx = unsafe { cpu::uninit::<T>(rows * inputs) };
            let w = self.layout.in_out(w, inputs, outputs).t();
            Product::of(Mat::new(g, rows, outputs), w).then(finish).write(MatMut::new(&mut dx, rows, inputs));
            Ok(dx)
        })
    }

    /// Brings the gradients of weight and bias where they belong; gives what goes to the tape.
    pub(super) fn parameter_grads<T: Real>(
        &self,
        x: &[T],
        g: &[T],
        weight: &Tensor,
        bias: Option<&Tensor>,
    ) -> Result<[Option<Tensor>; 2]> {
        let (inputs, outputs) = self.layout.sizes(weight.shape())?;
        let rows = x.len() / inputs;
        let (x, gs) = (Mat::new(x, rows, inputs), Mat::new(g, rows, outputs));
        let dw = deliver_written(weight, self.grads.weight.as_ref(), |dw, fresh| {
            self.layout.weight_grad(dw, !fresh, (inputs, outputs), x, gs);
        })?;
        let add_sums = |db: &mut [T], _| cpu::add_column_sums(db, g, outputs);
        let db = bias.map(|bias| deliver(bias, self.grads.bias.as_ref(), add_sums)).transpose()?.flatten();
        Ok([dw, db])
    }
}

impl CustomOp2 for LinearOp {
    fn name(&self) -> &'static str {
        "linear"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        dispatch!(x.dtype(), T => self.forward::<T>((x, xl), (w, wl), None))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        _y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>)> {
        let [dx, dw, _] = dispatch!(x.dtype(), T => self.backward::<T>(x, weight, None, g))?;
        Ok((dx, dw))
    }
}

impl CustomOp3 for LinearOp {
    fn name(&self) -> &'static str {
        "linear with bias"
    }

    fn cpu_fwd(
        &self,
        x: &CpuStorage,
        xl: &Layout,
        w: &CpuStorage,
        wl: &Layout,
        b: &CpuStorage,
        bl: &Layout,
    ) -> Result<(CpuStorage, Shape)> {
        dispatch!(x.dtype(), T => self.forward::<T>((x, xl), (w, wl), Some((b, bl))))
    }

    fn bwd(
        &self,
        x: &Tensor,
        weight: &Tensor,
        bias: &Tensor,
        _y: &Tensor,
        g: &Tensor,
    ) -> Result<(Option<Tensor>, Option<Tensor>, Option<Tensor>)> {
        let [dx, dw, db] = dispatch!(x.dtype(), T => self.backward::<T>(x, weight, Some(bias), g))?;
        Ok((dx, dw, db))
    }
}

#[cfg(test)]
mod tests {
    use super::super::check::{assert_same_bits, check_gradients, random, values};
    use super::super::compare::{fused_like_composed, same_on_any_threads};
    use super::*;
    use candle_core::{DType, Var};

    const LAYOUTS: [WeightLayout; 2] = [WeightLayout::OutIn, WeightLayout::InOut];

    /// `x [3, 7, in]` as a transposed view, the weight and the bias.
    fn inputs(layout: WeightLayout, dtype: DType) -> [Tensor; 3] {
        let (inputs, outputs) = (13, 19);
        let weight = match layout {
            WeightLayout::OutIn => (outputs, inputs),
            WeightLayout::InOut => (inputs, outputs),
        };
        [random((7, 3, inputs), 1, dtype), random(weight, 2, dtype), random(outputs, 3, dtype)]
    }

    #[test]
    fn gradients_are_those_of_finite_differences() {
        for layout in LAYOUTS {
            let [x, w, b] = inputs(layout, DType::F64);
            let none = LinearGrads::default();
            check_gradients("linear", &[x.clone(), w.clone(), b], |v| {
                linear(&v[0].transpose(0, 1)?, &v[1], Some(&v[2]), layout, &none)
            });
            check_gradients("no bias", &[x, w], |v| {
                linear(&v[0].transpose(0, 1)?, &v[1], None, layout, &none)
            });
        }
    }

    #[test]
    fn fused_like_composed_on_any_threads() -> Result<()> {
        for layout in LAYOUTS {
            let none = LinearGrads::default();
            let f = |v: &[Var]| linear(&v[0].transpose(0, 1)?, &v[1], Some(&v[2]), layout, &none);
            fused_like_composed("linear", &inputs(layout, DType::F32), 1e-6, f)?;
            let large = [
                random((300, 4, 96), 1, DType::F32),
                random((96, 96), 2, DType::F32),
                random(96, 3, DType::F32),
            ];
            same_on_any_threads("linear", &large, f)?;
        }
        Ok(())
    }

    #[test]
    fn buffers_hold_the_gradient_of_the_tape_and_add_up() -> Result<()> {
        for layout in LAYOUTS {
            let [x, w, b] = inputs(layout, DType::F32);
            let (w, b) = (Var::from_tensor(&w)?, Var::from_tensor(&b)?);
            let step =
                |grads: &LinearGrads| linear(&x, &w, Some(&b), layout, grads)?.sqr()?.sum_all()?.backward();
            let tape = step(&LinearGrads::default())?;
            let grads = LinearGrads {
                weight: Some(Arc::new(GradBuffer::new(w.shape()))),
                bias: Some(Arc::new(GradBuffer::new(b.shape()))),
            };
            for passes in 1..=2 {
                for _ in 0..passes {
                    let store = step(&grads)?;
                    assert!(store.get(&w).is_none() && store.get(&b).is_none());
                }
                for (var, buffer) in [(&w, &grads.weight), (&b, &grads.bias)] {
                    let Some(sum) = buffer.as_ref().map(|b| b.take()).transpose()?.flatten() else {
                        panic!("nothing in the buffer")
                    };
                    let Some(once) = tape.get(var) else { panic!("nothing on the tape") };
                    match passes {
                        1 => assert_same_bits("buffer", once, &sum),
                        _ => assert!(
                            values(once)
                                .iter()
                                .zip(values(&sum))
                                .all(|(a, b)| (2.0 * a - b).abs() <= 1e-5 * b.abs())
                        ),
                    }
                }
            }
        }
        Ok(())
    }

    #[test]
    fn constants_get_no_gradient_and_views_of_parameters_use_the_tape() -> Result<()> {
        let [x, w, _] = inputs(WeightLayout::OutIn, DType::F32);
        let (x, w) = (Var::from_tensor(&x)?, Var::from_tensor(&w)?);
        let buffer = Arc::new(GradBuffer::new(w.shape()));
        let grads = LinearGrads { weight: Some(buffer.clone()), bias: None };
        let y = linear(&x, &w.as_detached_tensor(), None, WeightLayout::OutIn, &grads)?;
        let store = y.sum_all()?.backward()?;
        assert!(store.get(&x).is_some() && store.get(&w).is_none() && buffer.take()?.is_none());
        let store =
            linear(&x, &(w.as_tensor() * 2.0)?, None, WeightLayout::OutIn, &grads)?.sum_all()?.backward()?;
        assert!(store.get(&w).is_some() && buffer.take()?.is_none());
        let constant =
            linear(&x.as_detached_tensor(), &w.as_detached_tensor(), None, WeightLayout::OutIn, &grads)?;
        assert!(!constant.track_op());
        Ok(())
    }

    #[test]
    fn sizes_that_do_not_fit_are_errors() {
        let [x, w, b] = inputs(WeightLayout::OutIn, DType::F32);
        let none = LinearGrads::default();
        assert!(linear(&x, &w, Some(&b), WeightLayout::InOut, &none).is_err());
        assert!(linear(&x, &w, Some(&random(13, 1, DType::F32)), WeightLayout::OutIn, &none).is_err());
        let wrong = LinearGrads { weight: Some(Arc::new(GradBuffer::new(3))), bias: None };
        let y =
            Var::from_tensor(&w).and_then(|w| linear(&x, &w, None, WeightLayout::OutIn, &wrong)?.sum_all());
        assert!(y.and_then(|y| y.backward()).is_err());
    }
}
