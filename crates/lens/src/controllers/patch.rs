//! Putting in activations of another run.

use std::collections::BTreeMap;
use std::path::PathBuf;

use candle_core::{Device, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tenterhook_hooks::{At, AttachError, Chosen, Cx, HookResult, Places, Refused, Selector, nearest};
use tenterhook_models::files::read_tensors;

use super::tensor_file::like;
use super::{Controller, Edit, Effect, Scene};
use crate::error::LensError;

/// Where a [`Patch`] works, and what it puts in.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
pub struct PatchOptions {
    /// Where, and how much of it.
    #[serde(flatten)]
    pub scene: Scene,
    /// A safetensors file with the activations, as `tenterhook capture` writes it.
    #[schemars(extend("format" = "path", "examples" = ["clean.safetensors"]))]
    pub from: PathBuf,
    /// The name of the tensor in the file; without one it is the name of the point.
    #[serde(default)]
    pub key: Option<String>,
    /// The positions of the stored run that are put in at `positions`, in the same order; without them the same ones.
    #[serde(default)]
    pub from_positions: Option<Vec<usize>>,
}

/// Puts in activations of another run, position by position. Positions that the other run did not have stay as they are.
pub struct Patch {
    stored: BTreeMap<String, Tensor>,
    key: Option<String>,
    source: String,
    /// Which position is taken from which.
    moved: BTreeMap<i64, usize>,
}

impl Effect for Patch {
    const KIND: &'static str = "patch";

    fn apply(&mut self, at: &At, x: &Tensor, chosen: &mut Chosen, cx: &mut Cx) -> HookResult<Edit> {
        let key = self.key.clone().unwrap_or_else(|| at.name().to_string());
        let Some(stored) = self.stored.get(&key) else {
            let near = nearest(&key, self.stored.keys().map(String::as_str), 3).join(", ");
            let reason = format!("{} has no tensor `{key}` to put in; nearest: {near}", self.source);
            return Err(Box::new(Refused(reason)));
        };
        let stored = &like(stored, x)?;
        let refuse = || {
            Refused(format!(
                "{}: `{key}` has the shape {:?}, which does not go with {:?} at `{}`",
                self.source,
                stored.dims(),
                x.dims(),
                at.name()
            ))
        };
        if at.point().axes.split_whitespace().any(|axis| axis == "key_pos") {
            // Who attends to whom has two axes of positions: only a whole pattern can be put in.
            return match stored.dims() == x.dims() {
                true => Ok(Edit::Put(stored.clone())),
                false => Err(Box::new(refuse())),
            };
        }
        let places = Places::of(at, x, cx)?;
        let rest = |x: &Tensor| {
            let mut dims = x.dims().to_vec();
            dims.remove(places.axis);
            dims[1..].to_vec()
        };
        let batch = stored.dims().first().copied().unwrap_or(0);
        if stored.rank() != x.rank() || rest(stored) != rest(x) || (batch != 1 && batch != places.rows.len())
        {
            return Err(Box::new(refuse()));
        }
        let length = stored.dim(places.axis)?;
        if let Some(outside) = self.moved.values().find(|source| **source >= length) {
            return Err(Box::new(Refused(format!(
                "`from_positions` has {outside}, and {} has {length} positions of `{key}`",
                self.source
            ))));
        }
        let (mut rows, mut covered) = (Vec::new(), Vec::new());
        for row in 0..places.rows.len() {
            let source = |column: usize| {
                let position = places.position(row, column)?;
                let from_end = position as i64 - places.rows[row].len() as i64;
                let moved = self.moved.get(&(position as i64)).or_else(|| self.moved.get(&from_end));
                Some(moved.copied().unwrap_or(position)).filter(|source| *source < length)
            };
            let sources: Vec<Option<usize>> = (0..places.columns.len()).map(source).collect();
            covered.extend(sources.iter().map(|source| u8::from(source.is_some())));
            let index: Vec<u32> = sources.iter().map(|source| source.unwrap_or(0) as u32).collect();
            let from = stored.narrow(0, if batch == 1 { 0 } else { row }, 1)?.contiguous()?;
            rows.push(from.index_select(&Tensor::new(index, x.device())?, places.axis)?);
        }
        let mut shape = vec![1; x.rank()];
        (shape[0], shape[places.axis]) = (places.rows.len(), places.columns.len());
        let covered = Tensor::from_vec(covered, shape, &Device::Cpu)?.to_device(x.device())?;
        *chosen = std::mem::replace(chosen, Chosen::Nothing).and(&covered)?;
        Ok(Edit::Put(Tensor::cat(&rows, 0)?))
    }
}

impl Patch {
    /// From the options of a configuration.
    pub fn from_options(options: PatchOptions) -> Result<Controller<Self>, AttachError> {
        let bad =
            |text: String| AttachError::BadOptions { kind: Self::KIND.to_string(), problems: vec![text] };
        let stored = read_tensors(&options.from).map_err(|error| bad(error.to_string()))?;
        let moved = match (&options.from_positions, &options.scene.part.positions) {
            (None, _) => BTreeMap::new(),
            (Some(from), Some(to)) if from.len() == to.0.len() => {
                to.0.iter().copied().zip(from.iter().copied()).collect()
            }
            _ => return Err(bad("`from_positions` needs as many `positions` to be put in at".to_string())),
        };
        let source = options.from.display().to_string();
        if let Some(key) = options.key.as_ref().filter(|key| !stored.iter().any(|(name, _)| name == *key)) {
            let near = nearest(key, stored.iter().map(|(name, _)| name.as_str()), 3).join(", ");
            return Err(bad(format!("{source} has no tensor `{key}`; nearest: {near}")));
        }
        let stored = stored.into_iter().collect();
        Controller::new(options.scene, Self { stored, key: options.key, source, moved })
    }
}

/// Puts in activations of another run: tensors by the name of their point, such as those of
/// [`run_with_cache`](crate::LanguageModel::run_with_cache).
pub fn patch<'a>(
    points: impl Into<Selector>,
    from: impl IntoIterator<Item = (&'a str, &'a Tensor)>,
) -> Result<Controller<Patch>, LensError> {
    let stored: BTreeMap<String, Tensor> =
        from.into_iter().map(|(name, tensor)| (name.to_string(), tensor.clone())).collect();
    if stored.is_empty() {
        return Err(LensError::BadInput("there are no activations to put in".to_string()));
    }
    let source = "what was kept".to_string();
    Ok(Controller::at(points, Patch { stored, key: None, source, moved: BTreeMap::new() }))
}
