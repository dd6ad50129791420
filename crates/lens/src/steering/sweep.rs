//! What a vector does to a prompt, at several strengths.

use std::ops::ControlFlow;

use candle_core::{DType, Tensor};
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{HookOptions, OnError, Report};

use super::SteeringVector;
use crate::cache::CacheOptions;
use crate::controllers::{self, Controller, Steer};
use crate::error::LensError;
use crate::generate::{GenerateOptions, Sampling};
use crate::language_model::LanguageModel;
use crate::patching::LogitMetric;

/// What is tried.
#[derive(Clone, Debug)]
pub struct SteeringSweepOptions {
    /// How many times the vector is added, each in a run of its own.
    pub strengths: Vec<f64>,
    /// Measured after the prompt.
    pub metric: Option<LogitMetric>,
    /// How far each run goes on with the prompt.
    pub max_new_tokens: usize,
    /// How the next token is chosen.
    pub sampling: Sampling,
}

impl Default for SteeringSweepOptions {
    fn default() -> Self {
        Self {
            strengths: vec![-4.0, 0.0, 4.0],
            metric: None,
            max_new_tokens: 0,
            sampling: Sampling::default(),
        }
    }
}

/// What one strength did.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SteeringRow {
    /// How many times the vector was added.
    pub strength: f64,
    /// The metric after the prompt, when one was asked for.
    pub metric: Option<f32>,
    /// How far the distribution of the next token is from the one without steering: KL(steered, unsteered) in nats.
    pub kl: f64,
    /// The most likely next token.
    pub top_token: u32,
    /// How the prompt goes on.
    pub new_tokens: Vec<u32>,
    /// The same as text, where the model has a tokenizer.
    pub text: Option<String>,
}

/// What a vector does at several strengths.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SteeringSweep {
    /// Where the vector is added.
    pub point: String,
    /// The vector's length.
    pub norm: f32,
    /// What was measured.
    pub metric: Option<String>,
    /// The metric without steering.
    pub unsteered: Option<f32>,
    /// A row per strength.
    pub rows: Vec<SteeringRow>,
}

impl SteeringVector {
    /// A hook that adds the vector so many times, at every position.
    pub fn hook(&self, strength: f64) -> Controller<Steer> {
        controllers::steer(self.point.as_str(), self.vector.clone()).strength(strength)
    }
}

impl LanguageModel {
    /// Runs a prompt with the vector added at each strength. Hooks that are registered take part, with and without the vector.
    /// `on_strength` hears how many of how many are done.
    pub fn steering_sweep(
        &self,
        vector: &SteeringVector,
        prompt: &[u32],
        options: &SteeringSweepOptions,
        mut on_strength: impl FnMut(usize, usize),
    ) -> Result<(SteeringSweep, Report), LensError> {
        self.check_tokens(prompt)?;
        check(options, prompt.len(), self)?;
        let at_point = CacheOptions::points(vector.point.as_str());
        let (logits, cache, mut report) = self.run_with_cache(&self.batch_of(prompt)?, &at_point)?;
        check_shape(vector, cache.get(&vector.point)?)?;
        let unsteered = Outcome::of(&logits, options)?;
        let mut rows = Vec::new();
        for strength in &options.strengths {
            rows.push(self.steered(vector, *strength, prompt, &unsteered, options, &mut report)?);
            on_strength(rows.len(), options.strengths.len());
        }
        let sweep = SteeringSweep {
            point: vector.point.clone(),
            norm: vector.norm()?,
            metric: options.metric.as_ref().map(ToString::to_string),
            unsteered: unsteered.metric,
            rows,
        };
        Ok((sweep, report))
    }

    fn steered(
        &self,
        vector: &SteeringVector,
        strength: f64,
        prompt: &[u32],
        unsteered: &Outcome,
        options: &SteeringSweepOptions,
        report: &mut Report,
    ) -> Result<SteeringRow, LensError> {
        let steered = self.branch();
        let hook = HookOptions { on_error: OnError::Abort, ..HookOptions::default() };
        steered.hooks().register_with(vector.hook(strength), hook)?;
        let (logits, done) = steered.forward(&self.batch_of(prompt)?)?;
        report.add(done);
        let outcome = Outcome::of(&logits, options)?;
        let new_tokens = match options.max_new_tokens {
            0 => vec![],
            max_new_tokens => {
                let generate = GenerateOptions {
                    max_new_tokens,
                    sampling: options.sampling.clone(),
                    ..GenerateOptions::default()
                };
                let go_on = |_| ControlFlow::Continue(());
                let mut generated = steered.generate_tokens(vec![prompt.to_vec()], &generate, go_on)?;
                report.add(generated.report);
                generated.new_tokens.swap_remove(0)
            }
        };
        let text = self.tokenizer().is_ok().then(|| self.to_text(&new_tokens)).transpose()?;
        Ok(SteeringRow {
            strength,
            metric: outcome.metric,
            kl: outcome.kl(unsteered),
            top_token: outcome.top_token(),
            new_tokens,
            text,
        })
    }
}

fn check(options: &SteeringSweepOptions, length: usize, lm: &LanguageModel) -> Result<(), LensError> {
    let bad = |problem: String| Err(LensError::BadInput(problem));
    if options.strengths.is_empty() {
        return bad("there is no strength to try".to_string());
    }
    if let Some(odd) = options.strengths.iter().find(|strength| !strength.is_finite()) {
        return bad(format!("a strength of {odd} cannot be tried: it must be finite"));
    }
    options.metric.iter().try_for_each(|metric| metric.check(lm.model().config().vocab, length))
}

fn check_shape(vector: &SteeringVector, there: &Tensor) -> Result<(), LensError> {
    let (own, there) = (vector.vector.dims(), &there.dims()[2..]);
    match own == there {
        true => Ok(()),
        false => Err(LensError::BadInput(format!(
            "the vector has the shape {own:?}, and what passes at `{}` has {there:?} per position: it is a vector of another model",
            vector.point
        ))),
    }
}

/// What a prompt ends in.
struct Outcome {
    metric: Option<f32>,
    /// Logarithms of the next token's probabilities.
    log_probs: Vec<f64>,
}

impl Outcome {
    fn of(logits: &Tensor, options: &SteeringSweepOptions) -> Result<Self, LensError> {
        let logits = logits.get(0)?;
        let last: Vec<f64> = logits.get(logits.dim(0)? - 1)?.to_dtype(DType::F64)?.to_vec1()?;
        let most = last.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let log_sum = last.iter().map(|logit| (logit - most).exp()).sum::<f64>().ln();
        let metric = options.metric.as_ref().map(|metric| metric.measure(&logits)).transpose()?;
        Ok(Self { metric, log_probs: last.iter().map(|logit| logit - most - log_sum).collect() })
    }

    fn kl(&self, other: &Outcome) -> f64 {
        self.log_probs.iter().zip(&other.log_probs).map(|(own, other)| own.exp() * (own - other)).sum()
    }

    fn top_token(&self) -> u32 {
        let likelier = |best: usize, token: usize| match self.log_probs[token] > self.log_probs[best] {
            true => token,
            false => best,
        };
        (0..self.log_probs.len()).fold(0, likelier) as u32
    }
}
