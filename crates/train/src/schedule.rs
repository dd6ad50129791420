//! The learning rate over time: a factor for every optimizer step.
//!
//! Steps count from 0. With `w` warmup steps, `T` steps in all and `r = min_lr_ratio`, the factor of step `s` is
//!
//! ```text
//! s < w      (s + 1) / w                                  so that the first step is not lost
//! otherwise, with t = min(1, (s - w) / (T - w)):
//! constant   1
//! linear     r + (1 - r) * (1 - t)
//! cosine     r + (1 - r) * (1 + cos(pi * t)) / 2
//! step       gamma ^ floor((s - w) / step_size)
//! wsd        1 until step T - decay, then r + (1 - r) * fall(u) with u = min(1, (s - (T - decay)) / decay):
//!            fall(u) = 1 - u (linear), (1 + cos(pi * u)) / 2 (cosine), 1 - sqrt(u) (sqrt)
//! ```
//!
//! As in PyTorch's schedules, `r` is the factor of step `T`, the first one after the last, and of all beyond.

#[cfg(test)]
mod tests;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The shape of a schedule.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ScheduleKind {
    /// The same rate throughout.
    #[default]
    Constant,
    /// A straight line down.
    Linear,
    /// Half a cosine down.
    Cosine,
    /// Times `gamma` every `step_size` steps.
    Step,
    /// Warmup, stable, decay: constant, then down in the last `decay` steps.
    #[serde(alias = "warmup_stable_decay")]
    #[schemars(extend("aliases" = ["warmup_stable_decay"]))]
    Wsd,
}

/// How the last part of a warmup-stable-decay schedule falls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum DecayShape {
    /// A straight line.
    #[default]
    Linear,
    /// Half a cosine.
    Cosine,
    /// One minus the square root: fast first.
    Sqrt,
}

/// How the learning rate changes over the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ScheduleConfig {
    /// "constant", "linear", "cosine", "step" or "wsd".
    pub kind: ScheduleKind,
    /// Steps over which the rate rises from almost nothing.
    pub warmup: u64,
    /// Steps in all, warmup included; by default those of the run.
    pub steps: Option<u64>,
    /// The last rate as a share of the first, for linear, cosine and wsd.
    pub min_lr_ratio: f64,
    /// For step: how many steps lie between two drops.
    pub step_size: Option<u64>,
    /// For step: what the rate is multiplied with.
    pub gamma: f64,
    /// For wsd: how many steps at the end fall.
    pub decay: Option<u64>,
    /// For wsd: how they fall.
    pub decay_shape: DecayShape,
}

impl Default for ScheduleConfig {
    fn default() -> Self {
        Self {
            kind: ScheduleKind::default(),
            warmup: 0,
            steps: None,
            min_lr_ratio: 0.0,
            step_size: None,
            gamma: 0.1,
            decay: None,
            decay_shape: DecayShape::default(),
        }
    }
}

impl ScheduleConfig {
    /// What is wrong: the setting, and what to do about it. What depends on the length of the run is only known
    /// to [`Schedule::new`].
    pub fn problems(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut check = |bad: bool, key: &str, problem: String| {
            if bad {
                found.push((key.to_string(), problem));
            }
        };
        let falls = matches!(self.kind, ScheduleKind::Linear | ScheduleKind::Cosine | ScheduleKind::Wsd);
        let (step, wsd) = (self.kind == ScheduleKind::Step, self.kind == ScheduleKind::Wsd);
        let usual = Self::default();
        let ratio = self.min_lr_ratio;
        check(!(0.0..=1.0).contains(&ratio), "min_lr_ratio", format!("is {ratio}; it must be in [0, 1]"));
        check(
            !falls && ratio != 0.0,
            "min_lr_ratio",
            "belongs to linear, cosine and wsd; remove it, or choose one of these".to_string(),
        );
        check(self.steps == Some(0), "steps", "is 0; remove it to use the length of the run".to_string());
        let step_size = match self.step_size {
            None => "is missing; say how many steps lie between two drops",
            Some(_) => "is 0; it must be at least 1",
        };
        check(step && self.step_size.unwrap_or(0) == 0, "step_size", step_size.to_string());
        check(!step && self.step_size.is_some(), "step_size", only_for("step"));
        let gamma = self.gamma;
        check(!(gamma > 0.0 && gamma <= 1.0), "gamma", format!("is {gamma}; it must be in (0, 1]"));
        check(!step && gamma != usual.gamma, "gamma", only_for("step"));
        let decay = match self.decay {
            None => "is missing; say how many steps at the end fall, a tenth of the run is usual",
            Some(_) => "is 0; it must be at least 1, or choose constant",
        };
        check(wsd && self.decay.unwrap_or(0) == 0, "decay", decay.to_string());
        check(!wsd && self.decay.is_some(), "decay", only_for("wsd"));
        check(!wsd && self.decay_shape != usual.decay_shape, "decay_shape", only_for("wsd"));
        if let Some(steps) = self.steps {
            found.extend(self.length_problems(steps));
        }
        found
    }

