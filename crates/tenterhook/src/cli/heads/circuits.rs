//! What the weights of heads compute.

use tenterhook_lens::LanguageModel;
use tenterhook_lens::analysis::{CircuitOptions, CompositionScores, HeadCircuit, TokenScore};

use super::{Found, HeadsArgs, name};
use crate::cli::error::CliError;
use crate::cli::output;
use crate::cli::progress::Working;
use crate::cli::prompt::shown;
use crate::pages::HeatMap;

pub(super) fn look(args: &HeadsArgs, lm: &LanguageModel, found: &mut Found) -> Result<(), CliError> {
    let options = CircuitOptions {
        blocks: args.layers.clone(),
        heads: args.heads.clone(),
        top: args.top,
        ..CircuitOptions::default()
    };
    let circuits = {
        let _working = Working::on("taking the weights of the heads apart");
        lm.head_circuits(&options)?
    };
    let row = |head: &HeadCircuit| {
        let first = |values: &[f64]| values.first().map(|value| format!("{value:.3}")).unwrap_or_default();
        let strongest = head.ov.directions.first();
        let tokens = |tokens: &[TokenScore]| {
            tokens.iter().take(3).map(|token| shown(&token.token)).collect::<Vec<_>>().join(" ")
        };
        vec![
            name(head.block, head.head),
            format!("{:+.3}", head.copying),
            first(&head.qk.singular_values),
            first(&head.ov.singular_values),
            strongest.map(|direction| tokens(&direction.from)).unwrap_or_default(),
            strongest.map(|direction| tokens(&direction.to)).unwrap_or_default(),
        ]
    };
    let head = ["head", "copying", "QK largest", "OV largest", "OV reads", "OV writes"];
    let rows: Vec<_> = circuits.heads.iter().map(row).collect();
    let notes: Vec<String> = circuits.notes.iter().map(|note| format!("note: {note}")).collect();
    let text = format!("{}\n\n{}", output::table(&head, &rows), notes.join("\n"));
    found.show(|page| {
        let page = circuits.notes.iter().fold(page, |page, note| page.text(note));
        page.plot(copying(&circuits.heads).plot()).plot(spectra(&circuits.heads).plot())
    });
    found.add("circuits", &circuits, text);
    Ok(())
}

/// Blocks by heads, by how far they copy.
fn copying(heads: &[HeadCircuit]) -> HeatMap {
    let mut blocks: Vec<usize> = heads.iter().map(|head| head.block).collect();
    blocks.dedup();
    let first = heads.first().map(|head| head.block);
    let columns = heads.iter().filter(|head| Some(head.block) == first).map(|head| head.head.to_string());
    let values = blocks
        .iter()
        .map(|block| heads.iter().filter(|head| head.block == *block).map(|head| head.copying).collect())
        .collect();
    let rows = blocks.iter().map(ToString::to_string).collect();
    HeatMap::new("OV copying scores", rows, columns.collect(), values)
        .axes("block", "head")
        .diverging()
        .range(-1.0, 1.0)
}

/// Heads by their singular values, each relative to the largest of its head.
fn spectra(heads: &[HeadCircuit]) -> HeatMap {
    let longest = heads.iter().map(|head| head.ov.singular_values.len()).max().unwrap_or(0);
    let relative = |head: &HeadCircuit| {
        let largest = head.ov.singular_values.first().copied().unwrap_or(1.0).max(f64::MIN_POSITIVE);
        head.ov.singular_values.iter().map(|value| value / largest).collect()
    };
    HeatMap::new(
        "OV singular values, by the largest of the head",
        heads.iter().map(|head| name(head.block, head.head)).collect(),
        super::labels(longest),
        heads.iter().map(relative).collect(),
    )
    .axes("head", "number")
    .range(0.0, 1.0)
}

/// Which heads read what earlier heads wrote.
pub(super) fn compose(args: &HeadsArgs, lm: &LanguageModel, found: &mut Found) -> Result<(), CliError> {
    let mut all = Vec::new();
    let mut tables = Vec::new();
    for kind in &args.composition {
        let scores = {
            let _working = Working::on(format!("multiplying heads, {kind}"));
            lm.composition_scores(*kind)?
        };
        let rows: Vec<Vec<String>> = scores
            .top(args.top)
            .into_iter()
            .map(|pair| {
                let (from, to) = (name(pair.from.0, pair.from.1), name(pair.to.0, pair.to.1));
                vec![from, to, format!("{:.4}", pair.score)]
            })
            .collect();
        let writes = format!("{kind}: writes");
        tables.push(output::table(&[writes.as_str(), "reads", "score"], &rows));
        found.show(|page| page.plot(pairs(&scores).plot()));
        all.push(scores);
    }
    found.add("composition", &all, tables.join("\n\n"));
    Ok(())
}

/// All heads by all heads.
fn pairs(scores: &CompositionScores) -> HeatMap {
    let blocks = scores.scores.iter().enumerate();
    let names: Vec<String> =
        blocks.flat_map(|(block, heads)| (0..heads.len()).map(move |head| name(block, head))).collect();
    let values = scores.scores.iter().flatten().map(|later| later.concat()).collect();
    HeatMap::new(format!("{} composition", scores.kind), names.clone(), names, values).axes("writes", "reads")
}
