//! The angles of rotary embeddings and the ways to stretch them over longer contexts, with transformers' numbers.
//!
//! Frequencies and angles are rounded to f32 after every step, as transformers does it: at position 4000 an angle in f32
//! is off by up to 2e-4, and a model was trained with that, so exact angles would be the wrong ones.

use candle_core::{DType, Device, Result, Tensor, bail};
use std::f64::consts::PI;
use std::ops::Range;

/// The rotary embedding of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeSpec {
    /// How many elements of a head are rotated.
    pub dim: usize,
    /// The base of the wavelengths (`rope_theta`).
    pub theta: f64,
    /// How they are stretched.
    pub scaling: RopeScaling,
}

/// How a model stretches its rotary embedding beyond the context it was first trained with; the numbers are those of
/// `rope_scaling` in a HF configuration.
#[derive(Clone, Debug, PartialEq)]
pub enum RopeScaling {
    /// As it is.
    None,
    /// All frequencies divided by a factor.
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// Llama 3.1: low frequencies divided, high ones kept, a ramp in between.
    Llama3 {
        /// The divisor of low frequencies.
        factor: f64,
        /// Frequencies with fewer turns than this in the original context are low.
        low_freq_factor: f64,
        /// Frequencies with more turns than this in the original context are high.
        high_freq_factor: f64,
        /// `original_max_position_embeddings`.
        original_context: usize,
    },
    /// YaRN: a ramp between kept and divided frequencies, and cos and sin scaled by an attention factor.
    Yarn {
        /// The divisor of low frequencies.
        factor: f64,
        /// `original_max_position_embeddings`.
        original_context: usize,
        /// Frequencies with more turns than this in the original context are kept; 32 by default.
        beta_fast: f64,
        /// Frequencies with fewer turns than this in the original context are divided; 1 by default.
        beta_slow: f64,
        /// Together with `mscale_all_dim`: where the attention factor comes from if it is not given.
        mscale: Option<f64>,
        /// See `mscale`.
        mscale_all_dim: Option<f64>,
        /// Multiplies cos and sin; follows from `factor` if it is not given.
        attention_factor: Option<f64>,
        /// Whether the ramp starts and ends at whole pairs; true by default.
        truncate: bool,
    },
    /// LongRoPE: a divisor per frequency, another set for sequences longer than the original context.
    LongRope {
        /// Divisors for sequences within the original context.
        short_factor: Vec<f64>,
        /// Divisors for longer ones.
        long_factor: Vec<f64>,
        /// `original_max_position_embeddings`.
        original_context: usize,
        /// `max_position_embeddings`.
        max_context: usize,
        /// Multiplies cos and sin; follows from `factor` if it is not given.
        attention_factor: Option<f64>,
        /// How much the context has grown; `max_context / original_context` if it is not given.
        factor: Option<f64>,
    },
}

/// Cosines and sines, `[positions, dim / 2]` each, for [`rope`](super::rope).
#[derive(Clone, Debug)]
pub struct RopeTable {
    /// Cosines of the angles, times the attention factor.
    pub cos: Tensor,
    /// Sines of the angles, times the attention factor.
    pub sin: Tensor,
}

/// The table of some positions of a sequence. `sequence_length` is the length that the whole sequence has so far:
/// LongRoPE takes its long factors when that exceeds the original context.
///
/// ```
/// use candle_core::{DType, Device};
/// use tenterhook_nn::ops::{RopeScaling, RopeSpec, rope_table};
///
/// let spec = RopeSpec { dim: 64, theta: 10_000.0, scaling: RopeScaling::None };
/// let table = rope_table(&spec, 0..128, 128, DType::F32, &Device::Cpu)?;
/// assert_eq!(table.cos.dims(), [128, 32]);
/// # Ok::<(), candle_core::Error>(())
/// ```
pub fn rope_table(
    spec: &RopeSpec,
    positions: Range<usize>,
    sequence_length: usize,
    dtype: DType,
    device: &Device,
) -> Result<RopeTable> {
    let frequencies = spec.frequencies(sequence_length)?;
    let scale = spec.attention_factor() as f32;
    let table = |f: fn(f64) -> f64| {
        let row = |position| {
            let angle = move |frequency: &f32| f64::from(position as f32 * frequency);
            frequencies.iter().map(move |frequency| f(angle(frequency)) as f32 * scale)
        };
        let values: Vec<f32> = positions.clone().flat_map(row).collect();
        Tensor::from_vec(values, (positions.len(), frequencies.len()), device)?.to_dtype(dtype)
    };
    Ok(RopeTable { cos: table(f64::cos)?, sin: table(f64::sin)? })
}

