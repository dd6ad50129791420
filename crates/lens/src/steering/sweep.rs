//! What a vector does to a prompt, at several strengths.

use std::ops::ControlFlow;

use candle_core::{DType, Tensor};
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{EditFn, HookOptions, OnError, Report, hook_fn};

use super::SteeringVector;
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
        Self { strengths: vec![-4.0, 0.0, 4.0], metric: None, max_new_tokens: 0, sampling: Sampling::default() }
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