    fn length_problems(&self, total: u64) -> Vec<(String, String)> {
        let decay = if self.kind == ScheduleKind::Wsd { self.decay.unwrap_or(0) } else { 0 };
        match self.warmup.checked_add(decay) {
            _ if self.kind == ScheduleKind::Constant || self.kind == ScheduleKind::Step => vec![],
            Some(sum) if sum <= total => vec![],
            _ if decay == 0 => {
                vec![(
                    "warmup".into(),
                    format!(
                        "is {}, but the schedule has only {total} steps; shorten it, or give the run more steps",
                        self.warmup
                    ),
                )]
            }
            _ => vec![(
                "decay".into(),
                format!(
                    "is {decay} after {} of warmup, but the schedule has only {total} steps; shorten one of them, or give the run more",
                    self.warmup
                ),
            )],
        }
    }
}

fn only_for(kind: &str) -> String {
    format!("belongs to {kind}; remove it, or choose {kind}")
}

/// A schedule makes no sense, or does not fit the run.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("schedule: {}", .0.iter().map(|(key, problem)| format!("`{key}` {problem}")).collect::<Vec<_>>().join("; "))]
pub struct ScheduleError(
    /// The settings, and what is wrong with each.
    pub Vec<(String, String)>,
);

/// A schedule of a run: a pure function of the step.
///
/// ```
/// use tenterhook_train::schedule::{Schedule, ScheduleConfig, ScheduleKind};
/// let config = ScheduleConfig { kind: ScheduleKind::Linear, warmup: 2, ..Default::default() };
/// let schedule = Schedule::new(&config, 6)?;
/// let factors: Vec<f64> = (0..7).map(|step| schedule.factor(step)).collect();
/// assert_eq!(factors, [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0]);
/// # Ok::<(), tenterhook_train::schedule::ScheduleError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Schedule {
    config: ScheduleConfig,
    total: u64,
}

impl Schedule {
    /// A schedule for a run of `total_steps`, unless the configuration has a length of its own.
    pub fn new(config: &ScheduleConfig, total_steps: u64) -> Result<Self, ScheduleError> {
        let mut problems = config.problems();
        if config.steps.is_none() {
            problems.extend(config.length_problems(total_steps));
        }
        match problems.is_empty() {
            true => Ok(Self { config: config.clone(), total: config.steps.unwrap_or(total_steps) }),
            false => Err(ScheduleError(problems)),
        }
    }

    /// What every learning rate is multiplied with at optimizer step `step`, which counts from 0.
    pub fn factor(&self, step: u64) -> f64 {
        let config = &self.config;
        let warmup = config.warmup;
        if step < warmup {
            return (step as f64 + 1.0) / warmup as f64;
        }
        let height = match config.kind {
            ScheduleKind::Constant => return 1.0,
            ScheduleKind::Step => {
                return config.gamma.powf(((step - warmup) / config.step_size.unwrap_or(u64::MAX)) as f64);
            }
            ScheduleKind::Linear => DecayShape::Linear.height(share(step, warmup, self.total)),
            ScheduleKind::Cosine => DecayShape::Cosine.height(share(step, warmup, self.total)),
            ScheduleKind::Wsd => {
                let start = self.total.saturating_sub(config.decay.unwrap_or(0));
                config.decay_shape.height(share(step, start, self.total))
            }
        };
        config.min_lr_ratio + (1.0 - config.min_lr_ratio) * height
    }
}

impl DecayShape {
    /// From 1 to 0 as `t` goes from 0 to 1.
    fn height(self, t: f64) -> f64 {
        match self {
            DecayShape::Linear => 1.0 - t,
            DecayShape::Cosine => (1.0 + (std::f64::consts::PI * t).cos()) / 2.0,
            DecayShape::Sqrt => 1.0 - t.sqrt(),
        }
    }
}

/// How much of the way from `start` to `end` is done.
fn share(step: u64, start: u64, end: u64) -> f64 {
    match step {
        _ if step >= end => 1.0,
        _ if step <= start => 0.0,
        _ => (step - start) as f64 / (end - start) as f64,
    }
}