impl RopeSpec {
    /// What cos and sin are multiplied with.
    pub fn attention_factor(&self) -> f64 {
        match &self.scaling {
            RopeScaling::Yarn { attention_factor: Some(factor), .. }
            | RopeScaling::LongRope { attention_factor: Some(factor), .. } => *factor,
            RopeScaling::Yarn { factor, mscale, mscale_all_dim, .. } => {
                let given = |scale: &Option<f64>| scale.filter(|scale| *scale != 0.0);
                match (given(mscale), given(mscale_all_dim)) {
                    (Some(mscale), Some(all)) => yarn_scale(*factor, mscale) / yarn_scale(*factor, all),
                    _ => yarn_scale(*factor, 1.0),
                }
            }
            RopeScaling::LongRope { original_context, max_context, factor, .. } => {
                let original = *original_context as f64;
                let factor = factor.unwrap_or(*max_context as f64 / original);
                if factor <= 1.0 { 1.0 } else { (1.0 + factor.ln() / original.ln()).sqrt() }
            }
            _ => 1.0,
        }
    }

    /// The angle per position of every pair.
    fn frequencies(&self, sequence_length: usize) -> Result<Vec<f32>> {
        let Self { dim, theta, scaling } = self;
        if dim % 2 != 0 || *dim == 0 {
            bail!("rope: {dim} rotated elements; pairs need an even number above 0");
        }
        let wavelengths = (0..*dim).step_by(2).map(|i| {
            let exponent = i as f32 / *dim as f32;
            f64::from(*theta as f32).powf(f64::from(exponent)) as f32
        });
        let plain = wavelengths.clone().map(|w| 1.0 / w);
        Ok(match scaling {
            RopeScaling::None => plain.collect(),
            RopeScaling::Linear { factor } => plain.map(|f| f / *factor as f32).collect(),
            RopeScaling::Llama3 { factor, low_freq_factor, high_freq_factor, original_context } => {
                let ramp = [*low_freq_factor, *high_freq_factor];
                plain.map(|f| llama3(f, *factor as f32, ramp, *original_context as f64)).collect()
            }
            RopeScaling::Yarn { factor, .. } => {
                let (low, high) = self.yarn_range();
                let ramp = |i: usize| ((i as f32 - low as f32) / (high - low) as f32).clamp(0.0, 1.0);
                let blend = |(i, wavelength): (usize, f32)| {
                    let kept = 1.0 - ramp(i);
                    (1.0 / (*factor as f32 * wavelength)) * (1.0 - kept) + (1.0 / wavelength) * kept
                };
                wavelengths.enumerate().map(blend).collect()
            }
            RopeScaling::LongRope { short_factor, long_factor, original_context, .. } => {
                let long = sequence_length > *original_context;
                let factors = if long { long_factor } else { short_factor };
                if factors.len() != dim / 2 {
                    bail!("rope: {} LongRoPE factors for {} frequencies", factors.len(), dim / 2);
                }
                wavelengths.zip(factors).map(|(w, factor)| 1.0 / (*factor as f32 * w)).collect()
            }
        })
    }

