//! What a model would say if it ended after every block.

use candle_core::DType;
use serde::Serialize;
use tenterhook_hooks::{Pass, Report, Selector, Site};

use super::tokens::{Token, largest};
use crate::cache::CacheOptions;
use crate::error::LensError;
use crate::language_model::LanguageModel;

/// What [`LanguageModel::logit_lens`] looks at and keeps.
#[derive(Clone, Debug)]
pub struct LogitLensOptions {
    /// How many tokens are kept per place.
    pub top: usize,
    /// The token whose rank and probability are followed. By default the one that really comes next.
    pub target: Option<u32>,
    /// The points, each of the stream's width. By default the stream before the first block and after each.
    pub points: Option<Selector>,
}

impl Default for LogitLensOptions {
    fn default() -> Self {
        Self { top: 5, target: None, points: None }
    }
}

/// A table: a row per point, a cell per token of the text.
#[derive(Clone, Debug, Serialize)]
pub struct LogitLens {
    /// The text.
    pub tokens: Vec<Token>,
    /// The points, in the order of the model.
    pub rows: Vec<LensRow>,
    /// What the hooks did that are registered.
    #[serde(skip)]
    pub report: Report,
}

/// What the model would say at one point.
#[derive(Clone, Debug, Serialize)]
pub struct LensRow {
    /// The point.
    pub point: String,
    /// A short name: `0_pre`, `3_post`.
    pub label: String,
    /// One per token of the text.
    pub cells: Vec<LensCell>,
}

/// What the model would say at one point after one token.
#[derive(Clone, Debug, Serialize)]
pub struct LensCell {
    /// The likeliest tokens, likeliest first.
    pub top: Vec<Guess>,
    /// What became of the token that was asked for, or that really comes next; nothing comes after the last one.
    pub target: Option<Target>,
}

/// A likely token.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Guess {
    /// Its id.
    pub id: u32,
    /// Its text, or `#id`.
    pub token: String,
    /// Its logit, soft-capped where the model does that.
    pub logit: f32,
    /// Its probability.
    pub probability: f32,
}

/// The token that is followed.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Target {
    /// Its id.
    pub id: u32,
    /// Its text, or `#id`.
    pub token: String,
    /// Its logit.
    pub logit: f32,
    /// The logarithm of its probability.
    pub log_prob: f32,
    /// How many tokens have a larger logit: 0 is the likeliest.
    pub rank: usize,
}

impl LanguageModel {
    /// The logit lens: the stream at every point goes through the final norm, with statistics of its own, and through the unembedding, as if
    /// no further block came. The last row is what the model really says.
    ///
    /// Hooks that are registered take part up to the points; the norm and the unembedding are the model's own.
    pub fn logit_lens(&self, ids: &[u32], options: &LogitLensOptions) -> Result<LogitLens, LensError> {
        self.check_tokens(ids)?;
        if let Some(target) = options.target {
            self.check_token(target)?;
        }
        let points = options.points.clone().unwrap_or_else(|| self.stream_points(false));
        self.check_stream_points(&points)?;
        let (_, cache, report) = self.run_with_cache(&self.batch_of(ids)?, &CacheOptions::points(points))?;
        let mut rows = Vec::new();
        for (point, stream) in cache.iter() {
            let logits = self.model().unembed(stream, &Pass::default())?;
            let logits: Vec<Vec<f32>> = logits.squeeze(0)?.to_dtype(DType::F32)?.to_vec2()?;
            let target = |place: usize| options.target.or_else(|| ids.get(place + 1).copied());
            let cells = logits.iter().enumerate();
            let cells = cells.map(|(place, logits)| self.cell(logits, target(place), options.top)).collect();
            rows.push(LensRow { point: point.to_string(), label: label(point), cells });
        }
        let tokens = ids.iter().map(|id| self.token(*id)).collect();
        Ok(LogitLens { tokens, rows, report })
    }

    /// The stream before the first block and after each; with `mid`, also between attention and MLP where there is such a place.
    pub fn stream_points(&self, mid: bool) -> Selector {
        let table = self.model().points();
        let ends = if mid { &["mid", "post"][..] } else { &["post"] };
        let blocks = 0..self.model().config().layers;
        let names = blocks.flat_map(|i| ends.iter().map(move |end| format!("blocks.{i}.hook_resid_{end}")));
        let first = std::iter::once("blocks.0.hook_resid_pre".to_string());
        let there = first.chain(names).filter(|name| table.find(name).is_some());
        Selector::Any(there.map(Selector::Name).collect())
    }

    /// Only a vector of the stream's width can go through the final norm.
    fn check_stream_points(&self, points: &Selector) -> Result<(), LensError> {
        let table = self.model().points();
        for found in points.resolve(table, Site::Forward)? {
            let axes = &table.point(found.point).axes;
            if axes != "batch pos d_model" {
                return Err(LensError::BadInput(format!(
                    "`{}` has the axes `{axes}`: the logit lens reads points with the axes `batch pos d_model`",
                    found.name
                )));
            }
        }
        Ok(())
    }

    fn cell(&self, logits: &[f32], target: Option<u32>, top: usize) -> LensCell {
        let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|logit| f64::from(logit - most).exp()).sum();
        let log_prob = |id: usize| f64::from(logits[id] - most) - sum.ln();
        let guess = |id: usize| Guess {
            id: id as u32,
            token: self.token_label(id as u32),
            logit: logits[id],
            probability: log_prob(id).exp() as f32,
        };
        let follow = |id: u32| Target {
            id,
            token: self.token_label(id),
            logit: logits[id as usize],
            log_prob: log_prob(id as usize) as f32,
            rank: logits.iter().filter(|logit| **logit > logits[id as usize]).count(),
        };
        LensCell { top: largest(logits, top).into_iter().map(guess).collect(), target: target.map(follow) }
    }
}

/// `blocks.3.hook_resid_post` is `3_post`; other names are short enough.
fn label(point: &str) -> String {
    let short = point.strip_prefix("blocks.").and_then(|rest| rest.split_once(".hook_"));
    match short {
        Some((block, name)) => format!("{block}_{}", name.strip_prefix("resid_").unwrap_or(name)),
        None => point.to_string(),
    }
}
