//! How good an autoencoder is: of what it keeps, and of what the model makes of it.

use candle_core::{DType, Tensor};
use serde::Serialize;
use tenterhook_hooks::{HookOptions, OnError, Report, hook_fn};
use tenterhook_lens::{InferenceOptions, LanguageModel};
use tenterhook_models::next_token_loss;
use tenterhook_nn::ops::sparse::activity;

use crate::error::SaeError;
use crate::hook::{SaeHook, SaeOptions};
use crate::names::ConceptNames;
use crate::sae::Sae;
use crate::source::PointActivations;

/// How an evaluation is done.
#[derive(Clone, Debug)]
pub struct EvalOptions {
    /// The point; by default the one that the autoencoder is for.
    pub point: Option<String>,
    /// Sequences that go through the model together.
    pub batch_size: usize,
    /// Activations at the first so many positions of every sequence are left out of what is measured of them.
    pub skip: usize,
    /// Whether the model's loss is measured too, which takes three forwards more.
    pub cross_entropy: bool,
}

impl Default for EvalOptions {
    fn default() -> Self {
        Self { point: None, batch_size: 8, skip: 0, cross_entropy: true }
    }
}

/// What was found. Names and meanings are SAELens'.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Evaluated {
    /// Where.
    pub point: String,
    /// How many activations it was.
    pub tokens: u64,
    /// Active latents per activation.
    pub l0: f64,
    /// The squares of what is missed, summed over an activation.
    pub mse: f64,
    /// 1 less what is missed, over the variance of the activations.
    pub explained_variance: f64,
    /// The cosine between activations and reconstructions.
    pub cossim: f64,
    /// How long reconstructions are, measured by the activations.
    pub l2_ratio: f64,
    /// The share of latents that were never active.
    pub dead_share: f64,
    /// What the model loses by it.
    pub cross_entropy: Option<CrossEntropy>,
}

/// The model's mean next-token loss.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CrossEntropy {
    /// As it is.
    pub ce_loss_without_sae: f64,
    /// With reconstructions in place of the activations.
    pub ce_loss_with_sae: f64,
    /// With zeros in their place.
    pub ce_loss_with_ablation: f64,
    /// The share of what zeros lose that reconstructions keep.
    pub ce_loss_score: f64,
}

/// Sums over activations.
struct Sums {
    tokens: u64,
    fired: Vec<u64>,
    squares_missed: f64,
    squares: f64,
    sum: Vec<f64>,
    cosines: f64,
    ratios: f64,
}

impl Sums {
    fn add(&mut self, x: &Tensor, recons: &Tensor, acts: &Tensor) -> Result<(), SaeError> {
        let per_row =
            |t: Tensor| -> candle_core::Result<Vec<f64>> { t.sum(1)?.to_dtype(DType::F64)?.to_vec1() };
        let x = x.to_dtype(DType::F64)?;
        let recons = recons.to_dtype(DType::F64)?;
        let (inputs, outputs) = (per_row(x.sqr()?)?, per_row(recons.sqr()?)?);
        let products = per_row((&x * &recons)?)?;
        self.tokens += inputs.len() as u64;
        self.squares += inputs.iter().sum::<f64>();
        self.squares_missed += per_row((&x - &recons)?.sqr()?)?.iter().sum::<f64>();
        self.cosines += products
            .iter()
            .zip(inputs.iter().zip(&outputs))
            .map(|(p, (a, b))| p / (a * b).sqrt())
            .sum::<f64>();
        self.ratios += inputs
            .iter()
            .zip(&outputs)
            .map(|(a, b)| b.sqrt() / if a.sqrt() < 1e-4 { 1.0 } else { a.sqrt() })
            .sum::<f64>();
        self.sum.iter_mut().zip(x.sum(0)?.to_vec1::<f64>()?).for_each(|(sum, x)| *sum += x);
        self.fired.iter_mut().zip(activity(acts)?.fired).for_each(|(sum, fired)| *sum += fired);
        Ok(())
    }

    fn explained_variance(&self) -> f64 {
        let n = self.tokens as f64;
        let mean: f64 = self.sum.iter().map(|sum| (sum / n) * (sum / n)).sum();
        let (variance, missed) = (self.squares / n - mean, self.squares_missed / n);
        match variance < 1e-10 {
            true => f64::from(u8::from(missed < 1e-10)),
            false => 1.0 - missed / variance,
        }
    }
}