    /// Between which pairs YaRN's ramp runs.
    fn yarn_range(&self) -> (f64, f64) {
        let RopeScaling::Yarn { original_context, beta_fast, beta_slow, truncate, .. } = &self.scaling else {
            return (0.0, 1.0);
        };
        let dim = self.dim as f64;
        let pair = |rotations: f64| {
            dim * (*original_context as f64 / (rotations * 2.0 * PI)).ln() / (2.0 * self.theta.ln())
        };
        let (low, high) = (pair(*beta_fast), pair(*beta_slow));
        let (low, high) = if *truncate { (low.floor(), high.ceil()) } else { (low, high) };
        let (low, high) = (low.max(0.0), high.min(dim - 1.0));
        // The same escape from a division by zero as in transformers.
        if low == high { (low, high + 0.001) } else { (low, high) }
    }
}

fn yarn_scale(factor: f64, scale: f64) -> f64 {
    if factor <= 1.0 { 1.0 } else { 0.1 * scale * factor.ln() + 1.0 }
}

fn llama3(frequency: f32, factor: f32, [low, high]: [f64; 2], original_context: f64) -> f32 {
    let wavelength = (2.0 * PI) as f32 / frequency;
    if wavelength > (original_context / low) as f32 {
        frequency / factor
    } else if wavelength < (original_context / high) as f32 {
        frequency
    } else {
        let smooth = (original_context as f32 / wavelength - low as f32) / (high - low) as f32;
        (1.0 - smooth) * frequency / factor + smooth * frequency
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// `(position, pair, cos, sin)`, computed with transformers 5.22.
    type Reference = [(usize, usize, f64, f64)];

    fn check(spec: RopeSpec, sequence_length: usize, attention_factor: f64, expected: &Reference) {
        assert!((spec.attention_factor() - attention_factor).abs() < 1e-8, "{spec:?}");
        let table = rope_table(&spec, 0..4096, sequence_length, DType::F32, &Device::Cpu).unwrap();
        let [all_cos, all_sin] = [&table.cos, &table.sin].map(|t| t.to_vec2::<f32>().unwrap());
        for &(position, pair, cos, sin) in expected {
            let found = (f64::from(all_cos[position][pair]), f64::from(all_sin[position][pair]));
            let error = (found.0 - cos).abs().max((found.1 - sin).abs());
            assert!(
                error < 1e-6,
                "{spec:?}, position {position}, pair {pair}: {found:?} for {:?}",
                (cos, sin)
            );
        }
    }

    fn yarn(factor: f64, original_context: usize) -> RopeScaling {
        RopeScaling::Yarn {
            factor,
            original_context,
            beta_fast: 32.0,
            beta_slow: 1.0,
            mscale: None,
            mscale_all_dim: None,
            attention_factor: None,
            truncate: true,
        }
    }

    fn long_rope() -> RopeScaling {
        RopeScaling::LongRope {
            short_factor: (0..16).map(|i| 1.0 + 0.05 * f64::from(i)).collect(),
            long_factor: (0..16).map(|i| 1.0 + 0.5 * f64::from(i)).collect(),
            original_context: 4096,
            max_context: 131_072,
            attention_factor: None,
            factor: None,
        }
    }

    #[test]
    fn tables_have_the_numbers_of_transformers() {
        check(
            RopeSpec { dim: 64, theta: 10_000.0, scaling: RopeScaling::None },
            8,
            1.0,
            &[
                (77, 3, 0.49348509, 0.86975426),
                (77, 16, 0.71791071, 0.69613522),
                (4095, 3, 0.51585454, -0.85667622),
                (4095, 8, 0.45986333, 0.8879897),
                (4095, 16, -0.99403310, -0.10907880),
                (4095, 19, -0.01028865, -0.99994707),
            ],
        );
        check(
            RopeSpec { dim: 32, theta: 10_000.0, scaling: RopeScaling::Linear { factor: 4.0 } },
            8,
            1.0,
            &[
                (77, 3, -0.96061343, -0.27788827),
                (77, 8, 0.98152900, 0.19131331),
                (4095, 3, 0.98706299, -0.16033307),
                (4095, 4, -0.26985145, 0.96290195),
                (4095, 8, -0.68752420, -0.72616148),
                (4095, 11, -0.24713002, 0.96898234),
            ],
        );
        check(
            RopeSpec {
                dim: 64,
                theta: 500_000.0,
                scaling: RopeScaling::Llama3 {
                    factor: 8.0,
                    low_freq_factor: 1.0,
                    high_freq_factor: 4.0,
                    original_context: 8192,
                },
            },
            8,
            1.0,
            &[
                (77, 3, -0.87255186, -0.48852149),
                (77, 16, 0.99918348, 0.04040214),
                (4095, 3, -0.96274298, 0.27041820),
                (4095, 8, -0.99828064, -0.05861520),
                (4095, 16, -0.54672527, 0.83731204),
                (4095, 19, 0.97770792, 0.20996962),
            ],
        );
        check(
            RopeSpec { dim: 64, theta: 10_000.0, scaling: yarn(16.0, 2048) },
            8,
            1.27725887,
            &[
                (77, 3, 0.63030821, 1.11090136),
                (77, 16, 1.21008122, 0.40877092),
                (4095, 3, 0.65887976, -1.09419727),
                (4095, 8, 0.58736455, 1.13419271),
                (4095, 16, 0.05903846, -1.27589369),
                (4095, 19, -1.16187119, -0.53051436),
            ],
        );
        check(
            RopeSpec {
                dim: 64,
                theta: 10_000.0,
                scaling: RopeScaling::Yarn {
                    factor: 40.0,
                    original_context: 4096,
                    beta_fast: 16.0,
                    beta_slow: 2.0,
                    mscale: Some(0.707),
                    mscale_all_dim: Some(1.0),
                    attention_factor: None,
                    truncate: false,
                },
            },
            8,
            0.92104236,
            &[
                (77, 3, 0.45452067, 0.80108053),
                (77, 16, 0.83101010, 0.39716655),
                (4095, 3, 0.47512388, -0.78903508),
                (4095, 8, 0.42355362, 0.81787616),
                (4095, 16, 0.13630264, -0.91090101),
                (4095, 19, -0.91275126, 0.12330547),
            ],
        );
        check(
            RopeSpec { dim: 32, theta: 10_000.0, scaling: long_rope() },
            4096,
            1.19023807,
            &[
                (77, 3, 0.94054920, -0.72940660),
                (77, 8, 1.01470721, 0.62212229),
                (4095, 3, 0.22617456, -1.16855121),
                (4095, 4, -0.44942737, 1.10212612),
                (4095, 8, -0.66726726, -0.98560709),
                (4095, 11, -0.01700717, -1.19011664),
            ],
        );
        check(
            RopeSpec { dim: 32, theta: 10_000.0, scaling: long_rope() },
            4097,
            1.19023807,
            &[
                (77, 3, 0.82403648, -0.85885423),
                (77, 8, 1.17615223, 0.18257305),
                (4095, 3, -0.75288874, 0.92185974),
                (4095, 4, -0.18878102, -1.17517161),
                (4095, 8, -0.39245871, 1.12367392),
                (4095, 11, 0.51822728, 1.07149768),
            ],
        );
    }

    #[test]
    fn a_table_may_start_anywhere() {
        let spec = RopeSpec { dim: 16, theta: 10_000.0, scaling: RopeScaling::None };
        let all = rope_table(&spec, 0..50, 50, DType::F64, &Device::Cpu).unwrap();
        let part = rope_table(&spec, 20..23, 50, DType::F64, &Device::Cpu).unwrap();
        let expected = all.sin.narrow(0, 20, 3).unwrap();
        assert_eq!(part.sin.to_vec2::<f64>().unwrap(), expected.to_vec2::<f64>().unwrap());
    }

    #[test]
    fn impossible_specs_are_named() {
        let error = |dim, scaling| {
            let spec = RopeSpec { dim, theta: 10_000.0, scaling };
            rope_table(&spec, 0..1, 1, DType::F32, &Device::Cpu).unwrap_err().to_string()
        };
        assert!(error(7, RopeScaling::None).contains("even number"));
        assert!(error(8, long_rope()).contains("16 LongRoPE factors for 4 frequencies"));
    }
}
