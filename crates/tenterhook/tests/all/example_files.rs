//! The files that the examples of some kinds of hooks name.

use std::collections::HashMap;
use std::path::Path;
use std::sync::LazyLock;

use candle_core::{DType, Device, Tensor};

/// A directory with them, for models whose stream is 8 wide.
pub(crate) fn example_files() -> &'static Path {
    static FILES: LazyLock<tempfile::TempDir> = LazyLock::new(|| {
        let dir = tempfile::tempdir().unwrap();
        let save = |name: &str, tensors: &[(&str, Tensor)]| {
            let tensors: HashMap<&str, Tensor> = tensors.iter().cloned().collect();
            candle_core::safetensors::save(&tensors, dir.path().join(name)).unwrap();
        };
        let small = |shape: &[usize], value: f64| {
            Tensor::full(value, shape, &Device::Cpu).unwrap().to_dtype(DType::F32).unwrap()
        };
        let sae = Path::new(env!("CARGO_MANIFEST_DIR")).join("../sae/tests/data/topk");
        std::fs::create_dir(dir.path().join("sae")).unwrap();
        for file in ["cfg.json", "sae_weights.safetensors"] {
            std::fs::copy(sae.join(file), dir.path().join("sae").join(file)).unwrap();
        }
        std::fs::copy(sae.join("../names_a.csv"), dir.path().join("names.csv")).unwrap();
        save("direction.safetensors", &[("vector", small(&[8], 0.1)), ("other", small(&[8], -0.2))]);
        save("means.safetensors", &[("mean", small(&[8], 0.3)), ("other", small(&[8], -0.2))]);
        save("tensors.safetensors", &[("tensor", small(&[8], 0.3)), ("other", small(&[8], -0.2))]);
        let positions = Tensor::arange(0f32, 24.0, &Device::Cpu).unwrap().reshape((1, 3, 8)).unwrap();
        let stored = (positions / 50.0).unwrap();
        let more = (&stored * 2.0).unwrap();
        save("clean.safetensors", &[("blocks.0.hook_resid_post", stored.clone()), ("other", more.clone())]);
        save(
            "other.safetensors",
            &[
                ("vector", small(&[8], 0.7)),
                ("mean", small(&[8], 0.7)),
                ("tensor", small(&[8], 0.7)),
                ("blocks.0.hook_resid_post", more),
            ],
        );
        let heads = (Tensor::arange(0f32, 24.0, &Device::Cpu).unwrap().reshape((1, 3, 2, 4)).unwrap() / 50.0)
            .unwrap();
        save("one.safetensors", &[("one", small(&[1], 0.4)), ("heads", heads)]);
        dir
    });
    FILES.path()
}

/// A name in that directory, as TOML has it.
pub(crate) fn quoted(name: &str) -> String {
    format!("{:?}", example_files().join(name).to_str().unwrap())
}
