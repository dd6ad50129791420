//! Whether two runs had the same losses, to the last bit.

use std::collections::BTreeMap;

use serde::Serialize;
use tenterhook_record::metrics::{Number, Row};

/// How far the losses of two runs are the same.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub(super) struct Comparison {
    /// Whether all that were compared are.
    pub(super) identical: bool,
    /// How many losses were compared.
    pub(super) compared: usize,
    /// The last step that both runs have.
    pub(super) up_to_step: u64,
    /// The first loss that differs.
    pub(super) first: Option<Differs>,
}

/// A loss that is not the same in both runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Differs {
    pub(super) step: u64,
    pub(super) name: String,
    pub(super) original: Option<Number>,
    pub(super) rerun: Option<Number>,
}

/// Compares the losses of training and validation as far as both runs go. A loss that only one of them has is a difference.
pub(super) fn compare(original: &[Row], rerun: &[Row]) -> Comparison {
    let (original, rerun) = (losses(original), losses(rerun));
    let last = |losses: &Losses| losses.keys().next_back().map_or(0, |(step, _)| *step);
    let up_to_step = last(&original).min(last(&rerun));
    let keys = original.keys().chain(rerun.keys()).filter(|(step, _)| *step <= up_to_step);
    let mut keys: Vec<&(u64, String)> = keys.collect();
    keys.sort();
    keys.dedup();
    let bits = |value: Option<&f64>| value.map(|value| value.to_bits());
    let differs = |key: &&&(u64, String)| bits(original.get(**key)) != bits(rerun.get(**key));
    let first = keys.iter().find(differs).map(|key| Differs {
        step: key.0,
        name: key.1.clone(),
        original: original.get(key).copied().map(Number),
        rerun: rerun.get(key).copied().map(Number),
    });
    Comparison { identical: first.is_none(), compared: keys.len(), up_to_step, first }
}

type Losses = BTreeMap<(u64, String), f64>;

fn losses(rows: &[Row]) -> Losses {
    let all = rows.iter().flat_map(|row| row.values.iter().map(|(name, value)| (row.step, name, *value)));
    let is_loss = |name: &str| name == "loss" || name.ends_with("/loss");
    all.filter(|(_, name, _)| is_loss(name))
        .map(|(step, name, value)| ((step, name.clone()), value))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rows(losses: &[f64]) -> Vec<Row> {
        let row = |(at, loss): (usize, &f64)| Row {
            step: at as u64 + 1,
            values: [("loss".to_string(), *loss), ("time/step_s".to_string(), at as f64)].into(),
            ..Row::default()
        };
        losses.iter().enumerate().map(row).collect()
    }

    fn check(original: &[f64], rerun: &[f64], compared: usize, first: Option<u64>) {
        let found = compare(&rows(original), &rows(rerun));
        assert_eq!((found.compared, found.identical), (compared, first.is_none()), "{original:?} {rerun:?}");
        assert_eq!(found.first.map(|first| first.step), first, "{original:?} {rerun:?}");
    }

    #[test]
    fn the_last_bit_counts_and_only_what_both_have() {
        check(&[3.0, 2.0, 1.0], &[3.0, 2.0], 2, None);
        check(&[3.0], &[3.0, 2.0], 1, None);
        check(&[], &[3.0], 0, None);
        check(&[3.0, f64::NAN], &[3.0, f64::NAN], 2, None);
        check(&[3.0, 2.0, 1.0], &[3.0, f64::from_bits(2.0f64.to_bits() + 1), 5.0], 3, Some(2));
        check(&[0.0], &[-0.0], 1, Some(1));
    }

    #[test]
    fn a_loss_that_only_one_has_is_a_difference() {
        let mut other = rows(&[3.0, 2.0]);
        other[0].values.insert("val/loss".to_string(), 1.0);
        let first = compare(&rows(&[3.0, 2.0]), &other).first.unwrap();
        assert_eq!((first.name.as_str(), first.original, first.rerun), ("val/loss", None, Some(Number(1.0))));
    }
}
