//! Inference, a cache of activations and generation, with a hook that edits: `cargo run --example 06_language_model [MODEL_DIR]`.

#![allow(clippy::print_stdout)]

use std::ops::ControlFlow;

use candle_core::{DType, Device};
use tenterhook::hooks::{BoxError, hook_fn};
use tenterhook::lens::{CacheOptions, GenerateOptions, LanguageModel};
use tenterhook::models::{Transformer, config::TransformerConfig};

fn main() -> Result<(), BoxError> {
    let lm = match std::env::args().nth(1) {
        Some(dir) => LanguageModel::from_pretrained(&dir)?,
        // A new, untrained one.
        None => {
            let config = TransformerConfig::gpt2(100, 32, 16, 2, 2);
            LanguageModel::new(Transformer::init(config, 42, DType::F32, &Device::Cpu)?)?
        }
    };
    let prompt = vec![1, 2, 3, 4];

    // What passes at every residual stream.
    let (_, cache, _) =
        lm.run_with_cache(&lm.batch_of(&prompt)?, &CacheOptions::points("blocks.*.hook_resid_post"))?;
    for (name, x) in cache.iter() {
        println!("{name}: {:?}", x.dims());
    }

    // The same prompt with and without a hook that takes the attention of block 0 away.
    let options = GenerateOptions { max_new_tokens: 8, stop_tokens: Some(vec![]), ..Default::default() };
    let plain = lm.generate_tokens(vec![prompt.clone()], &options, |_| ControlFlow::Continue(()))?;
    let ablated = lm.branch();
    ablated
        .layers()
        .register_hook("blocks.0.hook_attn_out", hook_fn::edit("*", |_, x, _| Ok(Some(x.zeros_like()?))))?;
    let edited = ablated.generate_tokens(vec![prompt], &options, |_| ControlFlow::Continue(()))?;
    println!("as it is: {:?}\nablated:  {:?}", plain.new_tokens[0], edited.new_tokens[0]);
    println!("\n{}", edited.report);
    Ok(())
}
