//! Choosing the next token.

use candle_core::Tensor;
use tenterhook_hooks::random::Stream;

use crate::error::LensError;

/// How the next token is chosen. A function of the seed: the same prompt and seed give the same text.
#[derive(Clone, Debug, PartialEq)]
pub struct Sampling {
    /// 0 takes the likeliest token; larger values make others likelier.
    pub temperature: f64,
    /// Only the likeliest k.
    pub top_k: Option<usize>,
    /// Only the likeliest that together have this probability.
    pub top_p: Option<f64>,
    /// Everything random depends on it.
    pub seed: u64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self { temperature: 0.0, top_k: None, top_p: None, seed: 42 }
    }
}

impl Sampling {
    pub(super) fn check(&self) -> Result<(), LensError> {
        let bad = |problem: String| Err(LensError::BadInput(problem));
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return bad(format!("`temperature` is {}, it must be 0 or more", self.temperature));
        }
        if self.top_k == Some(0) {
            return bad("`top_k` is 0, it must be at least 1".to_string());
        }
        match self.top_p {
            Some(p) if !(p > 0.0 && p <= 1.0) => {
                bad(format!("`top_p` is {p}, it must be above 0 and at most 1"))
            }
            _ => Ok(()),
        }
    }

    /// The next token from logits `[vocab]`, of one text at one place.
    pub(super) fn choose(&self, logits: &Tensor, text: usize, number: usize) -> Result<u32, LensError> {
        let logits = logits.to_vec1::<f32>()?;
        if let Some(bad) = logits.iter().position(|x| x.is_nan() || *x == f32::INFINITY) {
            return Err(LensError::BadInput(format!(
                "the logit of token {bad} is {}: no token can be chosen",
                logits[bad]
            )));
        }
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        // Of equal ones the smaller id comes first, whatever the machine.
        let likelier = |a: &u32, b: &u32| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b));
        if self.temperature == 0.0 {
            let first = order.into_iter().min_by(likelier);
            return first
                .ok_or_else(|| LensError::BadInput("there are no logits to choose from".to_string()));
        }
        order.sort_by(likelier);
        order.truncate(self.top_k.unwrap_or(usize::MAX));
        let largest = f64::from(logits[order[0] as usize]);
        let weight = |id: &u32| ((f64::from(logits[*id as usize]) - largest) / self.temperature).exp();
        let weights: Vec<f64> = order.iter().map(weight).collect();
        let total: f64 = weights.iter().sum();
        let mut kept = weights.len();
        if let Some(p) = self.top_p {
            let mut sum = 0.0;
            kept = weights
                .iter()
                .position(|weight| {
                    sum += weight;
                    sum >= p * total
                })
                .map_or(kept, |last| last + 1);
        }
        let total: f64 = weights[..kept].iter().sum();
        let drawn = Stream::new(self.seed).named("sample").at(text as u64).uniform(number as u64) * total;
        let mut sum = 0.0;
        let chosen = weights[..kept].iter().position(|weight| {
            sum += weight;
            sum > drawn
        });
        Ok(order[chosen.unwrap_or(kept - 1)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::Device;

    fn draws(sampling: &Sampling, logits: &[f32], count: usize) -> Vec<u32> {
        let logits = Tensor::new(logits, &Device::Cpu).unwrap();
        (0..count).map(|number| sampling.choose(&logits, 0, number).unwrap()).collect()
    }

    #[test]
    fn greedy_takes_the_likeliest_and_of_equals_the_first() {
        assert_eq!(draws(&Sampling::default(), &[0.0, 3.0, 1.0, 3.0], 3), [1, 1, 1]);
    }

    #[test]
    fn frequencies_are_those_of_the_softmax() {
        let sampling = Sampling { temperature: 2.0, ..Sampling::default() };
        let logits = [0.0f32, 2.0, -1.0];
        let drawn = draws(&sampling, &logits, 20_000);
        let total: f64 = logits.iter().map(|x| (f64::from(*x) / 2.0).exp()).sum();
        for (id, x) in logits.iter().enumerate() {
            let share = drawn.iter().filter(|other| **other == id as u32).count() as f64 / 20_000.0;
            assert!((share - (f64::from(*x) / 2.0).exp() / total).abs() < 0.015, "{id}: {share}");
        }
        assert_eq!(drawn, draws(&sampling, &logits, 20_000), "a function of the seed");
        assert_ne!(drawn, draws(&Sampling { seed: 7, ..sampling }, &logits, 20_000));
    }

    #[test]
    fn top_k_and_top_p_leave_the_unlikely_out() {
        let logits = [0.0f32, 2.0, 1.0, 1.9];
        let hot = Sampling { temperature: 1.0, ..Sampling::default() };
        let among = |sampling: Sampling, allowed: &[u32]| {
            let drawn = draws(&sampling, &logits, 2000);
            allowed.iter().all(|id| drawn.contains(id)) && drawn.iter().all(|id| allowed.contains(id))
        };
        assert!(among(Sampling { top_k: Some(2), ..hot.clone() }, &[1, 3]));
        assert!(among(Sampling { top_p: Some(0.5), ..hot.clone() }, &[1, 3]));
        assert!(among(Sampling { top_p: Some(0.1), ..hot.clone() }, &[1]));
        assert!(among(Sampling { top_p: Some(1.0), ..hot }, &[0, 1, 2, 3]));
    }

    #[test]
    fn nonsense_is_refused() {
        for sampling in [
            Sampling { temperature: -1.0, ..Sampling::default() },
            Sampling { temperature: f64::NAN, ..Sampling::default() },
            Sampling { top_k: Some(0), ..Sampling::default() },
            Sampling { top_p: Some(0.0), ..Sampling::default() },
            Sampling { top_p: Some(1.5), ..Sampling::default() },
        ] {
            assert!(sampling.check().is_err(), "{sampling:?}");
        }
        let nan = Tensor::new(&[0.0f32, f32::NAN], &Device::Cpu).unwrap();
        assert!(Sampling::default().choose(&nan, 0, 0).is_err());
    }
}
