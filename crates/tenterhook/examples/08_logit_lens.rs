//! The logit lens, and who made the last logit what it is: `cargo run --example 08_logit_lens [MODEL_DIR [TEXT]]`.

#![allow(clippy::print_stdout)]

use candle_core::{DType, Device};
use tenterhook::hooks::BoxError;
use tenterhook::lens::LanguageModel;
use tenterhook::lens::analysis::{AttributeOptions, By, HeadKind, LogitLensOptions};
use tenterhook::models::{Transformer, config::TransformerConfig};

fn main() -> Result<(), BoxError> {
    let mut args = std::env::args().skip(1);
    let lm = match args.next() {
        Some(dir) => LanguageModel::from_pretrained(&dir)?,
        // A new, untrained one.
        None => {
            let config = TransformerConfig::gpt2(100, 32, 16, 2, 2);
            LanguageModel::new(Transformer::init(config, 42, DType::F32, &Device::Cpu)?)?
        }
    };
    let ids = match args.next() {
        Some(text) => lm.to_tokens(&text, None)?,
        None => vec![1, 2, 3, 4],
    };

    // What would the model say if it ended after every block?
    let lens = lm.logit_lens(&ids, &LogitLensOptions { top: 3, ..Default::default() })?;
    for row in &lens.rows {
        let last = &row.cells[ids.len() - 1];
        let guesses = last.top.iter().map(|guess| format!("{} {:.3}", guess.token, guess.probability));
        println!("{:7} {}", row.label, guesses.collect::<Vec<_>>().join("  "));
    }

    // Which heads gave its best guess the most?
    let best = lens.rows[lens.rows.len() - 1].cells[ids.len() - 1].top[0].clone();
    let given =
        lm.attribute(&ids, &AttributeOptions { by: By::Head, ..AttributeOptions::answer(best.id) })?;
    println!("\nlogit of {}: {:.3}", best.token, given.logit);
    for part in given.top(5) {
        println!("{:12} {:+.3}", part.component.label, part.value);
    }

    // Which heads continue what they have seen before?
    let texts = lm.repeated_random_tokens(4, 8, 0, Some(false))?;
    let scores = lm.head_scores(&texts, &[HeadKind::Induction])?;
    for (block, head, score) in scores.kinds[0].top(3) {
        println!("L{block}H{head} induction {score:.3}");
    }
    Ok(())
}
