//! What a log says in a few words, gathered row by row: a log of any length needs little memory.

use std::collections::BTreeMap;

use serde::Serialize;

use super::{Number, Row, RowView};

/// The metric that is better the smaller it is, where it is validated at all.
const VALIDATED: &str = "val/loss";

/// What a log says in a few words.
///
/// ```
/// use tenterhook_record::metrics::{Digest, Row};
///
/// let mut digest = Digest::default();
/// for (step, loss) in [(1, 2.0), (2, 1.0), (3, 1.5)] {
///     digest.add(&Row { step, values: [("val/loss".to_string(), loss)].into(), ..Row::default() });
/// }
/// let score = digest.score().unwrap();
/// assert_eq!((score.value.0, score.step, score.best), (1.0, 2, true));
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Digest {
    /// How many rows there are.
    pub rows: u64,
    /// The step of the last row.
    pub step: u64,
    /// When the last row was written, in seconds since 1970.
    pub time: f64,
    /// The last value of every metric, with its step.
    pub last: BTreeMap<String, (u64, Number)>,
    /// The best validation.
    best: Option<(u64, f64)>,
}

/// The number that says most about a run.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Score {
    /// The metric.
    pub name: String,
    /// Its value.
    pub value: Number,
    /// When that was.
    pub step: u64,
    /// Whether it is the best of its kind, or the last.
    pub best: bool,
}

impl Digest {
    /// One more row.
    pub fn add(&mut self, row: &Row) {
        self.add_values(row.step, row.time, row.values.iter().map(|(name, value)| (name.as_str(), *value)));
    }

    /// One more row that is still in its line.
    pub fn add_view(&mut self, row: &RowView<'_>) {
        self.add_values(row.step, row.time, row.values.iter().map(|(name, value)| (name.as_ref(), *value)));
    }

    fn add_values<'a>(&mut self, step: u64, time: f64, values: impl Iterator<Item = (&'a str, f64)>) {
        self.rows += 1;
        (self.step, self.time) = (step, time);
        for (name, value) in values {
            match self.last.get_mut(name) {
                Some(last) => *last = (step, Number(value)),
                None => drop(self.last.insert(name.to_string(), (step, Number(value)))),
            }
            if name == VALIDATED
                && value.is_finite()
                && self.best.is_none_or(|(_, best)| value.total_cmp(&best).is_lt())
            {
                self.best = Some((step, value));
            }
        }
    }

    /// The best `val/loss`, or the last one where none is finite, or the last `loss`.
    pub fn score(&self) -> Option<Score> {
        if let Some((step, value)) = self.best {
            return Some(Score { name: VALIDATED.to_string(), value: Number(value), step, best: true });
        }
        [VALIDATED, "loss"].into_iter().find_map(|name| {
            let (step, value) = *self.last.get(name)?;
            Some(Score { name: name.to_string(), value, step, best: false })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(rows: &[(u64, &str, f64)], name: &str, value: f64, step: u64, best: bool) {
        let mut digest = Digest::default();
        for (step, name, value) in rows {
            digest.add(&Row { step: *step, values: [(name.to_string(), *value)].into(), ..Row::default() });
        }
        let expected = Score { name: name.to_string(), value: Number(value), step, best };
        assert_eq!(digest.score(), Some(expected), "{rows:?}");
    }

    #[test]
    fn the_best_validation_counts_else_the_last_loss() {
        assert_eq!(Digest::default().score(), None);
        check(&[(1, "loss", 3.0), (2, "loss", 4.0)], "loss", 4.0, 2, false);
        let nan = (3, "val/loss", f64::NAN);
        check(&[(1, "val/loss", 3.0), (2, "val/loss", 2.0), nan, (3, "loss", 1.0)], "val/loss", 2.0, 2, true);
        let infinite = (1, "val/loss", f64::INFINITY);
        check(&[infinite, (1, "loss", 1.0)], "val/loss", f64::INFINITY, 1, false);
    }
}
