//! Layer norm and RMS norm.

use candle_core::{Result, Tensor};
use tenterhook_hooks::{Pass, Point, PointId};

use crate::ops::cpu::fused;
use crate::ops::{BranchNorm, NormOutput, NormWatch, center, layer_norm, norm_scale, rms_norm};
use crate::param::Param;
use crate::scope::{Init, Scope};

/// Which norm.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct NormSpec {
    /// Size of the last axis.
    pub width: usize,
    /// Added under the root.
    pub eps: f64,
    /// Layer norm: the mean is taken away, and there is a bias. Otherwise RMS norm.
    pub centered: bool,
    /// Added to the gain: 1 where files store the gain minus one.
    pub gain_offset: f64,
}

/// The points inside a norm.
#[derive(Clone, Copy, Debug)]
pub struct NormPoints {
    /// The divisor.
    pub scale: PointId,
    /// The input after the division, before gain and bias.
    pub normalized: PointId,
}

impl NormPoints {
    /// Declares `name.hook_scale` and `name.hook_normalized`.
    pub fn declare(scope: &Scope, name: &str, axes: &str) -> Result<Self> {
        let leading = axes.rsplit_once(' ').map_or("", |(leading, _)| leading);
        Ok(Self {
            scale: scope.point(Point::new(format!("{name}.hook_scale"), format!("{leading} 1")))?,
            normalized: scope.point(Point::new(format!("{name}.hook_normalized"), axes))?,
        })
    }
}

/// A norm over the last axis, with its input, scale, normalized value and output as points.
#[derive(Clone, Debug)]
pub struct Norm {
    gain: Param,
    bias: Option<Param>,
    spec: NormSpec,
    input: PointId,
    inside: Option<NormPoints>,
    output: PointId,
}

impl Norm {
    /// Declares the weights at this scope, and the module with these points (new ones for those not given).
    pub fn new(
        scope: &Scope,
        spec: NormSpec,
        input: Option<PointId>,
        inside: Option<NormPoints>,
        output: Option<PointId>,
    ) -> Result<Self> {
        if spec.centered && spec.gain_offset != 0.0 {
            candle_core::bail!("a layer norm whose gain has an offset: only RMS norms are known to have one");
        }
        let start = if spec.gain_offset == 0.0 { Init::Ones } else { Init::Zeros };
        let gain = scope.param("weight", &[spec.width], start)?;
        let bias = spec.centered.then(|| scope.param("bias", &[spec.width], Init::Zeros)).transpose()?;
        let (input, output) = scope.layer(input, output)?;
        Ok(Self { gain, bias, spec, input, inside, output })
    }

    /// The normed tensor, with the hooks of the pass.
    pub fn forward(&self, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        let x = pass.tap(self.input, x.clone())?;
        let y = match &self.inside {
            Some(points) if pass.armed(points.scale) || pass.armed(points.normalized) => {
                self.with_inside(&x, points, pass)?
            }
            _ => self.plain(&x, pass)?,
        };
        pass.tap_output(self.output, &x, y)
    }

    /// Whether nobody listens at its input, inside or at its output.
    pub fn is_silent(&self, pass: &Pass) -> bool {
        let inside = self.inside.iter().flat_map(|points| [points.scale, points.normalized]);
        !inside.chain([self.input, self.output]).any(|point| pass.armed(point))
    }

    /// The norm as a part of a branch: its hooks are not called.
    pub fn branch_norm(&self, pass: &Pass) -> BranchNorm {
        let with_buffer = |param: &Param| (param.at(pass).clone(), param.buffer(pass));
        BranchNorm {
            centered: self.spec.centered,
            eps: self.spec.eps,
            gain_offset: self.spec.gain_offset,
            gain: with_buffer(&self.gain),
            bias: self.bias.as_ref().map(with_buffer),
        }
    }

    /// What the normalized value is multiplied by.
    pub fn gain_at(&self, pass: &Pass) -> Result<Tensor> {
        match self.spec.gain_offset {
            0.0 => Ok(self.gain.at(pass).clone()),
            offset => self.gain.at(pass) + offset,
        }
    }

    /// What is added in the end.
    pub fn bias_at(&self, pass: &Pass) -> Option<&Tensor> {
        self.bias.as_ref().map(|bias| bias.at(pass))
    }

    /// Which norm it is.
    pub fn spec(&self) -> NormSpec {
        self.spec
    }

    /// The norm alone, without hooks.
    pub fn plain(&self, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        Ok(self.fused(x, pass, &NormWatch::default())?.y)
    }

    fn fused(&self, x: &Tensor, pass: &Pass, watch: &NormWatch) -> Result<NormOutput> {
        let gain = self.gain.at(pass);
        match self.spec.centered {
            true => layer_norm(x, gain, self.bias_at(pass), self.spec.eps, watch),
            false => rms_norm(x, gain, self.spec.eps, self.spec.gain_offset, watch),
        }
    }

    /// Observers get what the kernel computes inside, beside its result. Only controllers make it fall apart into its steps,
    /// which have the same bits.
    fn with_inside(&self, x: &Tensor, points: &NormPoints, pass: &Pass) -> Result<Tensor> {
        let (scale, normalized) = (pass.listens(points.scale), pass.listens(points.normalized));
        let gradient_observed = scale.gradient_observed() || normalized.gradient_observed();
        if scale.intervenes() || normalized.intervenes() || gradient_observed && !fused(x) {
            return self.in_steps(x, points, pass);
        }
        let x = &if gradient_observed { pass.leaf(x)? } else { x.clone() };
        let watch = NormWatch {
            scale: scale.observed(),
            normalized: normalized.observed(),
            scale_grad: pass.gradient_observer(points.scale),
            normalized_grad: pass.gradient_observer(points.normalized),
        };
        let output = self.fused(x, pass, &watch)?;
        if let Some(value) = &output.scale {
            pass.show(points.scale, value)?;
        }
        if let Some(value) = &output.normalized {
            pass.show(points.normalized, value)?;
        }
        Ok(output.y)
    }

    fn in_steps(&self, x: &Tensor, points: &NormPoints, pass: &Pass) -> Result<Tensor> {
        let centered = if self.spec.centered { center(x)? } else { x.clone() };
        let scale = pass.tap(points.scale, norm_scale(&centered, self.spec.eps)?)?;
        let normalized = pass.tap(points.normalized, centered.broadcast_div(&scale)?)?;
        let y = normalized.broadcast_mul(&self.gain_at(pass)?)?;
        match self.bias_at(pass) {
            Some(bias) => y.broadcast_add(bias),
            None => Ok(y),
        }
    }
}
