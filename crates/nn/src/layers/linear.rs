//! A dense layer.

use candle_core::{Result, Tensor};
use tenterhook_hooks::{Pass, PointId};

use crate::ops::{
    Activation, LinearGrads, Projection, WeightLayout, activate, linear, linear_activated,
    linear_cross_entropy,
};
use crate::param::{LossShare, Param};
use crate::scope::{Init, Scope};

/// `x @ W + b`, with its input and output as points.
#[derive(Clone, Debug)]
pub struct Linear {
    weight: Param,
    bias: Option<Param>,
    layout: WeightLayout,
    /// `None` when the layer before has shown it to the hooks already.
    input: Option<PointId>,
    output: PointId,
}

/// Which point a layer's input is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Input {
    /// A new one, `path.hook_in`.
    New,
    /// This one, which has another name already.
    At(PointId),
    /// The output of the layer before, where the hooks have seen it: a point fires once, however many names it has.
    OutputOf(PointId),
}

/// The sizes and the start of a [`Linear`].
#[derive(Clone, Copy, Debug)]
pub struct LinearSpec {
    /// Size of the input.
    pub inputs: usize,
    /// Size of the output.
    pub outputs: usize,
    /// Whether there is a bias.
    pub bias: bool,
    /// How the matrix lies in memory and on disk.
    pub layout: WeightLayout,
    /// Standard deviation of new weights.
    pub std: f64,
}

impl Linear {
    /// Declares weights and points at this scope. `output` is a point that has another name already, instead of a new one.
    pub fn new(scope: &Scope, spec: LinearSpec, input: Input, output: Option<PointId>) -> Result<Self> {
        let weight = Self::weight(scope, &spec)?;
        let bias = spec.bias.then(|| scope.param("bias", &[spec.outputs], Init::Zeros)).transpose()?;
        let (input, output) = declare(scope, input, output)?;
        Ok(Self { weight, bias, layout: spec.layout, input, output })
    }

    /// The same with a weight that another layer has too, such as a tied embedding.
    pub fn tied(scope: &Scope, weight: &Param, input: Input, output: Option<PointId>) -> Result<Self> {
        let (input, output) = declare(scope, input, output)?;
        Ok(Self { weight: weight.clone(), bias: None, layout: WeightLayout::OutIn, input, output })
    }

    fn weight(scope: &Scope, spec: &LinearSpec) -> Result<Param> {
        let shape = match spec.layout {
            WeightLayout::OutIn => [spec.outputs, spec.inputs],
            WeightLayout::InOut => [spec.inputs, spec.outputs],
        };
        scope.param("weight", &shape, Init::Normal { std: spec.std })
    }

    /// The product, with the hooks of the pass at its input and output.
    pub fn forward(&self, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        self.forward_by(x, pass, |x| self.product(x, pass))
    }

    /// The same with another way to get from the input to the output.
    pub fn forward_by(
        &self,
        x: &Tensor,
        pass: &Pass,
        product: impl FnOnce(&Tensor) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let x = match self.input {
            Some(point) => pass.tap(point, x.clone())?,
            None => x.clone(),
        };
        let y = product(&x)?;
        pass.tap_output(self.output, &x, y)
    }

    /// The product alone, without hooks.
    pub fn product(&self, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        linear(x, self.weight.at(pass), self.bias_at(pass), self.layout, &self.buffers(pass))
    }

    fn buffers(&self, pass: &Pass) -> LinearGrads {
        LinearGrads {
            weight: self.weight.buffer(pass),
            bias: self.bias.as_ref().and_then(|bias| bias.buffer(pass)),
        }
    }

    /// The activation of the product. They are one computation where nobody listens in between; the bits are the same.
    pub fn forward_activated(&self, x: &Tensor, act: Activation, pass: &Pass) -> Result<Tensor> {
        if self.is_watched(pass) {
            return activate(&self.forward(x, pass)?, act);
        }
        self.forward_by(x, pass, |x| {
            linear_activated(
                x,
                self.weight.at(pass),
                self.bias_at(pass),
                self.layout,
                act,
                &self.buffers(pass),
            )
        })
    }

    /// The mean cross entropy of the product as logits, which are never all in memory, without hooks; only without a bias.
    pub fn cross_entropy(
        &self,
        x: &Tensor,
        targets: &Tensor,
        ignore_index: Option<i64>,
        pass: &Pass,
    ) -> Result<Tensor> {
        if self.bias.is_some() {
            candle_core::bail!("a projection with a bias is not fused with its loss");
        }
        let grads = LinearGrads { weight: self.weight.buffer(pass), bias: None };
        let expected = pass.extension::<LossShare>().map_or(1.0, |share| share.0);
        linear_cross_entropy(x, self.weight.at(pass), self.layout, targets, ignore_index, expected, &grads)
    }

    /// Whether nobody listens at the input, as far as it is this layer's to show, or at the output.
    pub fn is_silent(&self, pass: &Pass) -> bool {
        !self.input.is_some_and(|point| pass.armed(point)) && !self.is_watched(pass)
    }

    /// The layer as a part of a branch: its hooks are not called.
    pub fn projection(&self, pass: &Pass) -> Projection {
        Projection {
            weight: self.weight.at(pass).clone(),
            bias: self.bias_at(pass).cloned(),
            layout: self.layout,
            grads: self.buffers(pass),
        }
    }

    /// Whether anybody listens at the output.
    pub fn is_watched(&self, pass: &Pass) -> bool {
        pass.armed(self.output)
    }

    /// The product in which only the bias is trained: for callers that send the gradient of input and weight another way.
    pub fn product_of_constants(&self, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        let grads = LinearGrads { weight: None, bias: self.bias.as_ref().and_then(|bias| bias.buffer(pass)) };
        linear(&x.detach(), self.weight.value(), self.bias_at(pass), self.layout, &grads)
    }

    /// The matrix as `[in, out]`, whatever its layout.
    pub fn matrix(&self, pass: &Pass) -> Result<Tensor> {
        match self.layout {
            WeightLayout::InOut => Ok(self.weight.at(pass).clone()),
            WeightLayout::OutIn => self.weight.at(pass).t(),
        }
    }

    /// The bias.
    pub fn bias_at(&self, pass: &Pass) -> Option<&Tensor> {
        self.bias.as_ref().map(|bias| bias.at(pass))
    }
}

/// Declares the module; the input is the point to tap, if this layer has to.
fn declare(scope: &Scope, input: Input, output: Option<PointId>) -> Result<(Option<PointId>, PointId)> {
    let known = match input {
        Input::New => None,
        Input::At(point) | Input::OutputOf(point) => Some(point),
    };
    let (point, output) = scope.layer(known, output)?;
    Ok((Some(point).filter(|_| !matches!(input, Input::OutputOf(_))), output))
}
