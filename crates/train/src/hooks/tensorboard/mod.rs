//! Numbers and histograms of the run for TensorBoard.

mod proto;
#[cfg(test)]
mod read;

use std::cell::RefCell;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use tenterhook_hooks::{AttachError, Cx, Hook, HookResult, MetricsRow, RunStatus, glob_matches};

use super::log_file::{LogFile, is_step_row, run_dir};
use super::none_of;
use proto::{Value, add_record, summary_event, version_event};

/// What a [`Tensorboard`] writes.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TensorboardOptions {
    /// The metrics and histograms that are written, as globs.
    pub metrics: Vec<String>,
    /// Writes histograms too.
    pub histograms: bool,
    /// Writes every n-th step; validations are written always.
    pub log_every_n_batches: u64,
    /// Rows are gathered and written so many at a time, and whenever a checkpoint is made.
    pub flush_every: usize,
}

impl Default for TensorboardOptions {
    fn default() -> Self {
        Self { metrics: vec!["*".to_string()], histograms: true, log_every_n_batches: 1, flush_every: 20 }
    }
}

/// Writes event files that TensorBoard opens, into `tensorboard/` in the run directory: `tensorboard --logdir <run>/tensorboard`.
///
/// A run that goes on from a checkpoint goes on in the same file.
pub struct Tensorboard {
    options: TensorboardOptions,
    /// Saving the state writes what was gathered, and a hook is only read when it is saved.
    events: RefCell<Events>,
}

#[derive(Default)]
struct Events {
    /// The name of the file, once there is one.
    name: Option<String>,
    file: LogFile,
    gathered: Vec<u8>,
    rows: usize,
}

const PREFIX: &str = "events.out.tfevents.";

impl Events {
    fn flush(&mut self) -> HookResult {
        if !self.gathered.is_empty() {
            self.file.append(&self.gathered)?;
        }
        self.gathered.clear();
        self.rows = 0;
        Ok(())
    }
}

impl Tensorboard {
    /// The kind's name.
    pub const KIND: &'static str = "tensorboard";

    /// Options that write nothing are an error.
    pub fn new(options: TensorboardOptions) -> Result<Self, AttachError> {
        let mut problems = Vec::new();
        if options.metrics.is_empty() {
            problems.push("`metrics` is empty: nothing would be written".to_string());
        }
        if options.log_every_n_batches == 0 {
            problems.push("`log_every_n_batches` is 0, it must be at least 1".to_string());
        }
        if !(1..=10_000).contains(&options.flush_every) {
            problems.push(format!("`flush_every` is {}, it must be 1 to 10000 rows", options.flush_every));
        }
        none_of(problems, Self::KIND)?;
        Ok(Self { options, events: RefCell::default() })
    }

    fn wants(&self, name: &str) -> bool {
        self.options.metrics.iter().any(|pattern| glob_matches(pattern, name))
    }
}

/// Seconds since 1970.
fn wall_time() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |time| time.as_secs_f64())
}

/// The name of this machine, as far as it is known and fits into a file name.
fn host() -> String {
    let known = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let known = known.or_else(|| std::env::var("HOSTNAME").or_else(|_| std::env::var("COMPUTERNAME")).ok());
    let plain = |c: &char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
    let name: String = known.unwrap_or_default().trim().chars().filter(plain).take(64).collect();
    if name.is_empty() { "localhost".to_string() } else { name }
}

impl Hook for Tensorboard {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn only_on_first_rank(&self) -> bool {
        true
    }

    fn on_train_start(&mut self, cx: &mut Cx) -> HookResult {
        let events = self.events.get_mut();
        let now = wall_time();
        let name = events.name.get_or_insert_with(|| format!("{PREFIX}{:010}.{}", now as u64, host()));
        events.file.open_at(&run_dir(cx)?.join("tensorboard").join(name))?;
        if events.file.is_empty() && events.gathered.is_empty() {
            add_record(&mut events.gathered, &version_event(now));
            events.flush()?;
        }
        Ok(())
    }

