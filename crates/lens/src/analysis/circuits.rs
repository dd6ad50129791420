//! What heads compute, read from their weights alone.

use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;
use serde::Serialize;
use tenterhook_models::config::Positions;

use super::low_rank::{LowRank, Svd};
use super::tokens::TokenScore;
use crate::error::LensError;
use crate::language_model::LanguageModel;

/// Which heads [`LanguageModel::head_circuits`] looks at, and how closely.
#[derive(Clone, Debug)]
pub struct CircuitOptions {
    /// These blocks, or all.
    pub blocks: Option<Vec<usize>>,
    /// These heads of every block, or all.
    pub heads: Option<Vec<usize>>,
    /// How many singular directions are shown as tokens.
    pub directions: usize,
    /// How many tokens per direction.
    pub top: usize,
}

impl Default for CircuitOptions {
    fn default() -> Self {
        Self { blocks: None, heads: None, directions: 3, top: 5 }
    }
}

/// The circuits of heads.
#[derive(Clone, Debug, Serialize)]
pub struct HeadCircuits {
    /// The heads that were asked for.
    pub heads: Vec<HeadCircuit>,
    /// What these numbers leave out.
    pub notes: Vec<String>,
}

/// What one head computes.
#[derive(Clone, Debug, Serialize)]
pub struct HeadCircuit {
    /// Its block.
    pub block: usize,
    /// Its number in the block.
    pub head: usize,
    /// Whom it attends to: `W_Q W_K^T`, from what asks to what is asked for.
    pub qk: Circuit,
    /// What it moves: `W_V W_O`, from what is read to what is written.
    pub ov: Circuit,
    /// How far it writes the tokens that it reads: the sum of the eigenvalues of `W_E W_V W_O W_U` by the sum of their sizes, from -1 (the
    /// opposite) to 1 (a copy).
    pub copying: f64,
}

/// A bilinear form on the stream.
#[derive(Clone, Debug, Serialize)]
pub struct Circuit {
    /// Its Frobenius norm.
    pub norm: f64,
    /// All its singular values, largest first.
    pub singular_values: Vec<f64>,
    /// Its strongest directions as tokens.
    pub directions: Vec<Direction>,
}

/// A pair of singular vectors, as the tokens that lie nearest to them. The opposite ends of both go together as well.
#[derive(Clone, Debug, Serialize)]
pub struct Direction {
    /// Their singular value.
    pub singular_value: f64,
    /// Tokens whose embedding asks (QK) or is read (OV).
    pub from: Vec<TokenScore>,
    /// Tokens whose embedding is asked for (QK), or whose logit is raised (OV).
    pub to: Vec<TokenScore>,
}

impl LanguageModel {
    /// Whom a head attends to: `W_Q W_K^T`. Biases, and what comes after the product (rotation, norms of queries and keys), are left out.
    pub fn qk_circuit(&self, block: usize, head: usize) -> Result<LowRank, LensError> {
        self.check_head(block, head)?;
        let weights = self.model().head_weights(block, head)?;
        LowRank::new(&weights.q, &weights.k.t()?)
    }

    /// What a head moves: `W_V W_O`. Biases are left out.
    pub fn ov_circuit(&self, block: usize, head: usize) -> Result<LowRank, LensError> {
        self.check_head(block, head)?;
        let weights = self.model().head_weights(block, head)?;
        LowRank::new(&weights.v, &weights.o)
    }

