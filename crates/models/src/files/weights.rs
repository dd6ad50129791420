//! Handing out the weights of a model directory, and saying everything that does not fit at once.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor};
use tenterhook_nn::{Init, Weights};

use super::convert::{is_float, to_tensor};
use super::tensors::TensorFiles;
use crate::error::{ModelError, Problems, nearest, shown};

/// More than this and the files belong to another model: building it any further is pointless.
const MOST_PROBLEMS: usize = 64;
/// Looking for similar names costs time in proportion to the file.
const MOST_SUGGESTIONS: usize = 8;
/// What a language model has in front of the names of the base model that some files hold.
const BASE_PREFIXES: [&str; 3] = ["transformer.", "gpt_neox.", "model."];
/// The output head goes by two names; which one a file of a family uses has changed over time.
const HEADS: [&str; 2] = ["lm_head.weight", "embed_out.weight"];
const EMBEDDINGS: [&str; 3] =
    ["transformer.wte.weight", "gpt_neox.embed_in.weight", "model.embed_tokens.weight"];
/// Masks and tables that older versions stored among the weights; they are computed here.
const BUFFERS: [&str; 5] =
    [".attn.bias", ".attn.masked_bias", ".attention.bias", ".attention.masked_bias", ".rotary_emb.inv_freq"];

/// The weights of a model directory, asked for one by one while the model is built.
///
/// A tensor that is missing or does not fit is replaced by a placeholder of the right shape that takes no memory,
/// so that the construction goes on and [`finish`](Self::finish) can report every problem. Nothing that was built may be used
/// unless it succeeds.
#[derive(Debug)]
pub struct FileWeights {
    dir: PathBuf,
    files: Arc<TensorFiles>,
    tied: bool,
    dtype: DType,
    device: Device,
    used: BTreeSet<String>,
    /// Reported at the end, when it is known which names are left over.
    missing: Vec<String>,
    problems: Problems,
    /// Elements of all placeholders handed out.
    placeholders: usize,
    headers_only: bool,
    elements: usize,
}

impl FileWeights {
    pub(super) fn new(
        dir: PathBuf,
        files: Arc<TensorFiles>,
        tied: bool,
        dtype: DType,
        device: Device,
    ) -> Self {
        let (used, missing, problems) = Default::default();
        let placeholders = 0;
        let (headers_only, elements) = (false, 0);
        Self {
            dir,
            files,
            tied,
            dtype,
            device,
            used,
            missing,
            problems,
            placeholders,
            headers_only,
            elements,
        }
    }

    /// The tensors of one safetensors file, which need not be those of a language model.
    pub fn open_file(path: &Path, dtype: DType, device: &Device) -> std::result::Result<Self, ModelError> {
        let files = Arc::new(TensorFiles::single(path)?);
        Ok(Self::new(path.to_path_buf(), files, false, dtype, device.clone()))
    }

    /// The tensor of this name, under its full Hugging Face path, as the type and on the device the weights were opened for.
    ///
    /// Files of the base model alone, without `transformer.` or `model.` in front, are understood too. An error means
    /// that so much is wrong that going on is pointless; [`finish`](Self::finish) has the details.
    pub fn tensor(&mut self, name: &str, shape: &[usize]) -> Result<Tensor> {
        let device = self.device.clone();
        self.load(name, shape, self.dtype, &device)
    }

    /// How many numbers the tensors hold that were asked for with [`headers_only`](Self::headers_only).
    pub fn element_count(&self) -> usize {
        self.elements
    }

    /// Whether there is a tensor of this name.
    pub fn contains(&self, name: &str) -> bool {
        self.locate(name).is_some()
    }

    /// The problems of all tensors that were asked for, and the tensors that nobody asked for.
    pub fn finish(self) -> std::result::Result<(), ModelError> {
        self.finish_with(Ok(()))
    }

    /// As [`finish`](Self::finish), for a construction that may itself have failed: problems of the weights are its cause if there are any.
    pub fn finish_with<T>(mut self, built: Result<T>) -> std::result::Result<T, ModelError> {
        let mut problems = self.missing_problems();
        problems.append(std::mem::take(&mut self.problems));
        if built.is_ok() {
            self.check_left_over(&mut problems);
        }
        if problems.is_empty() {
            return Ok(built?);
        }
        Err(ModelError::Weights { path: self.dir, problems })
    }

    /// The same weights, of which names, shapes and types are checked and no number is read: for building the outline of a model.
    pub fn headers_only(self) -> Self {
        Self { headers_only: true, ..self }
    }

