//! Self-attention.

use candle_core::{D, Result, Tensor};
use tenterhook_hooks::{Pass, Point, PointId};
use tenterhook_nn::Scope;
use tenterhook_nn::layers::{Input, Linear, LinearSpec, Norm, NormSpec};
use tenterhook_nn::ops::{
    AttentionSpec, attention, attention_apply, attention_branch, attention_of_stack, attention_pattern,
    attention_scores, dropout, watch_gradient,
};

use super::cache::LayerCache;
use super::names::{Names, QkvNames};
use super::padding::Place;
use super::split_input::{Branch, SplitInput, SplitPoints};
use crate::config::TransformerConfig;

/// Where the tokens of this pass stand, and the keys and values before them.
pub(super) struct Positioned<'a> {
    pub(super) place: &'a Place,
    pub(super) cache: Option<(&'a mut LayerCache, usize)>,
}

/// Grouped-query attention with the points of TransformerLens.
pub(super) struct Attention {
    pub(super) qkv: Qkv,
    qk_norm: Option<(Norm, Norm)>,
    pub(super) out: Linear,
    points: AttentionPoints,
    split: SplitPoints,
    spec: AttentionSpec,
    pub(super) heads: Heads,
    pattern_dropout: f64,
    path: String,
}

/// How many heads of which size.
#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub(super) query: usize,
    pub(super) kv: usize,
    pub(super) size: usize,
}

pub(super) enum Qkv {
    Stacked(Linear),
    PerHead(Linear),
    Separate([Linear; 3]),
}

struct AttentionPoints {
    q: PointId,
    k: PointId,
    v: PointId,
    /// After rotation, on rotary models.
    rotated: Option<(PointId, PointId)>,
    scores: PointId,
    pattern: PointId,
    z: PointId,
    result: PointId,
}

impl Attention {
    pub(super) fn new(
        scope: &Scope,
        config: &TransformerConfig,
        names: &Names,
        index: usize,
        input: PointId,
        split: SplitPoints,
    ) -> Result<Self> {
        let heads = Heads { query: config.heads, kv: config.kv_heads, size: config.head_dim };
        let qkv = Qkv::new(scope, config, names, heads, input)?;
        let head_norm = NormSpec { width: heads.size, ..config.norm_spec() };
        let qk_norm = config
            .qk_norm
            .then(|| {
                let norm = |path: &str| {
                    let scope = scope.pp(path);
                    let end = |end: &str| {
                        scope.point(Point::new(format!("{}.{end}", scope.path()), "batch pos head d_head"))
                    };
                    Norm::new(&scope, head_norm, Some(end("hook_in")?), None, Some(end("hook_out")?))
                };
                Ok::<_, candle_core::Error>((norm("q_norm")?, norm("k_norm")?))
            })
            .transpose()?;
        let rotary = matches!(config.positions, crate::config::Positions::Rotary(_));
        let points = AttentionPoints::declare(scope, &format!("blocks.{index}.attn"), rotary)?;
        let back = LinearSpec {
            inputs: config.attention_width(),
            outputs: config.width,
            bias: config.attn_out_bias,
            layout: names.layout,
            std: config.residual_std(),
        };
        let out = Linear::new(&scope.pp(names.attn_out), back, Input::New, None)?;
        let spec = AttentionSpec {
            scale: config.attention_scale,
            soft_cap: config.attention_soft_cap,
            window: config.windows.get(index).copied().flatten(),
        };
        let pattern_dropout = config.dropout.attention;
        let path = scope.path().to_string();
        Ok(Self { qkv, qk_norm, out, points, split, spec, heads, pattern_dropout, path })
    }

