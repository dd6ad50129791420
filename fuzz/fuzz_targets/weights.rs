//! A safetensors file as the weights of a model, and an index of shards.
#![no_main]

use std::fs;
use std::sync::LazyLock;

use candle_core::{DType, Device};
use libfuzzer_sys::fuzz_target;
use tenterhook::models::config::TransformerConfig;
use tenterhook::models::files::ModelFiles;

static DIR: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
    let dir = tempfile::tempdir().expect("a directory");
    let config = TransformerConfig::gpt2(61, 16, 24, 2, 4).to_hf().to_string();
    fs::write(dir.path().join("config.json"), config).expect("a file");
    dir
});

fuzz_target!(|bytes: &[u8]| {
    let (weights, index) =
        (DIR.path().join("model.safetensors"), DIR.path().join("model.safetensors.index.json"));
    // What begins as JSON is an index.
    let written = match bytes.first() {
        Some(b'{') => fs::remove_file(&weights).or(Ok(())).and_then(|()| fs::write(&index, bytes)),
        _ => fs::remove_file(&index).or(Ok(())).and_then(|()| fs::write(&weights, bytes)),
    };
    written.expect("a file");
    if let Ok(files) = ModelFiles::open(DIR.path()) {
        let mut weights = files.weights(DType::F32, &Device::Cpu);
        let read = weights.tensor("transformer.wte.weight", &[61, 24]);
        let _ = weights.finish_with(read);
    }
});