    fn on_metrics(&mut self, row: &MetricsRow, _cx: &mut Cx) -> HookResult {
        if is_step_row(row) && !row.step.is_multiple_of(self.options.log_every_n_batches) {
            return Ok(());
        }
        let scalars = row.values.iter().map(|(name, value)| (name.as_str(), Value::Scalar(*value)));
        // A histogram without bins is one of nothing.
        let histograms =
            row.histograms.iter().filter(|(_, h)| self.options.histograms && !h.counts.is_empty());
        let histograms = histograms.map(|(name, histogram)| (name.as_str(), Value::Histogram(histogram)));
        let mut wanted = scalars.chain(histograms).filter(|(name, _)| self.wants(name)).peekable();
        if wanted.peek().is_none() {
            return Ok(());
        }
        let event = summary_event(wall_time(), row.step, wanted);
        let events = self.events.get_mut();
        add_record(&mut events.gathered, &event);
        events.rows += 1;
        if events.rows >= self.options.flush_every { events.flush() } else { Ok(()) }
    }

    fn on_exception(&mut self, _error: &str, _cx: &mut Cx) -> HookResult {
        self.events.get_mut().flush()
    }

    fn on_train_end(&mut self, _status: RunStatus, _cx: &mut Cx) -> HookResult {
        let events = self.events.get_mut();
        events.flush()?;
        events.file.close()
    }

    fn save_state(&self) -> HookResult<Option<Json>> {
        // What the checkpoint counts as written must be in the file, or a crash would lose it.
        let mut events = self.events.try_borrow_mut()?;
        events.flush()?;
        Ok(Some(json!({ "name": events.name, "file": events.file.state()? })))
    }

