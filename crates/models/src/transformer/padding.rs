//! Where the tokens of a batch stand, when some of its sequences are shorter than others.
//!
//! Padding behind a sequence needs nothing: no token sees what comes after it. Padding before one moves its positions, and its keys
//! must not be seen. `PassSetup::rows` says where the sequences stand; what is computed at the padding itself means nothing.

use candle_core::{Result, Tensor, bail};
use tenterhook_hooks::{Pass, Rows};
use tenterhook_nn::ops::{RopeSpec, RopeTable, rope, rope_table};

use crate::config::Positions;

/// The rotations of the tokens' positions, and which keys are not there.
pub(super) struct Place {
    rotation: Rotation,
    /// `[batch, 1, query, key]`: 1 where there is a key.
    pub(super) present: Option<Tensor>,
}

enum Rotation {
    None,
    /// The same for every sequence.
    Shared(RopeTable),
    PerSequence(Vec<RopeTable>),
}

impl Place {
    /// For a residual stream `[batch, pos, d_model]`.
    pub(super) fn of(x: &Tensor, positions: &Positions, pass: &Pass) -> Result<Self> {
        let (batch, count, _) = x.dims3()?;
        let first = pass.setup().first_position;
        let Some(padding) = padding(batch, pass)? else {
            let rotation = match positions {
                Positions::Learned => Rotation::None,
                Positions::Rotary(spec) => Rotation::Shared(rope_table(
                    spec,
                    first..first + count,
                    first + count,
                    x.dtype(),
                    x.device(),
                )?),
            };
            return Ok(Self { rotation, present: None });
        };
        let rotation = match positions {
            Positions::Learned => Rotation::None,
            Positions::Rotary(spec) => {
                let longest = first + count - padding.iter().min().copied().unwrap_or(0).min(first + count);
                let tables = padding.iter().map(|left| table_of(spec, *left, first, count, longest, x));
                Rotation::PerSequence(tables.collect::<Result<_>>()?)
            }
        };
        Ok(Self { rotation, present: Some(present(&padding, first, count, x)?) })
    }

    /// Whether queries and keys are rotated at all.
    pub(super) fn rotates(&self) -> bool {
        !matches!(self.rotation, Rotation::None)
    }

    /// Rotates queries or keys `[batch, pos, head, d_head]`.
    pub(super) fn rotate(&self, x: &Tensor) -> Result<Tensor> {
        match &self.rotation {
            Rotation::None => Ok(x.clone()),
            Rotation::Shared(table) => rope(x, &table.cos, &table.sin),
            Rotation::PerSequence(tables) => {
                let row = |(i, table): (usize, &RopeTable)| rope(&x.narrow(0, i, 1)?, &table.cos, &table.sin);
                Tensor::cat(&tables.iter().enumerate().map(row).collect::<Result<Vec<_>>>()?, 0)
            }
        }
    }

    /// `[batch, pos]`: the position of every token.
    pub(super) fn position_ids(ids: &Tensor, pass: &Pass) -> Result<Tensor> {
        let (batch, count) = ids.dims2()?;
        let first = pass.setup().first_position;
        let padding = padding(batch, pass)?.unwrap_or_else(|| vec![0; batch]);
        let row = |left: usize| (first..first + count).map(move |place| place.saturating_sub(left) as u32);
        let all: Vec<u32> = padding.into_iter().flat_map(row).collect();
        Tensor::from_vec(all, (batch, count), ids.device())
    }
}

/// How many places before each sequence are padding, when there are any.
fn padding(batch: usize, pass: &Pass) -> Result<Option<Vec<usize>>> {
    let Some(Rows(rows)) = pass.setup().rows.as_deref() else { return Ok(None) };
    if rows.len() != batch {
        bail!("the pass says how {} sequences are padded, and {batch} were given", rows.len());
    }
    let left: Vec<usize> = rows.iter().map(|row| row.start).collect();
    Ok(left.iter().any(|left| *left > 0).then_some(left))
}

/// The rotations of one sequence; padding stands where its first token does.
fn table_of(
    spec: &RopeSpec,
    left: usize,
    first: usize,
    count: usize,
    longest: usize,
    like: &Tensor,
) -> Result<RopeTable> {
    let padded = left.saturating_sub(first).min(count);
    let start = first.saturating_sub(left);
    let real = rope_table(spec, start..start + count - padded, longest, like.dtype(), like.device())?;
    if padded == 0 {
        return Ok(real);
    }
    let origin = rope_table(spec, 0..1, longest, like.dtype(), like.device())?;
    let with_origin = |origin: &Tensor, real: &Tensor| {
        let repeated = origin.broadcast_as((padded, origin.dim(1)?))?.contiguous()?;
        Tensor::cat(&[&repeated, real], 0)
    };
    Ok(RopeTable { cos: with_origin(&origin.cos, &real.cos)?, sin: with_origin(&origin.sin, &real.sin)? })
}

/// A query sees no padding but, standing there, itself: a row without any key would be no distribution.
fn present(padding: &[usize], first: usize, count: usize, like: &Tensor) -> Result<Tensor> {
    let keys = first + count;
    let mut mask = Vec::with_capacity(padding.len() * count * keys);
    for left in padding {
        for query in first..keys {
            mask.extend((0..keys).map(|key| u8::from(key >= *left || key == query)));
        }
    }
    Tensor::from_vec(mask, (padding.len(), 1, count, keys), like.device())
}
