//! SAELens' `cfg.json`, in the form of its version 6 and in the flat one before that.
//!
//! Whatever would change what an autoencoder computes is understood or refused by name. What only tells how it was made is listed here.

use serde_json::{Map, Value, json};
use tenterhook_hooks::nearest;
use tenterhook_models::error::Problems;

use crate::config::{Architecture, Normalize, Reshape, SaeConfig};

/// The version of SAELens whose form is written.
const FORM: &str = "6.0.0";

/// Keys that decide what is computed.
const DECIDING: [&str; 10] = [
    "architecture",
    "d_in",
    "d_sae",
    "dtype",
    "device",
    "apply_b_dec_to_input",
    "normalize_activations",
    "reshape_activations",
    "k",
    "rescale_acts_by_decoder_norm",
];

/// Keys before version 6 that decide what is computed.
const DECIDING_ONCE: [&str; 4] =
    ["activation_fn", "activation_fn_str", "activation_fn_kwargs", "finetuning_scaling_factor"];

/// Keys that say where an autoencoder belongs and what it was made of; before version 6 they stood beside the others.
const DESCRIBING: [&str; 23] = [
    "metadata",
    "model_name",
    "hook_name",
    "hook_point",
    "hook_layer",
    "hook_point_layer",
    "hook_head_index",
    "hook_point_head_index",
    "model_class_name",
    "model_from_pretrained_kwargs",
    "prepend_bos",
    "exclude_special_tokens",
    "neuronpedia_id",
    "context_size",
    "seqpos_slice",
    "dataset_path",
    "dataset_trust_remote_code",
    "sae_lens_version",
    "sae_lens_training_version",
    "hook_name_out",
    "hook_head_index_out",
    "hf_hook_name",
    "hf_hook_name_out",
];

/// Keys that decided how an autoencoder was trained, and decide nothing now.
const TRAINING: [&str; 27] = [
    "decoder_init_norm",
    "l1_coefficient",
    "l1_warm_up_steps",
    "lp_norm",
    "l0_coefficient",
    "l0_warm_up_steps",
    "jumprelu_init_threshold",
    "jumprelu_bandwidth",
    "jumprelu_sparsity_loss_mode",
    "jumprelu_tanh_scale",
    "jumprelu_ste_to_input",
    "pre_act_loss_coefficient",
    "target_l0",
    "use_sparse_activations",
    "aux_loss_coefficient",
    "topk_threshold_lr",
    "use_ghost_grads",
    "noise",
    "normalize_sae_decoder",
    "mse_loss_normalization",
    "decoder_heuristic_init",
    "decoder_heuristic_init_norm",
    "decoder_orthogonal_init",
    "init_encoder_as_decoder_transpose",
    "scale_sparsity_penalty_by_decoder_norm",
    "expansion_factor",
    "seed",
];

/// Reads a configuration. All problems are told at once.
pub(crate) fn from_json(json: &Value) -> Result<SaeConfig, Problems> {
    let mut read = Reader { problems: Problems::default() };
    let config = match json.as_object() {
        Some(map) => read.config(map),
        None => {
            read.problem("it must be a JSON object".to_string());
            None
        }
    };
    match config {
        Some(config) if read.problems.is_empty() => {
            let problems = config.problems();
            if problems.is_empty() { Ok(config) } else { Err(problems) }
        }
        _ => Err(read.problems),
    }
}

/// As it is written: in the form of SAELens 6, weights as f32.
pub(crate) fn to_json(config: &SaeConfig) -> Value {
    let mut metadata = config.metadata.clone();
    // SAELens goes by it when it reads the file: one from before this form must not stand in it.
    let version = metadata.get("sae_lens_version").and_then(Value::as_str).unwrap_or_default();
    let major = version.split('.').next().and_then(|major| major.parse::<u32>().ok());
    if major.is_none_or(|major| major < 6) {
        metadata.insert("sae_lens_version".to_string(), FORM.into());
    }
    let mut json = json!({
        "architecture": config.architecture.name(),
        "d_in": config.d_in,
        "d_sae": config.d_sae,
        "dtype": "float32",
        "device": "cpu",
        "apply_b_dec_to_input": config.apply_b_dec_to_input,
        "normalize_activations": config.normalize_activations.name(),
        "reshape_activations": config.reshape_activations.name(),
        "metadata": metadata,
    });
    if let Architecture::TopK { k, rescale_acts_by_decoder_norm } = config.architecture {
        json["k"] = k.into();
        json["rescale_acts_by_decoder_norm"] = rescale_acts_by_decoder_norm.into();
    }
    json
}

