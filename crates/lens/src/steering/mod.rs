//! Steering vectors: the mean difference of activations between two lists of prompts.
//!
//! ```
//! # use candle_core::{DType, Device};
//! # use tenterhook_lens::LanguageModel;
//! # use tenterhook_models::{Transformer, config::TransformerConfig};
//! use tenterhook_lens::steering::{SteeringOptions, SteeringSweepOptions};
//!
//! # let model = Transformer::init(TransformerConfig::gpt2(50, 16, 8, 3, 2), 42, DType::F32, &Device::Cpu)?;
//! # let lm = LanguageModel::new(model)?;
//! let (liked, disliked) = (vec![vec![1, 2], vec![3, 2, 4]], vec![vec![5, 6]]);
//! let (vector, _) = lm.steering_vector(&liked, &disliked, &SteeringOptions::at("blocks.1.hook_resid_post"))?;
//! assert_eq!(vector.vector.dims(), [8]);
//!
//! let strengths = SteeringSweepOptions { strengths: vec![0.0, 4.0], ..Default::default() };
//! let (sweep, _) = lm.steering_sweep(&vector, &[7, 8, 9], &strengths, |_, _| ())?;
//! assert_eq!(sweep.rows[0].kl, 0.0);
//! assert!(sweep.rows[1].kl > 0.0);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod file;
mod sweep;

use candle_core::{DType, Tensor};
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{Report, Selector, Site};

use crate::cache::CacheOptions;
use crate::error::LensError;
use crate::language_model::LanguageModel;
pub use sweep::{SteeringRow, SteeringSweep, SteeringSweepOptions};

/// What is taken of every prompt.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Pool {
    /// The activation at its last token.
    #[default]
    Last,
    /// The mean over its tokens.
    Mean,
}

/// How a vector is made.
#[derive(Clone, Debug)]
pub struct SteeringOptions {
    /// The point where activations are taken, and where the vector is added later. It must choose one point.
    pub point: Selector,
    /// What is taken of every prompt.
    pub pool: Pool,
    /// Whether the vector is made one of length 1.
    pub normalise: bool,
}

impl SteeringOptions {
    /// The last token's activation at this point.
    pub fn at(point: impl Into<Selector>) -> Self {
        Self { point: point.into(), pool: Pool::Last, normalise: false }
    }
}

/// A direction at a point.
#[derive(Clone, Debug)]
pub struct SteeringVector {
    /// The point, by its canonical name.
    pub point: String,
    /// The direction: what the point has behind its positions, such as `[d_model]` or `[head, d_head]`.
    pub vector: Tensor,
    /// How many prompts it leads to.
    pub positive: usize,
    /// How many prompts it leads away from.
    pub negative: usize,
    /// What was taken of every prompt.
    pub pool: Pool,
    /// Whether it was made one of length 1.
    pub normalised: bool,
}

impl SteeringVector {
    /// Its length.
    pub fn norm(&self) -> Result<f32, LensError> {
        Ok(self.vector.to_dtype(DType::F32)?.sqr()?.sum_all()?.sqrt()?.to_scalar()?)
    }
}

impl LanguageModel {
    /// The mean activation over the positive prompts less that over the negative ones. Every prompt counts the same, whatever its length.
    pub fn steering_vector(
        &self,
        positive: &[Vec<u32>],
        negative: &[Vec<u32>],
        options: &SteeringOptions,
    ) -> Result<(SteeringVector, Report), LensError> {
        let point = self.one_point(&options.point)?;
        let mut report = Report::default();
        let mut mean =
            |prompts: &[Vec<u32>], which: &str| self.mean_of(prompts, which, &point, options, &mut report);
        let difference = (mean(positive, "positive")? - mean(negative, "negative")?)?;
        let vector = match options.normalise {
            false => difference,
            true => {
                let norm = difference.sqr()?.sum_all()?.sqrt()?.to_scalar::<f64>()?;
                if norm == 0.0 || !norm.is_finite() {
                    return Err(LensError::BadInput(format!(
                        "the means of the two lists differ by {norm}, which has no direction"
                    )));
                }
                (difference / norm)?
            }
        };
        let found = SteeringVector {
            point,
            vector: vector.to_dtype(DType::F32)?,
            positive: positive.len(),
            negative: negative.len(),
            pool: options.pool,
            normalised: options.normalise,
        };
        Ok((found, report))
    }

    /// The one point that is chosen, which must have positions.
    fn one_point(&self, select: &Selector) -> Result<String, LensError> {
        let table = self.hooks().points();
        let found = select.resolve(table, Site::Forward)?;
        let [one] = &found[..] else {
            let names: Vec<&str> = found.iter().take(3).map(|one| &*one.name).collect();
            let problem = format!(
                "`{select}` chooses {} points ({}, ...): a vector is for one",
                found.len(),
                names.join(", ")
            );
            return Err(LensError::BadInput(problem));
        };
        let point = table.point(one.point);
        if !point.axes.starts_with("batch pos ") {
            let problem =
                format!("`{}` has the axes `{}`: a vector needs `batch pos ...`", point.name, point.axes);
            return Err(LensError::BadInput(problem));
        }
        Ok(point.name.clone())
    }

    /// In f64, so that the order of the prompts hardly matters.
    fn mean_of(
        &self,
        prompts: &[Vec<u32>],
        which: &str,
        point: &str,
        options: &SteeringOptions,
        report: &mut Report,
    ) -> Result<Tensor, LensError> {
        let mut sum: Option<Tensor> = None;
        for (number, ids) in prompts.iter().enumerate() {
            self.check_tokens(ids)
                .map_err(|error| LensError::BadInput(format!("{which} prompt {number}: {error}")))?;
            let (_, cache, done) = self.run_with_cache(&self.batch_of(ids)?, &CacheOptions::points(point))?;
            report.add(done);
            let kept = cache.get(point)?.to_dtype(DType::F64)?.squeeze(0)?;
            let one = match options.pool {
                Pool::Last => kept.get(ids.len() - 1)?,
                Pool::Mean => kept.mean(0)?,
            };
            sum = Some(match sum {
                Some(sum) => (sum + one)?,
                None => one,
            });
        }
        let sum = sum.ok_or_else(|| LensError::BadInput(format!("there are no {which} prompts")))?;
        Ok((sum / prompts.len() as f64)?)
    }
}
