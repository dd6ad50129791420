//! Where a run stands: all that a checkpoint needs beside weights, optimizers and hooks.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};
use tenterhook_hooks::Clock;
use tenterhook_record::metrics::Number;
use tenterhook_record::name::check_run_name;

use crate::data::Cursor;

/// What the loop does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Stage {
    EpochStart,
    Step,
    Validate,
    EpochEnd,
}

/// Where a run stands.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Progress {
    /// Optimizer steps taken, skipped ones included.
    pub(crate) step: u64,
    /// How far the data has been read; its epoch is the run's.
    pub(crate) cursor: Cursor,
    pub(crate) stage: Stage,
    /// What comes after [`Stage::Validate`].
    pub(crate) after_validation: Stage,
    /// The time that hooks are told until the next step begins.
    pub(crate) clock: Clock,
    /// At which step validation was last done.
    pub(crate) validated_at: Option<u64>,
    /// Whether a hook asked for a validation that has not begun.
    pub(crate) validation_asked: bool,
    pub(crate) tokens_seen: u64,
    /// The losses of this epoch's steps: their sum and number.
    pub(crate) loss_sum: Number,
    pub(crate) loss_count: u64,
    pub(crate) latest_loss: Option<Number>,
    /// Per optimizer and group, what hooks have made of the learning rate.
    pub(crate) lr_scale: Vec<Vec<Number>>,
    pub(crate) frozen: BTreeSet<String>,
    /// Steps that were not taken because something was not finite: in a row, and altogether.
    pub(crate) skipped_in_a_row: u64,
    pub(crate) skipped: u64,
    /// Who asked for the end, and why.
    pub(crate) stop: Option<Stop>,
    /// The last value of every metric.
    pub(crate) metrics: BTreeMap<String, Number>,
    /// What hooks have published since the last row of the log.
    pub(crate) published: BTreeMap<String, Number>,
    /// Whether a hook, or a save, has failed.
    pub(crate) degraded: bool,
    /// What hooks asked for and is done at the next safe place, in order.
    pub(crate) waiting: Vec<Waiting>,
    /// The checkpoints that are there.
    pub(crate) known: Vec<Known>,
    /// What was to be done with checkpoints when this was written. A run that goes on from here does what is still missing.
    pub(crate) place: Place,
}

/// An end that a hook asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Stop {
    pub(crate) hook_id: String,
    pub(crate) reason: String,
}

/// A checkpoint that a hook wants written, or removed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Waiting {
    pub(crate) hook_id: String,
    /// Without a name it gets the usual one.
    pub(crate) name: Option<String>,
    pub(crate) remove: bool,
}

/// A checkpoint, and who wants it to be there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Known {
    pub(crate) name: String,
    pub(crate) step: u64,
    pub(crate) owners: Vec<Owner>,
}

/// Somebody who asked for a checkpoint, and under which name. The trainer's own id is empty.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Owner {
    pub(crate) id: String,
    pub(crate) asked: String,
}

/// Checkpoints to write, then checkpoints to remove.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Place {
    pub(crate) saves: Vec<String>,
    pub(crate) removes: Vec<String>,
}

/// No run counts this far, and what is added to it stays a number.
const MOST: u64 = 1 << 60;

impl Progress {
    pub(crate) fn new(cursor: Cursor, groups: &[usize]) -> Self {
        Self {
            step: 0,
            cursor,
            stage: Stage::EpochStart,
            after_validation: Stage::EpochStart,
            clock: Clock::default(),
            validated_at: None,
            validation_asked: false,
            tokens_seen: 0,
            loss_sum: Number(0.0),
            loss_count: 0,
            latest_loss: None,
            lr_scale: groups.iter().map(|count| vec![Number(1.0); *count]).collect(),
            frozen: BTreeSet::new(),
            skipped_in_a_row: 0,
            skipped: 0,
            stop: None,
            metrics: BTreeMap::new(),
            published: BTreeMap::new(),
            degraded: false,
            waiting: Vec::new(),
            known: Vec::new(),
            place: Place::default(),
        }
    }

