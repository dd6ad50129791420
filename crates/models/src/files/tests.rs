use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use serde_json::json;

use super::{FileWeights, ModelFiles, save_model};
use crate::config::{Family, NormKind, Positions, TransformerConfig};
use crate::error::ModelError;

/// The model directories made with `transformers`.
fn references() -> Vec<(String, PathBuf)> {
    let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let mut found: Vec<_> = fs::read_dir(data)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.join("config.json").exists())
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_string(), path))
        .collect();
    found.sort();
    assert!(found.len() >= Family::ALL.len());
    found
}

/// The parameters of a model by the names of `transformers`.
struct Parameters(Vec<(String, Vec<usize>)>);

impl Parameters {
    fn of(config: &TransformerConfig) -> Self {
        let mut all = Self(Vec::new());
        let (root, embedding, final_norm, head) = match config.family {
            Family::Gpt2 => ("transformer", "wte", "ln_f", "lm_head"),
            Family::NeoX => ("gpt_neox", "embed_in", "final_layer_norm", "embed_out"),
            _ => ("model", "embed_tokens", "norm", "lm_head"),
        };
        let norm_bias = config.norm == NormKind::LayerNorm;
        all.linear(&format!("{root}.{embedding}"), config.vocab, config.width, false);
        all.norm(&format!("{root}.{final_norm}"), config.width, norm_bias);
        if config.positions == Positions::Learned {
            all.linear(&format!("{root}.wpe"), config.context, config.width, false);
        }
        if !config.tied_embeddings {
            all.linear(head, config.vocab, config.width, false);
        }
        for layer in 0..config.layers {
            match config.family {
                Family::Gpt2 => all.gpt2_block(&format!("{root}.h.{layer}"), config),
                Family::NeoX => all.neox_block(&format!("{root}.layers.{layer}"), config),
                _ => all.decoder_block(&format!("{root}.layers.{layer}"), config),
            }
        }
        all
    }

    fn linear(&mut self, name: &str, outputs: usize, inputs: usize, bias: bool) {
        self.0.push((format!("{name}.weight"), vec![outputs, inputs]));
        self.bias(name, outputs, bias);
    }

    fn norm(&mut self, name: &str, size: usize, bias: bool) {
        self.0.push((format!("{name}.weight"), vec![size]));
        self.bias(name, size, bias);
    }

    fn bias(&mut self, name: &str, size: usize, bias: bool) {
        self.0.extend(bias.then(|| (format!("{name}.bias"), vec![size])));
    }

    fn gpt2_block(&mut self, block: &str, config: &TransformerConfig) {
        let (width, mlp) = (config.width, config.mlp_width);
        for (name, inputs, outputs) in [
            ("attn.c_attn", width, 3 * width),
            ("attn.c_proj", width, width),
            ("mlp.c_fc", width, mlp),
            ("mlp.c_proj", mlp, width),
        ] {
            // `Conv1D` stores its weight the other way round.
            self.linear(&format!("{block}.{name}"), inputs, outputs, false);
            self.bias(&format!("{block}.{name}"), outputs, true);
        }
        self.norm(&format!("{block}.ln_1"), width, true);
        self.norm(&format!("{block}.ln_2"), width, true);
    }

    fn neox_block(&mut self, block: &str, config: &TransformerConfig) {
        let (width, mlp) = (config.width, config.mlp_width);
        self.linear(&format!("{block}.attention.query_key_value"), 3 * width, width, config.qkv_bias);
        self.linear(&format!("{block}.attention.dense"), width, width, config.attn_out_bias);
        self.linear(&format!("{block}.mlp.dense_h_to_4h"), mlp, width, config.mlp_bias);
        self.linear(&format!("{block}.mlp.dense_4h_to_h"), width, mlp, config.mlp_bias);
        self.norm(&format!("{block}.input_layernorm"), width, true);
        self.norm(&format!("{block}.post_attention_layernorm"), width, true);
    }

