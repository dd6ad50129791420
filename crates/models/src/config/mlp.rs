//! The description of an MLP over a window of tokens.

use serde_json::{Value, json};
use tenterhook_nn::ops::Activation;

use super::check::MOST_PARAMETERS;
use super::families::{MOST_LAYERS, activation};
use super::keys::{Keys, described};
use super::write::activation_name;
use crate::error::{ConfigError, Problems, shown};

/// The `model_type` of an MLP's `config.json`.
pub(crate) const MLP_MODEL_TYPE: &str = "tenterhook_mlp";

/// Everything that determines the numbers an [`Mlp`](crate::Mlp) computes, apart from its weights.
///
/// ```
/// use tenterhook_models::config::MlpConfig;
/// use tenterhook_nn::ops::Activation;
/// let config = MlpConfig {
///     vocab: 27, context: 3, d_model: 10, d_mlp: 200, n_layers: 1, activation: Activation::Relu, dropout: 0.0,
/// };
/// assert_eq!(MlpConfig::from_json(&config.to_json())?, config);
/// # Ok::<(), tenterhook_models::error::ConfigError>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct MlpConfig {
    /// Rows of the embedding, and logits.
    pub vocab: usize,
    /// The number of tokens it reads, always the same.
    pub context: usize,
    /// Size of a token's embedding.
    pub d_model: usize,
    /// Size of every hidden layer.
    pub d_mlp: usize,
    /// Number of hidden layers.
    pub n_layers: usize,
    /// Activation of the hidden layers.
    pub activation: Activation,
    /// Dropout rate on what each hidden layer hands on, while training.
    pub dropout: f64,
}

impl MlpConfig {
    /// Reads a `config.json`; every problem is reported at once. A key that is not known is one of them, because it could change the
    /// numbers.
    pub fn from_json(json: &Value) -> Result<Self, ConfigError> {
        let mut problems = Problems::default();
        match json.as_object() {
            None => problems.add(|| format!("must be a JSON object, found {}", described(json))),
            Some(object) => {
                let mut keys = Keys::new(object, "");
                let config = read(&mut keys);
                problems.append(keys.into_problems());
                config.check_parameters(&mut problems);
                if problems.is_empty() {
                    return Ok(config);
                }
            }
        }
        Err(ConfigError { problems })
    }

    /// The `config.json` that [`from_json`](Self::from_json) reads back to the same description.
    pub fn to_json(&self) -> Value {
        json!({
            "architectures": [],
            "model_type": MLP_MODEL_TYPE,
            "dtype": "float32",
            "vocab": self.vocab,
            "context": self.context,
            "d_model": self.d_model,
            "d_mlp": self.d_mlp,
            "n_layers": self.n_layers,
            "activation": activation_name(self.activation),
            "dropout": self.dropout,
        })
    }

    /// Checks a description that was made by hand.
    pub fn validate(&self) -> Result<(), ConfigError> {
        // JSON has no NaN: written and read again it would be the default.
        if self.dropout.is_finite() {
            return Self::from_json(&self.to_json()).map(drop);
        }
        let mut problems = Problems::default();
        problems
            .add(|| format!("`dropout` must be a rate of at least 0 and below 1, found {}", self.dropout));
        Err(ConfigError { problems })
    }

    /// The numbers in all weights.
    pub(crate) fn parameters(&self) -> u128 {
        let [vocab, context, d_model, d_mlp, n_layers] =
            [self.vocab, self.context, self.d_model, self.d_mlp, self.n_layers].map(|size| size as u128);
        let first = (context * d_model + 1) * d_mlp;
        let others = n_layers.saturating_sub(1) * (d_mlp + 1) * d_mlp;
        vocab * d_model + first + others + (d_mlp + 1) * vocab
    }

    fn check_parameters(&self, problems: &mut Problems) {
        let parameters = self.parameters();
        if parameters > MOST_PARAMETERS {
            problems.add(|| {
                format!("the sizes make a model of {parameters} parameters, more than {MOST_PARAMETERS}")
            });
        }
    }
}

fn read(keys: &mut Keys<'_>) -> MlpConfig {
    const SIZES: [&str; 5] = ["vocab", "context", "d_model", "d_mlp", "n_layers"];
    keys.allow_only(&[
        "architectures",
        "model_type",
        "dtype",
        "vocab",
        "context",
        "d_model",
        "d_mlp",
        "n_layers",
        "activation",
        "dropout",
    ]);
    if let Some(name) = keys.text(&["model_type"], "")
        && name != MLP_MODEL_TYPE
    {
        keys.problem(|| format!("`model_type` must be `{MLP_MODEL_TYPE}`, found {}", shown(name)));
    }
    for name in SIZES.into_iter().chain(["activation"]) {
        if keys.value(&[name]).is_none() {
            keys.problem(|| format!("`{name}` is missing"));
        }
    }
    MlpConfig {
        vocab: keys.size(&["vocab"], 1),
        context: keys.size(&["context"], 1),
        d_model: keys.size(&["d_model"], 1),
        d_mlp: keys.size(&["d_mlp"], 1),
        n_layers: keys.size_up_to(&["n_layers"], 1, MOST_LAYERS),
        activation: activation(keys, &["activation"], "gelu"),
        dropout: keys.rate(&["dropout"], 0.0),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn tiny() -> MlpConfig {
        MlpConfig {
            vocab: 27,
            context: 3,
            d_model: 10,
            d_mlp: 20,
            n_layers: 2,
            activation: Activation::GeluTanh,
            dropout: 0.25,
        }
    }

    #[test]
    fn what_is_written_is_read_back() {
        for activation in [
            Activation::Gelu,
            Activation::GeluTanh,
            Activation::Silu,
            Activation::Relu,
            Activation::QuickGelu,
        ] {
            let config = MlpConfig { activation, ..tiny() };
            assert_eq!(MlpConfig::from_json(&config.to_json()).unwrap(), config);
        }
    }

    #[test]
    fn everything_wrong_is_said_at_once() {
        let json = json!({"model_type": "mlp", "vocab": 0, "context": "3", "d_model": 10, "d_mlp": -1,
            "activation": "mish", "dropout": 1.0, "tied": true});
        let problem = MlpConfig::from_json(&json).unwrap_err().to_string();
        for expected in [
            "8 problems",
            "`model_type`",
            "`vocab`",
            "`context`",
            "`d_mlp`",
            "`n_layers` is missing",
            "`mish`",
            "`dropout`",
            "`tied` is not known",
        ] {
            assert!(problem.contains(expected), "{problem}\nshould contain {expected}");
        }
    }

    #[test]
    fn impossible_descriptions_are_refused() {
        tiny().validate().unwrap();
        for (config, key) in [
            (MlpConfig { n_layers: 0, ..tiny() }, "n_layers"),
            (MlpConfig { n_layers: 10_001, ..tiny() }, "n_layers"),
            (MlpConfig { context: usize::MAX, ..tiny() }, "context"),
            (MlpConfig { vocab: 1 << 31, d_mlp: 1 << 31, ..tiny() }, "parameters"),
            (MlpConfig { dropout: f64::NAN, ..tiny() }, "dropout"),
            (MlpConfig { dropout: -0.1, ..tiny() }, "dropout"),
        ] {
            let problem = config.validate().unwrap_err().to_string();
            assert!(problem.contains(key), "{problem}");
        }
    }
}
