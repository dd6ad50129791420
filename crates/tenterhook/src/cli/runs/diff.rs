//! `tenterhook runs diff`.

use clap::Args;
use serde_json::{Value, json};
use tenterhook_record::differences::Difference;
use tenterhook_record::run::RunDir;
use tenterhook_train::config::Document;

use super::Common;
use crate::cli::Outcome;
use crate::cli::error::CliError;
use crate::cli::output::{self, printable};

/// Show what differs between two runs: configurations, commits, data, last metrics.
#[derive(Args)]
#[command(after_help = "Example: tenterhook runs diff baseline wider")]
pub(super) struct DiffArgs {
    /// A run: its id, a unique beginning of it, or its directory.
    a: String,
    /// Another one.
    b: String,
    #[command(flatten)]
    common: Common,
}

pub(super) fn run(args: &DiffArgs) -> Result<Outcome, CliError> {
    let (a_dir, a) = args.common.open(&args.a)?;
    let (b_dir, b) = args.common.open(&args.b)?;
    let parts = a.differences(&config(&a_dir)?, &b, &config(&b_dir)?);
    if args.common.json {
        let mut told = json!({ "a": a_dir.id(), "b": b_dir.id() });
        for (name, found) in parts {
            told[name] = json!(found);
        }
        output::json(&told)?;
        return Ok(Outcome::Done);
    }
    let mut text = String::new();
    for (name, found) in parts.iter().filter(|(_, found)| !found.is_empty()) {
        let rows: Vec<Vec<String>> = found.iter().map(row).collect();
        text.push_str(&output::table(&[name, a_dir.id(), b_dir.id()], &rows));
        text.push_str("\n\n");
    }
    for summary in [&a, &b] {
        let problem = summary.problem.iter();
        problem.for_each(|problem| output::note(&format!("WARNING: {}: {problem}", summary.record.id)));
    }
    if text.is_empty() {
        text = format!(
            "{} and {} have the same configuration, commit, data and last metrics",
            a_dir.id(),
            b_dir.id()
        );
    }
    output::text(&text)?;
    Ok(Outcome::Done)
}

fn config(dir: &RunDir) -> Result<Value, CliError> {
    Ok(Document::read(&dir.config_path())?.value().clone())
}

fn row(difference: &Difference) -> Vec<String> {
    let shown = |value: &Option<Value>| match value {
        None => "-".to_string(),
        Some(Value::String(text)) => printable(text),
        Some(value) => value.to_string(),
    };
    vec![printable(&difference.key), shown(&difference.a), shown(&difference.b)]
}
