//! An end after a given time.

use std::borrow::Cow;
use std::fmt;
use std::time::{Duration, Instant};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use tenterhook_hooks::{AttachError, BatchInfo, Cx, Hook, HookResult};

use crate::hooks::none_of;

/// A length of time: seconds as a number, `"1h30m"`, or `"DD:HH:MM:SS"` with the front left out at will.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Time(pub Duration);

/// What a [`MaxTime`] allows.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MaxTimeOptions {
    /// How long the run may train: seconds, or "1h30m", or "00:12:00:00".
    #[schemars(extend("examples" = ["1h30m"]))]
    pub duration: Time,
}

/// Ends the run, in good order, when it has trained for so long, all attempts taken together. It looks after every batch.
pub struct MaxTime {
    limit: Duration,
    /// Of earlier attempts.
    before: Duration,
    /// When this attempt began.
    started: Option<Duration>,
    now: Box<dyn Fn() -> Duration + Send>,
}

impl MaxTime {
    /// The kind's name.
    pub const KIND: &'static str = "max_time";

    /// No time at all is an error.
    pub fn new(options: MaxTimeOptions) -> Result<Self, AttachError> {
        let made = Instant::now();
        Self::with_clock(options, move || made.elapsed())
    }

    fn with_clock(
        options: MaxTimeOptions,
        now: impl Fn() -> Duration + Send + 'static,
    ) -> Result<Self, AttachError> {
        let mut problems = Vec::new();
        if options.duration.0.is_zero() {
            problems.push("`duration` is 0: nothing would be trained".to_string());
        }
        none_of(problems, Self::KIND)?;
        Ok(Self { limit: options.duration.0, before: Duration::ZERO, started: None, now: Box::new(now) })
    }

    fn elapsed(&self) -> Duration {
        self.before + self.started.map_or(Duration::ZERO, |started| (self.now)().saturating_sub(started))
    }

    fn stop_if_over(&self, cx: &mut Cx) {
        if self.elapsed() >= self.limit {
            cx.stop(format!("the time is over: {} were allowed", Time(self.limit)));
        }
    }
}

impl Hook for MaxTime {
    fn kind(&self) -> &str {
        Self::KIND
    }

    fn on_train_start(&mut self, cx: &mut Cx) -> HookResult {
        self.started = Some((self.now)());
        self.stop_if_over(cx);
        Ok(())
    }

    fn on_train_batch_end(&mut self, _batch: &BatchInfo, cx: &mut Cx) -> HookResult {
        self.stop_if_over(cx);
        Ok(())
    }

    fn save_state(&self) -> HookResult<Option<serde_json::Value>> {
        Ok(Some(serde_json::to_value(self.elapsed())?))
    }

    fn load_state(&mut self, state: serde_json::Value) -> HookResult {
        self.before = serde_json::from_value(state)?;
        Ok(())
    }
}

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = self.0.as_secs();
        let parts = [(seconds / 86400, "d"), (seconds / 3600 % 24, "h"), (seconds / 60 % 60, "m")];
        for (count, unit) in parts.into_iter().filter(|(count, _)| *count > 0) {
            write!(f, "{count}{unit}")?;
        }
        match self.0.as_secs_f64() - (seconds / 60 * 60) as f64 {
            0.0 if seconds > 0 => Ok(()),
            rest => write!(f, "{rest}s"),
        }
    }
}

impl Time {
    fn from_seconds(seconds: f64) -> Result<Self, String> {
        Duration::try_from_secs_f64(seconds).map(Time).map_err(|error| format!("{seconds} seconds: {error}"))
    }

    fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is no length of time; write seconds, \"1h30m\" or \"00:12:00:00\"");
        let seconds = if text.contains(':') { clock_time(text) } else { with_units(text) };
        Self::from_seconds(seconds.ok_or_else(wrong)?)
    }
}

