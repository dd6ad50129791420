//! Learning rates as metrics.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{AttachError, Cx, Hook, HookResult};

/// What an [`LrMonitor`] logs besides the learning rates.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct LrMonitorOptions {
    /// Also logs the momentum of SGD, or the first beta of AdamW.
    pub log_momentum: bool,
    /// Also logs the weight decay.
    pub log_weight_decay: bool,
}

/// Logs the learning rates with which a step is made, as `lr/<optimizer>/<group>` such as `lr/adamw/decay`. The second optimizer of a
/// kind is `adamw-2`. How often is up to the common option `every` (or `frequency = "epoch"`).
pub struct LrMonitor {
    options: LrMonitorOptions,
}

impl LrMonitor {
    /// The kind's name.
    pub const KIND: &'static str = "lr_monitor";

    /// It cannot fail; every kind is made alike.
    pub fn new(options: LrMonitorOptions) -> Result<Self, AttachError> {
        Ok(Self { options })
    }
}

impl Hook for LrMonitor {
    fn kind(&self) -> &str {
        Self::KIND
    }

    // Before the step: afterwards a schedule may have moved on to the next rate.
    fn on_before_optimizer_step(&mut self, optimizer_idx: usize, cx: &mut Cx) -> HookResult {
        let state = cx.state().ok_or("there is no run with learning rates")?;
        let optimizers = unique(state.optimizers.iter().map(|optimizer| optimizer.kind.as_str()));
        let (Some(optimizer), Some(name)) =
            (state.optimizers.get(optimizer_idx).cloned(), optimizers.get(optimizer_idx))
        else {
            return Ok(());
        };
        let groups = unique(optimizer.groups.iter().map(|group| group.name.as_str()));
        for (group, group_name) in optimizer.groups.iter().zip(groups) {
            cx.log(format!("lr/{name}/{group_name}"), group.lr);
            if self.options.log_momentum {
                cx.log(format!("momentum/{name}/{group_name}"), group.momentum);
            }
            if self.options.log_weight_decay {
                cx.log(format!("weight_decay/{name}/{group_name}"), group.weight_decay);
            }
        }
        Ok(())
    }
}

/// The names, the second `x` as `x-2`.
fn unique<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let mut seen: Vec<&str> = Vec::new();
    let numbered = names.map(|name| {
        seen.push(name);
        match seen.iter().filter(|other| **other == name).count() {
            1 => name.to_string(),
            n => format!("{name}-{n}"),
        }
    });
    numbered.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::test_support::options;
    use serde_json::{Value, json};
    use tenterhook_hooks::{Event, Every, HookOptions, MockTrainer};

    fn logged(json: Value, each: HookOptions, steps: u64) -> Vec<Vec<(String, f64)>> {
        let mut trainer = MockTrainer::new();
        trainer.attach_with(LrMonitor::new(options(json)).unwrap(), each).unwrap();
        for step in 0..steps {
            trainer.state.optimizers[0].groups[0].lr = 0.5f64.powi(step as i32);
            trainer.step(1.0).unwrap();
        }
        let values = |row: &tenterhook_hooks::MetricsRow| row.values.clone().into_iter();
        trainer.rows().iter().map(|row| values(row).filter(|(name, _)| name != "loss").collect()).collect()
    }

    #[test]
    fn the_rate_of_every_step_is_logged() {
        let lr = |value: f64| vec![("lr/sgd/decay".to_string(), value)];
        assert_eq!(logged(json!({}), HookOptions::default(), 3), [lr(1.0), lr(0.5), lr(0.25)]);
        let every_other = HookOptions { every: Every::Steps(2), ..HookOptions::default() };
        assert_eq!(logged(json!({}), every_other, 3), [lr(1.0), vec![], lr(0.25)]);
        let epoch = HookOptions { every: Every::Epoch, ..HookOptions::default() };
        assert_eq!(logged(json!({}), epoch, 3), [lr(1.0), vec![], vec![]]);
    }

    #[test]
    fn momentum_and_weight_decay_on_demand() {
        for (options, extra) in [
            (json!({"log_momentum": true}), vec![("momentum/sgd/decay", 0.9)]),
            (json!({"log_weight_decay": true}), vec![("weight_decay/sgd/decay", 0.01)]),
        ] {
            let rows = logged(options, HookOptions::default(), 1);
            let got: Vec<_> = rows[0].iter().map(|(name, value)| (name.as_str(), *value)).collect();
            assert_eq!(got[1..], extra[..]);
        }
    }

    #[test]
    fn optimizers_and_groups_of_one_name_are_told_apart() -> HookResult {
        let mut trainer = MockTrainer::new();
        trainer.attach(LrMonitor::new(LrMonitorOptions::default())?)?;
        let mut second = trainer.state.optimizers[0].clone();
        second.groups.push(second.groups[0].clone());
        second.groups[1].lr = 7.0;
        trainer.state.optimizers.push(second);
        trainer.fire(Event::BeforeOptimizerStep(1))?;
        trainer.validate(&[])?;
        let names: Vec<&String> = trainer.rows()[0].values.keys().collect();
        assert_eq!(names, ["lr/sgd-2/decay", "lr/sgd-2/decay-2"]);
        assert_eq!(trainer.metric("lr/sgd-2/decay-2"), Some(7.0));
        Ok(())
    }
}