struct Reader {
    problems: Problems,
}

impl Reader {
    fn problem(&mut self, problem: String) {
        self.problems.add(|| problem);
    }

    fn config(&mut self, map: &Map<String, Value>) -> Option<SaeConfig> {
        let metadata = metadata(map);
        let old = is_old(map, &metadata);
        let known = || {
            DECIDING.iter().chain(&DESCRIBING).chain(&TRAINING).chain(DECIDING_ONCE.iter().filter(|_| old))
        };
        for key in map.keys().filter(|key| !known().any(|known| known == key)) {
            let near = nearest(key, known().copied(), 1);
            let hint = near.first().map(|near| format!("; nearest: `{near}`")).unwrap_or_default();
            self.problem(format!("`{key}` is not known, and what it changes would be lost{hint}"));
        }
        let (d_in, d_sae) = (self.size(map, "d_in"), self.size(map, "d_sae"));
        let architecture = self.architecture(map);
        self.dtype(map);
        let apply_b_dec_to_input = self.flag(map, "apply_b_dec_to_input", true);
        let normalize_activations = self.normalize(map);
        let reshape_activations = self.reshape(map, old, &metadata);
        Some(SaeConfig {
            d_in: d_in?,
            d_sae: d_sae?,
            architecture: architecture?,
            apply_b_dec_to_input,
            normalize_activations,
            reshape_activations,
            metadata,
        })
    }

    fn size(&mut self, map: &Map<String, Value>, key: &str) -> Option<usize> {
        let size = map.get(key).and_then(Value::as_u64).and_then(|size| usize::try_from(size).ok());
        if size.is_none() {
            let told =
                map.get(key).map_or("missing".to_string(), |value| format!("{value}, not a whole number"));
            self.problem(format!("`{key}` is {told}"));
        }
        size
    }

    fn flag(&mut self, map: &Map<String, Value>, key: &str, usual: bool) -> bool {
        match map.get(key) {
            None | Some(Value::Null) => usual,
            Some(Value::Bool(flag)) => *flag,
            Some(other) => {
                self.problem(format!("`{key}` is {other}, it must be true or false"));
                usual
            }
        }
    }

    fn architecture(&mut self, map: &Map<String, Value>) -> Option<Architecture> {
        let name = match map.get("architecture") {
            None | Some(Value::Null) => "standard",
            Some(Value::String(name)) => name,
            Some(other) => {
                self.problem(format!("`architecture` is {other}, not a name"));
                return None;
            }
        };
        let function = ["activation_fn", "activation_fn_str"]
            .iter()
            .find_map(|key| map.get(*key))
            .filter(|value| !value.is_null());
        let top_k = function.is_some_and(|function| function == "topk");
        if let Some(function) = function.filter(|function| !top_k && **function != "relu") {
            self.problem(format!(
                "the activation function {function} (`activation_fn`) is not supported: relu and topk are"
            ));
        }
        if map.get("finetuning_scaling_factor").is_some_and(|value| value == true) {
            self.problem(
                "`finetuning_scaling_factor` is not supported: fold the factors into the weights".to_string(),
            );
        }
        let arguments = map.get("activation_fn_kwargs").and_then(Value::as_object);
        let unknown = arguments.into_iter().flatten().filter(|(key, value)| *key != "k" && !value.is_null());
        for (key, _) in unknown {
            self.problem(format!("`activation_fn_kwargs.{key}` is not supported"));
        }
        match name {
            "standard" if !top_k => Some(Architecture::Standard),
            "topk" | "standard" => {
                let k = arguments.and_then(|map| map.get("k")).or(map.get("k"));
                Some(Architecture::TopK {
                    k: self.top_k(k)?,
                    rescale_acts_by_decoder_norm: self.flag(map, "rescale_acts_by_decoder_norm", false),
                })
            }
            "jumprelu" => Some(Architecture::JumpRelu),
            "gated" => Some(Architecture::Gated),
            "batchtopk" => {
                self.problem(
                    "the architecture is batchtopk, which is for training alone: save it with `save_inference_model`, as jumprelu"
                        .to_string(),
                );
                None
            }
            other => {
                self.problem(format!(
                    "the architecture {other:?} is not supported: standard, topk, jumprelu and gated are, and batchtopk in training"
                ));
                None
            }
        }
    }