/// `DD:HH:MM:SS`, `HH:MM:SS` or `MM:SS`.
fn clock_time(text: &str) -> Option<f64> {
    let parts: Vec<&str> = text.split(':').collect();
    let units = [86400u64, 3600, 60, 1];
    let units = units.get(units.len().checked_sub(parts.len())?..)?;
    let terms = parts.iter().zip(units).map(|(part, unit)| digits(part)?.checked_mul(*unit));
    terms.sum::<Option<u64>>().map(|seconds| seconds as f64)
}

/// `1d2h3m4.5s`: each unit once, from the largest to the smallest.
fn with_units(text: &str) -> Option<f64> {
    let mut rest = text.trim();
    let mut seconds = 0.0;
    for (unit, size) in [('d', 86400.0), ('h', 3600.0), ('m', 60.0), ('s', 1.0)] {
        if let Some((count, after)) = rest.split_once(unit) {
            let plain = count.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
            seconds += size * count.parse::<f64>().ok().filter(|_| plain)?;
            rest = after;
        }
    }
    (rest.is_empty() && !text.trim().is_empty()).then_some(seconds)
}

fn digits(text: &str) -> Option<u64> {
    let plain = text.bytes().all(|byte| byte.is_ascii_digit());
    // Fewer digits than could overflow a sum.
    text.parse().ok().filter(|_| plain && text.len() <= 12)
}

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0.as_secs_f64())
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;
        impl Visitor<'_> for Forms {
            type Value = Time;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("seconds, \"1h30m\" or \"00:12:00:00\"")
            }
            fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<Time, E> {
                Ok(Time(Duration::from_secs(seconds)))
            }
            fn visit_i64<E: de::Error>(self, seconds: i64) -> Result<Time, E> {
                Time::from_seconds(seconds as f64).map_err(E::custom)
            }
            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<Time, E> {
                Time::from_seconds(seconds).map_err(E::custom)
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Time, E> {
                Time::parse(text).map_err(E::custom)
            }
        }
        deserializer.deserialize_any(Forms)
    }
}

