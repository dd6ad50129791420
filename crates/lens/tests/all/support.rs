//! Models and comparisons.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};
use tenterhook_lens::LanguageModel;
use tenterhook_models::Transformer;
use tenterhook_models::config::TransformerConfig;

/// Three families: learned positions, rotation with grouped heads, parallel branches.
pub(crate) const FAMILIES: [&str; 3] = ["gpt2", "llama", "neox"];

pub(crate) fn lm(name: &str) -> LanguageModel {
    LanguageModel::from_pretrained(directory(name).to_str().unwrap()).unwrap()
}

pub(crate) fn directory(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data").join(name)
}

pub(crate) fn values(x: &Tensor) -> Vec<f32> {
    x.flatten_all().unwrap().to_vec1().unwrap()
}

pub(crate) fn assert_close(what: &str, got: &Tensor, want: &Tensor, tolerance: f32) {
    assert_eq!(got.dims(), want.dims(), "{what}");
    let worst = values(got).iter().zip(values(want)).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
    assert!(worst <= tolerance, "{what}: differs by {worst}");
}

/// Token ids that every reference model knows.
pub(crate) fn ids(length: usize, seed: u32) -> Vec<u32> {
    (0..length as u32).map(|i| (7 * i * i + 13 * i + seed) % 40).collect()
}

/// What TransformerLens says about a reference model (`scripts/reference_analysis.py`).
pub(crate) struct Reference(HashMap<String, Tensor>);

impl Reference {
    pub(crate) fn of(family: &str) -> Self {
        let data = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/analysis");
        let file = data.join(format!("{family}.safetensors"));
        Self(candle_core::safetensors::load(file, &Device::Cpu).unwrap())
    }

    pub(crate) fn get(&self, name: &str) -> &Tensor {
        &self.0[name]
    }

    pub(crate) fn ids(&self, name: &str) -> Vec<u32> {
        self.0[name].to_dtype(DType::U32).unwrap().to_vec1().unwrap()
    }

    /// Numbers in the order of the tensor.
    pub(crate) fn assert_close(&self, what: &str, name: &str, got: &[f64], tolerance: f64) {
        let want = values(self.get(name));
        assert_eq!(got.len(), want.len(), "{what}: {name}");
        for (got, want) in got.iter().zip(want) {
            assert!((got - f64::from(want)).abs() <= tolerance, "{what}: {name}: {got} instead of {want}");
        }
    }
}

/// A model of attention alone.
pub(crate) fn attention_only() -> LanguageModel {
    let config = TransformerConfig { mlp_width: 0, ..TransformerConfig::gpt2(40, 16, 12, 2, 3) };
    LanguageModel::new(Transformer::init(config, 3, DType::F32, &Device::Cpu).unwrap()).unwrap()
}
