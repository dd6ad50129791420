//! Values that can be written in several ways.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{self, Unexpected, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// How often validation runs: a number of steps, or `"epoch"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValidateEvery {
    /// After every n-th step.
    Steps(u64),
    /// After every epoch.
    Epoch,
}

impl Serialize for ValidateEvery {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Steps(steps) => serializer.serialize_u64(*steps),
            Self::Epoch => serializer.serialize_str("epoch"),
        }
    }
}

impl<'de> Deserialize<'de> for ValidateEvery {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;
        impl Visitor<'_> for Forms {
            type Value = ValidateEvery;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a number of steps or \"epoch\"")
            }
            fn visit_u64<E: de::Error>(self, steps: u64) -> Result<ValidateEvery, E> {
                Ok(ValidateEvery::Steps(steps))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<ValidateEvery, E> {
                match text {
                    "epoch" => Ok(ValidateEvery::Epoch),
                    _ => Err(E::invalid_value(Unexpected::Str(text), &self)),
                }
            }
        }
        deserializer.deserialize_any(Forms)
    }
}

impl JsonSchema for ValidateEvery {
    fn schema_name() -> Cow<'static, str> {
        "ValidateEvery".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"oneOf": [{"type": "integer", "minimum": 1}, {"const": "epoch"}]})
    }
}

/// Whether only a few batches of everything are run: `true`, `false`, or how many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FastDevRun {
    /// Batches of every set; 0 is a full run.
    pub batches: u64,
}

impl FastDevRun {
    /// What `true` means.
    const USUAL: u64 = 3;

    /// Whether it is on.
    pub fn is_on(self) -> bool {
        self.batches > 0
    }
}

impl Serialize for FastDevRun {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.batches {
            0 => serializer.serialize_bool(false),
            batches => serializer.serialize_u64(batches),
        }
    }
}

impl<'de> Deserialize<'de> for FastDevRun {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;
        impl Visitor<'_> for Forms {
            type Value = FastDevRun;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("true, false or a number of batches")
            }
            fn visit_bool<E: de::Error>(self, on: bool) -> Result<FastDevRun, E> {
                Ok(FastDevRun { batches: if on { FastDevRun::USUAL } else { 0 } })
            }
            fn visit_u64<E: de::Error>(self, batches: u64) -> Result<FastDevRun, E> {
                Ok(FastDevRun { batches })
            }
        }
        deserializer.deserialize_any(Forms)
    }
}

impl JsonSchema for FastDevRun {
    fn schema_name() -> Cow<'static, str> {
        "FastDevRun".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"oneOf": [{"type": "boolean"}, {"type": "integer", "minimum": 0}]})
    }
}

/// A time that is not to be exceeded: seconds, or a text such as `"1h30m"`, `"90s"`, `"01:30:00"` or, with days, `"00:12:00:00"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeLimit(Duration);

impl TimeLimit {
    /// About thirty years; more is a slip of the hand.
    const MAX_SECONDS: f64 = 1e9;

    /// The time.
    pub fn duration(self) -> Duration {
        self.0
    }

    /// So many seconds, to the millisecond, so that writing and reading changes nothing. `None` for nothing and for too much.
    fn seconds(seconds: f64) -> Option<Self> {
        let milliseconds = (seconds * 1000.0).round();
        (milliseconds >= 1.0 && seconds <= Self::MAX_SECONDS)
            .then(|| Self(Duration::from_millis(milliseconds as u64)))
    }

    fn parse(text: &str) -> Option<Self> {
        Self::seconds(if text.contains(':') { clock(text)? } else { units(text)? })
    }
}

/// `hh:mm:ss` or `dd:hh:mm:ss`.
fn clock(text: &str) -> Option<f64> {
    let digits =
        |part: &str| (!part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit())).then_some(());
    let parts: Vec<u32> =
        text.split(':').map(|part| digits(part).and(part.parse().ok())).collect::<Option<_>>()?;
    let (days, hours, minutes, seconds) = match parts[..] {
        [hours, minutes, seconds] => (0, hours, minutes, seconds),
        [days, hours, minutes, seconds] if hours < 24 => (days, hours, minutes, seconds),
        _ => return None,
    };
    let whole_minutes = (f64::from(days) * 24.0 + f64::from(hours)) * 60.0 + f64::from(minutes);
    (minutes < 60 && seconds < 60).then_some(whole_minutes * 60.0 + f64::from(seconds))
}