    /// `normed` is `ln1(stream)`; both are given because single heads can be fed another stream (see [`SplitInput`]).
    pub(super) fn forward(
        &self,
        stream: &Tensor,
        normed: &Tensor,
        ln1: &Norm,
        positioned: Positioned,
        pass: &Pass,
    ) -> Result<Tensor> {
        if let (Qkv::Stacked(linear), true) = (&self.qkv, self.is_plain(&positioned, pass)) {
            let all = linear.forward(normed, pass)?;
            let all = all.reshape(self.heads.shape(&all, self.heads.query + 2 * self.heads.kv)?)?;
            let z = attention_of_stack(&all, self.heads.kv, &self.spec)?;
            return self.out.forward_by(&z, pass, |z| self.project_out(z, pass));
        }
        let [mut q, mut k, mut v] = self.qkv.forward(normed, self.heads, pass)?;
        if self.split.armed(pass) {
            let split = SplitInput { points: &self.split, qkv: &self.qkv, heads: self.heads, ln1, stream };
            [q, k, v] = split.apply([q, k, v], pass)?;
        }
        // Views of one product: whoever keeps one gets a copy.
        q = pass.tap(self.points.q, q)?;
        k = pass.tap(self.points.k, k)?;
        v = pass.tap(self.points.v, v)?;
        if let Some((q_norm, k_norm)) = &self.qk_norm {
            (q, k) = (q_norm.forward(&q, pass)?, k_norm.forward(&k, pass)?);
        }
        let Positioned { place, cache } = positioned;
        if let (true, Some((rot_q, rot_k))) = (place.rotates(), self.points.rotated) {
            q = pass.tap(rot_q, place.rotate(&q)?)?;
            k = pass.tap(rot_k, place.rotate(&k)?)?;
        }
        if let Some((cache, len)) = cache {
            (k, v) = cache.append(len, &k, &v)?;
        }
        let z = pass.tap(self.points.z, self.attend(&q, &k, &v, place, pass)?)?;
        let flat = z.flatten_from(D::Minus2)?;
        self.out.forward_by(&flat, pass, |flat| self.project_out(flat, pass))
    }

    /// `stream + attention(ln1(stream))` in one op, where nobody listens on the way, nothing happens to queries, keys and values, and
    /// every gradient arrives. The bits are the same.
    pub(super) fn in_one_op(
        &self,
        stream: &Tensor,
        ln1: &Norm,
        positioned: &Positioned,
        pass: &Pass,
    ) -> Result<Option<Tensor>> {
        let Qkv::Stacked(qkv) = &self.qkv else { return Ok(None) };
        let silent = qkv.is_silent(pass) && self.out.is_silent(pass) && !pass.armed(self.points.result);
        if !silent || !ln1.is_silent(pass) || !self.is_plain(positioned, pass) {
            return Ok(None);
        }
        let (norm, qkv, out) = (ln1.branch_norm(pass), qkv.projection(pass), self.out.projection(pass));
        attention_branch(stream, &norm, &qkv, (self.heads.size, self.heads.kv), &self.spec, &out)
    }

    /// Whether nothing happens to queries, keys and values on their way into attention, and nobody looks at them or inside: then they stay one
    /// tensor, and their gradient is one. The bits are the same.
    fn is_plain(&self, positioned: &Positioned, pass: &Pass) -> bool {
        let points = &self.points;
        let watched = [points.q, points.k, points.v, points.scores, points.pattern, points.z];
        !watched.into_iter().any(|point| pass.armed(point))
            && !self.split.armed(pass)
            && self.qk_norm.is_none()
            && !positioned.place.rotates()
            && positioned.place.present.is_none()
            && positioned.cache.is_none()
            && !self.drops(pass)
    }

    fn drops(&self, pass: &Pass) -> bool {
        self.pattern_dropout > 0.0 && pass.is_training()
    }

