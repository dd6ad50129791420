//! Activations of many texts in a store on the disk, and out of it again in a random order: `cargo run --example 07_capture_store [MODEL [DIR]]`.

#![allow(clippy::print_stdout)]

use candle_core::{DType, Device};
use tenterhook::hooks::BoxError;
use tenterhook::lens::{CaptureToOptions, LanguageModel, LocalStore, StoreOptions};
use tenterhook::models::{Transformer, config::TransformerConfig};

fn main() -> Result<(), BoxError> {
    let lm = match std::env::args().nth(1) {
        Some(model) => LanguageModel::from_pretrained(&model)?,
        // A new, untrained one.
        None => {
            let config = TransformerConfig::gpt2(100, 32, 16, 2, 2);
            LanguageModel::new(Transformer::init(config, 42, DType::F32, &Device::Cpu)?)?
        }
    };
    let dir =
        std::env::args().nth(2).map_or_else(|| std::env::temp_dir().join("tenterhook-store"), Into::into);
    // Texts come one at a time: there may be any number of them.
    let texts = (0..200u32).map(|i| Ok((0..1 + i % 30).map(|k| (i * 7 + k * k) % 100).collect()));

    let store = LocalStore::new(&dir);
    let run = format!("example-{}", std::process::id());
    // At most 1 MiB of activations in memory, half precision on the disk.
    let options = StoreOptions { memory_limit: 1 << 20, dtype: Some(DType::F16), ..StoreOptions::default() };
    let mut writer = store.create(&run, options)?;
    let points = CaptureToOptions::points("blocks.*.hook_resid_post");
    let captured = lm.capture_tokens_to(&mut writer, texts, &points, |_| ())?;
    let written = writer.finish()?;
    println!(
        "{} texts, {} rows, {} bytes in {} shards",
        captured.texts, written.rows, written.bytes, written.shards
    );

    // Every row once, in an order that the seed decides, with its token, position and text.
    let reader = store.open(&run)?;
    let mut mean = 0.0;
    for batch in reader.shuffled("blocks.1.hook_resid_post", 256, 42)? {
        let batch = batch?;
        mean += f64::from(batch.activations.sqr()?.sum_all()?.to_scalar::<f32>()?) / written.rows as f64;
    }
    println!("mean squared norm behind block 1: {mean:.3}");
    println!("sequence 7: {:?}", reader.sequence("blocks.0.hook_resid_post", 7)?.dims());
    println!("{}", captured.report);
    std::fs::remove_dir_all(&written.path)?;
    Ok(())
}
