//! The texts that activate a latent most.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use candle_core::DType;
use serde::Serialize;
use tenterhook_lens::LanguageModel;

use crate::error::SaeError;
use crate::evaluate::{check_width, point_of};
use crate::sae::Sae;
use crate::source::PointActivations;

/// How the texts are looked for.
#[derive(Clone, Debug)]
pub struct TopOptions {
    /// The point; by default the one that the autoencoder is for.
    pub point: Option<String>,
    /// Only these latents; by default all.
    pub latents: Option<Vec<usize>>,
    /// How many texts of each latent.
    pub texts: usize,
    /// So many tokens before and after the strongest one are shown.
    pub window: usize,
    /// Sequences that go through the model together.
    pub batch_size: usize,
    /// The first so many positions of every sequence do not count.
    pub skip: usize,
}

impl Default for TopOptions {
    fn default() -> Self {
        Self { point: None, latents: None, texts: 5, window: 10, batch_size: 8, skip: 0 }
    }
}

/// What a latent is active on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct LatentTop {
    /// The latent.
    pub latent: usize,
    /// On how many tokens it was active.
    pub fired: u64,
    /// Of how many.
    pub tokens: u64,
    /// The texts, the strongest first; each once.
    pub texts: Vec<TopText>,
}

/// A text with the activations of a latent.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TopText {
    /// The strongest activation.
    pub activation: f64,
    /// Which sequence it is.
    pub sequence: usize,
    /// Where in it the strongest activation is.
    pub position: usize,
    /// The first position that is shown.
    pub start: usize,
    /// The tokens that are shown.
    pub tokens: Vec<u32>,
    /// The activation at each of them.
    pub activations: Vec<f64>,
}

/// A candidate: the strongest place of a latent in a sequence. The stronger is greater, of equal ones the earlier.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Place {
    activation: f64,
    sequence: usize,
    position: usize,
}

impl Eq for Place {}

impl Ord for Place {
    fn cmp(&self, other: &Self) -> Ordering {
        self.activation.total_cmp(&other.activation).then_with(|| other.sequence.cmp(&self.sequence))
    }
}

impl PartialOrd for Place {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// Finds the texts that activate latents most. What is held does not grow with the number of texts, but for the tokens themselves. `progress`
/// is called with the number of sequences that are done.
pub fn top_texts(
    lm: &LanguageModel,
    sae: &Sae,
    sequences: &[Vec<u32>],
    options: &TopOptions,
    mut progress: impl FnMut(usize),
) -> Result<Vec<LatentTop>, SaeError> {
    let point = point_of(sae, options.point.as_deref())?;
    let points = PointActivations::new(lm, point.as_str())?;
    check_width(sae, &points)?;
    let d_sae = sae.config().d_sae;
    let latents: Vec<usize> = options.latents.clone().unwrap_or_else(|| (0..d_sae).collect());
    if let Some(outside) = latents.iter().find(|latent| **latent >= d_sae) {
        return Err(SaeError::bad(format!(
            "there is no latent {outside}: there are {d_sae}, counted from 0"
        )));
    }
    if options.batch_size == 0 || options.texts == 0 {
        return Err(SaeError::bad("at least 1 text of each latent and 1 sequence of a forward are needed"));
    }
    let mut heaps: Vec<BinaryHeap<Reverse<Place>>> = latents.iter().map(|_| BinaryHeap::new()).collect();
    let (mut fired, mut tokens, mut done) = (vec![0u64; latents.len()], 0, 0);
    for (number, batch) in sequences.chunks(options.batch_size).enumerate() {
        let first = number * options.batch_size;
        let ids: Vec<&[u32]> = batch.iter().map(Vec::as_slice).collect();
        let acts = acts_of(sae, &points, &ids, options.skip)?;
        let mut row = 0;
        for (i, ids) in ids.iter().enumerate() {
            let rows = &acts[row..row + ids.len().saturating_sub(options.skip)];
            row += rows.len();
            tokens += rows.len() as u64;
            for ((latent, heap), fired) in latents.iter().zip(&mut heaps).zip(&mut fired) {
                let mut best: Option<Place> = None;
                for (position, row) in rows.iter().enumerate().filter(|(_, row)| row[*latent] > 0.0) {
                    *fired += 1;
                    let activation = f64::from(row[*latent]);
                    if best.is_none_or(|best| activation > best.activation) {
                        best = Some(Place {
                            activation,
                            sequence: first + i,
                            position: position + options.skip,
                        });
                    }
                }
                heap.extend(best.map(Reverse));
                if heap.len() > options.texts {
                    heap.pop();
                }
            }
        }
        done += batch.len();
        progress(done);
    }
    let chosen = latents.into_iter().zip(heaps).zip(fired);
    let mut found: Vec<LatentTop> = chosen
        .map(|((latent, heap), fired)| {
            let texts = heap
                .into_sorted_vec()
                .into_iter()
                .map(|Reverse(place)| window(place, sequences, options.window));
            LatentTop { latent, fired, tokens, texts: texts.collect() }
        })
        .collect();
    fill_in(sae, &points, sequences, &mut found)?;
    Ok(found)
}

/// The latents of every token of some sequences, without padding.
fn acts_of(
    sae: &Sae,
    points: &PointActivations,
    ids: &[&[u32]],
    skip: usize,
) -> Result<Vec<Vec<f32>>, SaeError> {
    let rows = points.rows(ids, skip)?.remove(0);
    if rows.dim(0)? == 0 {
        return Ok(Vec::new());
    }
    Ok(sae.encode(&rows)?.acts.to_dtype(DType::F32)?.to_vec2()?)
}

/// The tokens around a place; the activations come later.
fn window(place: Place, sequences: &[Vec<u32>], window: usize) -> TopText {
    let ids = &sequences[place.sequence];
    let start = place.position.saturating_sub(window);
    let end = place.position.saturating_add(window).saturating_add(1).min(ids.len());
    TopText {
        activation: place.activation,
        sequence: place.sequence,
        position: place.position,
        start,
        tokens: ids[start..end].to_vec(),
        activations: Vec::new(),
    }
}

/// The activations of the tokens that are shown. Only sequences that are shown go through the model again.
fn fill_in(
    sae: &Sae,
    points: &PointActivations,
    sequences: &[Vec<u32>],
    found: &mut [LatentTop],
) -> Result<(), SaeError> {
    let mut shown: Vec<usize> = found.iter().flat_map(|top| &top.texts).map(|text| text.sequence).collect();
    shown.sort_unstable();
    shown.dedup();
    for sequence in shown {
        let acts = acts_of(sae, points, &[&sequences[sequence]], 0)?;
        for top in found.iter_mut() {
            for text in top.texts.iter_mut().filter(|text| text.sequence == sequence) {
                let rows = &acts[text.start..text.start + text.tokens.len()];
                text.activations = rows.iter().map(|row| f64::from(row[top.latent])).collect();
            }
        }
    }
    Ok(())
}
