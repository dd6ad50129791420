//! Where the tokens of a batch stand: padding, earlier tokens in a cache, positions of the text itself.

use std::ops::Range;

use candle_core::Tensor;

use crate::cx::Cx;
use crate::error::HookResult;
use crate::hook::At;

/// Which columns of a batch hold the tokens of each sequence; the others are padding. Columns are counted from the beginning of the text,
/// those included that are in a cache by now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rows(pub Vec<Range<usize>>);

/// Where the tokens of one tensor stand: its columns are those of the `pos` axis, or of the queries at attention scores and patterns.
#[derive(Clone, Debug)]
pub struct Places {
    /// The axis.
    pub axis: usize,
    /// Per sequence, which columns hold its tokens, counted from the beginning of the text.
    pub rows: Vec<Range<usize>>,
    /// The columns that are in this tensor, counted like that.
    pub columns: Range<usize>,
}

impl Places {
    /// The places of `x`. An error where it has no positions.
    pub fn of(at: &At, x: &Tensor, cx: &Cx) -> HookResult<Self> {
        let axes = &at.point().axes;
        let Some(axis) = pos_axis(axes).filter(|_| axes.split_whitespace().count() == x.rank()) else {
            return Err(format!(
                "there are no positions at `{}`: the axes are `{axes}`, the shape {:?}",
                at.name(),
                x.dims()
            )
            .into());
        };
        let first = cx.first_position();
        let columns = first..first + x.dim(axis)?;
        let batch = x.dim(0)?;
        let rows = match cx.rows() {
            Some(rows) if rows.0.len() != batch => {
                return Err(format!(
                    "the pass has {} sequences, and there are {batch} at `{}`",
                    rows.0.len(),
                    at.name()
                )
                .into());
            }
            Some(rows) => rows.0.clone(),
            None => vec![0..columns.end; batch],
        };
        Ok(Self { axis, rows, columns })
    }

    /// The position in its text of what stands in a column of this tensor; `None` for padding.
    pub fn position(&self, row: usize, column: usize) -> Option<usize> {
        let column = self.columns.start + column;
        self.rows[row].contains(&column).then(|| column - self.rows[row].start)
    }

    /// The column of this tensor where a position of a text stands, negative ones counted from its end; `None` where it is not in here.
    pub fn column(&self, row: usize, position: i64) -> Option<usize> {
        let Range { start, end } = self.rows[row];
        let column = if position < 0 { end as i64 + position } else { start as i64 + position };
        let column = usize::try_from(column).ok().filter(|column| (start..end).contains(column))?;
        self.columns.contains(&column).then(|| column - self.columns.start)
    }
}

/// What of `x` is no padding: `x` itself, or its tokens one after the other, `[tokens, ...]`.
pub fn without_padding(at: &At, x: &Tensor, cx: &Cx) -> HookResult<Tensor> {
    if cx.rows().is_none() || pos_axis(&at.point().axes).is_none() {
        return Ok(x.clone());
    }
    let places = Places::of(at, x, cx)?;
    if places.rows.iter().all(|row| row.start <= places.columns.start && row.end >= places.columns.end) {
        return Ok(x.clone());
    }
    let mut texts = Vec::new();
    for (row, text) in places.rows.iter().enumerate() {
        let start = text.start.max(places.columns.start);
        let count = text.end.min(places.columns.end).saturating_sub(start);
        if count > 0 {
            // The axis comes first, so that texts of different lengths make one tensor.
            let one = x.narrow(0, row, 1)?.squeeze(0)?.narrow(
                places.axis - 1,
                start - places.columns.start,
                count,
            )?;
            texts.push(one.transpose(0, places.axis - 1)?.contiguous()?);
        }
    }
    if texts.is_empty() {
        return Err(format!("there is nothing but padding at `{}`", at.name()).into());
    }
    Ok(Tensor::cat(&texts, 0)?)
}

/// The axis along which tokens stand.
pub(crate) fn pos_axis(axes: &str) -> Option<usize> {
    axes.split_whitespace().position(|axis| axis == "pos" || axis == "query_pos")
}