impl JsonSchema for Time {
    fn schema_name() -> Cow<'static, str> {
        "Time".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"anyOf": [{"type": "number", "minimum": 0}, {"type": "string"}]})
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hooks::test_support::options;
    use proptest::prelude::*;
    use serde_json::{Value, json};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    use tenterhook_hooks::{Event, MockTrainer};

    fn hook(duration: Value, seconds: &Arc<AtomicU64>) -> MaxTime {
        let seconds = seconds.clone();
        let now = move || Duration::from_secs(seconds.load(Relaxed));
        MaxTime::with_clock(options(json!({ "duration": duration })), now).unwrap()
    }

    #[test]
    fn all_ways_to_write_a_time() {
        let wrong = [
            "",
            " ",
            "x",
            "1x",
            "h",
            "1m1h",
            "1h1h",
            "-1s",
            "1e3s",
            "infs",
            "1:2:3:4:5",
            ":",
            "1:-2",
            "+1:2",
        ];
        for (text, seconds) in [
            (json!(90), Some(90.0)),
            (json!(1.5), Some(1.5)),
            (json!("1h30m"), Some(5400.0)),
            (json!("2d"), Some(172_800.0)),
            (json!("1d2h3m4.5s"), Some(93_784.5)),
            (json!("90s"), Some(90.0)),
            (json!("00:12:00:00"), Some(43_200.0)),
            (json!("01:00:00:01"), Some(86_401.0)),
            (json!("00:30"), Some(30.0)),
            (json!("2:00:00"), Some(7200.0)),
            (json!(-1), None),
            (json!(-0.5), None),
            (json!(true), None),
            (json!("999999999999d"), Some(999_999_999_999.0 * 86_400.0)),
            (json!("9999999999999:00:00:00"), None),
        ]
        .into_iter()
        .chain(wrong.map(|text| (json!(text), None)))
        {
            let got: Option<Time> = serde_json::from_value(text.clone()).ok();
            assert_eq!(got.map(|time| time.0.as_secs_f64()), seconds, "{text}");
        }
        for (seconds, text) in [(5400.0, "1h30m"), (0.5, "0.5s"), (90_061.5, "1d1h1m1.5s"), (0.0, "0s")] {
            assert_eq!(Time(Duration::from_secs_f64(seconds)).to_string(), text);
        }
    }

    #[test]
    fn the_run_ends_when_the_time_is_over() -> HookResult {
        let seconds = Arc::new(AtomicU64::new(1000));
        let mut trainer = MockTrainer::new();
        trainer.attach(hook(json!("1m"), &seconds))?;
        seconds.store(2000, Relaxed); // what happens before the start does not count
        trainer.fire(Event::TrainStart)?;
        for (at, want) in [(2000, None), (2059, None), (2060, Some("the time is over: 1m were allowed"))] {
            seconds.store(at, Relaxed);
            trainer.step(1.0)?;
            assert_eq!(trainer.stopped().as_deref(), want, "{at}");
        }
        Ok(())
    }

    #[test]
    fn attempts_are_added_up_and_a_stopped_run_stays_stopped() -> HookResult {
        let seconds = Arc::new(AtomicU64::new(0));
        let mut state = json!({"secs": 0, "nanos": 0});
        // Every attempt trains for 25 seconds; the third goes beyond the minute, the fourth has no time left.
        for (attempt, stops_at_start, stops) in
            [(0, false, false), (1, false, false), (2, false, true), (3, true, true)]
        {
            let mut trainer = MockTrainer::new();
            let mut hook = hook(json!(60), &seconds);
            hook.load_state(state)?;
            let id = trainer.attach(hook)?;
            seconds.fetch_add(500, Relaxed); // between attempts nothing is trained
            trainer.fire(Event::TrainStart)?;
            assert_eq!(trainer.stopped().is_some(), stops_at_start, "{attempt}");
            seconds.fetch_add(25, Relaxed);
            trainer.step(1.0)?;
            assert_eq!(trainer.stopped().is_some(), stops, "{attempt}");
            state = trainer.hooks().save_hook(&id)?.state.ok_or("no state")?;
        }
        Ok(())
    }

    #[test]
    fn no_time_is_refused_and_real_time_passes() -> HookResult {
        assert!(MaxTime::new(options(json!({"duration": 0}))).is_err());
        let mut trainer = MockTrainer::new();
        trainer.attach(MaxTime::new(options(json!({"duration": 1e-9})))?)?;
        trainer.fire(Event::TrainStart)?;
        std::thread::sleep(Duration::from_micros(1));
        trainer.step(1.0)?;
        assert!(trainer.stopped().is_some());
        Ok(())
    }

    proptest! {
        #[test]
        fn p05_the_time_of_all_attempts_decides(steps in prop::collection::vec(0..20u64, 0..20), cut in 0..20usize, limit in 1..200u64) {
            let run = |cuts: &[usize]| -> HookResult<Vec<bool>> {
                let seconds = Arc::new(AtomicU64::new(0));
                let start = || -> HookResult<(MockTrainer, String)> {
                    let mut trainer = MockTrainer::new();
                    let id = trainer.attach(hook(json!(limit), &seconds))?;
                    Ok((trainer, id))
                };
                let (mut trainer, mut id) = start()?;
                trainer.fire(Event::TrainStart)?;
                let mut stopped = Vec::new();
                for (i, step) in steps.iter().enumerate() {
                    if cuts.contains(&i) {
                        let saved = trainer.hooks().save_hook(&id)?;
                        seconds.fetch_add(1000, Relaxed); // between attempts nothing is trained
                        (trainer, id) = start()?;
                        trainer.hooks().load_hook(saved)?;
                        trainer.fire(Event::TrainStart)?;
                    }
                    seconds.fetch_add(*step, Relaxed);
                    trainer.step(1.0)?;
                    stopped.push(trainer.stopped().is_some());
                }
                Ok(stopped)
            };
            prop_assert_eq!(run(&[cut, cut + 3]).unwrap(), run(&[]).unwrap());
        }

        #[test]
        fn no_text_panics(text in "\\PC{0,20}|[0-9:dhms.]{0,30}") {
            let _ = Time::parse(&text);
        }
    }
}