    fn decoder_block(&mut self, block: &str, config: &TransformerConfig) {
        let (width, mlp, kv) = (config.width, config.mlp_width, config.kv_heads * config.head_dim);
        let projections = match config.family {
            Family::Phi3 => vec![("self_attn.qkv_proj", config.attention_width() + 2 * kv, config.qkv_bias)],
            _ => vec![
                ("self_attn.q_proj", config.attention_width(), config.qkv_bias),
                ("self_attn.k_proj", kv, config.qkv_bias),
                ("self_attn.v_proj", kv, config.qkv_bias),
            ],
        };
        let gates = match config.family {
            Family::Phi3 => vec![("mlp.gate_up_proj", 2 * mlp, config.mlp_bias)],
            _ => vec![("mlp.gate_proj", mlp, config.mlp_bias), ("mlp.up_proj", mlp, config.mlp_bias)],
        };
        for (name, outputs, bias) in projections.into_iter().chain(gates) {
            self.linear(&format!("{block}.{name}"), outputs, width, bias);
        }
        self.linear(
            &format!("{block}.self_attn.o_proj"),
            width,
            config.attention_width(),
            config.attn_out_bias,
        );
        self.linear(&format!("{block}.mlp.down_proj"), width, mlp, config.mlp_bias);
        let inner = ["pre_feedforward_layernorm", "post_feedforward_layernorm"];
        for name in ["input_layernorm", "post_attention_layernorm"]
            .iter()
            .chain(inner.iter().filter(|_| config.post_norms))
        {
            self.norm(&format!("{block}.{name}"), width, false);
        }
        for name in ["q_norm", "k_norm"].iter().filter(|_| config.qk_norm) {
            self.norm(&format!("{block}.self_attn.{name}"), config.head_dim, false);
        }
    }

    /// Asks for every one of them.
    fn load(&self, weights: &mut FileWeights) -> candle_core::Result<Vec<(String, Tensor)>> {
        self.0.iter().map(|(name, shape)| Ok((name.clone(), weights.tensor(name, shape)?))).collect()
    }
}

fn load(files: &ModelFiles) -> Result<Vec<(String, Tensor)>, ModelError> {
    let mut weights = files.weights(DType::F32, &Device::Cpu);
    let built = Parameters::of(&files.config).load(&mut weights);
    weights.finish_with(built)
}

fn values(tensors: &[(String, Tensor)]) -> Vec<(String, Vec<usize>, Vec<f32>)> {
    let value = |(name, tensor): &(String, Tensor)| {
        (name.clone(), tensor.dims().to_vec(), tensor.flatten_all().unwrap().to_vec1().unwrap())
    };
    tensors.iter().map(value).collect()
}

/// Exactly the parameters that the description implies are in the files: none missing, none left over.
#[test]
fn every_reference_is_read_completely_and_written_back() {
    for (name, path) in references() {
        let files = ModelFiles::open(&path).unwrap();
        let config = &files.config;
        assert!(
            name.starts_with(config.family.model_type().trim_start_matches("gpt_")),
            "{name}: {:?}",
            config.family
        );
        assert_eq!(TransformerConfig::from_hf(&config.to_hf()).unwrap(), *config, "{name}");
        let tensors = load(&files).unwrap_or_else(|error| panic!("{name}: {error}"));
        let copy = tempfile::tempdir().unwrap();
        save_model(copy.path(), &config.to_hf(), &tensors, None).unwrap();
        let again = ModelFiles::open(copy.path()).unwrap();
        assert_eq!(again.config, *config, "{name}");
        assert_eq!(values(&load(&again).unwrap()), values(&tensors), "{name}");
    }
}

