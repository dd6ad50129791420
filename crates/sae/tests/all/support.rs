//! References and comparisons.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use candle_core::{DType, Device, Tensor};

/// What SAELens wrote.
pub(crate) const SAVED: [&str; 9] = [
    "standard",
    "standard_layer_norm",
    "standard_hook_z",
    "topk",
    "topk_rescaled",
    "topk_constant_norm",
    "jumprelu",
    "gated",
    "batchtopk",
];

pub(crate) fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

pub(crate) fn tensors(path: &Path) -> HashMap<String, Tensor> {
    candle_core::safetensors::load(path, &Device::Cpu).unwrap()
}

pub(crate) fn values(x: &Tensor) -> Vec<f64> {
    x.to_dtype(DType::F64).unwrap().flatten_all().unwrap().to_vec1().unwrap()
}

/// The largest difference.
pub(crate) fn distance(a: &Tensor, b: &Tensor) -> f64 {
    assert_eq!(a.dims(), b.dims());
    values(a).iter().zip(values(b)).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max)
}

pub(crate) fn assert_close(what: &str, got: &Tensor, want: &Tensor, tolerance: f64) {
    assert_eq!(got.dims(), want.dims(), "{what}");
    let worst = distance(got, want);
    assert!(worst <= tolerance, "{what}: differs by {worst:e}");
}

/// A copy of a reference directory that can be damaged.
pub(crate) fn copy_of(name: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for file in ["cfg.json", "sae_weights.safetensors"] {
        std::fs::copy(data(name).join(file), dir.path().join(file)).unwrap();
    }
    dir
}
