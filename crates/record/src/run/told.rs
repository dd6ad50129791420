//! What lists and pages tell of runs, in the same words wherever they are shown.

use serde_json::{Map, Value, json};

use super::{RunRecord, Summary};
use crate::differences::{Difference, differences};

impl Summary {
    /// A run as lists have it.
    pub fn to_json(&self, id: &str) -> Map<String, Value> {
        let record = &self.record;
        let told = json!({
            "id": id,
            "name": record.name,
            "parent": record.parent,
            "status": self.status(),
            "killed": self.killed,
            "degraded": record.degraded,
            "started": record.started,
            "finished": record.finished,
            "seconds": self.seconds(),
            "steps": self.steps(),
            "score": self.score(),
            "config_hash": record.config_hash,
            "commit": record.commit,
            "dirty": record.dirty,
            "problem": self.problem,
        });
        if let Value::Object(told) = told { told } else { Map::new() }
    }

    /// What differs between two runs with these configurations, by what it is a part of.
    pub fn differences(
        &self,
        config: &Value,
        other: &Self,
        other_config: &Value,
    ) -> [(&'static str, Vec<Difference>); 4] {
        let commit = |summary: &Self| {
            let RunRecord { commit, dirty, .. } = &summary.record;
            json!({ "commit": commit_in_words(commit, *dirty) })
        };
        [
            ("config", differences(config, other_config)),
            ("commit", differences(&commit(self), &commit(other))),
            ("data", differences(&self.record.data, &other.record.data)),
            ("metrics", self.metric_differences(other)),
        ]
    }

    fn metric_differences(&self, other: &Self) -> Vec<Difference> {
        // In a path of keys `val/loss` is quoted; here it is the whole name.
        let plain = |found: Difference| Difference {
            key: serde_json::from_str(&found.key).unwrap_or(found.key),
            ..found
        };
        let found = differences(&json!(self.last_values()), &json!(other.last_values()));
        let mut found: Vec<Difference> = found.into_iter().map(plain).collect();
        found.sort_by(|a, b| a.key.cmp(&b.key));
        found
    }

    /// The hooks of the record in the order in which they run, each with its `receipt` where there is one. That knows better than the
    /// record, which is older, whether the hook is on.
    pub fn hooks_with(&self, receipts: &[Value]) -> Vec<Value> {
        let with_receipt = |hook: &Value| {
            let mut hook = hook.clone();
            let receipt = receipts.iter().find(|receipt| receipt["id"] == hook["id"]);
            if let (Some(hook), Some(receipt)) = (hook.as_object_mut(), receipt) {
                if receipt["enabled"].is_boolean() {
                    hook.insert("enabled".to_string(), receipt["enabled"].clone());
                }
                hook.insert("receipt".to_string(), receipt.clone());
            }
            hook
        };
        self.record.hooks.iter().map(with_receipt).collect()
    }
}

/// A commit, and whether files differed from it.
pub fn commit_in_words(commit: &str, dirty: Option<bool>) -> String {
    match dirty {
        Some(true) => format!("{commit} (with changes)"),
        _ => commit.to_string(),
    }
}
