//! What hooks that watch one metric have in common.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use tenterhook_hooks::{Cx, Metrics, nearest};

/// Which values of a metric are the better ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// Small ones, as for a loss.
    #[default]
    Min,
    /// Large ones, as for an accuracy.
    Max,
}

impl Goal {
    /// Whether `new` is better than `old` by more than `delta`. NaN is better than no number, and no number is better than NaN.
    pub(crate) fn is_better(self, new: f64, old: f64, delta: f64) -> bool {
        match self {
            Goal::Min => new < old - delta,
            Goal::Max => new > old + delta,
        }
    }
}

/// The value of a metric at the end of a validation: from its results, from what hooks have published since, or the last one of training.
/// A result of an earlier validation is not taken for one of this.
pub(crate) fn after_validation(name: &str, results: &Metrics, cx: &Cx) -> Option<f64> {
    let published = || cx.metric(name);
    let earlier = || if is_validation(name) { None } else { cx.state()?.metrics.get(name).copied() };
    results.get(name).copied().or_else(published).or_else(earlier)
}

/// The latest value of a metric, whenever that was.
pub(crate) fn latest(name: &str, cx: &Cx) -> Option<f64> {
    cx.metric(name).or_else(|| cx.state()?.metrics.get(name).copied())
}

/// Whether only a validation gives this metric.
pub(crate) fn is_validation(name: &str) -> bool {
    name.starts_with("val/")
}

/// What to say when a metric is not there: the names that are, the nearest first.
pub(crate) fn absent(name: &str, results: &Metrics, cx: &Cx) -> String {
    let mut names: Metrics = cx.metrics();
    names.extend(results.clone());
    names.extend(cx.state().map(|state| state.metrics.clone()).unwrap_or_default());
    let mut listed = nearest(name, names.keys().map(String::as_str), 5);
    let rest = names.into_keys().filter(|name| !listed.contains(name));
    let rest: Vec<String> = rest.take(10 - listed.len()).collect();
    listed.extend(rest);
    let listed: Vec<String> = listed.iter().map(|name| format!("`{name}`")).collect();
    match listed.is_empty() {
        true => format!("no metric is called `{name}`; there is none yet"),
        false => format!("no metric is called `{name}`; there are {}", listed.join(", ")),
    }
}

/// A number that survives JSON whatever it is: JSON has no infinity and no NaN.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Exact(pub(crate) f64);

impl Serialize for Exact {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.is_finite() {
            true => serializer.serialize_f64(self.0),
            false => serializer.collect_str(&self.0),
        }
    }
}

impl<'de> Deserialize<'de> for Exact {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = serde_json::Value::deserialize(deserializer)?;
        let number = value.as_f64().or_else(|| value.as_str()?.parse().ok());
        number.map(Exact).ok_or_else(|| de::Error::custom(format!("{value} is not a number")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn better_is_by_more_than_the_delta_and_never_nan() {
        const NAN: f64 = f64::NAN;
        const INF: f64 = f64::INFINITY;
        for (goal, new, old, delta, want) in [
            (Goal::Min, 0.9, 1.0, 0.0, true),
            (Goal::Min, 1.0, 1.0, 0.0, false),
            (Goal::Min, 0.75, 1.0, 0.25, false),
            (Goal::Min, 0.74, 1.0, 0.25, true),
            (Goal::Max, 1.25, 1.0, 0.25, false),
            (Goal::Max, 1.26, 1.0, 0.25, true),
            (Goal::Max, 0.9, 1.0, 0.0, false),
            (Goal::Min, NAN, 1.0, 0.0, false),
            (Goal::Max, NAN, 1.0, 0.0, false),
            (Goal::Min, -INF, -INF, 0.0, false),
            (Goal::Min, 1e300, INF, 0.0, true),
        ] {
            assert_eq!(goal.is_better(new, old, delta), want, "{goal:?} {new} {old} {delta}");
        }
    }

    #[test]
    fn every_number_survives_json() {
        let exotic = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 5e-324, -0.0, 0.1 + 0.2, f64::MAX, 3.0];
        for value in exotic {
            let text = serde_json::to_string(&Exact(value)).unwrap();
            let back: Exact = serde_json::from_str(&text).unwrap();
            assert!(
                back.0.to_bits() == value.to_bits() || back.0.is_nan() && value.is_nan(),
                "{value} {text}"
            );
        }
        assert!(serde_json::from_str::<Exact>("\"much\"").is_err());
    }
}