    /// One fused kernel, unless somebody wants to see or change the scores or the pattern, or keys are missing: then three, with the same
    /// bits.
    fn attend(&self, q: &Tensor, k: &Tensor, v: &Tensor, place: &Place, pass: &Pass) -> Result<Tensor> {
        let drops = self.drops(pass);
        let watched = pass.armed(self.points.scores) || pass.armed(self.points.pattern);
        if !drops && !watched && place.present.is_none() {
            return attention(q, k, v, &self.spec);
        }
        let mut scores = attention_scores(q, k, &self.spec)?;
        if let Some(present) = &place.present {
            let absent = Tensor::full(f32::NEG_INFINITY, (), q.device())?.to_dtype(q.dtype())?;
            let (shape, present) = (scores.shape().clone(), present.broadcast_as(scores.shape())?);
            scores = present.where_cond(&scores, &absent.broadcast_as(&shape)?)?;
        }
        let scores = pass.tap(self.points.scores, scores)?;
        let pattern = pass.tap(self.points.pattern, attention_pattern(&scores)?)?;
        let pattern = match drops {
            true => dropout(
                &pattern,
                self.pattern_dropout,
                &pass.random().named(&self.path).named("pattern"),
                pass.first_row(),
            )?,
            false => pattern,
        };
        attention_apply(&pattern, v, &self.spec)
    }

    /// The output projection. What every head contributes is computed only while somebody listens.
    fn project_out(&self, flat: &Tensor, pass: &Pass) -> Result<Tensor> {
        let listens = pass.listens(self.points.result);
        if !listens.any() {
            return self.out.product(flat, pass);
        }
        let flat = &if listens.gradient_observed() { pass.leaf(flat)? } else { flat.clone() };
        let result = self.head_results(flat, pass)?;
        if listens.intervenes() {
            // The sum over heads would round differently from the product, so the change is added to the product.
            let before = result.detach();
            let change = (pass.tap(self.points.result, result)? - before)?.sum(2)?;
            return self.out.product_of_constants(flat, pass)? + change;
        }
        pass.show(self.points.result, &result)?;
        let y = self.out.product(flat, pass)?;
        match pass.gradient_observer(self.points.result) {
            // Every head's contribution is simply added, so each has the gradient of the sum.
            Some(observer) => {
                let shape = result.shape().clone();
                watch_gradient(&y, move |gradient| {
                    observer(&gradient.unsqueeze(2)?.broadcast_as(&shape)?.contiguous()?)
                })
            }
            None => Ok(y),
        }
    }

    /// What every head adds to the stream, `[batch, pos, head, d_model]`.
    fn head_results(&self, flat: &Tensor, pass: &Pass) -> Result<Tensor> {
        let Heads { query, size, .. } = self.heads;
        let (batch, pos, _) = flat.dims3()?;
        let by_head = flat.reshape((batch * pos, query, size))?.transpose(0, 1)?.contiguous()?;
        let matrix = self.out.matrix(pass)?.contiguous()?;
        let matrices = matrix.reshape((query, size, matrix.dim(1)?))?;
        let result = by_head.matmul(&matrices)?.transpose(0, 1)?;
        result.reshape((batch, pos, query, matrix.dim(1)?))
    }
}

impl AttentionPoints {
    fn declare(scope: &Scope, name: &str, rotary: bool) -> Result<Self> {
        let point = |end: &str, axes: &str| scope.point(Point::new(format!("{name}.{end}"), axes));
        let (head, kv_head, square) =
            ("batch pos head d_head", "batch pos kv_head d_head", "batch head query_pos key_pos");
        Ok(Self {
            q: point("hook_q", head)?,
            k: point("hook_k", kv_head)?,
            v: point("hook_v", kv_head)?,
            rotated: match rotary {
                true => Some((point("hook_rot_q", head)?, point("hook_rot_k", kv_head)?)),
                false => None,
            },
            scores: scope.point(Point::new(format!("{name}.hook_attn_scores"), square).masked())?,
            pattern: point("hook_pattern", square)?,
            z: point("hook_z", head)?,
            result: scope
                .point(Point::new(format!("{name}.hook_result"), "batch pos head d_model").on_demand())?,
        })
    }
}

