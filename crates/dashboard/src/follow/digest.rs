//! A log of metrics in a few numbers.

use serde_json::{Value, json};
use tenterhook_record::metrics::RowView;

/// What the list of runs says about a log.
#[derive(Clone, Debug, Default)]
pub(crate) struct Digest {
    /// Step and time of the last row.
    pub(crate) last: Option<(u64, f64)>,
    best_validation: Option<(u64, f64)>,
    last_validation: Option<(u64, f64)>,
    last_loss: Option<(u64, f64)>,
}

impl Digest {
    pub(crate) fn add(&mut self, row: &RowView<'_>) {
        self.last = Some((row.step, row.time));
        if let Some(value) = row.value("val/loss") {
            self.last_validation = Some((row.step, value));
            if value.is_finite() && self.best_validation.is_none_or(|(_, best)| value < best) {
                self.best_validation = self.last_validation;
            }
        }
        if let Some(value) = row.value("loss") {
            self.last_loss = Some((row.step, value));
        }
    }

    /// The number that says most about a run: the best `val/loss`, or the last `loss`.
    pub(crate) fn score(&self) -> Value {
        let (name, best, found) = match (self.best_validation, self.last_validation) {
            (Some(found), _) => ("val/loss", true, Some(found)),
            (None, Some(found)) => ("val/loss", false, Some(found)),
            (None, None) => ("loss", false, self.last_loss),
        };
        found.map_or(Value::Null, |(step, value)| {
            json!({ "name": name, "value": value, "step": step, "best": best })
        })
    }
}
