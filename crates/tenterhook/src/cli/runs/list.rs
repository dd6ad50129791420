//! `tenterhook runs list`.

use clap::Args;
use serde_json::{Value, json};
use tenterhook_record::metrics::Score;
use tenterhook_record::run::{self, Listed, RunDir, Summary, commit_in_words};

use super::{Common, short, shown};
use crate::cli::Outcome;
use crate::cli::error::CliError;
use crate::cli::output::{self, printable};

/// List the runs, the newest first.
#[derive(Args)]
#[command(after_help = "Example: tenterhook runs list --json | jq -r '.[] | select(.killed) | .id'")]
pub(super) struct ListArgs {
    #[command(flatten)]
    common: Common,
}

pub(super) fn run(args: &ListArgs) -> Result<Outcome, CliError> {
    let listed = run::list(&args.common.runs_dir)?;
    let entries: Vec<(Listed, Result<Summary, String>)> = listed.into_iter().map(summarize).collect();
    if args.common.json {
        output::json(&entries.iter().map(as_json).collect::<Vec<_>>())?;
        return Ok(Outcome::Done);
    }
    if entries.is_empty() {
        let runs = args.common.runs_dir.display();
        output::note(&format!("there are no runs in {runs}; `tenterhook train CONFIG` makes one"));
        return Ok(Outcome::Done);
    }
    let head = ["run", "status", "started", "took", "steps", "loss", "config", "commit"];
    output::text(&output::table(&head, &entries.iter().map(row).collect::<Vec<_>>()))?;
    for (listed, summary) in &entries {
        let problem = match summary {
            Ok(summary) => summary.problem.as_ref(),
            Err(problem) => Some(problem),
        };
        if let Some(problem) = problem {
            output::note(&format!("WARNING: {}: {problem}", listed.id()));
        }
    }
    Ok(Outcome::Done)
}

fn summarize(mut listed: Listed) -> (Listed, Result<Summary, String>) {
    let record = std::mem::replace(&mut listed.record, Err(String::new()));
    let summary = record.and_then(|record| {
        let dir = RunDir::open(&listed.path).map_err(|error| error.to_string())?;
        Ok(Summary::of(record, listed.killed, &dir))
    });
    (listed, summary)
}

fn as_json((listed, summary): &(Listed, Result<Summary, String>)) -> Value {
    let summary = match summary {
        Ok(summary) => summary,
        Err(problem) => {
            return json!({ "id": listed.id(), "dir": listed.path, "status": null, "problem": problem });
        }
    };
    let mut told = summary.to_json(&listed.id());
    told.insert("dir".to_string(), json!(listed.path));
    told.into()
}

fn row((listed, summary): &(Listed, Result<Summary, String>)) -> Vec<String> {
    let id = printable(&listed.id());
    let summary = match summary {
        Ok(summary) => summary,
        Err(_) => {
            let unknown = std::iter::repeat_n("-".to_string(), 6);
            return [id, "unreadable".to_string()].into_iter().chain(unknown).collect();
        }
    };
    let record = &summary.record;
    let degraded = if record.degraded { ", degraded" } else { "" };
    let loss = |Score { name, value, best, .. }: Score| {
        format!("{name} {}{}", shown(value), if best { " (best)" } else { "" })
    };
    let cells = vec![
        id,
        format!("{}{degraded}", summary.status_in_words()),
        printable(&when(&record.started)),
        output::duration(summary.seconds()),
        summary.steps().to_string(),
        summary.score().map_or("-".to_string(), loss),
        short(&record.config_hash),
        commit_in_words(&short(&record.commit), record.dirty),
    ];
    cells.into_iter().map(|cell| if cell.is_empty() { "-".to_string() } else { cell }).collect()
}

/// A time without fractions of seconds.
pub(super) fn when(time: &str) -> String {
    time.chars().take(19).map(|c| if c == 'T' { ' ' } else { c }).collect()
}
