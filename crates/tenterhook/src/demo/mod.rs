//! The demonstration: a small transformer grows induction heads, and loses its skill with them.
//!
//! An induction head looks for what followed the same token before, and copies it. Two layers of attention are enough for that to form,
//! suddenly, in some hundred steps. Everything here is ordinary: a configuration, a run with its record, hooks that watch, controllers
//! that ablate.
//!
//! ```no_run
//! use candle_core::Device;
//! use tenterhook::demo::{Demo, Finding};
//! use tenterhook::training::{Start, registry};
//!
//! let (registry, device) = (registry(), Device::Cpu);
//! let plan = Demo::default().plan(&registry)?;
//! let start = Start { plan: &plan, registry: &registry, device: &device, args: Vec::new(), parent: None };
//! let mut begun = start.new_one()?;
//! begun.trainer.train()?;
//! let finding = Finding::of(&begun.run_dir, &registry, &device)?;
//! println!("{:?}: {:?}", finding.induction_heads, finding.loss);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod finding;
mod groups;
mod heads;

use std::path::{Path, PathBuf};

use tenterhook_hooks::HookRegistry;
use tenterhook_train::config::{Document, Format, Problems};

pub use finding::{DemoError, Finding, Losses, Moment, moments};
pub use groups::{Control, Groups, THRESHOLD};
pub use heads::{Head, Scores};

use crate::training::Plan;

/// The configuration of the run, with comments.
pub const CONFIG: &str = include_str!("demo.toml");

/// What can be chosen about the demonstration.
#[derive(Clone, Debug)]
pub struct Demo {
    /// Decides everything random.
    pub seed: u64,
    /// Optimizer steps.
    pub steps: u64,
    /// The directory of all runs.
    pub runs_dir: PathBuf,
}

impl Default for Demo {
    fn default() -> Self {
        Self { seed: 42, steps: Self::STEPS, runs_dir: PathBuf::from("runs") }
    }
}

impl Demo {
    /// After so many steps heads have formed, whatever the seed.
    pub const STEPS: u64 = 300;

    /// The run, checked: it is called `demo`, or `demo-2` and so on where there is one already.
    pub fn plan(&self, registry: &HookRegistry) -> Result<Plan, Problems> {
        let mut document = Document::parse(CONFIG, Format::Toml)?;
        let steps = self.steps;
        for assignment in [
            format!("run.seed={}", self.seed),
            format!("run.name=\"{}\"", free_name(&self.runs_dir)),
            format!("train.steps={steps}"),
            format!("train.validate_every={}", steps.clamp(1, 10)),
            format!("schedule.warmup={}", (steps / 4).min(20)),
            format!("schedule.decay={}", (steps / 3).max(1)),
            // The first hook captures at the first and the last step, and keeps the last.
            format!("hooks.0.every={}", steps.saturating_sub(1).max(1)),
        ] {
            document.set(&assignment)?;
        }
        Plan::check_new(&document, registry, Some(&self.runs_dir))
    }
}

/// A name that no run has yet.
fn free_name(runs: &Path) -> String {
    let is_free = |name: &String| runs.join(name).symlink_metadata().is_err();
    let mut names = std::iter::once("demo".to_string()).chain((2..=u32::MAX).map(|n| format!("demo-{n}")));
    names.find(is_free).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::training::registry;

    #[test]
    fn the_configuration_is_the_demonstration_as_it_stands() {
        let dir = tempfile::tempdir().unwrap();
        let demo = Demo { runs_dir: dir.path().join("runs"), ..Demo::default() };
        let plan = demo.plan(&registry()).unwrap();
        let as_written = Plan::check(&Document::parse(CONFIG, Format::Toml).unwrap(), &registry()).unwrap();
        let (mut set, written) = (plan.config.to_value(), as_written.config.to_value());
        set["run"]["dir"] = written["run"]["dir"].clone();
        assert_eq!(set, written, "what the code sets is what the file says");
        assert_eq!(plan.config.train.steps, Some(Demo::STEPS));
    }

    #[test]
    fn a_second_demonstration_has_another_name() {
        let dir = tempfile::tempdir().unwrap();
        for expected in ["demo", "demo-2", "demo-3"] {
            assert_eq!(free_name(dir.path()), expected);
            std::fs::create_dir(dir.path().join(expected)).unwrap();
        }
    }
}
