//! Which part of a tensor a hook is about: positions, heads, neurons.

use candle_core::{DType, Device, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::cx::Cx;
use crate::error::HookResult;
use crate::hook::At;
use crate::point::Point;
use crate::positions::Positions;
use crate::rows::{Places, pos_axis};

/// Which part of a tensor a hook is about; what is not said is all of it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Part {
    /// Only these positions of the text, one or a list; negative from its end, padding not counted. At attention scores and patterns: of
    /// the queries.
    #[serde(default)]
    pub positions: Option<Positions>,
    /// Only these heads, where there is an axis of heads; at keys and values with grouped heads, of those.
    #[serde(default)]
    pub heads: Option<Vec<usize>>,
    /// Only these entries of the last axis: neurons, or dimensions of the stream.
    #[serde(default)]
    pub neurons: Option<Vec<usize>>,
}

/// What of a tensor a [`Part`] is.
pub enum Chosen {
    /// Nothing of it is in this pass.
    Nothing,
    /// All of it.
    Everything,
    /// Where this is 1. It has the rank of the tensor, and sizes that broadcast to it.
    Where(Tensor),
}

impl Part {
    /// What is wrong with it, in words.
    pub fn problems(&self) -> Vec<String> {
        let lists = [
            ("positions", self.positions.as_ref().map(|positions| positions.0.len())),
            ("heads", self.heads.as_ref().map(Vec::len)),
            ("neurons", self.neurons.as_ref().map(Vec::len)),
        ];
        let empty = lists.iter().filter(|(_, length)| *length == Some(0));
        empty.map(|(name, _)| format!("`{name}` is empty: leave it out to mean all")).collect()
    }

    /// Whether it is all of a tensor.
    pub fn is_all(&self) -> bool {
        *self == Self::default()
    }

    /// Whether a point has such a part.
    pub fn fits(&self, point: &Point) -> HookResult {
        let axes = &point.axes;
        let no = |what: &str, axis: &str| {
            format!("`{what}` needs an axis of {axis}; the axes of `{}` are `{axes}`", point.name)
        };
        if self.positions.is_some() && pos_axis(axes).is_none() {
            return Err(no("positions", "positions").into());
        }
        if self.heads.is_some() && head_axis(axes).is_none() {
            return Err(no("heads", "heads").into());
        }
        if self.neurons.is_some()
            && !axes.split_whitespace().last().is_some_and(|axis| axis.starts_with("d_"))
        {
            return Err(no("neurons", "neurons").into());
        }
        Ok(())
    }

    /// Where this part is in `x`. In a generation with a cache, negative positions are refused where they would have to undo what
    /// later tokens have seen already.
    pub fn choose(&self, at: &At, x: &Tensor, cx: &Cx) -> HookResult<Chosen> {
        let mut masks = Vec::new();
        if let Some(positions) = &self.positions {
            self.refuse_moving_positions(positions, at, cx)?;
            let places = Places::of(at, x, cx)?;
            let mut mask = vec![0u8; places.rows.len() * places.columns.len()];
            for row in 0..places.rows.len() {
                let columns = positions.0.iter().filter_map(|position| places.column(row, *position));
                columns.for_each(|column| mask[row * places.columns.len() + column] = 1);
            }
            if mask.iter().all(|here| *here == 0) {
                return Ok(Chosen::Nothing);
            }
            let mut shape = vec![1; x.rank()];
            (shape[0], shape[places.axis]) = (places.rows.len(), places.columns.len());
            masks.push(Tensor::from_vec(mask, shape, &Device::Cpu)?);
        }
        let axes = &at.point().axes;
        if let Some(heads) = &self.heads {
            let axis = head_axis(axes).filter(|axis| *axis < x.rank());
            masks.push(along(axis.ok_or("there are no heads here")?, heads, "heads", at, x)?);
        }
        if let Some(neurons) = &self.neurons {
            let axis = x.rank().checked_sub(1).ok_or("there are no neurons here")?;
            masks.push(along(axis, neurons, "neurons", at, x)?);
        }
        let mut masks = masks.into_iter();
        let Some(first) = masks.next() else { return Ok(Chosen::Everything) };
        let all = masks.try_fold(first, |all, mask| all.broadcast_mul(&mask))?;
        Ok(Chosen::Where(all.to_device(x.device())?))
    }

