//! Training to the end, with signals heard and the end told.

use std::io::IsTerminal;

use serde_json::{Value, json};
use tenterhook_hooks::RunStatus;
use tenterhook_train::{Finished, Interrupt, TrainError, Trainer};

use super::error::CliError;
use super::{Outcome, output, signals};
use crate::training::Begun;

/// A run that has come to its end, good or bad.
pub(super) struct Ended {
    pub(super) begun: Begun,
    result: Result<Finished, TrainError>,
}

/// Trains. What goes wrong in training is for the caller to tell.
pub(super) fn carry_out(mut begun: Begun, quiet: bool, as_json: bool) -> Result<Ended, CliError> {
    // The others have nothing to say that rank 0 does not.
    let quiet = quiet || !begun.trainer.world().is_first();
    tell_begin(&begun, quiet || as_json);
    let interrupt = Interrupt::default();
    let mut trainer = begun.trainer.with_interrupt(interrupt.clone());
    let prepared = signals::raise_on_signal(&interrupt).and_then(|()| add_progress(&mut trainer, quiet));
    trainer.world().clone().all_well("the beginning", prepared)?;
    let result = trainer.train();
    begun.trainer = trainer;
    Ok(Ended { begun, result })
}

/// Shows how far it is, unless a hook does that already.
fn add_progress(trainer: &mut Trainer, quiet: bool) -> Result<(), CliError> {
    // Without a terminal the bar is lines of text, and those of `console_log` are enough.
    let shows =
        |kind: &str| kind == "progress" || (kind == "console_log" && !std::io::stderr().is_terminal());
    if !quiet && !trainer.list_hooks().iter().any(|hook| shows(&hook.kind)) {
        trainer.add_hook_from(&crate::training::registry(), &json!({ "kind": "progress" }))?;
    }
    Ok(())
}

fn tell_begin(begun: &Begun, quiet: bool) {
    let skipped = begun.skipped.iter().map(|(name, problem)| (name.as_str(), problem.as_str()));
    output::damaged_checkpoints(skipped, begun.resumed.as_ref().map(|(name, step)| (name.as_str(), *step)));
    if quiet {
        return;
    }
    let from = begun.resumed.as_ref().map(|(name, step)| format!(", going on after step {step} from {name}"));
    output::note(&format!("run {} in {}{}", begun.run_id, begun.run_dir.display(), from.unwrap_or_default()));
}

impl Ended {
    pub(super) fn outcome(&self) -> Result<Outcome, CliError> {
        match &self.result {
            Ok(Finished { status: RunStatus::Interrupted, .. }) => Ok(Outcome::Interrupted),
            Ok(Finished { degraded: true, .. }) => Ok(Outcome::Degraded),
            Ok(_) => Ok(Outcome::Done),
            Err(error) => Err(CliError::failed(error.to_string())),
        }
    }

    pub(super) fn status(&self) -> RunStatus {
        self.result.as_ref().map_or(RunStatus::Error, |finished| finished.status)
    }

    /// What every hook did, for `--json`.
    pub(super) fn receipts(&self) -> Value {
        let hooks = self.begun.trainer.list_hooks().into_iter();
        hooks.map(|hook| json!({ "id": hook.id, "kind": hook.kind, "points": hook.matched, "receipt": hook.receipt })).collect()
    }

    pub(super) fn to_json(&self) -> Value {
        let reason = match &self.result {
            Ok(finished) => finished.reason.clone(),
            Err(error) => Some(error.to_string()),
        };
        json!({
            "run_id": self.begun.run_id,
            "dir": self.begun.run_dir,
            "status": self.status(),
            "reason": reason,
            "degraded": self.result.as_ref().map_or(true, |finished| finished.degraded),
            "steps": self.begun.trainer.step(),
            "metrics": self.begun.trainer.state().metrics,
        })
    }

    /// Says how it ended, where things are, and with which command it can go on.
    pub(super) fn tell(&self, resume: &str) {
        let Begun { trainer, run_dir, .. } = &self.begun;
        let metrics = &trainer.state().metrics;
        let named = ["loss", "train/loss", "val/loss", "val/accuracy"];
        let shown = named.iter().filter_map(|name| Some(format!("{name} {:.4}", metrics.get(*name)?)));
        let reason = self.result.as_ref().ok().and_then(|finished| finished.reason.as_deref());
        let mut text = format!(
            "{} after {} steps{}\n",
            self.status().as_str(),
            trainer.step(),
            reason.map(|reason| format!(" ({reason})")).unwrap_or_default(),
        );
        text.push_str(&format!("  {}\n", shown.collect::<Vec<_>>().join("  ")));
        text.push_str(&format!("  metrics      {}\n", run_dir.join("metrics.jsonl").display()));
        text.push_str(&format!("  checkpoints  {}\n", run_dir.join("checkpoints").display()));
        let failures = trainer.errors();
        if let Some(first) = failures.first() {
            text.push_str(&format!("  {} failures of hooks, the first: {first}\n", failures.len()));
        }
        if matches!(self.status(), RunStatus::Interrupted | RunStatus::Error) {
            text.push_str(&format!("  to go on     {resume}\n"));
        }
        output::note(text.trim_end());
    }
}
