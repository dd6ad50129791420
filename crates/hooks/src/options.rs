//! The options that every hook has.

use std::fmt;
use std::time::Duration;

use schemars::JsonSchema;
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::clock::Clock;

/// What happens when a hook fails.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// The failure is logged and counted, the original tensor is kept, the pass goes on. After `quarantine_after` failures in a row
    /// the hook is disabled.
    #[default]
    Isolate,
    /// The pass ends with the hook's error.
    Abort,
}

/// How often a hook runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Every {
    /// On every n-th step.
    Steps(u64),
    /// On the first step of every epoch.
    Epoch,
}

impl Every {
    pub(crate) fn is_due(self, clock: &Clock) -> bool {
        match self {
            Every::Steps(n) => clock.step.is_multiple_of(n.max(1)),
            // The first step may have several batches.
            Every::Epoch => clock.batch == clock.micro_batch,
        }
    }
}

/// The options that every hook has, whatever its kind.
///
/// ```
/// use tenterhook_hooks::{HookOptions, OnError};
/// let options = HookOptions { id: Some("watcher".into()), on_error: OnError::Abort, ..Default::default() };
/// assert!(options.enabled);
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HookOptions {
    /// The hook's unique id; without one it is the kind, then kind-2, kind-3.
    pub id: Option<String>,
    /// Whether it runs; it can be switched at any time.
    pub enabled: bool,
    /// Runs on every n-th step ("step" is 1), or on the first step of every "epoch".
    #[serde(alias = "frequency")]
    #[schemars(with = "serde_json::Value", extend("aliases" = ["frequency"]))]
    #[schemars(extend("anyOf" = [{"type": "integer", "minimum": 1}, {"enum": ["step", "epoch"]}]))]
    pub every: Every,
    /// The share of the steps it runs on, chosen by its own random stream.
    pub sample_rate: f64,
    /// Runs only after this many whole epochs.
    pub start_after_epoch: u64,
    /// What happens when it fails.
    pub on_error: OnError,
    /// After this many failures in a row an isolated hook is disabled; 0 never.
    pub quarantine_after: u32,
    /// A call that takes longer, in milliseconds, is counted as slow and named once in the log; 0 never.
    pub slow_after_ms: u64,
    /// Lets a controller turn finite values into NaN or infinity.
    pub allow_non_finite: bool,
    /// Lets an observer see the value before the controllers.
    pub observe_before_edits: bool,
    /// Says more: every failure and not only the first, and what the kind itself has to say.
    pub verbose: bool,
    /// Built-in hooks run after the user's.
    #[serde(skip)]
    pub builtin: bool,
}

impl Default for HookOptions {
    fn default() -> Self {
        Self {
            id: None,
            enabled: true,
            every: Every::Steps(1),
            sample_rate: 1.0,
            start_after_epoch: 0,
            on_error: OnError::Isolate,
            quarantine_after: 3,
            slow_after_ms: 1000,
            allow_non_finite: false,
            observe_before_edits: false,
            verbose: false,
            builtin: false,
        }
    }
}

impl HookOptions {
    /// Options with an id and defaults for the rest.
    pub fn id(id: impl Into<String>) -> Self {
        Self { id: Some(id.into()), ..Self::default() }
    }

    /// The options of a hook that comes with this crate.
    pub(crate) fn builtin(id: Option<&str>) -> Self {
        Self { id: id.map(str::to_string), builtin: true, ..Self::default() }
    }

    /// What is wrong with the values, in words.
    pub fn problems(&self) -> Vec<String> {
        let mut problems = Vec::new();
        if !(0.0..=1.0).contains(&self.sample_rate) {
            problems.push(format!("`sample_rate` is {}, it must be between 0 and 1", self.sample_rate));
        }
        if self.every == Every::Steps(0) {
            problems.push("`every` is 0, it must be at least 1".to_string());
        }
        if self.id.as_deref().is_some_and(str::is_empty) {
            problems.push("`id` is empty".to_string());
        }
        problems
    }

    pub(crate) fn slow_after(&self) -> Option<Duration> {
        (self.slow_after_ms > 0).then(|| Duration::from_millis(self.slow_after_ms))
    }
}

impl Serialize for Every {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Every::Steps(n) => serializer.serialize_u64(*n),
            Every::Epoch => serializer.serialize_str("epoch"),
        }
    }
}

impl<'de> Deserialize<'de> for Every {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;
        impl Visitor<'_> for Forms {
            type Value = Every;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of steps, \"step\" or \"epoch\"")
            }
            fn visit_u64<E: de::Error>(self, n: u64) -> Result<Every, E> {
                Ok(Every::Steps(n))
            }
            fn visit_i64<E: de::Error>(self, n: i64) -> Result<Every, E> {
                u64::try_from(n).map(Every::Steps).map_err(|_| E::custom("a number of steps is at least 1"))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Every, E> {
                match text {
                    "step" => Ok(Every::Steps(1)),
                    "epoch" => Ok(Every::Epoch),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Forms)
    }
}
