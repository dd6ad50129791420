//! The `[ranks]` section.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What `batch` of a data set counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum BatchOf {
    /// The examples of a step on all ranks together, whatever their number.
    #[default]
    All,
    /// The examples of every rank: more ranks, larger steps.
    EachRank,
}

/// Which gradients update hooks get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum UpdateHooks {
    /// Those of the whole batch, the same on every rank.
    #[default]
    Summed,
    /// A rank's share of them, before they are summed.
    Local,
}

/// How several processes train together. It says nothing about their number, which is the launcher's, and changes nothing where there is one.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RanksSection {
    /// What `batch` of a data set counts: the examples of "all" ranks together, or of "each_rank".
    pub batch: BatchOf,
    /// Which gradients update hooks get: the "summed" ones of the whole batch, or the "local" share of a rank before the sum.
    pub update_hooks: UpdateHooks,
    /// Compares the weights of all ranks every so many steps, and before every checkpoint of `train.checkpoint_every`.
    pub check_every: u64,
    /// So many megabytes of gradients are summed at a time.
    pub bucket_mb: f64,
}

impl Default for RanksSection {
    fn default() -> Self {
        Self { batch: BatchOf::All, update_hooks: UpdateHooks::Summed, check_every: 100, bucket_mb: 16.0 }
    }
}

impl RanksSection {
    /// What is wrong with the values: key and message.
    pub fn problems(&self) -> Vec<(String, String)> {
        let mut problems = Vec::new();
        let mut wrong = |key: &str, message: &str| problems.push((key.to_string(), message.to_string()));
        if self.check_every == 0 {
            wrong("check_every", "is 0, it must be at least 1");
        }
        if !(0.001..=1000.0).contains(&self.bucket_mb) {
            wrong("bucket_mb", "must be between 0.001 and 1000");
        }
        problems
    }

    /// So many bytes of gradients are summed at a time.
    pub(crate) fn bucket_bytes(&self) -> usize {
        (self.bucket_mb * 1e6) as usize
    }
}