impl Qkv {
    fn new(
        scope: &Scope,
        config: &TransformerConfig,
        names: &Names,
        heads: Heads,
        input: PointId,
    ) -> Result<Self> {
        let spec = |count: usize| LinearSpec {
            inputs: config.width,
            outputs: count * heads.size,
            bias: config.qkv_bias,
            layout: names.layout,
            std: config.init_std,
        };
        let all = heads.query + 2 * heads.kv;
        Ok(match names.qkv {
            QkvNames::Stacked(path) => {
                Self::Stacked(Linear::new(&scope.pp(path), spec(all), Input::OutputOf(input), None)?)
            }
            QkvNames::PerHead(path) => {
                Self::PerHead(Linear::new(&scope.pp(path), spec(all), Input::OutputOf(input), None)?)
            }
            QkvNames::Separate([q, k, v]) => {
                let linear = |path: &str, count| Linear::new(&scope.pp(path), spec(count), Input::New, None);
                Self::Separate([linear(q, heads.query)?, linear(k, heads.kv)?, linear(v, heads.kv)?])
            }
        })
    }

    /// Queries, keys and values as `[batch, pos, head, d_head]`; views of one product where it is one.
    fn forward(&self, x: &Tensor, heads: Heads, pass: &Pass) -> Result<[Tensor; 3]> {
        match self {
            Self::Stacked(linear) | Self::PerHead(linear) => self.views(&linear.forward(x, pass)?, heads),
            Self::Separate([q, k, v]) => Ok([
                q.forward(x, pass)?.reshape(heads.shape(x, heads.query)?)?,
                k.forward(x, pass)?.reshape(heads.shape(x, heads.kv)?)?,
                v.forward(x, pass)?.reshape(heads.shape(x, heads.kv)?)?,
            ]),
        }
    }

    fn views(&self, all: &Tensor, heads: Heads) -> Result<[Tensor; 3]> {
        let Heads { query, kv, size } = heads;
        match self {
            Self::PerHead(_) => {
                let (batch, pos, _) = all.dims3()?;
                let all = all.reshape((batch, pos, query, 3 * size))?;
                Ok([all.narrow(3, 0, size)?, all.narrow(3, size, size)?, all.narrow(3, 2 * size, size)?])
            }
            _ => {
                let all = all.reshape(heads.shape(all, query + 2 * kv)?)?;
                Ok([all.narrow(2, 0, query)?, all.narrow(2, query, kv)?, all.narrow(2, query + kv, kv)?])
            }
        }
    }

    /// The matrix `[head, d_model, d_head]` and bias `[head, d_head]` of one of queries, keys and values.
    pub(super) fn head_weights(
        &self,
        branch: Branch,
        heads: Heads,
        pass: &Pass,
    ) -> Result<(Tensor, Option<Tensor>)> {
        let count = branch.heads(heads);
        let (matrix, bias) = match self {
            Self::Separate(linears) => {
                let linear = &linears[branch as usize];
                (linear.matrix(pass)?, linear.bias_at(pass).cloned())
            }
            Self::Stacked(linear) | Self::PerHead(linear) => {
                let pick = |rows: &Tensor| -> Result<Tensor> {
                    let picked = self.views(&rows.unsqueeze(0)?, heads)?[branch as usize].squeeze(0)?;
                    picked.contiguous()?.flatten_from(1)
                };
                let bias =
                    linear.bias_at(pass).map(|bias| pick(&bias.unsqueeze(0)?)?.squeeze(0)).transpose()?;
                (pick(&linear.matrix(pass)?.contiguous()?)?, bias)
            }
        };
        let width = matrix.dim(0)?;
        let matrix =
            matrix.contiguous()?.reshape((width, count, heads.size))?.transpose(0, 1)?.contiguous()?;
        Ok((matrix, bias.map(|bias| bias.reshape((count, heads.size))).transpose()?))
    }
}

impl Heads {
    fn shape(&self, x: &Tensor, heads: usize) -> Result<(usize, usize, usize, usize)> {
        Ok((x.dim(0)?, x.dim(1)?, heads, self.size))
    }
}