    /// What makes it unfit for a run with so many groups per optimizer, if anything does. A checkpoint may come from anywhere, and its
    /// names become paths.
    pub(crate) fn problem(&self, groups: &[usize]) -> Option<String> {
        let counts = [
            self.step,
            self.cursor.epoch,
            self.tokens_seen,
            self.loss_count,
            self.skipped,
            self.skipped_in_a_row,
        ];
        if let Some(count) = counts.iter().chain(&self.cursor.taken).find(|count| **count > MOST) {
            return Some(format!("it counts to {count}, which no run reaches"));
        }
        if self.lr_scale.iter().map(Vec::len).ne(groups.iter().copied()) {
            return Some("its learning rates are those of other optimizers".to_string());
        }
        if let Some(Number(scale)) =
            self.lr_scale.iter().flatten().find(|scale| !(0.0..=f64::MAX).contains(&scale.0))
        {
            return Some(format!("a learning rate is scaled by {scale}"));
        }
        let known = self.known.iter().flat_map(|known| {
            std::iter::once(&known.name).chain(known.owners.iter().map(|owner| &owner.asked))
        });
        let waiting = self.waiting.iter().filter_map(|waiting| waiting.name.as_ref());
        let mut names = known.chain(waiting).chain(&self.place.saves).chain(&self.place.removes);
        names
            .find_map(|name| check_run_name(name).err())
            .map(|error| format!("the name of a checkpoint: {error}"))
    }

    /// The mean loss of this epoch's steps.
    pub(crate) fn avg_loss(&self) -> Option<f64> {
        (self.loss_count > 0).then(|| self.loss_sum.0 / self.loss_count as f64)
    }

    /// The usual name of a checkpoint of this moment.
    pub(crate) fn usual_name(&self) -> String {
        format!("step-{:08}", self.step)
    }

    /// Plans what hooks asked for.
    pub(crate) fn plan_waiting(&mut self) {
        for Waiting { hook_id, name, remove } in std::mem::take(&mut self.waiting) {
            let name = name.unwrap_or_else(|| self.usual_name());
            match remove {
                true => self.plan_remove(&name, &hook_id),
                false => self.plan_save(&name, &hook_id),
            }
        }
    }

    /// Whether the trainer itself has saved at this step.
    pub(crate) fn has_own_save(&self) -> bool {
        let own = |known: &Known| known.owners.iter().any(|owner| owner.id.is_empty());
        self.known.iter().any(|known| known.step == self.step && own(known))
    }

    /// Plans a checkpoint. The same name asked for by several at one place is one checkpoint; a name that is taken gets `-v1`.
    pub(crate) fn plan_save(&mut self, asked: &str, owner: &str) {
        let owner = Owner { id: owner.to_string(), asked: asked.to_string() };
        let planned = &self.place.saves;
        let here = self.known.iter_mut().find(|known| {
            planned.contains(&known.name) && known.owners.iter().any(|other| other.asked == asked)
        });
        if let Some(here) = here {
            here.owners.push(owner);
            return;
        }
        let taken = |name: &str| self.known.iter().any(|known| known.name == name);
        let versions = (1..).map(|version| format!("{asked}-v{version}"));
        let name = std::iter::once(asked.to_string()).chain(versions).find(|name| !taken(name));
        let name = name.unwrap_or_else(|| asked.to_string());
        self.place.saves.push(name.clone());
        self.known.push(Known { name, step: self.step, owners: vec![owner] });
    }

    /// Gives a checkpoint up on behalf of one owner; when nobody wants it any more it is to be removed.
    pub(crate) fn plan_remove(&mut self, asked: &str, owner: &str) {
        for known in &mut self.known {
            known.owners.retain(|other| !(other.id == owner && other.asked == asked));
        }
        let unwanted = self.known.extract_if(.., |known| known.owners.is_empty());
        self.place.removes.extend(unwanted.map(|known| known.name));
    }