    fn top_k(&mut self, k: Option<&Value>) -> Option<usize> {
        // SAELens' own default.
        let Some(k) = k else { return Some(100) };
        let whole = k
            .as_u64()
            .or(k.as_f64().filter(|k| k.fract() == 0.0 && *k >= 0.0 && *k < 1e15).map(|k| k as u64));
        if whole.is_none() {
            self.problem(format!("`k` is {k}, not a whole number"));
        }
        whole.and_then(|k| usize::try_from(k).ok())
    }

    /// Weights are computed with as f32 whatever they are stored as, so any float type will do.
    fn dtype(&mut self, map: &Map<String, Value>) {
        const TYPES: [&str; 4] = ["float32", "float64", "float16", "bfloat16"];
        let Some(dtype) = map.get("dtype") else { return };
        let name = dtype.as_str().unwrap_or_default();
        if !TYPES.contains(&name.strip_prefix("torch.").unwrap_or(name)) {
            self.problem(format!("`dtype` is {dtype}; {} are supported", TYPES.join(", ")));
        }
    }

    fn normalize(&mut self, map: &Map<String, Value>) -> Normalize {
        match map.get("normalize_activations") {
            None | Some(Value::Null | Value::Bool(false)) => Normalize::None,
            Some(Value::Bool(true)) => Normalize::ExpectedAverageOnlyIn,
            Some(value) => serde_json::from_value(value.clone()).unwrap_or_else(|_| {
                self.problem(format!(
                    "`normalize_activations` is {value}, which is not supported: none, expected_average_only_in, constant_norm_rescale \
                     and layer_norm are"
                ));
                Normalize::None
            }),
        }
    }

    fn reshape(&mut self, map: &Map<String, Value>, old: bool, metadata: &Map<String, Value>) -> Reshape {
        match map.get("reshape_activations") {
            None | Some(Value::Null) => {
                let hook = metadata.get("hook_name").and_then(Value::as_str).unwrap_or_default();
                if old && hook.contains("hook_z") { Reshape::HookZ } else { Reshape::None }
            }
            Some(value) => serde_json::from_value(value.clone()).unwrap_or_else(|_| {
                self.problem(format!(
                    "`reshape_activations` is {value}, which is not supported: none and hook_z are"
                ));
                Reshape::None
            }),
        }
    }
}

/// What describes the autoencoder, from where its version has it.
fn metadata(map: &Map<String, Value>) -> Map<String, Value> {
    let mut metadata = map.get("metadata").and_then(Value::as_object).cloned().unwrap_or_default();
    for (key, value) in map.iter().filter(|(key, _)| DESCRIBING.contains(&key.as_str()) && *key != "metadata")
    {
        let key = match key.as_str() {
            "hook_point" => "hook_name",
            "hook_point_layer" => "hook_layer",
            "hook_point_head_index" => "hook_head_index",
            key => key,
        };
        metadata.entry(key).or_insert(value.clone());
    }
    metadata
}

