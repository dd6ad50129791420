//! Who made a logit what it is.

use candle_core::{DType, Tensor};
use serde::Serialize;
use tenterhook_hooks::{Positions, Report, Selector};

use super::components::{Branch, By, Component, rows};
use super::frozen_norm::FrozenNorm;
use super::tokens::Token;
use super::{numbers, place};
use crate::cache::{ActivationCache, CacheOptions};
use crate::error::LensError;
use crate::language_model::LanguageModel;

/// What [`LanguageModel::attribute`] explains.
#[derive(Clone, Debug)]
pub struct AttributeOptions {
    /// The token whose logit is explained.
    pub answer: u32,
    /// With another token, the difference of the two logits is explained.
    pub wrong: Option<u32>,
    /// After which token of the text; negative from the end.
    pub position: i64,
    /// How finely.
    pub by: By,
}

impl AttributeOptions {
    /// The logit of this token at the end of the text, by layer.
    pub fn answer(token: u32) -> Self {
        Self { answer: token, wrong: None, position: -1, by: By::Layer }
    }
}

/// A logit, or a difference of two, as a sum: `logit = components + constant + remainder`.
#[derive(Clone, Debug, Serialize)]
pub struct Attribution {
    /// The token whose logit it is.
    pub answer: Token,
    /// The token whose logit was taken away.
    pub wrong: Option<Token>,
    /// After which token of the text.
    pub position: usize,
    /// How finely.
    pub by: By,
    /// What is explained: the logit (difference) before any soft cap.
    pub logit: f64,
    /// The cap that the model puts on its logits afterwards, where it has one: what it really says is `cap * tanh(logit / cap)` per token.
    pub soft_cap: Option<f64>,
    /// What every part of the stream gives, in the order of the model.
    pub components: Vec<Contribution>,
    /// What the bias of the final norm gives, whatever the text.
    pub constant: f64,
    /// What is left: rounding, or what hooks did to the stream between its parts.
    pub remainder: f64,
    /// What the hooks did that are registered.
    #[serde(skip)]
    pub report: Report,
}

/// What a part of the stream gives to a logit.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Contribution {
    /// The part.
    #[serde(flatten)]
    pub component: Component,
    /// What it gives.
    pub value: f64,
}

impl Attribution {
    /// The parts that give or take the most, first the largest in size.
    pub fn top(&self, count: usize) -> Vec<&Contribution> {
        let mut all: Vec<&Contribution> = self.components.iter().collect();
        all.sort_by(|a, b| b.value.abs().total_cmp(&a.value.abs()));
        all.truncate(count);
        all
    }
}

impl LanguageModel {
    /// Direct logit attribution: what every part of the residual stream gives directly to a token's logit, or to the difference of two.
    ///
    /// The divisor of the final norm is kept at what it was, so that parts add up; its mean, gain and bias are taken into account.
    pub fn attribute(&self, ids: &[u32], options: &AttributeOptions) -> Result<Attribution, LensError> {
        self.check_tokens(ids)?;
        self.check_token(options.answer)?;
        options.wrong.iter().try_for_each(|wrong| self.check_token(*wrong))?;
        let position = place(options.position, ids.len())?;
        let (config, by) = (self.model().config(), options.by);
        if by == By::Neuron && config.mlp_width == 0 {
            return Err(LensError::BadInput("a model of attention alone has no neurons".to_string()));
        }
        let mut points = self.component_points(by, config.layers);
        points.extend(["ln_final.hook_scale", "ln_final.hook_out"].map(Selector::from));
        let cached = CacheOptions {
            positions: Some(Positions(vec![position as i64])),
            ..CacheOptions::points(Selector::Any(points))
        };
        let (_, cache, report) = self.run_with_cache(&self.batch_of(ids)?, &cached)?;

        let asked = self.logit_direction(options.answer, options.wrong)?;
        let norm =
            FrozenNorm::new(self.model().final_norm_weights()?, &rows(&cache, "ln_final.hook_scale")?)?;
        let logit = dot(&rows(&cache, "ln_final.hook_out")?, &asked)?;
        let constant = norm.bias().map_or(Ok(0.0), |bias| dot(bias, &asked))?;
        let direction = norm.pull_back(&asked)?;

        let mut components = Vec::new();
        for (component, value) in self.embeddings(&cache)? {
            components.push(Contribution { component, value: dot(&value, &direction)? });
        }
        for block in 0..config.layers {
            for branch in self.branches() {
                match branch.is_split(by) {
                    true => components.extend(self.unit_contributions(*branch, block, &direction, &cache)?),
                    false => {
                        let value = dot(&rows(&cache, &branch.added(block))?, &direction)?;
                        let component = Component::of_block(branch.whole(), block);
                        components.push(Contribution { component, value });
                    }
                }
            }
        }
        let sum: f64 = components.iter().map(|part| part.value).sum();
        Ok(Attribution {
            answer: self.token(options.answer),
            wrong: options.wrong.map(|wrong| self.token(wrong)),
            position,
            by,
            logit,
            soft_cap: config.logit_soft_cap,
            components,
            constant,
            remainder: logit - sum - constant,
            report,
        })
    }

    /// The direction after the final norm that asks for a logit, or for a difference, `[1, d_model]`.
    fn logit_direction(&self, answer: u32, wrong: Option<u32>) -> Result<Tensor, LensError> {
        let unembedding = self.model().unembedding_weights()?;
        let of =
            |token: u32| unembedding.narrow(1, token as usize, 1)?.contiguous()?.to_dtype(DType::F32)?.t();
        let direction = match wrong {
            Some(wrong) => (of(answer)? - of(wrong)?)?,
            None => of(answer)?,
        };
        Ok(direction.contiguous()?)
    }

    /// What every head or neuron of a branch gives, and its bias. What they write is asked along one direction and never written out.
    fn unit_contributions(
        &self,
        branch: Branch,
        block: usize,
        direction: &Tensor,
        cache: &ActivationCache,
    ) -> Result<Vec<Contribution>, LensError> {
        let (writers, bias) = self.writers(branch, block)?;
        let (units, size, width) = writers.dims3()?;
        let norm = self.post_norm(branch, block, cache)?;
        let inner = norm.as_ref().map_or(Ok(direction.clone()), |norm| norm.pull_back(direction))?;
        let asked = writers.reshape((units * size, width))?.matmul(&inner.t()?)?.reshape((units, size))?;
        let held = rows(cache, &branch.inside(block))?.reshape((units, size))?;
        let given = numbers(&(held * asked)?.sum(1)?)?;
        let unit = |(i, value): (usize, f32)| Contribution {
            component: Component::unit(branch.unit(), block, i),
            value: f64::from(value),
        };
        let mut parts: Vec<Contribution> = given.into_iter().enumerate().map(unit).collect();
        let constant = norm.as_ref().and_then(|norm| norm.bias());
        if bias.is_some() || constant.is_some() {
            let own = bias.as_ref().map_or(Ok(0.0), |bias| dot(bias, &inner))?;
            let after = constant.map_or(Ok(0.0), |constant| dot(constant, direction))?;
            let component = Component::of_block(branch.bias(), block);
            parts.push(Contribution { component, value: own + after });
        }
        Ok(parts)
    }
}

/// The scalar product of two vectors, whatever their shapes, summed in double precision.
fn dot(a: &Tensor, b: &Tensor) -> Result<f64, LensError> {
    Ok(numbers(a)?.iter().zip(numbers(b)?).map(|(a, b)| f64::from(*a) * f64::from(b)).sum())
}