    /// What heads compute, read from their weights alone: singular values, directions as tokens, copying scores.
    pub fn head_circuits(&self, options: &CircuitOptions) -> Result<HeadCircuits, LensError> {
        let blocks = self.chosen_blocks(options.blocks.as_deref())?;
        let chosen = self.chosen_heads(options.heads.as_deref())?;
        let on_cpu = |weights: &Tensor| weights.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.contiguous();
        let embedding = on_cpu(&self.model().embedding_weights())?;
        let unembedding = on_cpu(&self.model().unembedding_weights()?)?;
        let around = unembedding.matmul(&embedding)?.to_dtype(DType::F64)?;
        let unembedding = unembedding.t()?.contiguous()?;
        let mut heads = Vec::new();
        for block in blocks {
            let analysed = chosen.par_iter().map(|head| Analysed::new(self, block, *head, &around));
            let analysed: Vec<Analysed> = analysed.collect::<Result<_, _>>()?;
            // The directions of all heads go through the vocabulary at once.
            let shown = |svd: &Svd| options.directions.min(svd.singular_values.len());
            let sides = |head: &Analysed| {
                let (qk, ov) = (&head.qk, &head.ov);
                [&qk.left[..shown(qk)], &qk.right[..shown(qk)], &ov.left[..shown(ov)]].concat()
            };
            let read: Vec<Vec<f64>> = analysed.iter().flat_map(sides).collect();
            let written: Vec<Vec<f64>> =
                analysed.iter().flat_map(|head| head.ov.right[..shown(&head.ov)].to_vec()).collect();
            let mut read = self.nearest_tokens(&embedding, &read, options.top)?.into_iter();
            let mut written = self.nearest_tokens(&unembedding, &written, options.top)?.into_iter();
            for Analysed { head, qk, ov, copying } in analysed {
                let mut next = |count: usize| read.by_ref().take(count).collect::<Vec<_>>();
                let (asks, asked) = (next(shown(&qk)), next(shown(&qk)));
                let (moved, to) = (next(shown(&ov)), written.by_ref().take(shown(&ov)).collect());
                let (qk, ov) = (Circuit::new(qk, asks, asked), Circuit::new(ov, moved, to));
                heads.push(HeadCircuit { block, head, qk, ov, copying });
            }
        }
        Ok(HeadCircuits { heads, notes: self.circuit_notes() })
    }

    /// What circuits of this model leave out, because it does not lie in the two matrices.
    fn circuit_notes(&self) -> Vec<String> {
        let config = self.model().config();
        let mut notes =
            vec!["weights are as they are in the file: gains and biases of norms are not folded in"];
        if matches!(config.positions, Positions::Rotary(_)) {
            notes.push("queries and keys are rotated by their positions after this product: the QK circuit leaves the rotation out");
        }
        if config.qk_norm {
            notes.push("queries and keys are normed per head: the QK circuit leaves that out");
        }
        if config.post_norms {
            notes.push("attention writes through a norm: the OV circuit leaves it out");
        }
        notes.into_iter().map(str::to_string).collect()
    }

    /// The tokens with the most of every direction.
    fn nearest_tokens(
        &self,
        vectors: &Tensor,
        directions: &[Vec<f64>],
        top: usize,
    ) -> Result<Vec<Vec<TokenScore>>, LensError> {
        if directions.is_empty() {
            return Ok(Vec::new());
        }
        let flat: Vec<f32> = directions.iter().flatten().map(|x| *x as f32).collect();
        let directions = Tensor::from_vec(flat, (directions.len(), vectors.dim(1)?), vectors.device())?;
        let scores: Vec<Vec<f32>> = directions.matmul(&vectors.t()?)?.to_vec2()?;
        Ok(scores.iter().map(|scores| self.top_tokens(scores, top)).collect())
    }

    fn check_head(&self, block: usize, head: usize) -> Result<(), LensError> {
        self.chosen_blocks(Some(&[block]))?;
        self.chosen_heads(Some(&[head])).map(drop)
    }
}

/// One head, taken apart.
struct Analysed {
    head: usize,
    qk: Svd,
    ov: Svd,
    copying: f64,
}

impl Analysed {
    /// `around` is `W_U W_E`. The eigenvalues of the tokens' matrix `W_E W_V W_O W_U` that differ from zero are those of `W_U W_E W_V W_O`, which
    /// is only as large as the stream is wide.
    fn new(lm: &LanguageModel, block: usize, head: usize, around: &Tensor) -> Result<Self, LensError> {
        let weights = lm.model().head_weights(block, head)?;
        let moved = around.matmul(&weights.v.to_device(&Device::Cpu)?.to_dtype(DType::F64)?)?;
        let eigenvalues = LowRank::new(&moved, &weights.o)?.eigenvalues();
        let size: f64 = eigenvalues.iter().map(|(re, im)| re.hypot(*im)).sum();
        let sum: f64 = eigenvalues.iter().map(|(re, _)| re).sum();
        Ok(Self {
            head,
            qk: lm.qk_circuit(block, head)?.svd(),
            ov: lm.ov_circuit(block, head)?.svd(),
            copying: if size > 0.0 { sum / size } else { 0.0 },
        })
    }
}

impl Circuit {
    fn new(svd: Svd, from: Vec<Vec<TokenScore>>, to: Vec<Vec<TokenScore>>) -> Self {
        let directions = svd.singular_values.iter().zip(from.into_iter().zip(to));
        let directions =
            directions.map(|(value, (from, to))| Direction { singular_value: *value, from, to }).collect();
        let norm = svd.singular_values.iter().map(|value| value * value).sum::<f64>().sqrt();
        Self { norm, singular_values: svd.singular_values, directions }
    }
}
