//! Which places of a model an answer hangs on: `cargo run --example 09_patching [MODEL_DIR CLEAN CORRUPTED ANSWER WRONG]`.

#![allow(clippy::print_stdout)]

use candle_core::{DType, Device};
use tenterhook::hooks::BoxError;
use tenterhook::lens::LanguageModel;
use tenterhook::lens::patching::{Contrast, LogitMetric, PatchingGrid, PathOptions, Sweep};
use tenterhook::models::{Transformer, config::TransformerConfig};

fn main() -> Result<(), BoxError> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (lm, contrast) = match &args[..] {
        [dir, clean, corrupted, answer, wrong] => {
            let lm = LanguageModel::from_pretrained(dir)?;
            let metric = LogitMetric::logit_diff(lm.to_single_token(answer)?, lm.to_single_token(wrong)?);
            let contrast = Contrast::new(lm.to_tokens(clean, None)?, lm.to_tokens(corrupted, None)?, metric);
            (lm, contrast)
        }
        // A new, untrained one, of which only the second token matters here.
        _ => {
            let config = TransformerConfig::gpt2(100, 32, 16, 4, 2);
            let lm = LanguageModel::new(Transformer::init(config, 42, DType::F32, &Device::Cpu)?)?;
            (lm, Contrast::new(vec![1, 2, 3, 4], vec![1, 50, 3, 4], LogitMetric::logit_diff(7, 9)))
        }
    };

    // Clean activations into the corrupted run, one position of one block at a time; blocks before a patch are not run again.
    let (stream, _) = lm.activation_patching(&contrast, &Sweep::of("resid_pre"), |_, _| ())?;
    show(&stream);
    println!("{} blocks in place of {}\n", stream.block_evaluations, stream.naive_block_evaluations);

    // The heads, exactly and estimated from one gradient.
    let (exact, _) = lm.activation_patching(&contrast, &Sweep::of("z"), |_, _| ())?;
    let (estimate, _) = lm.attribution_patching(&contrast, &Sweep::of("z"))?;
    show(&exact);
    show(&estimate);
    println!("rank correlation: {:?}\n", exact.rank_agreement(&estimate));

    // Which heads tell the last block's first head what to look for.
    let receiver = format!("{}.0.q", lm.model().config().layers - 1).parse()?;
    let (paths, _) = lm.path_patching_sweep(&contrast, &[receiver], PathOptions::default(), |_, _| ())?;
    show(&paths);
    Ok(())
}

fn show(grid: &PatchingGrid) {
    println!("{} ({:?}), {} by block and {}:", grid.sweep, grid.method, grid.metric, grid.column_axis);
    for (row, values) in grid.rows.iter().zip(grid.normalised.as_ref().unwrap_or(&grid.values)) {
        let cells: Vec<String> = values.iter().map(|value| format!("{value:7.3}")).collect();
        println!("  {row:>3} {}", cells.join(" "));
    }
}
