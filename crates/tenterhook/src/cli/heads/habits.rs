//! What heads look for.

use tenterhook_lens::LanguageModel;
use tenterhook_lens::analysis::{HeadKind, HeadScoreOptions, KindScores};
use tenterhook_models::config::Positions;

use super::{Found, HeadsArgs, labels, name};
use crate::cli::error::CliError;
use crate::cli::memory::check_fits;
use crate::cli::output;
use crate::cli::progress::Working;
use crate::pages::HeatMap;

pub(super) fn look(args: &HeadsArgs, lm: &LanguageModel, found: &mut Found) -> Result<(), CliError> {
    let (texts, told) = texts(args, lm)?;
    let kinds = if args.detect.is_empty() { HeadKind::ALL.to_vec() } else { args.detect.clone() };
    let options =
        HeadScoreOptions { exclude_bos: args.exclude_bos, exclude_current_token: args.exclude_current };
    let scores = {
        let _working = Working::on("running the model");
        lm.head_scores_with(&texts, &kinds, &options)?
    };
    let mut tables = vec![told.clone()];
    for kind in &scores.kinds {
        tables.push(table(kind, args.top));
        let (blocks, heads) = (kind.scores.len(), kind.scores.first().map_or(0, Vec::len));
        let map = HeatMap::new(
            format!("{}: attention where the habit says", kind.kind),
            labels(blocks),
            labels(heads),
            kind.scores.clone(),
        );
        found.show(|page| page.plot(map.axes("block", "head").range(0.0, 1.0).plot()));
    }
    found.report.add(scores.report.clone());
    found.add("detectors", &scores, tables.join("\n\n"));
    found.data.insert("text".to_string(), told.into());
    Ok(())
}

/// The user's text, or random tokens that come twice; and how to call them.
fn texts(args: &HeadsArgs, lm: &LanguageModel) -> Result<(Vec<Vec<u32>>, String), CliError> {
    if let Some(ids) = args.prompt.optional_ids(lm)? {
        let told = format!("{} tokens of the given text", ids.len());
        return Ok((vec![ids], told));
    }
    if args.texts == 0 {
        return Err(CliError::bad_input("--texts 0: there must be at least one text to look at"));
    }
    let bos = args.prompt.bos.choice();
    let length = args.seq_len.unwrap_or_else(|| {
        let first = usize::from(bos.unwrap_or(lm.bos_token().is_some()));
        match &lm.model().config().positions {
            Positions::Learned => (lm.model().config().context.saturating_sub(first) / 2).min(50),
            Positions::Rotary(_) => 50,
        }
    });
    check_fits("--texts of --seq-len", &[args.texts, length, 16])?;
    check_fits(
        "attention over --seq-len",
        &[2 * length.min(1 << 40), 2 * length.min(1 << 40), 4, lm.model().config().heads],
    )?;
    let texts = lm.repeated_random_tokens(args.texts, length, args.seed, bos);
    let texts = texts.map_err(|error| CliError::bad_input(format!("--seq-len: {error}")))?;
    let told = format!("{} texts of {length} random tokens that come twice, seed {}", args.texts, args.seed);
    Ok((texts, told))
}

/// Blocks by heads where that fits on a screen, else the heads with the largest scores.
fn table(kind: &KindScores, top: usize) -> String {
    const WIDEST: usize = 16;
    let title = format!("{} ({} tokens count)", kind.kind, kind.places);
    if kind.places == 0 {
        return format!("{title}: no token of the text comes twice");
    }
    let heads = kind.scores.first().map_or(0, Vec::len);
    if heads > WIDEST {
        let row = |(block, head, score): (usize, usize, f64)| vec![name(block, head), format!("{score:.3}")];
        let rows: Vec<_> = kind.top(top).into_iter().map(row).collect();
        return format!("{title}\n{}", output::table(&["head", "score"], &rows));
    }
    let titles: Vec<String> = (0..heads).map(|head| format!("H{head}")).collect();
    let head: Vec<&str> = std::iter::once("block").chain(titles.iter().map(String::as_str)).collect();
    let row = |(block, scores): (usize, &Vec<f64>)| {
        std::iter::once(block.to_string()).chain(scores.iter().map(|score| format!("{score:.3}"))).collect()
    };
    let rows: Vec<Vec<String>> = kind.scores.iter().enumerate().map(row).collect();
    format!("{title}\n{}", output::table(&head, &rows))
}
