//! Capture what passes at chosen points of a model: `cargo run --example 01_capture -- [MODEL_DIR]`.

#![allow(clippy::print_stdout)]

use std::path::PathBuf;

use candle_core::{DType, Device, Tensor};
use tenterhook::hooks::{BoxError, PassSetup};
use tenterhook::models::Transformer;

fn main() -> Result<(), BoxError> {
    let dir = std::env::args().nth(1).map(PathBuf::from).unwrap_or_else(tiny_gpt2);
    let model = Transformer::load(&dir, DType::F32, &Device::Cpu)?;
    let hooks = model.hook_manager();

    // TransformerLens names, Hugging Face layer paths, globs and block indexes all work.
    let stream = hooks.register_capture_hook("blocks.*.hook_resid_post", None, None, false, true)?;
    let pattern =
        hooks.register_capture_hook("blocks.0.attn.hook_pattern", Some("pattern"), None, false, true)?;

    let ids = Tensor::new(&[[1u32, 2, 3, 4, 5]], &Device::Cpu)?;
    let pass = hooks.pass(PassSetup::default());
    model.forward(&ids, &pass)?;

    for state in hooks.get_captured_states(&stream)?.iter().chain(&hooks.get_captured_states(&pattern)?) {
        println!("{:28} layer {:?} shape {:?}", state.point, state.layer_idx, state.shape());
    }
    println!("\n{}", pass.report());
    Ok(())
}

fn tiny_gpt2() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models/tests/data/gpt2")
}
