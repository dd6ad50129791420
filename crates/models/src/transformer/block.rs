//! One transformer block.

use candle_core::{Result, Tensor};
use tenterhook_hooks::{Pass, Point, PointId};
use tenterhook_nn::Scope;
use tenterhook_nn::layers::{Linear, Norm, NormPoints};
use tenterhook_nn::ops::{add, dropout};

use super::attention::{Attention, Positioned};
use super::mlp::Mlp;
use super::names::Names;
use crate::config::TransformerConfig;

/// Attention and, unless the model is of attention alone, an MLP, each read from the residual stream through a norm and added back to it.
pub(super) struct Block {
    resid_pre: PointId,
    ln1: Norm,
    attention: Attention,
    /// Gemma 2 norms what it adds to the stream.
    ln1_post: Option<Norm>,
    /// The attention module's output.
    attn_out: PointId,
    /// None where attention and MLP read the same stream, and where there is no MLP.
    resid_mid: Option<PointId>,
    /// None in models of attention alone.
    mlp: Option<MlpBranch>,
    resid_post: PointId,
    residual_dropout: f64,
    path: String,
}

/// What reads the stream after attention.
struct MlpBranch {
    norm: Norm,
    mlp: Mlp,
    /// The module's output.
    output: PointId,
    post_norm: Option<Norm>,
}

impl Block {
    pub(super) fn new(
        scope: &Scope,
        config: &TransformerConfig,
        names: &Names,
        index: usize,
    ) -> Result<Self> {
        let name = format!("blocks.{index}");
        let stream = |end: &str| scope.point(Point::new(format!("{name}.{end}"), "batch pos d_model"));
        let spec = config.norm_spec();
        let norm_points = |ln: &str| NormPoints::declare(scope, &format!("{name}.{ln}"), "batch pos d_model");
        // Where there are post-norms, their outputs are what is added to the stream; the modules' own outputs come before.
        let branch = |module: &str, post: &str| {
            let added = Point::new(format!("{name}.hook_{module}_out"), "batch pos d_model");
            match config.post_norms {
                false => Ok((scope.point(added.alias(format!("{name}.{module}.hook_out")))?, None)),
                true => {
                    let before = stream(&format!("{module}.hook_out"))?;
                    let input = stream(&format!("{post}.hook_in"))?;
                    Ok::<_, candle_core::Error>((
                        before,
                        Some((input, norm_points(post)?, scope.point(added)?)),
                    ))
                }
            }
        };
        let post_norm = |path: &str, points: Option<(PointId, NormPoints, PointId)>| {
            points
                .map(|(input, inside, output)| {
                    Norm::new(&scope.pp(path), spec, Some(input), Some(inside), Some(output))
                })
                .transpose()
        };

        let resid_pre = stream("hook_resid_pre")?;
        let attn_scope = scope.pp(names.attn);
        let split = super::split_input::SplitPoints::declare(scope, &name)?;
        let ln1_in = stream("ln1.hook_in")?;
        let ln1_inside = norm_points("ln1")?;
        let attn_in = stream("ln1.hook_out")?;
        let ln1 = Norm::new(&scope.pp(names.ln1), spec, Some(ln1_in), Some(ln1_inside), Some(attn_in))?;
        let attention = Attention::new(&attn_scope, config, names, index, attn_in, split)?;
        let (attn_out, attn_post) = branch("attn", "ln1_post")?;
        attn_scope.layer(Some(attn_in), Some(attn_out))?;
        let ln1_post = post_norm(names.ln1_post, attn_post)?;

        let resid_mid = (config.mlp_width > 0 && !config.parallel_residual)
            .then(|| stream("hook_resid_mid"))
            .transpose()?;
        let mlp_branch = || {
            let mlp_scope = scope.pp(names.mlp_path);
            let input = Point::new(format!("{name}.hook_mlp_in"), "batch pos d_model")
                .alias(format!("{name}.ln2.hook_in"));
            let input = scope.point(input)?;
            let inside = norm_points("ln2")?;
            let mlp_in = stream("ln2.hook_out")?;
            let norm = Norm::new(&scope.pp(names.ln2), spec, Some(input), Some(inside), Some(mlp_in))?;
            let mlp = Mlp::new(&mlp_scope, config, names, &name, mlp_in)?;
            let (output, post) = branch("mlp", "ln2_post")?;
            mlp_scope.layer(Some(mlp_in), Some(output))?;
            let post_norm = post_norm(names.ln2_post, post)?;
            Ok::<_, candle_core::Error>(MlpBranch { norm, mlp, output, post_norm })
        };
        let mlp = (config.mlp_width > 0).then(mlp_branch).transpose()?;

        let resid_post = stream("hook_resid_post")?;
        scope.block_layer(resid_pre, resid_post)?;
        Ok(Self {
            resid_pre,
            ln1,
            attention,
            ln1_post,
            attn_out,
            resid_mid,
            mlp,
            resid_post,
            residual_dropout: config.dropout.residual,
            path: scope.path().to_string(),
        })
    }