/// Measures an autoencoder on sequences of tokens. `progress` is called with the number of sequences that are done.
pub fn evaluate(
    lm: &LanguageModel,
    sae: &Sae,
    sequences: &[Vec<u32>],
    options: &EvalOptions,
    mut progress: impl FnMut(usize),
) -> Result<(Evaluated, Report), SaeError> {
    let point = point_of(sae, options.point.as_deref())?;
    let points = PointActivations::new(lm, point.as_str())?;
    check_width(sae, &points)?;
    if options.batch_size == 0 {
        return Err(SaeError::bad("a forward needs at least 1 sequence"));
    }
    let (d_in, d_sae) = (sae.config().d_in, sae.config().d_sae);
    let mut sums = Sums {
        tokens: 0,
        fired: vec![0; d_sae],
        squares_missed: 0.0,
        squares: 0.0,
        sum: vec![0.0; d_in],
        cosines: 0.0,
        ratios: 0.0,
    };
    let mut losses = Losses::new(lm, sae, &points.tensors()[0].0, options.cross_entropy)?;
    let mut done = 0;
    for batch in sequences.chunks(options.batch_size) {
        let ids: Vec<&[u32]> = batch.iter().map(Vec::as_slice).collect();
        let rows = points.rows(&ids, options.skip)?.remove(0);
        if rows.dim(0)? > 0 {
            let encoded = sae.encode(&rows)?;
            sums.add(&rows, &sae.decode(&encoded)?, &encoded.acts)?;
        }
        losses.add(batch)?;
        done += batch.len();
        progress(done);
    }
    if sums.tokens == 0 {
        return Err(SaeError::bad("there are no activations: the texts are too short, or there are none"));
    }
    let n = sums.tokens as f64;
    let never = sums.fired.iter().filter(|fired| **fired == 0).count();
    let evaluated = Evaluated {
        point: points.tensors()[0].0.clone(),
        tokens: sums.tokens,
        l0: sums.fired.iter().sum::<u64>() as f64 / n,
        mse: sums.squares_missed / n,
        explained_variance: sums.explained_variance(),
        cossim: sums.cosines / n,
        l2_ratio: sums.ratios / n,
        dead_share: never as f64 / d_sae as f64,
        cross_entropy: losses.result(),
    };
    Ok((evaluated, losses.report))
}

/// The point that was asked for, or that the autoencoder is for.
pub(crate) fn point_of(sae: &Sae, asked: Option<&str>) -> Result<String, SaeError> {
    let point = asked.or(sae.config().hook_name()).map(str::to_string);
    point.ok_or_else(|| {
        SaeError::bad("the autoencoder's cfg.json does not say for which point it is: name one")
    })
}

pub(crate) fn check_width(sae: &Sae, points: &PointActivations) -> Result<(), SaeError> {
    match points.tensors() {
        [(_, width)] if *width == sae.config().d_in => Ok(()),
        [(name, width)] => Err(SaeError::bad(format!(
            "the autoencoder is for activations of width {}, and `{name}` has {width}",
            sae.config().d_in
        ))),
        several => {
            Err(SaeError::bad(format!("one point is looked at at a time, and {} were chosen", several.len())))
        }
    }
}

/// The model as it is, with reconstructions, with zeros.
struct Losses {
    models: Vec<LanguageModel>,
    sums: [f64; 3],
    targets: usize,
    report: Report,
}

impl Losses {
    fn new(lm: &LanguageModel, sae: &Sae, point: &str, wanted: bool) -> Result<Self, SaeError> {
        let mut models = Vec::new();
        if wanted {
            let strict = |id: &str| HookOptions { on_error: OnError::Abort, ..HookOptions::id(id) };
            let (with_sae, ablated) = (lm.branch(), lm.branch());
            let options = SaeOptions { error_term: false, points: Some(point.into()), ..SaeOptions::new("") };
            let hook = SaeHook::with(sae.clone(), &ConceptNames::default(), options);
            let hook = hook.map_err(|problems| SaeError::bad(problems.join("; ")))?;
            with_sae.hooks().register_with(hook, strict("reconstruction"))?;
            let zeros = hook_fn::edit(point, |_, x, _| Ok(Some(x.zeros_like()?)));
            ablated.hooks().register_with(zeros, strict("zero_ablation"))?;
            models = vec![lm.clone(), with_sae, ablated];
        }
        Ok(Self { models, sums: [0.0; 3], targets: 0, report: Report::default() })
    }

    fn add(&mut self, sequences: &[Vec<u32>]) -> Result<(), SaeError> {
        let sequences: Vec<Vec<u32>> = sequences.iter().filter(|ids| ids.len() > 1).cloned().collect();
        if self.models.is_empty() || sequences.is_empty() {
            return Ok(());
        }
        let options = InferenceOptions { batch_size: sequences.len(), ..InferenceOptions::default() };
        for (lm, sum) in self.models.iter().zip(&mut self.sums) {
            let inference = lm.infer_tokens(sequences.clone(), &options)?;
            for (logits, ids) in inference.outputs.iter().zip(&sequences) {
                let loss = next_token_loss(&logits.unsqueeze(0)?, &lm.batch_of(ids)?)?;
                *sum += loss.to_dtype(DType::F64)?.to_scalar::<f64>()? * (ids.len() - 1) as f64;
            }
            self.report.add(inference.report);
        }
        self.targets += sequences.iter().map(|ids| ids.len() - 1).sum::<usize>();
        Ok(())
    }

    fn result(&self) -> Option<CrossEntropy> {
        if self.targets == 0 {
            return None;
        }
        let [without, with, ablated] = self.sums.map(|sum| sum / self.targets as f64);
        Some(CrossEntropy {
            ce_loss_without_sae: without,
            ce_loss_with_sae: with,
            ce_loss_with_ablation: ablated,
            ce_loss_score: (ablated - with) / (ablated - without),
        })
    }
}