    /// This part of `x` alone. `None` where a generation has none of the positions in this pass.
    pub fn pick(&self, at: &At, x: &Tensor, cx: &Cx) -> HookResult<Option<Tensor>> {
        let mut picked = match &self.positions {
            None => x.clone(),
            Some(positions) => match positions.pick(at, x, cx)? {
                None => return Ok(None),
                Some(picked) => picked,
            },
        };
        let heads = head_axis(&at.point().axes).zip(self.heads.as_ref());
        let neurons = x.rank().checked_sub(1).zip(self.neurons.as_ref());
        for ((axis, chosen), what) in
            [(heads, "heads"), (neurons, "neurons")].into_iter().filter_map(|(a, b)| Some((a?, b)))
        {
            check(axis, chosen, what, at, x)?;
            let chosen: Vec<u32> = chosen.iter().map(|index| *index as u32).collect();
            picked = picked.contiguous()?.index_select(&Tensor::new(chosen, x.device())?, axis)?;
        }
        Ok(Some(picked))
    }

    /// A position counted from the end is another token after every new one. What was computed with the old one is in the cache.
    fn refuse_moving_positions(&self, positions: &Positions, at: &At, cx: &Cx) -> HookResult {
        match positions.0.iter().find(|position| **position < 0) {
            Some(position) if cx.keeps_cache() && at.point().feeds_cache => Err(Box::new(Refused(format!(
                "position {position} at `{}` is another token after every new one, and keys and values of the earlier ones, edited, \
                 are in the cache: give the position from the start, or generate without the cache (--no-cache)",
                at.name()
            )))),
            _ => Ok(()),
        }
    }
}

/// Why a hook cannot do what it was asked to: not a failure that could be passed over.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Refused(pub String);

impl Chosen {
    /// `edited` where the part is and `x` elsewhere; `None` where nothing is to be edited.
    pub fn put(&self, x: &Tensor, edited: &Tensor) -> HookResult<Option<Tensor>> {
        Ok(match self {
            Chosen::Nothing => None,
            Chosen::Everything => Some(edited.broadcast_as(x.shape())?.contiguous()?),
            Chosen::Where(mask) => {
                let mask = mask.broadcast_as(x.shape())?.contiguous()?;
                let edited = edited.broadcast_as(x.shape())?.contiguous()?;
                Some(mask.where_cond(&edited, &x.contiguous()?)?)
            }
        })
    }

    /// The part that is also in `mask`, which broadcasts to the tensor.
    pub fn and(self, mask: &Tensor) -> HookResult<Self> {
        Ok(match self {
            Chosen::Nothing => Chosen::Nothing,
            Chosen::Everything => Chosen::Where(mask.clone()),
            Chosen::Where(own) => Chosen::Where(own.broadcast_mul(mask)?),
        })
    }
}

fn head_axis(axes: &str) -> Option<usize> {
    axes.split_whitespace().position(|axis| axis == "head" || axis == "kv_head")
}

/// The size of an axis that has all of these entries.
fn check(axis: usize, chosen: &[usize], what: &str, at: &At, x: &Tensor) -> HookResult<usize> {
    let size = x.dim(axis)?;
    match chosen.iter().find(|index| **index >= size) {
        None => Ok(size),
        Some(outside) => Err(Box::new(Refused(format!(
            "`{what}` has {outside}, and `{}` has {size} {what}, counted from 0",
            at.name()
        )))),
    }
}

/// 1 at these entries of an axis.
fn along(axis: usize, chosen: &[usize], what: &str, at: &At, x: &Tensor) -> HookResult<Tensor> {
    let size = check(axis, chosen, what, at, x)?;
    let mut mask = vec![0u8; size];
    chosen.iter().for_each(|index| mask[*index] = 1);
    let mut shape = vec![1; x.rank()];
    shape[axis] = size;
    Ok(Tensor::from_vec(mask, shape, &Device::Cpu)?.to_dtype(DType::U8)?)
}
