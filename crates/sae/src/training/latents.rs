//! What is known of the latents of an autoencoder while it trains.

use candle_core::{DType, Device, Result, Tensor};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use tenterhook_nn::ops::sparse::Activity;

/// What lives from step to step, and survives a restart.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Latents {
    /// On how many activations each latent has not fired since it last did.
    pub(crate) since_fired: Vec<u64>,
    /// What separates active from inactive latents of a BatchTopK, as a moving average.
    pub(crate) topk_threshold: f64,
    /// What activations are multiplied by, where that is one factor for all.
    pub(crate) scaling_factor: Option<f64>,
}

/// The part of [`Latents`] that is small.
#[derive(Serialize, Deserialize)]
pub(crate) struct Numbers {
    pub(crate) topk_threshold: f64,
    pub(crate) scaling_factor: Option<f64>,
}

impl Latents {
    pub(crate) fn new(count: usize) -> Self {
        Self { since_fired: vec![0; count], topk_threshold: 0.0, scaling_factor: None }
    }

    /// Which latents are dead; `None` when all are alive.
    pub(crate) fn dead(&self, after_tokens: u64) -> Option<Arc<Vec<bool>>> {
        let dead: Vec<bool> = self.since_fired.iter().map(|tokens| *tokens > after_tokens).collect();
        dead.contains(&true).then(|| Arc::new(dead))
    }

    /// How many latents are dead.
    pub(crate) fn dead_count(&self, after_tokens: u64) -> usize {
        self.since_fired.iter().filter(|tokens| **tokens > after_tokens).count()
    }

    /// A step was taken on these activations.
    pub(crate) fn take(&mut self, pending: &Pending, threshold_lr: f64) {
        for (since, fired) in self.since_fired.iter_mut().zip(&pending.activity.fired) {
            *since = if *fired > 0 { 0 } else { since.saturating_add(pending.tokens) };
        }
        if let Some(least) = pending.activity.least {
            self.topk_threshold = (1.0 - threshold_lr) * self.topk_threshold + threshold_lr * least;
        }
    }

    pub(crate) fn to_tensor(&self) -> Result<Tensor> {
        let counts: Vec<i64> =
            self.since_fired.iter().map(|count| i64::try_from(*count).unwrap_or(i64::MAX)).collect();
        Tensor::new(counts, &Device::Cpu)
    }

    /// Takes back what [`to_tensor`](Self::to_tensor) gave.
    pub(crate) fn set_counts(&mut self, counts: &Tensor) -> Result<()> {
        let counts = counts.to_dtype(DType::I64)?.to_vec1::<i64>()?;
        if counts.len() != self.since_fired.len() {
            candle_core::bail!("{} counts for {} latents", counts.len(), self.since_fired.len());
        }
        self.since_fired = counts.into_iter().map(|count| u64::try_from(count).unwrap_or(0)).collect();
        Ok(())
    }
}

/// What the batches of a step have shown so far. It counts when the step is taken.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pending {
    pub(crate) tokens: u64,
    pub(crate) activity: Activity,
    pub(crate) metrics: Vec<(&'static str, f64)>,
    /// Inputs, and how badly each was reconstructed: for latents that get a new start.
    pub(crate) missed: Option<(Tensor, Vec<f64>)>,
}

impl Pending {
    /// Adds what another batch of the step has shown.
    pub(crate) fn add(&mut self, tokens: u64, activity: Activity) {
        self.tokens += tokens;
        if self.activity.fired.is_empty() {
            self.activity = activity;
            return;
        }
        self.activity.fired.iter_mut().zip(&activity.fired).for_each(|(sum, fired)| *sum += fired);
        self.activity.least = match (self.activity.least, activity.least) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn latents_die_after_so_many_tokens_and_come_back() -> Result<()> {
        let mut latents = Latents::new(3);
        let step = |fired: [u64; 3]| Pending {
            tokens: 10,
            activity: Activity { fired: fired.to_vec(), least: Some(2.0) },
            ..Pending::default()
        };
        latents.take(&step([1, 0, 0]), 0.5);
        latents.take(&step([0, 0, 4]), 0.5);
        assert_eq!((latents.since_fired.as_slice(), latents.topk_threshold), (&[10, 20, 0][..], 1.5));
        assert_eq!(latents.dead(10).map(|dead| dead.to_vec()), Some(vec![false, true, false]));
        assert_eq!((latents.dead(20), latents.dead_count(5)), (None, 2));
        let mut again = Latents { topk_threshold: 1.5, ..Latents::new(3) };
        again.set_counts(&latents.to_tensor()?)?;
        assert_eq!(again, latents);
        assert!(again.set_counts(&Tensor::new(&[1i64], &Device::Cpu)?).is_err());
        Ok(())
    }

    #[test]
    fn batches_of_a_step_add_up() {
        let mut pending = Pending::default();
        pending.add(4, Activity { fired: vec![1, 0], least: None });
        pending.add(4, Activity { fired: vec![2, 3], least: Some(0.5) });
        assert_eq!((pending.tokens, pending.activity), (8, Activity { fired: vec![3, 3], least: Some(0.5) }));
    }
}
