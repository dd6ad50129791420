//! Heads and their scores.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use tenterhook_lens::analysis::HeadKind;

/// An attention head: `L1H2` is the third head of the second block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Head {
    /// The block.
    pub block: usize,
    /// Its number in the block.
    pub head: usize,
}

impl fmt::Display for Head {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "L{}H{}", self.block, self.head)
    }
}

impl Serialize for Head {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for Head {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (block, head) = text.strip_prefix('L').and_then(|rest| rest.split_once('H')).ok_or(())?;
        let number = |text: &str| text.parse().map_err(|_| ());
        Ok(Self { block: number(block)?, head: number(head)? })
    }
}

/// How far every head has a habit, 1 being perfect.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[serde(transparent)]
pub struct Scores(pub BTreeMap<Head, f64>);

impl Scores {
    /// The scores of a habit among the metrics that the hook `head_scores` logged in validation.
    pub fn of(kind: HeadKind, metrics: &BTreeMap<String, f64>) -> Self {
        let prefix = format!("val/heads/{}/", kind.as_str());
        let named =
            |(name, score): (&String, &f64)| Some((name.strip_prefix(&prefix)?.parse().ok()?, *score));
        Self(metrics.iter().filter_map(named).collect())
    }

    /// The head with the largest score.
    pub fn best(&self) -> Option<(Head, f64)> {
        self.0.iter().map(|(head, score)| (*head, *score)).max_by(|a, b| a.1.total_cmp(&b.1))
    }

    /// The score of a head, 0 where it has none.
    pub fn get(&self, head: Head) -> f64 {
        self.0.get(&head).copied().unwrap_or(0.0)
    }

    /// The heads of a block, in order.
    pub fn heads_of(&self, block: usize) -> impl Iterator<Item = Head> {
        self.0.keys().copied().filter(move |head| head.block == block)
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        self.0.keys().next_back().map_or(0, |head| head.block + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scores_are_read_from_metrics() {
        let metrics = [
            ("val/heads/induction/L0H0", 0.1),
            ("val/heads/induction/L1H10", 0.9),
            ("val/heads/induction/L1H2", 0.8),
            ("val/heads/previous_token/L0H0", 1.0),
            ("heads/induction/L0H1", 1.0),
            ("val/heads/induction/other", 1.0),
        ];
        let metrics = metrics.map(|(name, score)| (name.to_string(), score)).into();
        let scores = Scores::of(HeadKind::Induction, &metrics);
        let names: Vec<String> = scores.0.keys().map(Head::to_string).collect();
        assert_eq!(names, ["L0H0", "L1H2", "L1H10"]);
        assert_eq!(scores.best(), Some((Head { block: 1, head: 10 }, 0.9)));
        assert_eq!((scores.blocks(), scores.heads_of(1).count()), (2, 2));
        assert_eq!(Scores::default().best(), None);
    }
}