/// `2d`, `1h30m`, `1.5h`, `90s`: larger units first, each once.
fn units(text: &str) -> Option<f64> {
    let (mut rest, mut total, mut below) = (text.trim(), 0.0, f64::INFINITY);
    while !rest.is_empty() {
        let end = rest.find(|letter: char| !letter.is_ascii_digit() && letter != '.')?;
        let (number, unit) = rest.split_at(end);
        let size = match unit.as_bytes().first()? {
            b'd' => 86_400.0,
            b'h' => 3600.0,
            b'm' => 60.0,
            b's' => 1.0,
            _ => return None,
        };
        if size >= below {
            return None;
        }
        below = size;
        total += number.parse::<f64>().ok()? * size;
        rest = unit[1..].trim_start();
    }
    Some(total)
}

impl Serialize for TimeLimit {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self.0.subsec_millis() {
            0 => serializer.serialize_u64(self.0.as_secs()),
            _ => serializer.serialize_f64(self.0.as_secs_f64()),
        }
    }
}

impl<'de> Deserialize<'de> for TimeLimit {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;
        impl Visitor<'_> for Forms {
            type Value = TimeLimit;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("seconds above 0, or a text such as \"1h30m\", \"90s\" or \"00:12:00:00\"")
            }
            fn visit_u64<E: de::Error>(self, seconds: u64) -> Result<TimeLimit, E> {
                TimeLimit::seconds(seconds as f64)
                    .ok_or_else(|| E::invalid_value(Unexpected::Unsigned(seconds), &self))
            }
            fn visit_f64<E: de::Error>(self, seconds: f64) -> Result<TimeLimit, E> {
                TimeLimit::seconds(seconds).ok_or_else(|| E::invalid_value(Unexpected::Float(seconds), &self))
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<TimeLimit, E> {
                TimeLimit::parse(text).ok_or_else(|| E::invalid_value(Unexpected::Str(text), &self))
            }
        }
        deserializer.deserialize_any(Forms)
    }
}

impl JsonSchema for TimeLimit {
    fn schema_name() -> Cow<'static, str> {
        "TimeLimit".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({"oneOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "string"}]})
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn times_are_read_in_every_form() {
        for (written, seconds) in [
            (json!(90), 90.0),
            (json!(0.5), 0.5),
            (json!("90s"), 90.0),
            (json!("1h30m"), 5400.0),
            (json!(" 1h 30m 5s "), 5405.0),
            (json!("1.5h"), 5400.0),
            (json!("2d"), 172_800.0),
            (json!("00:12:00:00"), 43_200.0),
            (json!("01:00:00:01"), 86_401.0),
            (json!("30:00:10"), 108_010.0),
        ] {
            let time = TimeLimit::deserialize(&written).unwrap();
            assert_eq!(time.duration(), Duration::from_secs_f64(seconds), "{written}");
        }
    }

    #[test]
    fn other_times_are_refused() {
        for written in [
            json!(0),
            json!(-1),
            json!(1e12),
            json!("0s"),
            json!(""),
            json!("90"),
            json!("1m1h"),
            json!("1h1h"),
            json!("1x"),
            json!("h"),
            json!("1..5h"),
            json!("10:00"),
            json!("00:60:00"),
            json!("1:24:00:00"),
            json!("+1:00:00"),
            json!("1:2:3:4:5"),
            json!(true),
            json!([1]),
        ] {
            assert!(TimeLimit::deserialize(&written).is_err(), "{written}");
        }
    }

    #[test]
    fn choices_are_read_and_written() {
        let batches = |value: Value| FastDevRun::deserialize(value).map(|run| run.batches).ok();
        assert_eq!(
            [json!(true), json!(false), json!(7), json!(-1), json!("yes")].map(batches),
            [Some(3), Some(0), Some(7), None, None]
        );
        assert_eq!(json!(FastDevRun { batches: 0 }), json!(false));
        for value in [json!("epoch"), json!(5)] {
            assert_eq!(json!(ValidateEvery::deserialize(&value).unwrap()), value);
        }
        assert!(ValidateEvery::deserialize(json!("step")).is_err());
    }

    proptest! {
        #[test]
        fn a_written_time_is_read_back(milliseconds in 1_u64..1_000_000_000_000) {
            let time = TimeLimit::seconds(milliseconds as f64 / 1000.0).unwrap();
            prop_assert_eq!(time.duration(), Duration::from_millis(milliseconds));
            prop_assert_eq!(TimeLimit::deserialize(json!(time)).unwrap(), time);
        }

        #[test]
        fn no_text_makes_a_time_panic(text in "[0-9dhms:. é]{0,12}") {
            let _ = TimeLimit::parse(&text);
        }
    }
}