/// Files before version 6 have no version, or an earlier one.
fn is_old(map: &Map<String, Value>, metadata: &Map<String, Value>) -> bool {
    let version = map.get("sae_lens_version").or(metadata.get("sae_lens_version")).and_then(Value::as_str);
    let major =
        version.and_then(|version| version.split('.').next()).and_then(|major| major.parse::<u64>().ok());
    major.is_none_or(|major| major < 6)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: Value) -> SaeConfig {
        from_json(&json).unwrap_or_else(|problems| panic!("{problems}"))
    }

    fn refused(json: Value, expected: &str) {
        let problems = from_json(&json).map(|_| ()).unwrap_err().to_string();
        assert!(problems.contains(expected), "{problems}");
    }

    /// A small valid configuration with something changed.
    fn with(changes: Value) -> Value {
        let mut json = json!({
            "architecture": "topk", "d_in": 8, "d_sae": 32, "k": 4, "dtype": "float32", "device": "cpu",
            "metadata": {"sae_lens_version": "6.54.12", "hook_name": "blocks.0.hook_resid_post"},
        });
        for (key, value) in changes.as_object().into_iter().flatten() {
            json[key] = value.clone();
        }
        json
    }

    #[test]
    fn what_is_written_is_read_again() {
        let top_k = Architecture::TopK { k: 4, rescale_acts_by_decoder_norm: true };
        for architecture in [Architecture::Standard, top_k, Architecture::JumpRelu, Architecture::Gated] {
            let mut config = SaeConfig::new(8, 32, architecture).at_point("blocks.0.attn.hook_z");
            config.apply_b_dec_to_input = false;
            config.normalize_activations = Normalize::LayerNorm;
            config.reshape_activations = Reshape::HookZ;
            let again = read(to_json(&config));
            assert_eq!(again.metadata["sae_lens_version"], FORM);
            config.metadata = again.metadata.clone();
            assert_eq!(again, config);
        }
    }

    #[test]
    fn options_that_would_be_ignored_are_refused_by_name() {
        refused(with(json!({"temperature": 2})), "`temperature` is not known");
        refused(with(json!({"normalise_activations": "layer_norm"})), "nearest: `normalize_activations`");
        refused(with(json!({"normalize_activations": "covariance_whitening"})), "covariance_whitening");
        refused(with(json!({"reshape_activations": "hook_q"})), "hook_q");
        refused(with(json!({"architecture": "matryoshka_batchtopk"})), "matryoshka_batchtopk");
        refused(with(json!({"architecture": "batchtopk"})), "save_inference_model");
        refused(with(json!({"activation_fn_str": "relu"})), "`activation_fn_str` is not known");
        refused(with(json!({"k": 2.5})), "`k` is 2.5");
        refused(with(json!({"k": 33})), "`k` is 33");
        refused(with(json!({"k": 0})), "`k` is 0");
        refused(with(json!({"d_in": -1})), "`d_in` is -1");
        refused(with(json!({"d_in": u64::MAX})), "more than any memory");
        refused(with(json!({"dtype": "int8"})), "int8");
        refused(with(json!({"reshape_activations": "hook_z"})), "has no heads");
        refused(json!([]), "must be a JSON object");
        refused(json!({"d_in": "a"}), "2 problems");
    }

    #[test]
    fn files_before_version_6_are_read() {
        let old = json!({
            "architecture": "standard", "d_in": 8, "d_sae": 32, "dtype": "torch.float32", "device": "cpu", "model_name": "gpt2",
            "hook_point": "blocks.1.attn.hook_z", "hook_layer": 1, "hook_head_index": null, "activation_fn_str": "topk",
            "activation_fn_kwargs": {"k": 5}, "finetuning_scaling_factor": false, "normalize_activations": true,
            "context_size": 128, "sae_lens_training_version": "3.1.0",
        });
        let config = read(old.clone());
        assert_eq!(config.architecture, Architecture::TopK { k: 5, rescale_acts_by_decoder_norm: false });
        assert_eq!(
            (config.hook_name(), config.reshape_activations),
            (Some("blocks.1.attn.hook_z"), Reshape::HookZ)
        );
        assert_eq!(config.normalize_activations, Normalize::ExpectedAverageOnlyIn);
        let change = |key: &str, value: Value| {
            let mut json = old.clone();
            json[key] = value;
            json
        };
        refused(change("activation_fn_str", "tanh-relu".into()), "tanh-relu");
        refused(change("finetuning_scaling_factor", true.into()), "`finetuning_scaling_factor`");
        refused(
            change("activation_fn_kwargs", json!({"k": 5, "sharpness": 1})),
            "`activation_fn_kwargs.sharpness`",
        );
        assert_eq!(read(change("activation_fn_str", "relu".into())).architecture, Architecture::Standard);
    }
}
