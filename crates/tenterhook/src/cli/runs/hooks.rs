//! `tenterhook runs hooks`: the hooks of a run, and switching them while it goes on.

use std::time::{Duration, Instant};

use clap::{Args, ValueEnum};
use serde_json::{Value, json};
use tenterhook_record::run::{HookChange, HookRequest, RunDir, RunRecord, Summary, ask};

use super::Common;
use super::show::{hooks_of, hooks_table};
use crate::cli::Outcome;
use crate::cli::error::CliError;
use crate::cli::output::{self, printable};

/// List the hooks of a run, or switch one on or off while the run goes on.
///
/// A change takes effect before the next step and stands in the run's record, so that `runs rerun` makes it again.
#[derive(Args)]
#[command(after_help = "Examples:
  tenterhook runs hooks baseline
  tenterhook runs hooks baseline disable activation_stats")]
pub(super) struct HooksArgs {
    /// The run: its id, a unique beginning of it, or its directory.
    run: String,
    /// Switch a hook on (also one that is off because it kept failing) or off (it keeps its place and its state).
    #[arg(value_enum, requires = "id")]
    switch: Option<Switch>,
    /// The hook's id, as the list has it.
    id: Option<String>,
    /// How many seconds to wait for the run to come to its next step.
    #[arg(long, value_name = "SECONDS", default_value_t = 60.0)]
    wait: f64,
    #[command(flatten)]
    common: Common,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Switch {
    Enable,
    Disable,
}

pub(super) fn run(args: &HooksArgs) -> Result<Outcome, CliError> {
    let (dir, summary) = args.common.open(&args.run)?;
    let (Some(switch), Some(id)) = (args.switch, &args.id) else {
        return list(&dir, &summary, args.common.json);
    };
    let enabled = switch == Switch::Enable;
    let wait = Duration::try_from_secs_f64(args.wait)
        .map_err(|_| CliError::bad_input("--wait takes a number of seconds"))?;
    check(&dir, &summary, id)?;
    let request = HookRequest { hook: id.clone(), enabled, by: "command line".to_string() };
    let asked = ask(&dir, &request)?;
    let change = wait_for(&dir, &asked, wait)?;
    tell(&dir, change, id, enabled, args.common.json)
}

fn list(dir: &RunDir, summary: &Summary, as_json: bool) -> Result<Outcome, CliError> {
    let hooks = hooks_of(dir, summary);
    let changes = &summary.record.hook_changes;
    if as_json {
        output::json(&json!({
            "run": dir.id(),
            "status": summary.status(),
            "hooks": hooks,
            "changes": changes,
        }))?;
        return Ok(Outcome::Done);
    }
    output::text(&hooks_table(&hooks))?;
    for change in changes {
        output::text(&in_words(change))?;
    }
    Ok(Outcome::Done)
}

/// Only a run that goes on can be changed, and only hooks that it has.
fn check(dir: &RunDir, summary: &Summary, id: &str) -> Result<(), CliError> {
    if !summary.is_live() {
        return Err(CliError::bad_input(format!(
            "run {} is not training ({}): its hooks can be switched only while it goes on",
            dir.id(),
            summary.status_in_words()
        )));
    }
    let known: Vec<&str> = summary.record.hooks.iter().filter_map(|hook| hook["id"].as_str()).collect();
    if known.contains(&id) {
        return Ok(());
    }
    let known: Vec<String> = known.into_iter().map(printable).collect();
    Err(CliError::bad_input(format!(
        "run {} has no hook `{}`; it has: {}",
        dir.id(),
        printable(id),
        known.join(", ")
    )))
}

/// Waits until the run has heard of it.
fn wait_for(dir: &RunDir, asked: &str, longest: Duration) -> Result<Option<HookChange>, CliError> {
    let began = Instant::now();
    loop {
        let (record, killed) = RunRecord::read_with_fate(dir)?;
        let ended = killed || record.finished.is_some();
        if let Some(change) = record.hook_changes.into_iter().find(|change| change.request == asked) {
            return Ok(Some(change));
        }
        if ended {
            return Err(CliError::failed(format!("run {} ended before its next step", dir.id())));
        }
        if began.elapsed() >= longest {
            return Ok(None);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

fn tell(
    dir: &RunDir,
    change: Option<HookChange>,
    id: &str,
    enabled: bool,
    as_json: bool,
) -> Result<Outcome, CliError> {
    if let Some(problem) = change.as_ref().and_then(|change| change.refused.as_ref()) {
        return Err(CliError::failed(format!("run {}: {problem}", dir.id())));
    }
    if as_json {
        let waits: Value = json!({ "hook": id, "enabled": enabled, "step": null });
        output::json(&change.map_or(waits, |change| json!(change)))?;
        return Ok(Outcome::Done);
    }
    let on = if enabled { "on" } else { "off" };
    output::text(&match change {
        Some(change) => in_words(&change),
        None => format!("hook {} goes {on} before the next step, which has not come yet", printable(id)),
    })?;
    Ok(Outcome::Done)
}

/// What was changed, in a line.
pub(super) fn in_words(change: &HookChange) -> String {
    let hook = printable(&change.hook);
    let by = printable(&change.by);
    match &change.refused {
        Some(problem) => format!("after step {}: {by}: {}", change.step, printable(problem)),
        None => {
            let on = if change.enabled { "on" } else { "off" };
            format!("after step {}: hook {hook} {on} ({by})", change.step)
        }
    }
}
