//! What is measured at the end of a patched run.

use std::fmt;
use std::sync::Arc;

use candle_core::{DType, Result, Tensor};
use tenterhook_nn::ops::cross_entropy;

use crate::error::LensError;
use crate::tokens::place;

type OnLogits = dyn Fn(&Tensor) -> Result<Tensor> + Send + Sync;

/// A number that says how much the model is for an answer: a function of the logits.
#[derive(Clone)]
pub struct LogitMetric {
    kind: Kind,
    position: i64,
}

#[derive(Clone)]
enum Kind {
    LogitDiff { answer: u32, wrong: u32 },
    LogProb { answer: u32 },
    Prob { answer: u32 },
    Own { name: String, call: Arc<OnLogits> },
}

impl LogitMetric {
    /// The logit of the answer less that of a wrong one.
    pub fn logit_diff(answer: u32, wrong: u32) -> Self {
        Self { kind: Kind::LogitDiff { answer, wrong }, position: -1 }
    }

    /// The logarithm of the answer's probability.
    pub fn log_prob(answer: u32) -> Self {
        Self { kind: Kind::LogProb { answer }, position: -1 }
    }

    /// The answer's probability.
    pub fn prob(answer: u32) -> Self {
        Self { kind: Kind::Prob { answer }, position: -1 }
    }

    /// One of your own: makes a scalar of the logits `[pos, vocab]`. For attribution patching it must be made of operations that have a
    /// gradient.
    ///
    /// ```
    /// use tenterhook_lens::patching::LogitMetric;
    /// let spread = LogitMetric::own("mean square", |logits| logits.sqr()?.mean_all());
    /// assert_eq!(spread.to_string(), "mean square");
    /// ```
    pub fn own(
        name: impl Into<String>,
        call: impl Fn(&Tensor) -> Result<Tensor> + Send + Sync + 'static,
    ) -> Self {
        Self { kind: Kind::Own { name: name.into(), call: Arc::new(call) }, position: -1 }
    }

    /// The same at this position of the prompt, negative from the end; the last one is where it is measured otherwise.
    pub fn at(mut self, position: i64) -> Self {
        self.position = position;
        self
    }

    /// The scalar, of logits `[pos, vocab]`. Gradients go through it.
    pub fn of(&self, logits: &Tensor) -> Result<Tensor> {
        if let Kind::Own { call, .. } = &self.kind {
            return call(logits)?.to_dtype(DType::F32);
        }
        let length = logits.dim(0)?;
        let position = place(self.position, length).map_err(candle_core::Error::wrap)?;
        let row = logits.narrow(0, position, 1)?.to_dtype(DType::F32)?;
        let logit = |token: u32| row.narrow(1, token as usize, 1)?.sum_all();
        let log_prob = |token: u32| cross_entropy(&row, &Tensor::new(&[token], row.device())?, None)?.neg();
        match &self.kind {
            Kind::LogitDiff { answer, wrong } => logit(*answer)? - logit(*wrong)?,
            Kind::LogProb { answer } => log_prob(*answer),
            Kind::Prob { answer } => log_prob(*answer)?.exp(),
            Kind::Own { call, .. } => call(logits),
        }
    }

    /// The number, of logits `[pos, vocab]`.
    pub(crate) fn measure(&self, logits: &Tensor) -> Result<f32> {
        self.of(logits)?.to_scalar()
    }

    /// Tokens and the position must be there before any work is done.
    pub(crate) fn check(&self, vocab: usize, length: usize) -> std::result::Result<(), LensError> {
        let tokens = match &self.kind {
            Kind::LogitDiff { answer, wrong } => vec![*answer, *wrong],
            Kind::LogProb { answer } | Kind::Prob { answer } => vec![*answer],
            Kind::Own { .. } => vec![],
        };
        if let Some(token) = tokens.into_iter().find(|token| *token as usize >= vocab) {
            return Err(LensError::BadInput(format!("token {token} is outside the vocabulary of {vocab}")));
        }
        place(self.position, length).map(drop)
    }
}

impl fmt::Display for LogitMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.kind {
            Kind::LogitDiff { answer, wrong } => write!(f, "logit of token {answer} - token {wrong}")?,
            Kind::LogProb { answer } => write!(f, "log probability of token {answer}")?,
            Kind::Prob { answer } => write!(f, "probability of token {answer}")?,
            Kind::Own { name, .. } => return f.write_str(name),
        }
        match self.position {
            -1 => Ok(()),
            position => write!(f, " at position {position}"),
        }
    }
}

impl fmt::Debug for LogitMetric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "LogitMetric({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    #[test]
    fn the_metrics_are_what_they_say() {
        let logits = Tensor::new(&[[0f32, 0.0, 0.0], [1.0, 3.0, 0.5]], &Device::Cpu).unwrap();
        let measured = |metric: LogitMetric| metric.measure(&logits).unwrap();
        assert_eq!(measured(LogitMetric::logit_diff(1, 0)), 2.0);
        assert_eq!(measured(LogitMetric::logit_diff(1, 0).at(0)), 0.0);
        let sum: f32 = [1f32, 3.0, 0.5].iter().map(|x| x.exp()).sum();
        assert!((measured(LogitMetric::prob(0)) - 1f32.exp() / sum).abs() < 1e-6);
        assert!((measured(LogitMetric::log_prob(2)) - (0.5 - sum.ln())).abs() < 1e-6);
        assert_eq!(measured(LogitMetric::own("largest", |x| x.max_all())), 3.0);
    }

    #[test]
    fn what_does_not_exist_is_named() {
        let told = |metric: LogitMetric| metric.check(3, 2).unwrap_err().to_string();
        assert_eq!(told(LogitMetric::prob(3)), "token 3 is outside the vocabulary of 3");
        assert_eq!(
            told(LogitMetric::prob(0).at(-3)),
            "position -3 is not in the text: it has 2 tokens, so positions are 0 to 1 or -2 to -1"
        );
    }
}
