//! What a sweep found.

use serde::{Deserialize, Serialize};

use super::contrast::{Contrast, Direction};

/// How the numbers of a grid were made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Method {
    /// A run per cell.
    Exact,
    /// One gradient for all cells.
    Attribution,
    /// A run per cell, patched along single paths.
    Path,
}

/// The metric with every place of a sweep patched.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PatchingGrid {
    /// How it was made.
    pub method: Method,
    /// What was swept, as it was asked for.
    pub sweep: String,
    /// Which run was patched.
    pub direction: Direction,
    /// What was measured.
    pub metric: String,
    /// The metric of the clean prompt.
    pub clean: f32,
    /// The metric of the corrupted prompt.
    pub corrupted: f32,
    /// What a row stands for: `layer` or `layer.head`, or a point's name.
    pub rows: Vec<String>,
    /// What the columns are: `position`, `head` or `layer`.
    pub column_axis: String,
    /// The numbers of the columns.
    pub columns: Vec<String>,
    /// The metric of the patched run, by row and column.
    pub values: Vec<Vec<f32>>,
    /// The same on a scale on which the corrupted prompt is 0 and the clean one 1. None where both have the same metric.
    pub normalised: Option<Vec<Vec<f32>>>,
    /// How many blocks were run, counted per sequence, with the runs of both prompts.
    pub block_evaluations: u64,
    /// How many it would be with a whole run per cell.
    pub naive_block_evaluations: u64,
    /// How many patched sequences went through the model together at most.
    pub largest_batch: usize,
}

/// What a grid has beside its numbers.
pub(super) struct Frame {
    pub(super) method: Method,
    pub(super) sweep: String,
    pub(super) rows: Vec<String>,
    pub(super) column_axis: String,
    pub(super) columns: Vec<String>,
}

impl PatchingGrid {
    /// `base` and `source` are the metrics of the two runs, `values` are in order of rows, then columns.
    pub(super) fn new(
        frame: Frame,
        contrast: &Contrast,
        (source, base): (f32, f32),
        values: &[f32],
        (block_evaluations, naive_block_evaluations): (u64, u64),
    ) -> Self {
        let Frame { method, sweep, rows, column_axis, columns } = frame;
        let (clean, corrupted) = clean_and_corrupted(contrast.direction, source, base);
        let values: Vec<Vec<f32>> = values.chunks(columns.len().max(1)).map(<[f32]>::to_vec).collect();
        let scaled = |row: &Vec<f32>| row.iter().map(|value| normalise(*value, clean, corrupted)).collect();
        let normalised = values.iter().map(scaled).collect();
        Self {
            method,
            sweep,
            direction: contrast.direction,
            metric: contrast.metric.to_string(),
            clean,
            corrupted,
            rows,
            column_axis,
            columns,
            values,
            normalised,
            block_evaluations,
            naive_block_evaluations,
            largest_batch: 1,
        }
    }

    /// The metric of the run that was patched, before it was.
    pub fn unpatched(&self) -> f32 {
        match self.direction {
            Direction::Denoise => self.corrupted,
            Direction::Noise => self.clean,
        }
    }
}

pub(super) fn clean_and_corrupted(direction: Direction, source: f32, base: f32) -> (f32, f32) {
    match direction {
        Direction::Denoise => (source, base),
        Direction::Noise => (base, source),
    }
}

/// 0 for the corrupted prompt and 1 for the clean one; none where they are the same.
pub(super) fn normalise(value: f32, clean: f32, corrupted: f32) -> Option<f32> {
    // Nothing is nothing: adding zero takes its sign away.
    (clean != corrupted).then(|| (value - corrupted) / (clean - corrupted) + 0.0)
}