    pub(super) fn attention(&self) -> &Attention {
        &self.attention
    }

    /// The projection back into the stream of the MLP's neurons.
    pub(super) fn mlp_out(&self) -> Option<&Linear> {
        self.mlp.as_ref().map(|branch| branch.mlp.out())
    }

    /// The norm between attention and the stream.
    pub(super) fn attention_post_norm(&self) -> Option<&Norm> {
        self.ln1_post.as_ref()
    }

    /// The norm between the MLP and the stream.
    pub(super) fn mlp_post_norm(&self) -> Option<&Norm> {
        self.mlp.as_ref().and_then(|branch| branch.post_norm.as_ref())
    }

    pub(super) fn forward(&self, x: Tensor, positioned: Positioned, pass: &Pass) -> Result<Tensor> {
        let x = pass.tap(self.resid_pre, x)?;
        let y = match (&self.mlp, self.resid_mid) {
            (None, _) => self.plus_attention(&x, positioned, pass)?,
            (Some(mlp), Some(point)) => {
                let mid = pass.tap(point, self.plus_attention(&x, positioned, pass)?)?;
                self.plus_mlp(mlp, &mid, pass)?
            }
            (Some(mlp), None) => {
                let attn_out = self.attention_branch(&x, positioned, pass)?;
                let mlp_out = self.mlp_branch(mlp, &x, pass)?;
                add(&add(&x, &attn_out)?, &mlp_out)?
            }
        };
        pass.tap_output(self.resid_post, &x, y)
    }

    /// The stream with what attention adds to it. One op where nobody listens in between.
    fn plus_attention(&self, x: &Tensor, positioned: Positioned, pass: &Pass) -> Result<Tensor> {
        if self.is_added_as_it_is(self.attn_out, &self.ln1_post, pass)
            && let Some(y) = self.attention.in_one_op(x, &self.ln1, &positioned, pass)?
        {
            return Ok(y);
        }
        add(x, &self.attention_branch(x, positioned, pass)?)
    }

    /// The stream with what the MLP adds to it, likewise.
    fn plus_mlp(&self, branch: &MlpBranch, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        if self.is_added_as_it_is(branch.output, &branch.post_norm, pass)
            && let Some(y) = branch.mlp.in_one_op(x, &branch.norm, pass)?
        {
            return Ok(y);
        }
        add(x, &self.mlp_branch(branch, x, pass)?)
    }

    /// Whether the output of a module goes to the stream as it is, and nobody looks at it.
    fn is_added_as_it_is(&self, output: PointId, post_norm: &Option<Norm>, pass: &Pass) -> bool {
        !pass.armed(output) && post_norm.is_none() && !self.drops(pass)
    }

    fn attention_branch(&self, x: &Tensor, positioned: Positioned, pass: &Pass) -> Result<Tensor> {
        let normed = self.ln1.forward(x, pass)?;
        let y = self.attention.forward(x, &normed, &self.ln1, positioned, pass)?;
        let y = self.drop(y, "attn", pass)?;
        let y = pass.tap_output(self.attn_out, &normed, y)?;
        post(&self.ln1_post, y, pass)
    }

    fn mlp_branch(&self, branch: &MlpBranch, x: &Tensor, pass: &Pass) -> Result<Tensor> {
        let normed = branch.norm.forward(x, pass)?;
        let y = self.drop(branch.mlp.forward(&normed, pass)?, "mlp", pass)?;
        let y = pass.tap_output(branch.output, &normed, y)?;
        post(&branch.post_norm, y, pass)
    }

    fn drops(&self, pass: &Pass) -> bool {
        self.residual_dropout > 0.0 && pass.is_training()
    }

    fn drop(&self, y: Tensor, branch: &str, pass: &Pass) -> Result<Tensor> {
        if !self.drops(pass) {
            return Ok(y);
        }
        dropout(&y, self.residual_dropout, &pass.random().named(&self.path).named(branch), pass.first_row())
    }
}

fn post(norm: &Option<Norm>, y: Tensor, pass: &Pass) -> Result<Tensor> {
    match norm {
        Some(norm) => norm.forward(&y, pass),
        None => Ok(y),
    }
}
