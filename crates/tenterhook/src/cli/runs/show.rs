//! `tenterhook runs show`.

use std::collections::BTreeSet;

use clap::Args;
use serde_json::{Value, json};
use tenterhook_record::checkpoints;
use tenterhook_record::run::{Attempt, RunDir, RunRecord, Status, Summary, commit_in_words};
use tenterhook_train::config::Document;

use super::hooks;
use super::list::when;
use super::{Common, short, shown};
use crate::cli::Outcome;
use crate::cli::error::CliError;
use crate::cli::output::{self, printable, shell_words};

/// Show everything that is known about a run.
#[derive(Args)]
#[command(after_help = "Example: tenterhook runs show 0198f0a2")]
pub(super) struct ShowArgs {
    /// The run: its id, a unique beginning of it, or its directory.
    run: String,
    #[command(flatten)]
    common: Common,
}

pub(super) fn run(args: &ShowArgs) -> Result<Outcome, CliError> {
    let (dir, summary) = args.common.open(&args.run)?;
    let checkpoints = checkpoints_of(&dir)?;
    let hooks = hooks_of(&dir, &summary);
    if args.common.json {
        return as_json(&dir, &summary, &hooks, &checkpoints);
    }
    let mut text = overview(&dir, &summary);
    let mut part = |title: &str, table: String| text.push_str(&format!("\n{title}\n{}\n", indented(&table)));
    let can_go_on = can_go_on(&summary, &checkpoints);
    part("attempts", attempts(&summary.record.attempts));
    part("hooks, in the order in which they run", hooks_table(&hooks));
    if !summary.record.hook_changes.is_empty() {
        let changes: Vec<String> = summary.record.hook_changes.iter().map(hooks::in_words).collect();
        part("hooks that were switched", changes.join("\n"));
    }
    part("last metrics", metrics(&summary));
    let rows: Vec<Vec<String>> = checkpoints.iter().map(|found| found.row()).collect();
    part("checkpoints", table(&["name", "step", "state"], &rows));
    if !summary.record.errors.is_empty() {
        part("errors", summary.record.errors.iter().map(error_line).collect::<Vec<_>>().join("\n"));
    }
    part("files", files(&dir));
    if can_go_on {
        text.push_str(&format!("\nto go on: {}\n", resume_command(&dir)));
    }
    output::text(&text)?;
    Ok(Outcome::Done)
}

fn as_json(
    dir: &RunDir,
    summary: &Summary,
    hooks: &[Value],
    checkpoints: &[Checkpoint],
) -> Result<Outcome, CliError> {
    let mut told = json!(summary.record);
    told["status"] = json!(summary.status());
    told["killed"] = json!(summary.killed);
    told["dir"] = json!(dir.path());
    told["seconds"] = json!(summary.seconds());
    told["steps"] = json!(summary.steps());
    told["hooks"] = json!(hooks);
    told["metrics"] = json!(summary.last_values());
    told["checkpoints"] = checkpoints.iter().map(Checkpoint::as_json).collect();
    told["problem"] = json!(summary.problem);
    told["resume"] = json!(can_go_on(summary, checkpoints).then(|| resume_command(dir)));
    output::json(&told)?;
    Ok(Outcome::Done)
}

/// Whether it ended before its time, and has a checkpoint to go on from.
fn can_go_on(summary: &Summary, checkpoints: &[Checkpoint]) -> bool {
    let ended_early = matches!(summary.status(), Status::Interrupted | Status::Error);
    ended_early && checkpoints.iter().any(|checkpoint| checkpoint.problem.is_none())
}

fn overview(dir: &RunDir, summary: &Summary) -> String {
    let record = &summary.record;
    let degraded = if record.degraded { ", degraded: a hook or a save failed" } else { "" };
    let versions: Vec<String> =
        record.versions.iter().map(|(name, version)| format!("{name} {version}")).collect();
    let lines = [
        ("status", Some(format!("{}{degraded}", summary.status_in_words()))),
        ("reason", record.reason.clone()),
        ("parent", record.parent.clone()),
        (
            "started",
            Some(format!("{} UTC, took {}", when(&record.started), output::duration(summary.seconds()))),
        ),
        ("steps", Some(summary.steps().to_string())),
        ("commit", Some(commit_in_words(&record.commit, record.dirty))),
        ("config", Some(record.config_hash.clone())),
        ("seed", Some(record.seed.to_string())),
        ("host", Some(format!("{}, {} threads", record.host, record.threads))),
        ("ranks", ranks_of(record)),
        ("versions", Some(versions.join(", "))),
        ("problem", summary.problem.clone()),
    ];
    let mut text = format!("run {}\n", printable(dir.id()));
    for (name, value) in lines {
        value.iter().for_each(|value| text.push_str(&format!("  {name:<9} {}\n", printable(value))));
    }
    text
}

/// How many processes trained together when it was last started, and where.
fn ranks_of(record: &RunRecord) -> Option<String> {
    let ranks = &record.attempts.last()?.ranks;
    let hosts: BTreeSet<&str> = ranks.iter().map(String::as_str).collect();
    (!ranks.is_empty())
        .then(|| format!("{} on {}", ranks.len(), hosts.into_iter().collect::<Vec<_>>().join(", ")))
}

fn attempts(attempts: &[Attempt]) -> String {
    let row = |attempt: &Attempt| {
        vec![
            when(&attempt.started),
            attempt.finished.as_deref().map_or("no end".to_string(), when),
            attempt.from_step.to_string(),
            attempt.to_step.map_or("-".to_string(), |step| step.to_string()),
            attempt.resumed_from.as_deref().map_or("-".to_string(), printable),
            commit_in_words(&short(&attempt.commit), attempt.dirty),
            printable(&shell_words(&attempt.args)),
        ]
    };
    let rows: Vec<Vec<String>> = attempts.iter().map(row).collect();
    table(&["started", "ended", "after step", "last step", "from", "commit", "command"], &rows)
}