#[test]
fn references_have_the_features_of_their_families() {
    for (name, path) in references() {
        let config = ModelFiles::open(&path).unwrap().config;
        let is = |families: &[Family]| families.contains(&config.family);
        use Family::*;
        assert_eq!(config.positions == Positions::Learned, is(&[Gpt2]), "{name}");
        assert_eq!(config.norm == NormKind::LayerNorm, is(&[Gpt2, NeoX]), "{name}");
        assert_eq!(config.gated_mlp, !is(&[Gpt2, NeoX]), "{name}");
        assert_eq!(config.parallel_residual, name == "neox", "{name}");
        assert_eq!(config.qkv_bias, is(&[Gpt2, NeoX, Qwen2]), "{name}");
        assert_eq!(config.attn_out_bias, is(&[Gpt2, NeoX]), "{name}");
        assert_eq!(config.qk_norm, is(&[Qwen3]), "{name}");
        assert_eq!(config.post_norms, is(&[Gemma2]), "{name}");
        assert_eq!(config.embed_scale.is_some(), is(&[Gemma2]), "{name}");
        assert_eq!(config.norm_weight_offset, if is(&[Gemma2]) { 1.0 } else { 0.0 }, "{name}");
        assert_eq!(config.logit_soft_cap.is_some(), is(&[Gemma2]), "{name}");
        assert_eq!(config.windows.iter().any(Option::is_some), is(&[Mistral, Gemma2]), "{name}");
        assert_eq!(config.bos, Some(1), "{name}");
        assert_eq!(config.eos, [2], "{name}");
    }
}

/// Every name that a file without the prefix of the language model uses.
#[test]
fn base_model_files_are_understood() {
    for (name, path) in references() {
        let files = ModelFiles::open(&path).unwrap();
        let tensors = load(&files).unwrap();
        let bare = |name: &str| {
            let prefixes = ["transformer.", "gpt_neox.", "model."];
            prefixes
                .iter()
                .find_map(|prefix| name.strip_prefix(prefix))
                .unwrap_or(name)
                .replace("embed_out", "lm_head")
        };
        let renamed: Vec<_> = tensors.iter().map(|(name, tensor)| (bare(name), tensor.clone())).collect();
        let copy = tempfile::tempdir().unwrap();
        save_model(copy.path(), &files.config_json, &renamed, None).unwrap();
        let again =
            load(&ModelFiles::open(copy.path()).unwrap()).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(values(&again), values(&tensors), "{name}");
    }
}

fn tiny_gpt2() -> (TransformerConfig, Vec<(String, Tensor)>) {
    let config = TransformerConfig::gpt2(11, 8, 8, 2, 2);
    let tensor = |(name, shape): &(String, Vec<usize>)| {
        (name.clone(), Tensor::ones(shape.as_slice(), DType::F32, &Device::Cpu).unwrap())
    };
    let tensors = Parameters::of(&config).0.iter().map(tensor).collect();
    (config, tensors)
}

fn problem_after(change: impl FnOnce(&mut Vec<(String, Tensor)>)) -> Option<String> {
    let (config, mut tensors) = tiny_gpt2();
    change(&mut tensors);
    let dir = tempfile::tempdir().unwrap();
    save_model(dir.path(), &config.to_hf(), &tensors, None).unwrap();
    load(&ModelFiles::open(dir.path()).unwrap()).err().map(|error| error.to_string())
}

fn zeros(shape: &[usize]) -> Tensor {
    Tensor::zeros(shape, DType::F32, &Device::Cpu).unwrap()
}

#[test]
fn all_tensors_that_do_not_fit_are_reported_at_once() {
    let problem = problem_after(|tensors| {
        for (name, tensor) in tensors.iter_mut() {
            match name.as_str() {
                "transformer.h.0.ln_1.weight" => *name = "transformer.h.0.ln_l.weight".to_string(),
                "transformer.h.1.mlp.c_fc.bias" => *tensor = zeros(&[3]),
                _ => {}
            }
        }
        tensors.push(("score.weight".to_string(), zeros(&[2, 2])));
    })
    .unwrap();
    for expected in [
        "4 problems",
        "`transformer.h.0.ln_1.weight` is missing; the files have `transformer.h.0.ln_l.weight`",
        "`transformer.h.1.mlp.c_fc.bias`: expected shape [32], found [3]",
        "`score.weight` is in the files but not in the model",
        "`transformer.h.0.ln_l.weight` is in the files but not in the model",
    ] {
        assert!(problem.contains(expected), "{problem}\nshould contain {expected}");
    }
}

