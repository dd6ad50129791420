//! Which heads do what, told from where they look.

use std::fmt;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};

use candle_core::{DType, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::random::Stream;
use tenterhook_hooks::{HookOptions, OnError, Report, hook_fn};
use tenterhook_models::config::Positions;

use crate::error::LensError;
use crate::language_model::LanguageModel;

/// A habit that a head may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum HeadKind {
    /// Looks at what followed the same token before.
    Induction,
    /// Looks at the token before.
    PreviousToken,
    /// Looks at the same token before.
    DuplicateToken,
}

impl HeadKind {
    /// All of them.
    pub const ALL: [HeadKind; 3] = [Self::Induction, Self::PreviousToken, Self::DuplicateToken];

    /// The word in metrics and options.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Induction => "induction",
            Self::PreviousToken => "previous_token",
            Self::DuplicateToken => "duplicate_token",
        }
    }

    /// Where a head with this habit looks from every token: the keys of query `q` are at `targets[q]`.
    pub(super) fn targets(self, ids: &[u32]) -> Vec<Vec<usize>> {
        let same = |q: usize, k: usize| ids[k] == ids[q];
        let looks = |q: usize| -> Vec<usize> {
            match self {
                Self::PreviousToken => q.checked_sub(1).into_iter().collect(),
                Self::DuplicateToken => (0..q).filter(|k| same(q, *k)).collect(),
                Self::Induction => (0..q).filter(|k| same(q, *k)).map(|k| k + 1).collect(),
            }
        };
        (0..ids.len()).map(looks).collect()
    }
}

impl fmt::Display for HeadKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Induction => "induction",
            Self::PreviousToken => "previous",
            Self::DuplicateToken => "duplicate",
        })
    }
}

impl FromStr for HeadKind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let found = Self::ALL.into_iter().find(|kind| kind.to_string() == text);
        found.ok_or_else(|| format!("`{text}` is none of induction, previous, duplicate"))
    }
}

/// What [`LanguageModel::head_scores_with`] leaves out.
#[derive(Clone, Debug, Default)]
pub struct HeadScoreOptions {
    /// Attention to the first token, where many heads rest, does not count.
    pub exclude_bos: bool,
    /// Attention of a token to itself does not count.
    pub exclude_current_token: bool,
}

/// How far every head has every habit.
#[derive(Clone, Debug, Serialize)]
pub struct HeadScores {
    /// The habits that were asked for.
    pub kinds: Vec<KindScores>,
    /// How many texts they were looked for in.
    pub texts: usize,
    /// What the hooks did that are registered.
    #[serde(skip)]
    pub report: Report,
}

/// How far every head has one habit.
#[derive(Clone, Debug, Serialize)]
pub struct KindScores {
    /// The habit.
    pub kind: HeadKind,
    /// `scores[block][head]`: the attention that goes where the habit says, averaged over the tokens for which it says something. 1 is perfect.
    /// All are 0 where there is no such token.
    pub scores: Vec<Vec<f64>>,
    /// `share[block][head]`: the share of all attention that goes there, averaged over texts, as `head_detector` of TransformerLens has it.
    pub share: Vec<Vec<f64>>,
    /// For how many tokens the habit says where to look.
    pub places: usize,
}

impl KindScores {
    /// The heads with the largest scores, largest first: block, head, score.
    pub fn top(&self, count: usize) -> Vec<(usize, usize, f64)> {
        let rows = self.scores.iter().enumerate();
        let mut all: Vec<(usize, usize, f64)> = rows
            .flat_map(|(block, row)| row.iter().enumerate().map(move |(head, s)| (block, head, *s)))
            .collect();
        all.sort_by(|a, b| b.2.total_cmp(&a.2));
        all.truncate(count);
        all
    }
}

impl LanguageModel {
    /// How far every head has each of these habits, on texts of your own or on [repeated random tokens](Self::repeated_random_tokens).
    pub fn head_scores(&self, texts: &[Vec<u32>], kinds: &[HeadKind]) -> Result<HeadScores, LensError> {
        self.head_scores_with(texts, kinds, &HeadScoreOptions::default())
    }

    /// The same, with some attention left out.
    pub fn head_scores_with(
        &self,
        texts: &[Vec<u32>],
        kinds: &[HeadKind],
        options: &HeadScoreOptions,
    ) -> Result<HeadScores, LensError> {
        if texts.is_empty() || kinds.is_empty() {
            return Err(LensError::BadInput(
                "there must be a text and a kind of head to look for".to_string(),
            ));
        }
        texts.iter().try_for_each(|ids| self.check_tokens(ids))?;
        let (layers, heads) = (self.model().config().layers, self.model().config().heads);
        let empty = || vec![vec![0.0; heads]; layers];
        let mut found: Vec<KindScores> = kinds
            .iter()
            .map(|kind| KindScores { kind: *kind, scores: empty(), share: empty(), places: 0 })
            .collect();
        let mut report = Report::default();
        for ids in texts {
            let targets: Vec<_> = kinds.iter().map(|kind| kind.targets(ids)).collect();
            let (sums, done) = self.attention_sums(ids, targets.clone(), options)?;
            report.add(done);
            for (kind, found) in found.iter_mut().enumerate() {
                found.places += targets[kind].iter().filter(|keys| !keys.is_empty()).count();
                for Sums { block, head, on_target, all } in &sums {
                    found.scores[*block][*head] += on_target[kind];
                    let share = if *all > 0.0 { on_target[kind] / all } else { 0.0 };
                    found.share[*block][*head] += share / texts.len() as f64;
                }
            }
        }
        for kind in &mut found {
            let places = kind.places.max(1) as f64;
            kind.scores.iter_mut().flatten().for_each(|score| *score /= places);
        }
        Ok(HeadScores { kinds: found, texts: texts.len(), report })
    }

