//! What a run of the demonstration has come to: from its record and its last checkpoint.

use std::path::{Path, PathBuf};

use candle_core::Device;
use serde::Serialize;
use tenterhook_hooks::{HookRegistry, Metrics};
use tenterhook_lens::analysis::HeadKind;
use tenterhook_record::metrics::{self, MetricsError, Row};
use tenterhook_record::run::{RunDir, RunError};
use tenterhook_train::TrainError;
use tenterhook_train::config::{Document, Problems};

use super::groups::ablation;
use super::{Control, Groups, Head, Scores, THRESHOLD};
use crate::training::{BeginError, Plan, newest_checkpoint};

/// Why nothing can be said about a run.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// Its configuration, or a hook that ablates, does not work.
    #[error("{0}")]
    Config(#[from] Problems),
    /// Its directory cannot be read.
    #[error(transparent)]
    Run(#[from] RunError),
    /// Its log cannot be read.
    #[error(transparent)]
    Metrics(#[from] MetricsError),
    /// It has no good checkpoint.
    #[error(transparent)]
    Checkpoint(#[from] BeginError),
    /// Its model cannot be evaluated.
    #[error(transparent)]
    Train(#[from] TrainError),
    /// A hook failed, so that the numbers mean nothing.
    #[error("{0}")]
    Hook(String),
}

/// The run at one of its validations.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Moment {
    /// After so many steps.
    pub step: u64,
    /// The loss on the repeated part, of examples that are not trained on.
    pub loss: f64,
    /// The head with the largest induction score.
    pub best: Head,
    /// That score.
    pub score: f64,
}

impl Moment {
    /// What a row of the log says, if it is one of a validation.
    pub fn of(step: u64, values: &Metrics) -> Option<Self> {
        let loss = *values.get("val/loss")?;
        let (best, score) = Scores::of(HeadKind::Induction, values).best()?;
        Some(Self { step, loss, best, score })
    }
}

/// All validations of a run, in order.
pub fn moments(rows: &[Row]) -> Vec<Moment> {
    rows.iter().filter_map(|row| Moment::of(row.step, &row.values)).collect()
}

/// Losses on the repeated part.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Losses {
    /// Of the model as it is.
    pub plain: f64,
    /// Without its induction heads; `None` where there are none.
    pub without_induction_heads: Option<f64>,
    /// Without the others; `None` where there are none.
    pub without_others: Option<f64>,
}

/// What a run has come to.
#[derive(Clone, Debug, Serialize)]
pub struct Finding {
    /// The checkpoint that was looked at.
    pub checkpoint: PathBuf,
    /// How far every head looks at what followed the same token before.
    pub induction: Scores,
    /// How far every head looks at the token before.
    pub previous_token: Scores,
    /// The heads whose induction score is over [`THRESHOLD`].
    pub induction_heads: Vec<Head>,
    /// The heads that are ablated for comparison.
    pub others: Vec<Head>,
    /// What those are.
    pub control: Control,
    /// What ablating does.
    pub loss: Losses,
    /// The validation at which a head's score was over the threshold for the first time.
    pub formed_at: Option<u64>,
    /// All validations.
    pub course: Vec<Moment>,
}

impl Finding {
    /// Looks at a run that is over: scores every head, ablates the induction heads, ablates others.
    pub fn of(run: &Path, registry: &HookRegistry, device: &Device) -> Result<Self, DemoError> {
        let run = RunDir::open(run)?;
        let watch = "[{kind = \"head_scores\", validation = true}]";
        let (plain, checkpoint) = evaluate(&run, watch, registry, device)?;
        let induction = Scores::of(HeadKind::Induction, &plain);
        let previous_token = Scores::of(HeadKind::PreviousToken, &plain);
        let Groups { induction: induction_heads, others, control } =
            Groups::choose(&induction, &previous_token);
        let without = |heads: &[Head]| match heads.is_empty() {
            true => Ok(None),
            false => {
                evaluate(&run, &ablation(heads), registry, device).map(|(values, _)| Some(loss_of(&values)))
            }
        };
        let loss = Losses {
            plain: loss_of(&plain),
            without_induction_heads: without(&induction_heads)?,
            without_others: without(&others)?,
        };
        let course = moments(&metrics::read(&run.metrics_path())?);
        let formed_at = course.iter().find(|moment| moment.score > THRESHOLD).map(|moment| moment.step);
        Ok(Self {
            checkpoint,
            induction,
            previous_token,
            induction_heads,
            others,
            control,
            loss,
            formed_at,
            course,
        })
    }

    /// By how much the loss rises without the induction heads, and without the others.
    pub fn rises(&self) -> Option<(f64, f64)> {
        let rise = |loss: Option<f64>| loss.map(|loss| loss - self.loss.plain);
        Some((rise(self.loss.without_induction_heads)?, rise(self.loss.without_others)?))
    }

    /// How many times as much the loss rises without the induction heads as without the others. `None` where it does not rise
    /// without the others, or there is nothing to compare.
    pub fn ratio(&self) -> Option<f64> {
        self.rises().filter(|(_, others)| *others > 0.0).map(|(heads, others)| heads / others)
    }

    /// The hooks that ablate the induction heads, as `--set` takes them.
    pub fn ablation(&self) -> String {
        format!("hooks={}", ablation(&self.induction_heads))
    }
}

fn loss_of(values: &Metrics) -> f64 {
    values.get("val/loss").copied().unwrap_or(f64::NAN)
}

/// Validates the newest checkpoint of a run with these hooks in place of the run's, as `tenterhook eval RUN --set hooks=...` does.
fn evaluate(
    run: &RunDir,
    hooks: &str,
    registry: &HookRegistry,
    device: &Device,
) -> Result<(Metrics, PathBuf), DemoError> {
    let mut document = Document::read(&run.config_path())?;
    document.set(&format!("hooks={hooks}"))?;
    let mut trainer = Plan::check(&document, registry)?.evaluator(registry, device)?;
    let (checkpoint, _) = newest_checkpoint(run, |path| trainer.restore_weights(path))?;
    let values = trainer.evaluate()?;
    match trainer.errors().first() {
        Some(error) => Err(DemoError::Hook(error.to_string())),
        None => Ok((values, checkpoint.path)),
    }
}
