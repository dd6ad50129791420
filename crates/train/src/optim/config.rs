//! The settings of an optimizer.

use std::borrow::Cow;
use std::fmt;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tenterhook_hooks::glob_matches;

/// The rule by which weights move.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Adam with decoupled weight decay.
    AdamW,
    /// Gradient descent, with momentum if wanted.
    Sgd,
}

impl Kind {
    /// As it is written in a configuration.
    pub fn name(self) -> &'static str {
        match self {
            Kind::AdamW => "adamw",
            Kind::Sgd => "sgd",
        }
    }
}

/// An optimizer and the parameters it is for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct OptimizerConfig {
    /// "adamw" or "sgd".
    pub kind: Kind,
    /// The learning rate, before the schedule.
    pub lr: f64,
    /// How slowly the two moments of AdamW forget.
    #[serde(default = "usual_betas")]
    pub betas: [f64; 2],
    /// Added to the denominator of AdamW.
    #[serde(default = "usual_eps")]
    pub eps: f64,
    /// The weight decay: 0.01 for adamw and 0 for sgd unless given.
    #[serde(default)]
    pub weight_decay: Option<f64>,
    /// The momentum of sgd.
    #[serde(default)]
    pub momentum: f64,
    /// Nesterov's momentum, for sgd.
    #[serde(default)]
    pub nesterov: bool,
    /// The parameters: a glob over their names, or a list of globs. The first optimizer that matches gets a parameter.
    #[serde(default)]
    pub params: Patterns,
    /// The name under which its state is saved; by default the kind and its place in the list, as in `adamw.0`.
    #[serde(default)]
    pub name: Option<String>,
    /// Whether parameters with one axis (norms, biases) decay too.
    #[serde(default)]
    pub decay_norms_and_biases: bool,
}

fn usual_betas() -> [f64; 2] {
    [0.9, 0.999]
}

fn usual_eps() -> f64 {
    1e-8
}

impl OptimizerConfig {
    /// An optimizer of this kind for all parameters, all other settings as usual.
    pub fn new(kind: Kind, lr: f64) -> Self {
        Self {
            kind,
            lr,
            betas: usual_betas(),
            eps: usual_eps(),
            weight_decay: None,
            momentum: 0.0,
            nesterov: false,
            params: Patterns::default(),
            name: None,
            decay_norms_and_biases: false,
        }
    }

    /// The weight decay that holds.
    pub fn decay(&self) -> f64 {
        self.weight_decay.unwrap_or(match self.kind {
            Kind::AdamW => 0.01,
            Kind::Sgd => 0.0,
        })
    }

    /// What is wrong: the setting, and what to do about it.
    pub fn problems(&self) -> Vec<(String, String)> {
        let mut found = Vec::new();
        let mut check = |bad: bool, key: &str, problem: String| {
            if bad {
                found.push((key.to_string(), problem));
            }
        };
        // Written so that NaN is bad too.
        let zero_or_more = |x: f64| x.is_finite() && x >= 0.0;
        let below_one = |x: f64| (0.0..1.0).contains(&x);
        check(!zero_or_more(self.lr), "lr", format!("is {}; it must be 0 or more, 3e-4 is usual", self.lr));
        for beta in self.betas {
            check(
                !below_one(beta),
                "betas",
                format!("has {beta}; both must be in [0, 1), [0.9, 0.999] is usual"),
            );
        }
        check(
            !(self.eps.is_finite() && self.eps > 0.0),
            "eps",
            format!("is {}; it must be above 0 so that nothing is divided by 0, 1e-8 is usual", self.eps),
        );
        let decay = self.decay();
        check(!zero_or_more(decay), "weight_decay", format!("is {decay}; it must be 0 or more"));
        match self.kind {
            Kind::AdamW => {
                let betas = "belongs to sgd; remove it, adamw has `betas`";
                check(self.momentum != 0.0, "momentum", betas.to_string());
                check(self.nesterov, "nesterov", betas.to_string());
            }
            Kind::Sgd => {
                let usual = "belongs to adamw; remove it, sgd has `momentum`";
                check(self.betas != usual_betas(), "betas", usual.to_string());
                check(self.eps != usual_eps(), "eps", "belongs to adamw; remove it".to_string());
                let momentum = self.momentum;
                check(
                    !below_one(momentum),
                    "momentum",
                    format!("is {momentum}; it must be in [0, 1), 0.9 is usual"),
                );
                check(
                    self.nesterov && momentum == 0.0,
                    "nesterov",
                    "needs `momentum` above 0; set it, or remove `nesterov`".to_string(),
                );
            }
        }
        check(self.params.0.is_empty(), "params", "chooses nothing; write a glob, `*` is all".to_string());
        let bad_name = |name: &String| name.is_empty() || name.contains('/');
        check(
            self.name.as_ref().is_some_and(bad_name),
            "name",
            "stands before a `/` in saved states; it must have letters and no `/`".to_string(),
        );
        found
    }
}

/// Globs over parameter names: one as a string, several as a list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Patterns(Vec<String>);

