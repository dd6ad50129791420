//! Activations straight from a model.

use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use serde_json::{Value, json};
use tenterhook_hooks::{Match, Rows, Selector, Site};
use tenterhook_lens::{CacheOptions, LanguageModel};

use super::ActivationSource;
use crate::error::SaeError;

/// A model whose activations at some points are looked at, as rows of one width each.
pub struct PointActivations {
    lm: LanguageModel,
    names: Vec<String>,
    tensors: Vec<(String, usize)>,
    /// Blocks behind this one do not have to run.
    stop_at_block: Option<usize>,
}

impl PointActivations {
    /// The activations at these points, under their canonical names. A point whose values are not one vector per token is an error.
    pub fn new(lm: &LanguageModel, points: impl Into<Selector>) -> Result<Self, SaeError> {
        let table = lm.hooks().points();
        let matches: Vec<Match> = points.into().resolve(table, Site::Forward)?;
        let mut names = Vec::new();
        let mut stop = Some(0);
        for found in &matches {
            let point = table.point(found.point);
            let axes: Vec<&str> = point.axes.split_whitespace().collect();
            if axes.len() < 3 || axes[..2] != ["batch", "pos"] {
                return Err(SaeError::bad(format!(
                    "`{}` has the axes `{}`: an autoencoder needs one vector per token, `batch pos ...`",
                    point.name, point.axes
                )));
            }
            names.push(point.name.clone());
            stop = stop.zip(point.block).map(|(stop, block)| usize::max(stop, block + 1));
        }
        let mut source =
            Self { lm: lm.clone(), names: names.clone(), tensors: Vec::new(), stop_at_block: stop };
        // One token through the model says how wide each point is.
        let probe = source.run(&[&[0]])?;
        source.tensors = names.into_iter().zip(probe).map(|(name, rows)| (name, rows.elem_count())).collect();
        Ok(source)
    }

    /// The points and the widths of their activations.
    pub fn tensors(&self) -> &[(String, usize)] {
        &self.tensors
    }

    /// What passes at the points for these sequences, `[sequences, longest, ...]` each.
    fn run(&self, sequences: &[&[u32]]) -> Result<Vec<Tensor>, SaeError> {
        let longest = sequences.iter().map(|ids| ids.len()).max().unwrap_or(0);
        // Padding behind a text changes nothing in it: tokens see only earlier ones.
        let ids: Vec<u32> = sequences
            .iter()
            .flat_map(|ids| ids.iter().copied().chain(std::iter::repeat_n(0, longest - ids.len())))
            .collect();
        let ids = Tensor::from_vec(ids, (sequences.len(), longest), &self.lm.device())?;
        let options = CacheOptions {
            stop_at_block: self.stop_at_block,
            rows: Some(Arc::new(Rows(sequences.iter().map(|ids| 0..ids.len()).collect()))),
            ..CacheOptions::points(self.names.clone())
        };
        let (_, cache, _) = self.lm.run_with_cache(&ids, &options)?;
        self.names.iter().map(|name| Ok(cache.get(name)?.clone())).collect()
    }

    /// The rows of these sequences from position `skip` on, `[rows, width]` for every point, in order and without padding.
    pub fn rows(&self, sequences: &[&[u32]], skip: usize) -> Result<Vec<Tensor>, SaeError> {
        let passed = self.run(sequences)?;
        let of_point = |x: &Tensor| {
            let x = x.flatten_from(2)?;
            let rows = sequences.iter().enumerate().filter(|(_, ids)| ids.len() > skip);
            let rows = rows.map(|(i, ids)| x.get(i)?.narrow(0, skip, ids.len() - skip));
            let rows = rows.collect::<candle_core::Result<Vec<Tensor>>>()?;
            match rows.is_empty() {
                true => Tensor::zeros((0, x.dim(2)?), x.dtype(), x.device()),
                false => Tensor::cat(&rows, 0),
            }
        };
        Ok(passed.iter().map(of_point).collect::<candle_core::Result<_>>()?)
    }
}

/// Activations of a model on texts: one forward feeds all points. A piece is a sequence.
pub struct ModelActivations {
    points: PointActivations,
    sequences: Vec<Vec<u32>>,
    batch_size: usize,
    skip: usize,
}

impl ModelActivations {
    /// The activations of these sequences from position `skip` on, so many sequences in a forward. The hooks of the model take part.
    pub fn new(
        points: PointActivations,
        sequences: Vec<Vec<u32>>,
        batch_size: usize,
        skip: usize,
    ) -> Result<Self, SaeError> {
        if batch_size == 0 {
            return Err(SaeError::bad("a forward needs at least 1 sequence"));
        }
        for sequence in &sequences {
            points.lm.check_tokens(sequence)?;
        }
        Ok(Self { points, sequences, batch_size, skip })
    }
}

impl ActivationSource for ModelActivations {
    fn tensors(&self) -> &[(String, usize)] {
        self.points.tensors()
    }

    fn pieces(&self) -> u64 {
        self.sequences.len() as u64
    }

    fn rows(&self, piece: u64) -> u64 {
        self.sequences[piece as usize].len().saturating_sub(self.skip) as u64
    }

    fn load(&self, pieces: &[u64]) -> Result<Vec<Vec<f32>>, SaeError> {
        let mut out = vec![Vec::new(); self.tensors().len()];
        for pieces in pieces.chunks(self.batch_size) {
            let sequences: Vec<&[u32]> =
                pieces.iter().map(|piece| self.sequences[*piece as usize].as_slice()).collect();
            for (out, rows) in out.iter_mut().zip(self.points.rows(&sequences, self.skip)?) {
                let rows = rows.to_dtype(DType::F32)?.to_device(&Device::Cpu)?;
                out.extend(rows.flatten_all()?.to_vec1::<f32>()?);
            }
        }
        Ok(out)
    }

    fn fingerprint(&self) -> Value {
        // FNV-1a over the tokens and the ends of the sequences.
        let bytes = self
            .sequences
            .iter()
            .flat_map(|ids| ids.iter().copied().chain([u32::MAX]))
            .flat_map(u32::to_le_bytes);
        let hash = bytes.fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let points: Vec<&str> = self.tensors().iter().map(|(name, _)| name.as_str()).collect();
        json!({
            "kind": "model", "points": points, "sequences": self.sequences.len(), "tokens_fnv1a": format!("{hash:016x}"), "skip": self.skip,
        })
    }
}
