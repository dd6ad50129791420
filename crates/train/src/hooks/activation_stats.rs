//! Mean and spread of activations.

use candle_core::Tensor;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{
    At, AttachError, Cx, Hook, HookResult, Mode, Part, Point, Positions, Selector, Want, inspect,
    without_padding,
};

use crate::hooks::none_of;

/// A number about an activation. NaN and infinity are left out of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ActivationStat {
    /// The mean.
    Mean,
    /// The standard deviation of the population.
    Std,
    /// The smallest element.
    Min,
    /// The largest element.
    Max,
}

/// What an [`ActivationStats`] measures, and where.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct ActivationStatsOptions {
    /// The points or layers.
    pub points: Selector,
    /// What is measured: "mean", "std", "min", "max".
    pub stats: Vec<ActivationStat>,
    /// Only these positions of the text, one or a list; negative from its end, padding not counted.
    pub positions: Option<Positions>,
    /// Only these heads, where there is an axis of heads.
    pub heads: Option<Vec<usize>>,
    /// Only these entries of the last axis.
    pub neurons: Option<Vec<usize>>,
    /// Measures in validation too, as `val/act/...`.
    pub validation: bool,
}

impl Default for ActivationStatsOptions {
    fn default() -> Self {
        Self {
            points: "*hook_resid_post".into(),
            stats: vec![ActivationStat::Mean, ActivationStat::Std],
            positions: None,
            heads: None,
            neurons: None,
            validation: false,
        }
    }
}

/// Logs numbers about activations as `act/<point>/<stat>`, in training, in inference and in generation; padding does not count. Where a step or a validation has several batches, the
/// numbers are those of the last.
pub struct ActivationStats {
    options: ActivationStatsOptions,
}

impl ActivationStats {
    /// The kind's name.
    pub const KIND: &'static str = "activation_stats";

    /// Options that measure nothing are an error.
    pub fn new(options: ActivationStatsOptions) -> Result<Self, AttachError> {
        let mut problems = Vec::new();
        if options.stats.is_empty() {
            problems.push("`stats` is empty: nothing would be measured".to_string());
        }
        let hook = Self { options };
        problems.extend(hook.part().problems());
        none_of(problems, Self::KIND)?;
        Ok(hook)
    }

    fn part(&self) -> Part {
        let ActivationStatsOptions { positions, heads, neurons, .. } = self.options.clone();
        Part { positions, heads, neurons }
    }
}

impl Hook for ActivationStats {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn wants(&self) -> Vec<Want> {
        vec![Want::observe(self.options.points.clone())]
    }

    fn fits(&self, point: &Point) -> HookResult {
        self.part().fits(point)
    }

    fn observe(&mut self, at: &At, x: &Tensor, cx: &mut Cx) -> HookResult {
        let prefix = match cx.mode() {
            Mode::Validate if self.options.validation => "val/act",
            Mode::Validate => return Ok(()),
            _ => "act",
        };
        let x = match self.part().is_all() {
            true => without_padding(at, x, cx)?,
            false => match self.part().pick(at, x, cx)? {
                Some(part) => part,
                None => return Ok(()), // a generation comes to these positions in another pass
            },
        };
        let summary = inspect(&x)?;
        for stat in &self.options.stats {
            let (name, value) = match stat {
                ActivationStat::Mean => ("mean", summary.mean),
                ActivationStat::Std => ("std", summary.std),
                ActivationStat::Min => ("min", summary.min),
                ActivationStat::Max => ("max", summary.max),
            };
            cx.log(format!("{prefix}/{}/{name}", at.name()), value);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::test_support::options;
    use candle_core::Device;
    use serde_json::{Value, json};
    use tenterhook_hooks::{Mock, PassSetup};

    const POINTS: [&str; 2] = ["blocks.0.hook_resid_post", "blocks.0.hook_mlp_out"];

    /// What is logged when 1, 3 and NaN pass at both points.
    fn logged(json: Value, setup: PassSetup) -> Vec<(String, f64)> {
        let mut mock = Mock::new(POINTS).unwrap();
        mock.attach(ActivationStats::new(options(json)).unwrap()).unwrap();
        mock.set_up(setup);
        let x = Tensor::new(&[1f32, 3.0, f32::NAN], &Device::Cpu).unwrap();
        POINTS.iter().for_each(|point| drop(mock.fire(point, &x).unwrap()));
        mock.report().metrics.into_iter().collect()
    }

    #[test]
    fn options_decide_what_is_measured_and_where() {
        let train = || PassSetup::train(0);
        let named = |names: &[(&str, f64)]| -> Vec<(String, f64)> {
            names.iter().map(|(name, value)| (name.to_string(), *value)).collect()
        };
        let resid = "act/blocks.0.hook_resid_post";
        assert_eq!(
            logged(json!({}), train()),
            named(&[(&format!("{resid}/mean"), 2.0), (&format!("{resid}/std"), 1.0)])
        );
        assert_eq!(
            logged(json!({"stats": ["max", "min"], "points": "*.hook_mlp_out"}), train()),
            named(&[("act/blocks.0.hook_mlp_out/max", 3.0), ("act/blocks.0.hook_mlp_out/min", 1.0)])
        );
        let validation = || PassSetup { mode: Mode::Validate, ..PassSetup::eval(0) };
        assert_eq!(logged(json!({}), validation()), []);
        assert_eq!(
            logged(json!({"validation": true, "stats": ["mean"]}), validation()),
            named(&[(&format!("val/{resid}/mean"), 2.0)])
        );
        for mode in [Mode::Eval, Mode::Prefill, Mode::Decode] {
            let elsewhere = PassSetup { mode, ..PassSetup::eval(0) };
            assert_eq!(
                logged(json!({"stats": ["mean"]}), elsewhere),
                named(&[(&format!("{resid}/mean"), 2.0)])
            );
        }
    }

    #[test]
    fn what_would_measure_nothing_is_refused() -> HookResult {
        assert!(ActivationStats::new(options(json!({"stats": []}))).is_err());
        let mut mock = Mock::new(POINTS)?;
        let error = mock.attach(ActivationStats::new(options(json!({"points": "blocks.0.hook_resid_pos"})))?);
        assert!(error.is_err_and(|error| error.to_string().contains("nearest: `blocks.0.hook_resid_post`")));
        Ok(())
    }
}