    /// Texts of random tokens that each come twice, in which nothing but a repetition can be predicted. A function of the seed.
    ///
    /// Every text has `2 * length` tokens, and a beginning-of-text token before them where that is asked for; `None` leaves that to the
    /// model: one is put first where its config.json names one.
    pub fn repeated_random_tokens(
        &self,
        texts: usize,
        length: usize,
        seed: u64,
        prepend_bos: Option<bool>,
    ) -> Result<Vec<Vec<u32>>, LensError> {
        let config = self.model().config();
        let bos = match (prepend_bos, self.bos_token()) {
            (Some(false), _) | (None, None) => None,
            (_, Some(bos)) => Some(bos),
            (Some(true), None) => {
                return Err(LensError::BadInput(
                    "the model's config.json names no bos_token_id to put first".into(),
                ));
            }
        };
        let total = 2 * length + usize::from(bos.is_some());
        if length == 0 || matches!(config.positions, Positions::Learned) && total > config.context {
            return Err(LensError::BadInput(format!(
                "{length} random tokens, twice, make a text of {total} tokens: it needs between 1 and {} random tokens in the \
                 model's {} positions",
                config.context.saturating_sub(usize::from(bos.is_some())) / 2,
                config.context
            )));
        }
        let stream = Stream::new(seed).named("repeated random tokens");
        let text = |number: usize| {
            let stream = stream.at(number as u64);
            let random: Vec<u32> =
                (0..length).map(|i| stream.below(i as u64, config.vocab as u64) as u32).collect();
            bos.into_iter().chain(random.iter().copied()).chain(random.iter().copied()).collect()
        };
        Ok((0..texts).map(text).collect())
    }

    /// Adds up attention block by block as it passes, so that no more than one block's patterns are in memory.
    fn attention_sums(
        &self,
        ids: &[u32],
        targets: Vec<Vec<Vec<usize>>>,
        options: &HeadScoreOptions,
    ) -> Result<(Vec<Sums>, Report), LensError> {
        let branch = self.branch();
        let kept = Arc::new(Mutex::new(Vec::new()));
        let (into, options) = (kept.clone(), options.clone());
        let watch = hook_fn::observe("blocks.*.attn.hook_pattern", move |at, pattern, _| {
            let sums = sums(at.point().block.unwrap_or(0), pattern, &targets, &options)?;
            into.lock().unwrap_or_else(PoisonError::into_inner).extend(sums);
            Ok(())
        });
        let must_work = HookOptions { on_error: OnError::Abort, builtin: true, ..HookOptions::default() };
        let id = branch.hooks().register_with(watch, must_work)?;
        let (_, mut report) = branch.forward(&self.batch_of(ids)?)?;
        report.hooks.retain(|hook| hook.id != id);
        let sums = std::mem::take(&mut *kept.lock().unwrap_or_else(PoisonError::into_inner));
        Ok((sums, report))
    }
}

/// The attention of one head in one text.
pub(super) struct Sums {
    block: usize,
    pub(super) head: usize,
    /// Per habit, what goes where it says.
    pub(super) on_target: Vec<f64>,
    /// All that counts.
    all: f64,
}

/// The attention of every head of a block in one text, of which this is the pattern `[1, head, query, key]`.
pub(super) fn sums(
    block: usize,
    pattern: &Tensor,
    targets: &[Vec<Vec<usize>>],
    options: &HeadScoreOptions,
) -> candle_core::Result<Vec<Sums>> {
    let heads: Vec<Vec<Vec<f32>>> = pattern.squeeze(0)?.to_dtype(DType::F32)?.to_vec3()?;
    let counts =
        |q: usize, k: usize| !(options.exclude_bos && k == 0 || options.exclude_current_token && k == q);
    let of_head = |(head, pattern): (usize, Vec<Vec<f32>>)| {
        let value = |q: usize, k: usize| if counts(q, k) { f64::from(pattern[q][k]) } else { 0.0 };
        let on = |targets: &Vec<Vec<usize>>| -> f64 {
            targets.iter().enumerate().flat_map(|(q, keys)| keys.iter().map(move |k| value(q, *k))).sum()
        };
        let all = (0..pattern.len()).flat_map(|q| (0..=q).map(move |k| value(q, k))).sum();
        Sums { block, head, on_target: targets.iter().map(on).collect(), all }
    };
    Ok(heads.into_iter().enumerate().map(of_head).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn habits_say_where_to_look() {
        let ids = [7, 8, 7, 7];
        assert_eq!(HeadKind::PreviousToken.targets(&ids), [vec![], vec![0], vec![1], vec![2]]);
        assert_eq!(HeadKind::DuplicateToken.targets(&ids), [vec![], vec![], vec![0], vec![0, 2]]);
        assert_eq!(HeadKind::Induction.targets(&ids), [vec![], vec![], vec![1], vec![1, 3]]);
    }
}