impl Patterns {
    /// These globs.
    pub fn new(patterns: impl IntoIterator<Item = impl Into<String>>) -> Self {
        Self(patterns.into_iter().map(Into::into).collect())
    }

    /// The globs, as they were written.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(String::as_str)
    }

    /// Whether any of them matches this name.
    pub fn matches(&self, name: &str) -> bool {
        self.iter().any(|pattern| matches(pattern, name))
    }
}

/// A name may have brackets of its own: what is there literally matches too.
pub(super) fn matches(pattern: &str, name: &str) -> bool {
    pattern == name || glob_matches(pattern, name)
}

impl Default for Patterns {
    fn default() -> Self {
        Self::new(["*"])
    }
}

impl Serialize for Patterns {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.as_slice() {
            [one] => serializer.serialize_str(one),
            several => several.serialize(serializer),
        }
    }
}

impl<'de> Deserialize<'de> for Patterns {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OneOrSeveral;
        impl<'de> Visitor<'de> for OneOrSeveral {
            type Value = Patterns;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a glob over parameter names, or a list of globs")
            }

            fn visit_str<E: de::Error>(self, pattern: &str) -> Result<Patterns, E> {
                Ok(Patterns::new([pattern]))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Patterns, A::Error> {
                let mut patterns = Vec::new();
                while let Some(pattern) = list.next_element::<String>()? {
                    patterns.push(pattern);
                }
                Ok(Patterns(patterns))
            }
        }
        deserializer.deserialize_any(OneOrSeveral)
    }
}

impl JsonSchema for Patterns {
    fn schema_name() -> Cow<'static, str> {
        "Patterns".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }]
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn defaults_and_both_spellings_of_params() {
        let config: OptimizerConfig = serde_json::from_value(json!({"kind": "adamw", "lr": 1e-3})).unwrap();
        assert_eq!(config, OptimizerConfig::new(Kind::AdamW, 1e-3));
        assert_eq!((config.betas, config.eps, config.decay()), ([0.9, 0.999], 1e-8, 0.01));
        assert!(config.params.matches("any.name"));
        assert_eq!(OptimizerConfig::new(Kind::Sgd, 0.1).decay(), 0.0);

        let read = |params| {
            serde_json::from_value::<OptimizerConfig>(json!({"kind": "sgd", "lr": 1, "params": params}))
        };
        assert_eq!(read(json!("h.*")).unwrap().params, Patterns::new(["h.*"]));
        assert_eq!(read(json!(["h.*", "wte"])).unwrap().params, Patterns::new(["h.*", "wte"]));
        assert!(read(json!(3)).unwrap_err().to_string().contains("a glob over parameter names"));
        let again = serde_json::to_value(read(json!(["h.*", "wte"])).unwrap()).unwrap();
        assert_eq!(again["params"], json!(["h.*", "wte"]));
        let unknown = serde_json::from_value::<OptimizerConfig>(json!({"kind": "sgd", "lr": 1, "beta": 1}));
        assert!(unknown.unwrap_err().to_string().contains("unknown field `beta`"));
    }

    #[test]
    fn problems_name_the_setting() {
        let cases = [
            (json!({"kind": "adamw", "lr": 1e-3}), vec![]),
            (json!({"kind": "sgd", "lr": 0.0, "momentum": 0.9, "nesterov": true}), vec![]),
            (json!({"kind": "adamw", "lr": -1.0}), vec!["lr"]),
            (json!({"kind": "adamw", "lr": 1.0, "betas": [1.0, -0.1]}), vec!["betas", "betas"]),
            (json!({"kind": "adamw", "lr": 1.0, "eps": 0.0}), vec!["eps"]),
            (json!({"kind": "adamw", "lr": 1.0, "weight_decay": -0.1}), vec!["weight_decay"]),
            (
                json!({"kind": "adamw", "lr": 1.0, "momentum": 0.9, "nesterov": true}),
                vec!["momentum", "nesterov"],
            ),
            (json!({"kind": "sgd", "lr": 1.0, "betas": [0.8, 0.9], "eps": 1e-6}), vec!["betas", "eps"]),
            (json!({"kind": "sgd", "lr": 1.0, "momentum": 1.0}), vec!["momentum"]),
            (json!({"kind": "sgd", "lr": 1.0, "nesterov": true}), vec!["nesterov"]),
            (json!({"kind": "sgd", "lr": 1.0, "params": []}), vec!["params"]),
            (json!({"kind": "sgd", "lr": 1.0, "name": "a/b"}), vec!["name"]),
        ];
        for (config, keys) in cases {
            let problems = serde_json::from_value::<OptimizerConfig>(config.clone()).unwrap().problems();
            let found: Vec<&str> = problems.iter().map(|(key, _)| key.as_str()).collect();
            assert_eq!(found, keys, "{config}");
        }
        let nan = OptimizerConfig::new(Kind::AdamW, f64::NAN).problems();
        assert_eq!(nan[0].0, "lr");
    }
}