#[test]
fn harmless_leftovers_are_accepted_and_harmful_ones_are_not() {
    let with = |name: &str, tensor: Tensor| problem_after(|tensors| tensors.push((name.to_string(), tensor)));
    assert_eq!(with("transformer.h.0.attn.bias", zeros(&[1, 1, 8, 8])), None);
    assert_eq!(with("transformer.h.0.attn.masked_bias", zeros(&[])), None);
    assert_eq!(with("transformer.h.0.rotary_emb.inv_freq", zeros(&[4])), None);
    // The embedding is all ones.
    assert_eq!(with("lm_head.weight", zeros(&[11, 8]).ones_like().unwrap()), None);
    assert!(with("lm_head.weight", zeros(&[11, 8])).unwrap().contains("`tie_word_embeddings`"));
}

/// A configuration of another, larger model stops early instead of filling the memory with placeholders.
#[test]
fn a_model_larger_than_its_files_is_given_up() {
    let (_, tensors) = tiny_gpt2();
    let dir = tempfile::tempdir().unwrap();
    let config = json!({"model_type": "gpt2", "vocab_size": 1_000_000_000, "n_embd": 4096, "n_head": 2, "n_layer": 9000});
    save_model(dir.path(), &config, &tensors, None).unwrap();
    let error = load(&ModelFiles::open(dir.path()).unwrap()).unwrap_err().to_string();
    assert!(error.contains("expected shape [1000000000, 4096], found [11, 8]"), "{error}");
}

#[test]
fn files_are_replaced_whole_and_keep_their_mode() {
    let (config, tensors) = tiny_gpt2();
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("new/model");
    let tokenizer = dir.path().join("source.json");
    fs::write(&tokenizer, "{}").unwrap();
    save_model(&target, &config.to_hf(), &tensors, Some(&tokenizer)).unwrap();
    let names = || {
        let mut names: Vec<_> =
            fs::read_dir(&target).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(), ["config.json", "model.safetensors", "tokenizer.json"]);
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = |name: &str| fs::metadata(target.join(name)).unwrap().permissions().mode() & 0o777;
        // The same as any file this process makes, so whatever the umask says.
        assert_eq!(mode("model.safetensors"), fs::metadata(&tokenizer).unwrap().permissions().mode() & 0o777);
        fs::set_permissions(target.join("config.json"), fs::Permissions::from_mode(0o640)).unwrap();
        save_model(&target, &config.to_hf(), &tensors, None).unwrap();
        assert_eq!(mode("config.json"), 0o640);
    }
    // A failing save leaves what was there, and nothing else.
    let before = fs::read(target.join("model.safetensors")).unwrap();
    let missing = dir.path().join("missing.json");
    let mut twice = tensors.clone();
    twice.push(tensors[0].clone());
    let odd = vec![("odd".to_string(), Tensor::zeros(1, DType::F8E4M3, &Device::Cpu).unwrap())];
    assert!(save_model(&target, &config.to_hf(), &tensors[1..], Some(&missing)).is_err());
    assert!(
        save_model(&target, &config.to_hf(), &twice, None).unwrap_err().to_string().contains("two tensors")
    );
    assert!(
        save_model(&target, &config.to_hf(), &odd, None).unwrap_err().to_string().contains("`odd` has type")
    );
    assert_eq!(fs::read(target.join("model.safetensors")).unwrap(), before);
    assert_eq!(names(), ["config.json", "model.safetensors", "tokenizer.json"]);
}
