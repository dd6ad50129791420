//! Whom heads attend to.

use tenterhook_lens::LanguageModel;
use tenterhook_lens::analysis::{AttentionPatterns, HeadPattern};

use super::{Found, HeadsArgs, name};
use crate::cli::error::CliError;
use crate::cli::output;
use crate::cli::progress::Working;
use crate::cli::prompt::{shown, shown_places};
use crate::pages::HeatMap;

pub(super) fn look(args: &HeadsArgs, lm: &LanguageModel, found: &mut Found) -> Result<(), CliError> {
    let ids = args.prompt.ids(lm)?;
    let patterns = {
        let _working = Working::on("running the model");
        lm.attention_patterns(&ids, args.layers.as_deref(), args.heads.as_deref())?
    };
    let text = match &patterns.heads[..] {
        [head] => matrix(&patterns, head),
        heads => heads.iter().map(|head| line(&patterns, head)).collect::<Vec<_>>().join("\n"),
    };
    let tokens: Vec<String> = patterns.tokens.iter().map(|token| shown(&token.token)).collect();
    for head in &patterns.heads {
        let values = head.pattern.iter().map(|row| row.iter().map(|x| f64::from(*x)).collect()).collect();
        let title = format!("Attention of {}", name(head.block, head.head));
        let map = HeatMap::new(title, tokens.clone(), tokens.clone(), values);
        found.show(|page| page.plot(map.axes("from", "to").range(0.0, 1.0).plot()));
    }
    found.report.add(patterns.report.clone());
    let title = "attention from the last token (--json and --html have all)";
    let text = if patterns.heads.len() == 1 { text } else { format!("{title}\n{text}") };
    found.add("patterns", &patterns, text);
    Ok(())
}

/// Where the last token looks most.
fn line(patterns: &AttentionPatterns, head: &HeadPattern) -> String {
    const MOST: usize = 3;
    let last = head.pattern.last().map(Vec::as_slice).unwrap_or_default();
    let mut order: Vec<usize> = (0..last.len()).collect();
    order.sort_by(|a, b| last[*b].total_cmp(&last[*a]));
    let told = |key: &usize| format!("{}@{key} {:.2}", shown(&patterns.tokens[*key].token), last[*key]);
    let told: Vec<String> = order.iter().take(MOST).map(told).collect();
    format!("{:8}{}", name(head.block, head.head), told.join("  "))
}

/// One head in full, as far as there is room.
fn matrix(patterns: &AttentionPatterns, head: &HeadPattern) -> String {
    let places = shown_places(patterns.tokens.len());
    let tokens: Vec<String> = patterns.tokens.iter().map(|token| shown(&token.token)).collect();
    let titles: Vec<&str> =
        std::iter::once("from \\ to").chain(tokens[places.clone()].iter().map(String::as_str)).collect();
    let row = |query: usize| {
        let cell =
            |key: usize| if key > query { String::new() } else { format!("{:.2}", head.pattern[query][key]) };
        std::iter::once(tokens[query].clone()).chain(places.clone().map(cell)).collect()
    };
    let rows: Vec<Vec<String>> = places.clone().map(row).collect();
    format!("attention of {}\n{}", name(head.block, head.head), output::table(&titles, &rows))
}