    fn load_state(&mut self, state: Json) -> HookResult {
        let events = self.events.get_mut();
        events.file.load(&state["file"])?;
        events.name = state["name"].as_str().map(str::to_string);
        // A checkpoint may come from anywhere: its file must not.
        let inside =
            |name: &String| name.starts_with(PREFIX) && Path::new(name).file_name() == Some(name.as_ref());
        match &events.name {
            Some(name) if !inside(name) => {
                Err(format!("the saved file name {name:?} is not one of an event file").into())
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::read::{ReadEvent, read_events};
    use super::*;
    use std::path::PathBuf;
    use tenterhook_hooks::{Event, Histogram, MockTrainer};

    /// Publishes a histogram at every step.
    struct Publisher;

    impl Hook for Publisher {
        fn kind(&self) -> &str {
            "publisher"
        }
        fn on_before_backward(&mut self, loss: f64, cx: &mut Cx) -> HookResult {
            cx.log("lr", loss / 1000.0);
            cx.log_histogram("grads", Histogram { low: 0.0, high: loss, counts: vec![1, 2] });
            cx.log_histogram("nothing", Histogram::default());
            Ok(())
        }
    }

    fn trainer(dir: &Path, options: TensorboardOptions) -> MockTrainer {
        let mut trainer = MockTrainer::new().in_dir(dir);
        trainer.attach(Publisher).unwrap();
        trainer.attach(Tensorboard::new(options).unwrap()).unwrap();
        trainer
    }

    fn run(trainer: &mut MockTrainer, steps: std::ops::Range<u32>) {
        for step in steps {
            trainer.step(f64::from(step)).unwrap();
            if step % 3 == 2 {
                trainer.validate(&[("val/loss", f64::from(step))]).unwrap();
            }
        }
    }

    fn files(dir: &Path) -> Vec<PathBuf> {
        std::fs::read_dir(dir.join("tensorboard")).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    /// The events of the only file, without the times.
    fn events(dir: &Path) -> Vec<ReadEvent> {
        let files = files(dir);
        assert_eq!(files.len(), 1, "{files:?}");
        let mut events = read_events(&std::fs::read(&files[0]).unwrap()).unwrap();
        events.iter_mut().for_each(|event| event.wall_time = 0.0);
        events
    }

    fn written(options: TensorboardOptions, steps: u32) -> Vec<ReadEvent> {
        let dir = tempfile::tempdir().unwrap();
        let mut trainer = trainer(dir.path(), options);
        trainer.fire(Event::TrainStart).unwrap();
        run(&mut trainer, 0..steps);
        trainer.end(RunStatus::Completed).unwrap();
        assert!(trainer.errors().is_empty(), "{:?}", trainer.errors());
        events(dir.path())
    }

    #[test]
    fn rows_become_events() {
        let events = written(TensorboardOptions::default(), 3);
        assert_eq!(events.len(), 1 + 3 + 1);
        assert_eq!(events[0].file_version.as_deref(), Some("brain.Event:2"));
        let scalar = |name: &str, value: f32| (name.to_string(), value);
        assert_eq!(events[3].scalars, [scalar("loss", 2.0), scalar("lr", 0.002)]);
        assert_eq!(events[3].step, 3);
        assert_eq!(events[3].histograms.len(), 1, "the one of nothing is left out");
        assert_eq!(events[3].histograms[0].1.limits, [1.0, 2.0]);
        assert_eq!(events[4].scalars, [scalar("val/loss", 2.0)]);
    }

    #[test]
    fn every_option_changes_the_file() {
        let usual = TensorboardOptions::default;
        let some = written(TensorboardOptions { metrics: vec!["l?".into()], ..usual() }, 3);
        assert_eq!(some.len(), 4, "no event for a validation that has nothing wanted");
        assert!(some[1..].iter().all(|event| event.scalars.len() == 1 && event.histograms.is_empty()));
        let flat = written(TensorboardOptions { histograms: false, ..usual() }, 3);
        assert!(flat.iter().all(|event| event.histograms.is_empty()) && flat.len() == 5);
        let few = written(TensorboardOptions { log_every_n_batches: 2, ..usual() }, 3);
        assert_eq!(few.iter().map(|event| event.step).collect::<Vec<_>>(), [0, 2, 3]);

        let dir = tempfile::tempdir().unwrap();
        let mut slow = trainer(dir.path(), TensorboardOptions { flush_every: 4, ..usual() });
        slow.fire(Event::TrainStart).unwrap();
        for (steps, want) in [(0..2, 1), (2..3, 5), (3..4, 5)] {
            run(&mut slow, steps);
            assert_eq!(events(dir.path()).len(), want);
        }
        slow.fire(Event::Exception("")).unwrap();
        assert_eq!(events(dir.path()).len(), 6);
    }

    #[test]
    fn p05_cut_anywhere_the_file_is_that_of_an_uncut_run() {
        let options = || TensorboardOptions { flush_every: 3, ..TensorboardOptions::default() };
        let whole = written(options(), 8);
        for cut in 0..8 {
            let dir = tempfile::tempdir().unwrap();
            let mut first = trainer(dir.path(), options());
            first.fire(Event::TrainStart).unwrap();
            run(&mut first, 0..cut);
            let (saved, state) = (first.hooks().save_hook("tensorboard").unwrap(), first.state.clone());
            run(&mut first, cut..7); // what a crash leaves behind
            drop(first);
            let mut second = trainer(dir.path(), options());
            second.state = state;
            second.hooks().load_hook(saved).unwrap();
            second.fire(Event::TrainStart).unwrap();
            run(&mut second, cut..8);
            second.end(RunStatus::Completed).unwrap();
            assert_eq!(events(dir.path()), whole, "cut at {cut}");
        }
    }

    #[test]
    fn bad_options_and_bad_states_are_refused() {
        let options = TensorboardOptions {
            metrics: vec![],
            log_every_n_batches: 0,
            flush_every: 0,
            ..TensorboardOptions::default()
        };
        let error = Tensorboard::new(options).err().unwrap().to_string();
        for word in ["`metrics`", "`log_every_n_batches`", "`flush_every`"] {
            assert!(error.contains(word), "{error}");
        }
        for name in ["../x", "events.out.tfevents./../../x", "x"] {
            let mut hook = Tensorboard::new(TensorboardOptions::default()).unwrap();
            assert!(hook.load_state(json!({"name": name, "file": {"position": 0}})).is_err(), "{name}");
        }
        assert!(host().chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c)));
    }
}
