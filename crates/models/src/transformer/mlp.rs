//! The MLP of a block.

use candle_core::{D, Result, Tensor};
use tenterhook_hooks::{Pass, Point, PointId};
use tenterhook_nn::Scope;
use tenterhook_nn::layers::{Input, Linear, LinearSpec, Norm};
use tenterhook_nn::ops::{Activation, BranchMlp, gated, mlp_branch};

use super::names::{MlpNames, Names};
use crate::config::TransformerConfig;

/// `down(act(up(x)))`, or `down(act(gate(x)) * up(x))`.
pub(super) struct Mlp {
    inner: Inner,
    activation: Activation,
    down: Linear,
}

enum Inner {
    Plain(Linear),
    Gated { gate: Linear, up: Linear },
    GatedFused { gate_up: Linear, pre: PointId, pre_linear: PointId },
}

impl Mlp {
    /// `name` is the block's classic name, such as `blocks.0`; `input` is the point of the module's input.
    pub(super) fn new(
        scope: &Scope,
        config: &TransformerConfig,
        names: &Names,
        name: &str,
        input: PointId,
    ) -> Result<Self> {
        let spec = LinearSpec {
            inputs: config.width,
            outputs: config.mlp_width,
            bias: config.mlp_bias,
            layout: names.layout,
            std: config.init_std,
        };
        let point = |end: &str| scope.point(Point::new(format!("{name}.mlp.{end}"), "batch pos d_mlp"));
        let (inner, down) = match names.mlp {
            MlpNames::Plain { up, down } => {
                let pre = point("hook_pre")?;
                (Inner::Plain(Linear::new(&scope.pp(up), spec, Input::OutputOf(input), Some(pre))?), down)
            }
            MlpNames::Gated { gate, up, down } => {
                let gate = Linear::new(&scope.pp(gate), spec, Input::New, Some(point("hook_pre")?))?;
                let up = Linear::new(&scope.pp(up), spec, Input::New, Some(point("hook_pre_linear")?))?;
                (Inner::Gated { gate, up }, down)
            }
            MlpNames::GatedFused { gate_up, down } => {
                let both = LinearSpec { outputs: 2 * config.mlp_width, ..spec };
                let gate_up = Linear::new(&scope.pp(gate_up), both, Input::OutputOf(input), None)?;
                (
                    Inner::GatedFused {
                        gate_up,
                        pre: point("hook_pre")?,
                        pre_linear: point("hook_pre_linear")?,
                    },
                    down,
                )
            }
        };
        let back = LinearSpec {
            inputs: config.mlp_width,
            outputs: config.width,
            std: config.residual_std(),
            ..spec
        };
        let down = Linear::new(&scope.pp(down), back, Input::At(point("hook_post")?), None)?;
        Ok(Self { inner, activation: config.activation, down })
    }

    /// The projection back into the stream.
    pub(super) fn out(&self) -> &Linear {
        &self.down
    }

    /// `stream + mlp(norm(stream))` in one op, where nobody listens on the way and every gradient arrives. The bits are the same.
    pub(super) fn in_one_op(&self, stream: &Tensor, norm: &Norm, pass: &Pass) -> Result<Option<Tensor>> {
        let (gate, up) = match &self.inner {
            Inner::Plain(up) => (None, up),
            Inner::Gated { gate, up } => (Some(gate), up),
            Inner::GatedFused { .. } => return Ok(None),
        };
        let mut layers = gate.into_iter().chain([up, &self.down]);
        if !norm.is_silent(pass) || !layers.all(|layer| layer.is_silent(pass)) {
            return Ok(None);
        }
        let mlp = BranchMlp {
            gate: gate.map(|gate| gate.projection(pass)),
            up: up.projection(pass),
            activation: self.activation,
            down: self.down.projection(pass),
        };
        mlp_branch(stream, &norm.branch_norm(pass), &mlp)
    }

    pub(super) fn forward(&self, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        let post = match &self.inner {
            Inner::Plain(up) => up.forward_activated(x, self.activation, pass)?,
            Inner::Gated { gate, up } => {
                gated(&gate.forward(x, pass)?, &up.forward(x, pass)?, self.activation)?
            }
            Inner::GatedFused { gate_up, pre, pre_linear } => {
                let both = gate_up.forward(x, pass)?;
                let half = both.dim(D::Minus1)? / 2;
                let gate = pass.tap(*pre, both.narrow(D::Minus1, 0, half)?)?;
                let up = pass.tap(*pre_linear, both.narrow(D::Minus1, half, half)?)?;
                gated(&gate, &up, self.activation)?
            }
        };
        self.down.forward(&post, pass)
    }
}
