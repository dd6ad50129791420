//! Switches a head off, adds a vector to the stream, and generates with both: `cargo run --example 11_ablate_and_steer [MODEL_DIR]`.

#![allow(clippy::print_stdout)]

use std::ops::ControlFlow;

use candle_core::{DType, Device, Tensor};
use tenterhook::lens::{GenerateOptions, LanguageModel, controllers};
use tenterhook::models::Transformer;
use tenterhook::models::config::TransformerConfig;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let lm = match std::env::args().nth(1) {
        Some(dir) => LanguageModel::from_pretrained(&dir)?,
        None => {
            let config = TransformerConfig::gpt2(50, 32, 16, 2, 4);
            LanguageModel::new(Transformer::init(config, 42, DType::F32, &Device::Cpu)?)?
        }
    };
    let prompt = vec![1, 2, 3, 4];
    let options = GenerateOptions { max_new_tokens: 8, ..GenerateOptions::default() };
    let plain = lm.generate_tokens(vec![prompt.clone()], &options, |_| ControlFlow::Continue(()))?;

    // A branch shares the weights; its hooks are its own.
    let changed = lm.branch();
    changed.hooks().register(controllers::zero_ablate("blocks.0.attn.hook_z").heads([1]))?;
    let width = lm.model().config().width;
    // Any direction but that of all ones, which norms take away.
    let direction = Tensor::arange(0f32, width as f32, &Device::Cpu)?;
    // From position 2 on the tokens are steered, those that are generated included: they are positions like any other.
    let steer =
        controllers::steer("blocks.1.hook_resid_pre", direction).strength(4.0).positions([2, 3, 4, 5]);
    changed.hooks().register(steer)?;
    let steered = changed.generate_tokens(vec![prompt], &options, |_| ControlFlow::Continue(()))?;

    println!("as it is  {:?}", plain.new_tokens[0]);
    println!("changed   {:?}", steered.new_tokens[0]);
    println!("{}", steered.report); // which hook edited how often, and what it cost
    Ok(())
}
