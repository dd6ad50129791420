//! How far heads read what earlier heads wrote.

use std::fmt;
use std::str::FromStr;

use candle_core::{DType, Device, Tensor};
use nalgebra::DMatrix;
use serde::Serialize;

use super::low_rank::LowRank;
use crate::error::LensError;
use crate::language_model::LanguageModel;

/// Through which of its inputs a head reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Composition {
    /// Its queries.
    Q,
    /// Its keys.
    K,
    /// Its values.
    V,
}

impl fmt::Display for Composition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

impl FromStr for Composition {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let all = [Self::Q, Self::K, Self::V];
        let found = all.into_iter().find(|kind| kind.to_string().eq_ignore_ascii_case(text));
        found.ok_or_else(|| format!("`{text}` is none of Q, K, V"))
    }
}

/// The scores of all pairs of heads.
#[derive(Clone, Debug, Serialize)]
pub struct CompositionScores {
    /// Through which input.
    pub kind: Composition,
    /// `scores[block][head][later block][later head]`: the norm of the product of what the first writes and what the second reads, by the
    /// product of the norms. 0 where the second does not come later.
    pub scores: Vec<Vec<Vec<Vec<f64>>>>,
}

/// Two heads, and how far the later one reads what the earlier one wrote.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct CompositionPair {
    /// Block and head that write.
    pub from: (usize, usize),
    /// Block and head that read.
    pub to: (usize, usize),
    /// The score.
    pub score: f64,
}

impl CompositionScores {
    /// The pairs with the largest scores, largest first.
    pub fn top(&self, count: usize) -> Vec<CompositionPair> {
        let mut pairs = Vec::new();
        for (block, heads) in self.scores.iter().enumerate() {
            for (head, later) in heads.iter().enumerate() {
                for (to_block, scores) in later.iter().enumerate().skip(block + 1) {
                    for (to_head, score) in scores.iter().enumerate() {
                        let (from, to) = ((block, head), (to_block, to_head));
                        pairs.push(CompositionPair { from, to, score: *score });
                    }
                }
            }
        }
        pairs.sort_by(|a, b| b.score.total_cmp(&a.score));
        pairs.truncate(count);
        pairs
    }
}

impl LanguageModel {
    /// How far every head reads what every earlier head wrote: `|W_OV W| / (|W_OV| |W|)`, where `W` is the later head's QK circuit, from the
    /// side of its queries or of its keys, or its OV circuit.
    pub fn composition_scores(&self, kind: Composition) -> Result<CompositionScores, LensError> {
        let config = self.model().config();
        let (layers, heads) = (config.layers, config.heads);
        let mut writers = Vec::new();
        let mut readers = Vec::new();
        for block in 0..layers {
            let (mut written, mut read) = (Vec::new(), Vec::new());
            for head in 0..heads {
                written.push(unit(self.ov_circuit(block, head)?.collapsed_left()));
                let reader: LowRank = match kind {
                    Composition::Q => self.qk_circuit(block, head)?,
                    Composition::K => self.qk_circuit(block, head)?.transposed(),
                    Composition::V => self.ov_circuit(block, head)?,
                };
                read.push(unit(reader.collapsed_right()).transpose());
            }
            writers.push(stacked(&written)?);
            readers.push(stacked(&read)?);
        }
        let mut scores = vec![vec![vec![vec![0.0; heads]; layers]; heads]; layers];
        for (block, writer) in writers.iter().enumerate() {
            for (later, reader) in readers.iter().enumerate().skip(block + 1) {
                let norms = block_norms(&writer.matmul(&reader.t()?)?, heads)?;
                for (head, row) in norms.into_iter().enumerate() {
                    scores[block][head][later] = row;
                }
            }
        }
        Ok(CompositionScores { kind, scores })
    }
}

/// The matrix by its norm. One of zeros composes with nothing.
fn unit(matrix: DMatrix<f64>) -> DMatrix<f64> {
    let norm = matrix.norm();
    if norm > 0.0 { matrix / norm } else { matrix }
}

/// The rows of all matrices below each other.
fn stacked(matrices: &[DMatrix<f64>]) -> Result<Tensor, LensError> {
    let columns = matrices.first().map_or(0, DMatrix::ncols);
    let rows: usize = matrices.iter().map(DMatrix::nrows).sum();
    // nalgebra lies column by column.
    let flat: Vec<f64> =
        matrices.iter().flat_map(|m| m.transpose().iter().copied().collect::<Vec<_>>()).collect();
    Ok(Tensor::from_vec(flat, (rows, columns), &Device::Cpu)?)
}

/// The norm of every block of a product `[heads * rank, heads * rank]`.
fn block_norms(product: &Tensor, heads: usize) -> Result<Vec<Vec<f64>>, LensError> {
    let (rows, columns) = product.dims2()?;
    let squares = product.sqr()?.reshape((heads, rows / heads, heads, columns / heads))?;
    let sums = squares.sum(3)?.sum(1)?.sqrt()?.to_dtype(DType::F64)?;
    Ok(sums.to_vec2()?)
}