/// The hooks of the record, each with its receipt when the run wrote them.
pub(super) fn hooks_of(dir: &RunDir, summary: &Summary) -> Vec<Value> {
    let receipts: Vec<Value> = std::fs::read(dir.receipts_path())
        .ok()
        .and_then(|bytes| serde_json::from_slice(&bytes).ok())
        .unwrap_or_default();
    summary.hooks_with(&receipts)
}

pub(super) fn hooks_table(hooks: &[Value]) -> String {
    let row = |hook: &Value| {
        let text = |key: &str| printable(hook[key].as_str().unwrap_or("?"));
        let points = match hook["matched"].as_array().map(Vec::as_slice) {
            None | Some([]) => "-".to_string(),
            Some([only]) => printable(only.as_str().unwrap_or("?")),
            Some([first, rest @ ..]) => {
                format!("{} and {} more", printable(first.as_str().unwrap_or("?")), rest.len())
            }
        };
        let receipt = &hook["receipt"];
        let is = |value: &Value, key: &str| value[key] == true;
        let state = match (is(receipt, "quarantined"), is(hook, "enabled")) {
            (true, _) => "quarantined",
            (false, true) => "on",
            (false, false) => "off",
        };
        let count = |key: &str| receipt[key].as_u64().map_or("-".to_string(), |count| count.to_string());
        let time =
            receipt["nanoseconds"].as_u64().map_or("-".to_string(), |ns| format!("{:.1}", ns as f64 / 1e6));
        vec![
            text("id"),
            text("kind"),
            state.to_string(),
            points,
            count("events"),
            count("fired"),
            count("edits"),
            count("errors"),
            time,
            receipt["share"].as_f64().map_or("-".to_string(), |share| format!("{:.2}%", share * 100.0)),
        ]
    };
    let rows: Vec<Vec<String>> = hooks.iter().map(row).collect();
    table(&["id", "kind", "is", "points", "events", "fired", "edits", "errors", "ms", "share"], &rows)
}

fn metrics(summary: &Summary) -> String {
    let row = |(name, (step, value)): (&str, (u64, _))| vec![printable(name), shown(value), step.to_string()];
    let rows: Vec<Vec<String>> = summary.last_metrics().into_iter().map(row).collect();
    table(&["metric", "value", "step"], &rows)
}

/// A checkpoint, and what is wrong with it.
struct Checkpoint {
    name: String,
    step: Option<u64>,
    problem: Option<String>,
}

impl Checkpoint {
    fn row(&self) -> Vec<String> {
        let state =
            self.problem.as_ref().map_or("verified".to_string(), |problem| format!("damaged: {problem}"));
        vec![
            printable(&self.name),
            self.step.map_or("?".to_string(), |step| step.to_string()),
            printable(&state),
        ]
    }

    fn as_json(&self) -> Value {
        json!({ "name": self.name, "step": self.step, "verified": self.problem.is_none(), "problem": self.problem })
    }
}

fn checkpoints_of(dir: &RunDir) -> Result<Vec<Checkpoint>, CliError> {
    let listed = checkpoints::list(&dir.checkpoints());
    let listed = listed.map_err(|error| CliError::bad_input(error.to_string()))?;
    let look = |found: checkpoints::CheckpointRef| {
        let verified = checkpoints::verify(&found.path).map_err(|error| error.to_string());
        Checkpoint { name: found.name, step: found.step, problem: found.problem.or(verified.err()) }
    };
    Ok(listed.into_iter().map(look).collect())
}

fn error_line(error: &Value) -> String {
    let text = |key: &str| error[key].as_str().map(printable);
    let step = error["step"].as_u64().map_or("?".to_string(), |step| step.to_string());
    let hook = text("hook_id").map(|id| format!("hook `{id}`, ")).unwrap_or_default();
    let point = text("point").map(|point| format!(" at `{point}`")).unwrap_or_default();
    let message = text("error").unwrap_or_default();
    format!("step {step}: {hook}{}{point}: {message}", text("event").unwrap_or_default())
}

fn files(dir: &RunDir) -> String {
    let known = [
        ("record", dir.record_path()),
        ("configuration", dir.config_path()),
        ("metrics", dir.metrics_path()),
        ("receipts", dir.receipts_path()),
        ("checkpoints", dir.checkpoints()),
        ("logs", dir.logs()),
        ("tensorboard", dir.tensorboard()),
        ("captures", dir.captures()),
    ];
    let there = known.iter().filter(|(_, path)| path.exists());
    there.map(|(name, path)| format!("{name:<14} {}", path.display())).collect::<Vec<_>>().join("\n")
}

fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    if rows.is_empty() { "none".to_string() } else { output::table(head, rows) }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}")).collect::<Vec<_>>().join("\n")
}

/// The command that goes on with a run, from its record where that has all that is needed.
pub(in crate::cli) fn resume_command(dir: &RunDir) -> String {
    let document = Document::read(&dir.config_path()).and_then(Document::without_secret_hooks);
    let is_whole = document.is_ok_and(|(_, left_out)| left_out.is_empty());
    let (run, config) = (dir.path().display().to_string(), dir.config_path().display().to_string());
    match is_whole {
        true => shell_words(&["tenterhook", "train", &config, "--resume", &run]),
        false => {
            let command = shell_words(&["tenterhook", "train", "CONFIG", "--resume", &run]);
            format!("{command} (CONFIG is the file it was started with: the record lacks secrets of hooks)")
        }
    }
}
