//! Models and comparisons.

use std::path::{Path, PathBuf};

use candle_core::Tensor;
use tenterhook_lens::LanguageModel;

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
