//! Model directories: weights, their index, the configuration.

use std::fs;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device};
use tenterhook::models::Transformer;

use crate::damage::{feed, feed_within};

fn copy_of(name: &str) -> tempfile::TempDir {
    let from: PathBuf = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data").join(name);
    let dir = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, dir.path().join(path.file_name().unwrap())).unwrap();
    }
    dir
}

/// Damages one file of a copy of a model and loads the whole.
fn feed_file(model: &str, file: &str, reach: usize, usual: u32) {
    let dir = copy_of(model);
    let path = dir.path().join(file);
    let good = fs::read(&path).unwrap();
    feed_within(&format!("{file} of {model}"), &good, reach, usual, |bytes| {
        fs::write(&path, bytes).unwrap();
        if let Err(error) = Transformer::load(dir.path(), DType::F32, &Device::Cpu) {
            let message = error.to_string();
            assert!(!message.is_empty() && message.len() < 20_000, "{message}");
        }
    });
}

#[test]
fn p31_safetensors() {
    feed_file("gpt2", "model.safetensors", 3000, 150);
    feed_file("llama", "model.safetensors", usize::MAX, 50);
}

#[test]
fn p31_the_index_of_shards() {
    feed_file("llama_sharded", "model.safetensors.index.json", usize::MAX, 150);
}

#[test]
fn p31_configurations_of_models() {
    for model in ["gpt2", "neox", "llama_yarn", "gemma2", "phi3_longrope"] {
        feed_file(model, "config.json", usize::MAX, 60);
    }
}

#[test]
fn p31_descriptions_of_models() {
    let good = r#"{"kind": "llama", "vocab": 64, "context": 16, "d_model": 16, "n_heads": 4, "n_kv_heads": 2, "n_layers": 2, "d_mlp": 24,
        "dropout": 0.1, "rope_theta": 10000.0, "norm_eps": 1e-5, "init_std": 0.02, "seed": 7, "tied": true}"#;
    feed("model description", good.as_bytes(), 300, |bytes| {
        if let Ok(described) = serde_json::from_slice::<tenterhook::models::ModelDescription>(bytes) {
            described.problems();
        }
    });
}