    fn load(&mut self, name: &str, shape: &[usize], dtype: DType, device: &Device) -> Result<Tensor> {
        match self.find(name, shape)? {
            Some(_) if self.headers_only => {
                self.elements += shape.iter().product::<usize>();
                Tensor::zeros(1, dtype, device)
            }
            Some(stored_name) => match self.files.tensor(&stored_name) {
                Some(stored) => to_tensor(&stored, dtype, device),
                None => candle_core::bail!("tensor {} cannot be read", shown(name)),
            },
            None => Tensor::zeros(1, dtype, device)?.broadcast_as(shape),
        }
    }

    /// The name under which the files have a tensor that fits. `None` calls for a placeholder: the problem is recorded.
    fn find(&mut self, name: &str, shape: &[usize]) -> Result<Option<String>> {
        let stored_name = self.locate(name);
        let files = self.files.clone();
        match stored_name.as_deref().and_then(|name| files.tensor(name)) {
            None => self.missing.push(name.to_string()),
            Some(found) if found.shape != shape => {
                let found = found.shape;
                self.problems
                    .add(|| format!("tensor {}: expected shape {shape:?}, found {found:?}", shown(name)));
            }
            Some(found) if !is_float(found.dtype) => self.problems.add(|| {
                format!(
                    "tensor {}: type {} is not supported (F16, BF16, F32 and F64 are)",
                    shown(name),
                    found.dtype
                )
            }),
            Some(_) => {
                self.used.extend(stored_name.clone());
                return Ok(stored_name);
            }
        }
        self.used.extend(stored_name);
        self.stop_if_pointless(shape)?;
        Ok(None)
    }

    /// A model much larger than its own files was never in them. Stopping also keeps a lying configuration from
    /// allocating, should the construction copy its placeholders.
    fn stop_if_pointless(&mut self, shape: &[usize]) -> Result<()> {
        let elements = shape.iter().fold(1usize, |product, dim| product.saturating_mul(*dim));
        self.placeholders = self.placeholders.saturating_add(elements);
        let most_elements = self.files.total_bytes() / 2;
        if self.problems.len() + self.missing.len() >= MOST_PROBLEMS || self.placeholders > most_elements {
            candle_core::bail!("the weights do not fit the configuration")
        }
        Ok(())
    }

    /// The name under which the files have a tensor.
    fn locate(&self, name: &str) -> Option<String> {
        let base = BASE_PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix));
        let head = HEADS.contains(&name).then_some(HEADS);
        [name]
            .into_iter()
            .chain(base)
            .chain(head.into_iter().flatten())
            .find(|name| self.files.contains(name))
            .map(Into::into)
    }

    /// The missing tensors, each with the unclaimed one it may be hiding under.
    fn missing_problems(&self) -> Problems {
        let mut problems = Problems::default();
        for (index, name) in self.missing.iter().enumerate() {
            problems.add(|| {
                let unclaimed =
                    self.files.names().filter(|name| index < MOST_SUGGESTIONS && !self.used.contains(*name));
                let near = nearest(name, unclaimed).map(|near| format!("; the files have {}", shown(near)));
                format!("tensor {} is missing{}", shown(name), near.unwrap_or_default())
            });
        }
        problems
    }

    fn check_left_over(&self, problems: &mut Problems) {
        for name in self.files.names() {
            if self.used.contains(name) || BUFFERS.iter().any(|buffer| name.ends_with(buffer)) {
                continue;
            }
            if self.tied && HEADS.contains(&name) {
                self.check_tied_head(name, problems);
            } else {
                problems.add(|| format!("tensor {} is in the files but not in the model", shown(name)));
            }
        }
    }

    /// A head that repeats the embedding is harmless; one that differs would be silently lost.
    fn check_tied_head(&self, head: &str, problems: &mut Problems) {
        let Some(embedding) = EMBEDDINGS.iter().find_map(|name| self.locate(name)) else { return };
        let same = match (self.files.tensor(head), self.files.tensor(&embedding)) {
            (Some(head), Some(embedding)) => head.dtype == embedding.dtype && head.bytes == embedding.bytes,
            _ => true,
        };
        if !same {
            problems.add(|| {
                format!(
                    "tensor {} differs from {}, but `tie_word_embeddings` in config.json says they are one",
                    shown(head),
                    shown(&embedding)
                )
            });
        }
    }
}

impl Weights for FileWeights {
    fn tensor(
        &mut self,
        name: &str,
        shape: &[usize],
        _: Init,
        dtype: DType,
        device: &Device,
    ) -> Result<Tensor> {
        self.load(name, shape, dtype, device)
    }
}
