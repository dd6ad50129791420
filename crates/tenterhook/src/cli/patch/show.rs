//! What `tenterhook patch` prints and writes.

use serde_json::{Value, json};
use tenterhook_lens::LanguageModel;
use tenterhook_lens::patching::{Contrast, Direction, Method, PatchingGrid, PathPatching};

use super::{Found, PatchArgs};
use crate::cli::error::CliError;
use crate::cli::hooks_file::{report_json, report_text};
use crate::cli::output;
use crate::cli::prompt::shown;
use crate::pages::{HeatMap, Page};

/// Columns that a table has room for.
const ROOM: usize = 16;

pub(super) fn show(
    args: &PatchArgs,
    lm: &LanguageModel,
    contrast: &Contrast,
    found: &Found,
) -> Result<(), CliError> {
    args.show.save(|| page(args, lm, contrast, found))?;
    if args.show.json {
        return output::json(&as_json(lm, contrast, found));
    }
    let mut parts: Vec<String> = found.grids.iter().map(|grid| table(args, lm, contrast, grid)).collect();
    parts.extend(found.path.iter().map(|path| path_text(args, path)));
    parts.extend(agreements(found).into_iter().map(|(sweep, rank)| {
        let told = rank.map_or("none: one of them has the same value everywhere".to_string(), |rank| {
            format!("{rank:.3}")
        });
        format!("rank correlation of exact and attribution, {sweep}: {told}")
    }));
    if !found.report.hooks.is_empty() {
        parts.push(report_text(&found.report));
    }
    output::text(&parts.join("\n\n"))
}

fn as_json(lm: &LanguageModel, contrast: &Contrast, found: &Found) -> Value {
    let prompt = |ids: &[u32]| {
        let tokens: Vec<String> = ids.iter().map(|id| lm.token_label(*id)).collect();
        json!({ "ids": ids, "tokens": tokens })
    };
    let agreements: Vec<Value> = agreements(found)
        .into_iter()
        .map(|(sweep, rank)| json!({ "sweep": sweep, "spearman": rank }))
        .collect();
    let mut all = report_json(&found.report);
    all.insert("clean".to_string(), prompt(&contrast.clean));
    all.insert("corrupted".to_string(), prompt(&contrast.corrupted));
    all.insert("grids".to_string(), json!(found.grids));
    all.insert("path".to_string(), json!(found.path));
    all.insert("agreement".to_string(), json!(agreements));
    Value::Object(all)
}

/// Per sweep that was done both ways, the rank correlation of the two.
fn agreements(found: &Found) -> Vec<(&str, Option<f64>)> {
    let both = |two: &[PatchingGrid]| two[0].sweep == two[1].sweep && two[0].method != two[1].method;
    let pairs = found.grids.windows(2).filter(|two| both(two));
    pairs.map(|two| (two[0].sweep.as_str(), two[0].rank_agreement(&two[1]))).collect()
}

fn title(grid: &PatchingGrid) -> String {
    let into = match grid.direction {
        Direction::Denoise => "clean activations into the corrupted run",
        Direction::Noise => "corrupted activations into the clean run",
    };
    let how = match grid.method {
        Method::Exact => "",
        Method::Attribution => ", estimated from the gradient",
        Method::Path => ", along these paths only",
    };
    format!("{}: {into}{how}", grid.sweep)
}

fn scale(args: &PatchArgs, clean: f32, corrupted: f32) -> String {
    let measured = args.metric_name();
    match clean == corrupted {
        false => {
            format!("0 is the corrupted prompt ({corrupted:.4}), 1 the clean one ({clean:.4}): {measured}")
        }
        true => format!("{measured}, which is {clean:.4} for both prompts"),
    }
}

/// On the scale from 0 to 1 where there is one.
fn numbers(grid: &PatchingGrid) -> &[Vec<f32>] {
    grid.normalised.as_ref().unwrap_or(&grid.values)
}

/// Positions with the token that is there in the run that is patched.
fn columns(lm: &LanguageModel, contrast: &Contrast, grid: &PatchingGrid) -> Vec<String> {
    let patched = match grid.direction {
        Direction::Denoise => &contrast.corrupted,
        Direction::Noise => &contrast.clean,
    };
    let token = |(name, id): (&String, &u32)| format!("{name} {}", shown(&lm.token_label(*id)));
    match grid.column_axis.as_str() {
        "position" => grid.columns.iter().zip(patched).map(token).collect(),
        axis => grid.columns.iter().map(|column| format!("{axis} {column}")).collect(),
    }
}

fn table(args: &PatchArgs, lm: &LanguageModel, contrast: &Contrast, grid: &PatchingGrid) -> String {
    let columns = columns(lm, contrast, grid);
    let places = columns.len().saturating_sub(ROOM)..columns.len();
    let head: Vec<&str> =
        std::iter::once("block").chain(columns[places.clone()].iter().map(String::as_str)).collect();
    let row = |(label, values): (&String, &Vec<f32>)| {
        let cells = values[places.clone()].iter().map(|value| number(*value));
        std::iter::once(label.clone()).chain(cells).collect()
    };
    let rows: Vec<Vec<String>> = grid.rows.iter().zip(numbers(grid)).map(row).collect();
    let mut text = format!(
        "{}\n{}\n\n{}",
        title(grid),
        scale(args, grid.clean, grid.corrupted),
        output::table(&head, &rows)
    );
    if places.start > 0 {
        let (shown, all) = (places.len(), columns.len());
        text += &format!("\n(the last {shown} of {all}; --json and --html have all)");
    }
    let (run, naive) = (grid.block_evaluations, grid.naive_block_evaluations);
    text + &format!("\n{run} blocks were run in place of {naive}")
}

/// What is zero but for rounding has no sign.
fn number(value: f32) -> String {
    let text = format!("{value:.3}");
    if text == "-0.000" { "0.000".to_string() } else { text }
}

fn path_text(args: &PatchArgs, path: &PathPatching) -> String {
    let list = |names: Vec<String>| names.join(", ");
    let senders = list(path.senders.iter().map(ToString::to_string).collect());
    let receivers = list(path.receivers.iter().map(ToString::to_string).collect());
    let value = match path.normalised {
        Some(normalised) => format!("{:.4}, on the scale {normalised:.4}", path.value),
        None => format!("{:.4}", path.value),
    };
    let scale = scale(args, path.clean, path.corrupted);
    format!("from {senders} to {receivers}: {value}\n{scale}")
}

fn page(args: &PatchArgs, lm: &LanguageModel, contrast: &Contrast, found: &Found) -> Page {
    let prompt = |ids: &[u32]| ids.iter().map(|id| shown(&lm.token_label(*id))).collect::<Vec<_>>().join(" ");
    let mut page = Page::new(format!("Patching {}", args.model.model))
        .text(&format!("Clean: {}", prompt(&contrast.clean)))
        .text(&format!("Corrupted: {}", prompt(&contrast.corrupted)));
    for grid in &found.grids {
        let values =
            numbers(grid).iter().map(|row| row.iter().map(|value| f64::from(*value)).collect()).collect();
        let map = HeatMap::new(title(grid), grid.rows.clone(), columns(lm, contrast, grid), values)
            .axes("block", &grid.column_axis)
            .diverging();
        page = page.text(&scale(args, grid.clean, grid.corrupted)).plot(map.plot());
    }
    if let Some(path) = &found.path {
        page = page.text(&path_text(args, path));
    }
    page
}
