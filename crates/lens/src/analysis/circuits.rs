//! What heads compute, read from their weights alone.

use candle_core::{DType, Tensor};
use nalgebra::DMatrix;
use serde::Serialize;
use tenterhook_models::config::Positions;

use super::low_rank::{LowRank, eigenvalues};
use super::matrix;
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
        let embedding = self.model().embedding_weights().to_dtype(DType::F32)?;
        let unembedding = self.model().unembedding_weights()?.to_dtype(DType::F32)?.contiguous()?;
        let around = matrix(&unembedding.matmul(&embedding)?)?;
        let views = Views { embedding, unembedding: unembedding.t()?.contiguous()? };
        let mut heads = Vec::new();
        for block in blocks {
            for head in &chosen {
                let (qk, ov) = (self.qk_circuit(block, *head)?, self.ov_circuit(block, *head)?);
                heads.push(HeadCircuit {
                    block,
                    head: *head,
                    qk: self.circuit(&qk, &views.embedding, &views.embedding, options)?,
                    ov: self.circuit(&ov, &views.embedding, &views.unembedding, options)?,
                    copying: self.copying_score(block, *head, &around)?,
                });
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

    fn circuit(
        &self,
        product: &LowRank,
        from: &Tensor,
        to: &Tensor,
        options: &CircuitOptions,
    ) -> Result<Circuit, LensError> {
        let svd = product.svd();
        let shown = options.directions.min(svd.singular_values.len());
        let (from, to) = (scores(from, &svd.left[..shown])?, scores(to, &svd.right[..shown])?);
        let direction = |i: usize| Direction {
            singular_value: svd.singular_values[i],
            from: self.top_tokens(&from[i], options.top),
            to: self.top_tokens(&to[i], options.top),
        };
        Ok(Circuit {
            norm: product.norm(),
            directions: (0..shown).map(direction).collect(),
            singular_values: svd.singular_values,
        })
    }

    /// `around` is `W_U W_E`: the eigenvalues of the tokens' matrix `W_E W_V W_O W_U` are those of the small `W_O W_U W_E W_V`.
    fn copying_score(&self, block: usize, head: usize, around: &DMatrix<f64>) -> Result<f64, LensError> {
        let weights = self.model().head_weights(block, head)?;
        let found = eigenvalues(matrix(&weights.o)? * around * matrix(&weights.v)?);
        let size: f64 = found.iter().map(|(re, im)| re.hypot(*im)).sum();
        let sum: f64 = found.iter().map(|(re, _)| re).sum();
        Ok(if size > 0.0 { sum / size } else { 0.0 })
    }

    fn check_head(&self, block: usize, head: usize) -> Result<(), LensError> {
        self.chosen_blocks(Some(&[block]))?;
        self.chosen_heads(Some(&[head])).map(drop)
    }
}

/// A vector per token, `[vocab, d_model]`, as it comes in and as its logit is read off.
struct Views {
    embedding: Tensor,
    unembedding: Tensor,
}

/// How much of every direction each token has: `[direction][vocab]`.
fn scores(tokens: &Tensor, directions: &[Vec<f64>]) -> Result<Vec<Vec<f32>>, LensError> {
    if directions.is_empty() {
        return Ok(Vec::new());
    }
    let width = tokens.dim(1)?;
    let flat: Vec<f32> = directions.iter().flatten().map(|x| *x as f32).collect();
    let directions = Tensor::from_vec(flat, (directions.len(), width), tokens.device())?;
    Ok(directions.matmul(&tokens.t()?)?.to_vec2()?)
}
