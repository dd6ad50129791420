//! Randomness that can be resumed: every value is a function of (seed, stream, counter).
//!
//! There is no state to save and no order to keep: the same three numbers give the same value on
//! any thread, in any order, after any restart. The generator is Philox 4x32 with 10 rounds, the
//! counter-based generator that GPU libraries use; its published test vectors are below.

use serde::{Deserialize, Serialize};

const MULTIPLIER: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const ROUNDS: usize = 10;
const WEYL: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// One independent sequence of random values, addressed by counter.
///
/// ```
/// use tenterhook_hooks::random::Stream;
/// let dropout = Stream::new(42).named("blocks.0.dropout").at(7); // seed, place, step
/// assert_eq!(dropout.uniform(3), dropout.uniform(3)); // the same address, the same value
/// assert_ne!(dropout.uniform(3), dropout.uniform(4));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Stream {
    seed: u64,
    domain: u64,
}

impl Stream {
    /// The root stream of a seed.
    pub fn new(seed: u64) -> Self {
        Self { seed, domain: 0 }
    }

    /// A stream of its own for a named place: a layer, a hook, a data set.
    pub fn named(self, name: &str) -> Self {
        // FNV-1a: short, stable across versions and platforms, which std's hasher is not.
        let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        self.at(hash)
    }

    /// A stream of its own for a number: a step, an epoch, a rank.
    pub fn at(self, number: u64) -> Self {
        let [a, b, c, d] = philox(words(self.domain, number), key(self.seed ^ 0x7465_6e74_6572_686f));
        let mixed = u64::from(a) | u64::from(b) << 32;
        let more = u64::from(c) | u64::from(d) << 32;
        Self { seed: self.seed, domain: mixed ^ more.rotate_left(17) }
    }

    /// Four random words: the raw output of the generator at this counter.
    #[inline]
    pub fn block(&self, counter: u64) -> [u32; 4] {
        philox(words(self.domain, counter), key(self.seed))
    }

    /// [`Stream::block`] of `N` counters in a row, made side by side so that the compiler can vectorise.
    #[inline(always)]
    pub fn blocks<const N: usize>(&self, first: u64) -> [[u32; 4]; N] {
        let mut lanes = [[0u32; N]; 4];
        for i in 0..N {
            let counter = words(self.domain, first.wrapping_add(i as u64));
            for (lane, word) in lanes.iter_mut().zip(counter) {
                lane[i] = word;
            }
        }
        let mut key = key(self.seed);
        for _ in 0..ROUNDS {
            let [a, b, c, d] = &mut lanes;
            for i in 0..N {
                let low = u64::from(MULTIPLIER[0]) * u64::from(a[i]);
                let high = u64::from(MULTIPLIER[1]) * u64::from(c[i]);
                a[i] = (high >> 32) as u32 ^ b[i] ^ key[0];
                b[i] = high as u32;
                c[i] = (low >> 32) as u32 ^ d[i] ^ key[1];
                d[i] = low as u32;
            }
            key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
        }
        let mut blocks = [[0; 4]; N];
        for (i, block) in blocks.iter_mut().enumerate() {
            *block = [lanes[0][i], lanes[1][i], lanes[2][i], lanes[3][i]];
        }
        blocks
    }

    /// A random 64-bit number.
    #[inline]
    pub fn bits(&self, counter: u64) -> u64 {
        let [a, b, _, _] = self.block(counter);
        u64::from(a) | u64::from(b) << 32
    }

    /// A value in `[0, 1)` with 53 random bits.
    #[inline]
    pub fn uniform(&self, counter: u64) -> f64 {
        (self.bits(counter) >> 11) as f64 / (1u64 << 53) as f64
    }

    /// A value of the standard normal distribution (Box-Muller).
    pub fn normal(&self, counter: u64) -> f64 {
        let [a, b, c, d] = self.block(counter);
        let first = u64::from(a) | u64::from(b) << 32;
        let second = u64::from(c) | u64::from(d) << 32;
        let radius = ((first >> 11) as f64 + 1.0) / (1u64 << 53) as f64; // (0, 1]: its logarithm is finite
        let angle = (second >> 11) as f64 / (1u64 << 53) as f64;
        (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
    }

    /// A whole number in `0..bound` (0 when `bound` is 0).
    pub fn below(&self, counter: u64, bound: u64) -> u64 {
        ((u128::from(self.bits(counter)) * u128::from(bound)) >> 64) as u64
    }
}

fn words(high: u64, low: u64) -> [u32; 4] {
    [low as u32, (low >> 32) as u32, high as u32, (high >> 32) as u32]
}

fn key(seed: u64) -> [u32; 2] {
    [seed as u32, (seed >> 32) as u32]
}

#[inline]
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..ROUNDS {
        let low = u64::from(MULTIPLIER[0]) * u64::from(counter[0]);
        let high = u64::from(MULTIPLIER[1]) * u64::from(counter[2]);
        counter = [
            (high >> 32) as u32 ^ counter[1] ^ key[0],
            high as u32,
            (low >> 32) as u32 ^ counter[3] ^ key[1],
            low as u32,
        ];
        key = [key[0].wrapping_add(WEYL[0]), key[1].wrapping_add(WEYL[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The known answers that come with the Random123 paper's library.
    #[test]
    fn philox_gives_the_published_answers() {
        let check = |counter, key, want: [u32; 4]| assert_eq!(philox(counter, key), want);
        check([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        check([u32::MAX; 4], [u32::MAX; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        check(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        );
    }

    #[test]
    fn several_blocks_at_once_are_the_single_ones() {
        let stream = Stream::new(11).named("blocks");
        for first in [0, 5, u64::from(u32::MAX) - 3, u64::MAX - 2] {
            let expected = std::array::from_fn::<_, 8, _>(|i| stream.block(first.wrapping_add(i as u64)));
            assert_eq!(stream.blocks::<8>(first), expected);
        }
    }

    #[test]
    fn moments_are_those_of_the_distributions() {
        let stream = Stream::new(7).named("moments");
        let n = 100_000u64;
        let mean = |f: &dyn Fn(u64) -> f64| (0..n).map(f).sum::<f64>() / n as f64;
        assert!((mean(&|i| stream.uniform(i)) - 0.5).abs() < 5e-3);
        assert!(mean(&|i| stream.normal(i)).abs() < 1.5e-2);
        assert!((mean(&|i| stream.normal(i).powi(2)) - 1.0).abs() < 2e-2);
        assert!((0..n).all(|i| stream.below(i, 7) < 7));
        assert_eq!(stream.below(0, 0), 0);
    }

    #[test]
    fn streams_of_different_places_steps_and_seeds_differ() {
        let root = Stream::new(1);
        let all = [
            root,
            root.named("a"),
            root.named("b"),
            root.at(1),
            root.at(2),
            root.named("a").at(1),
            Stream::new(2),
        ];
        for (i, a) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|b| b.bits(0) != a.bits(0)));
        }
    }
}