    /// Gives up the trainer's own checkpoints but for the newest `keep`.
    pub(crate) fn prune(&mut self, keep: usize) {
        let own = |known: &&Known| known.owners.iter().any(|owner| owner.id.is_empty());
        let asked: Vec<String> = self.known.iter().filter(own).map(|known| known.name.clone()).collect();
        let old = asked.len().saturating_sub(keep.max(1));
        for name in asked.into_iter().take(old) {
            let asked = self.known.iter().find(|known| known.name == name).and_then(|known| {
                known.owners.iter().find(|owner| owner.id.is_empty()).map(|owner| owner.asked.clone())
            });
            self.plan_remove(&asked.unwrap_or(name), "");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(step: u64) -> Progress {
        Progress { step, ..Progress::new(Cursor::new(1), &[2]) }
    }

    fn names(progress: &Progress) -> Vec<&str> {
        progress.known.iter().map(|known| known.name.as_str()).collect()
    }

    #[test]
    fn p32_what_leads_out_or_counts_past_the_end_is_unfit() {
        let unfit = |change: fn(&mut Progress)| {
            let mut progress = at(5);
            progress.plan_save("a", "");
            assert_eq!(progress.problem(&[2]), None);
            change(&mut progress);
            progress.problem(&[2]).unwrap()
        };
        assert!(unfit(|progress| progress.step = u64::MAX).contains("counts to"));
        assert!(unfit(|progress| progress.cursor.taken[0] = u64::MAX).contains("counts to"));
        assert!(unfit(|progress| progress.lr_scale.clear()).contains("other optimizers"));
        assert!(unfit(|progress| progress.lr_scale[0][1] = Number(f64::NAN)).contains("NaN"));
        for change in [
            |progress: &mut Progress| progress.place.removes.push("../../other".into()),
            |progress: &mut Progress| progress.place.saves.push("/tmp/x".into()),
            |progress: &mut Progress| progress.known[0].name = "..".into(),
            |progress: &mut Progress| progress.known[0].owners[0].asked = "../x".into(),
            |progress: &mut Progress| {
                progress.waiting.push(Waiting {
                    hook_id: String::new(),
                    name: Some("a/b".into()),
                    remove: true,
                });
            },
        ] {
            assert!(unfit(change).contains("cannot be a name"));
        }
    }

    #[test]
    fn one_name_at_one_place_is_one_checkpoint() {
        let mut progress = at(5);
        progress.plan_save("a", "");
        progress.plan_save("a", "best");
        assert_eq!((names(&progress), &progress.place.saves[..]), (vec!["a"], &["a".to_string()][..]));
        progress.place = Place::default();
        progress.plan_remove("a", "");
        assert!(progress.place.removes.is_empty(), "`best` still wants it");
        progress.plan_remove("a", "best");
        assert_eq!(progress.place.removes, ["a"]);
    }

    #[test]
    fn a_name_that_is_taken_gets_a_version() {
        let mut progress = at(5);
        progress.plan_save("a", "one");
        progress.place = Place::default();
        progress.step = 6;
        progress.plan_save("a", "two");
        progress.plan_remove("a", "two");
        assert_eq!((names(&progress), &progress.place.removes[..]), (vec!["a"], &["a-v1".to_string()][..]));
    }

    #[test]
    fn the_newest_of_its_own_stay() {
        let mut progress = at(0);
        for step in 1..=4 {
            progress.step = step;
            progress.plan_save(&format!("s{step}"), "");
            if step == 1 {
                progress.plan_save("s1", "hook");
            }
        }
        progress.prune(2);
        assert_eq!(names(&progress), ["s1", "s3", "s4"], "s1 belongs to a hook as well");
    }
}
