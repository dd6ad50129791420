//! A shuffled order without a table.

use crate::random::Stream;

/// With four rounds, the orders of four things do not come equally often (a test below); with six they do. The rest is margin.
const ROUNDS: usize = 10;

/// A random order of `0..n`: any position of it in constant time, with nothing stored.
///
/// A number is written as two digits, and each digit in turn is shifted by a random amount that depends on the other one
/// (a Feistel network, in mixed radix). Every such round can be undone, so the whole is a permutation. The digits cover a few
/// numbers more than `n`; who lands there goes on until inside (cycle walking), which is rare: there are at most sqrt(n) of them.
///
/// ```
/// use tenterhook_hooks::Permutation;
/// use tenterhook_hooks::random::Stream;
/// let order = Permutation::new(5, Stream::new(42).named("train").at(0)); // epoch 0
/// let mut all: Vec<u64> = (0..5).map(|i| order.get(i)).collect();
/// all.sort();
/// assert_eq!(all, [0, 1, 2, 3, 4]);
/// ```
#[derive(Clone, Debug)]
pub struct Permutation {
    n: u64,
    high: u64,
    low: u64,
    rounds: [Stream; ROUNDS],
}

impl Permutation {
    /// The order of `0..n` that belongs to this stream.
    pub fn new(n: u64, stream: Stream) -> Self {
        let root = n.isqrt();
        let high = if root * root == n { root } else { root + 1 }.max(1);
        let rounds = std::array::from_fn(|round| stream.at(round as u64));
        Self { n, high, low: n.div_ceil(high).max(1), rounds }
    }

    /// What stands at position `i` of the order; a position outside `0..n` stays where it is.
    pub fn get(&self, i: u64) -> u64 {
        if i >= self.n {
            return i;
        }
        let mut at = self.walk(i);
        while at >= self.n {
            at = self.walk(at);
        }
        at
    }

    fn walk(&self, i: u64) -> u64 {
        let (mut high, mut low) = (i / self.low, i % self.low);
        for pair in self.rounds.chunks_exact(2) {
            high = shifted(high, pair[0].below(low, self.high), self.high);
            low = shifted(low, pair[1].below(high, self.low), self.low);
        }
        high * self.low + low
    }
}

/// Both are digits, at most 2^32: no overflow.
fn shifted(digit: u64, by: u64, radix: u64) -> u64 {
    let sum = digit + by;
    if sum >= radix { sum - radix } else { sum }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    fn order(n: u64, seed: u64, epoch: u64) -> Vec<u64> {
        let permutation = Permutation::new(n, Stream::new(seed).at(epoch));
        (0..n).map(|i| permutation.get(i)).collect()
    }

    #[test]
    fn every_size_gives_every_number_once() {
        for n in (0..300).chain((300..2000).step_by(7)) {
            let mut all = order(n, n, 1);
            all.sort_unstable();
            assert!(all.into_iter().eq(0..n), "n = {n}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn large_sizes_stay_inside_and_collide_nowhere(n in 100_000u64.., seed: u64, start: u64) {
            let permutation = Permutation::new(n, Stream::new(seed));
            let from = start % (n - 1000);
            let images: BTreeSet<u64> = (from..from + 1000).map(|i| permutation.get(i)).collect();
            prop_assert_eq!(images.len(), 1000);
            prop_assert!(images.iter().all(|image| *image < n));
        }
    }

    #[test]
    fn the_largest_sizes_do_not_overflow() {
        for n in [u64::MAX, u64::MAX - 1, u64::from(u32::MAX).pow(2), u64::from(u32::MAX).pow(2) + 1, 1 << 63]
        {
            let permutation = Permutation::new(n, Stream::new(3));
            let images: BTreeSet<u64> = (0..100).chain(n - 100..n).map(|i| permutation.get(i)).collect();
            assert_eq!(images.len(), 200);
            assert!(images.iter().all(|image| *image < n));
        }
    }

    #[test]
    fn the_order_never_changes_between_versions() {
        // A run that is resumed with a newer version must go on in its old order.
        assert_eq!(order(10, 42, 3), [0, 6, 1, 5, 3, 8, 2, 7, 9, 4]);
        assert_eq!(Permutation::new(1 << 40, Stream::new(42)).get(123_456_789), 1_065_334_926_625);
    }

    #[test]
    fn epochs_and_seeds_have_orders_of_their_own() {
        let first = order(100, 1, 0);
        assert_eq!(first, order(100, 1, 0));
        assert_ne!(first, order(100, 1, 1));
        assert_ne!(first, order(100, 2, 0));
        let fixed =
            |epoch| order(100, 1, epoch).iter().enumerate().filter(|(i, at)| *i as u64 == **at).count();
        let mean = (0..400).map(fixed).sum::<usize>() as f64 / 400.0;
        assert!((mean - 1.0).abs() < 0.2, "{mean} of 100 stay in place, 1 is expected");
    }

    #[test]
    fn all_orders_of_four_come_equally_often() {
        let mut counts: BTreeMap<Vec<u64>, f64> = BTreeMap::new();
        let draws = 12_000;
        for epoch in 0..draws {
            *counts.entry(order(4, 9, epoch)).or_default() += 1.0;
        }
        assert_eq!(counts.len(), 24);
        let expected = draws as f64 / 24.0;
        let chi_squared: f64 = counts.values().map(|count| (count - expected).powi(2) / expected).sum();
        assert!(
            chi_squared < 49.7,
            "{chi_squared}: one in a thousand exceeds 49.7 with 23 degrees of freedom"
        );
    }

    #[test]
    fn where_an_element_goes_is_uniform() {
        let n = 37; // the digits cover 42: who lands beyond must not be sent to favourites
        let mut counts = vec![vec![0.0f64; n]; n];
        let draws = 3700;
        for epoch in 0..draws {
            for (i, at) in order(n as u64, 4, epoch).into_iter().enumerate() {
                counts[i][at as usize] += 1.0;
            }
        }
        let expected = draws as f64 / n as f64;
        let chi_squared: f64 =
            counts.iter().flatten().map(|count| (count - expected).powi(2) / expected).sum();
        // 36 * 36 degrees of freedom: mean 1296, deviation 51.
        assert!((chi_squared - 1296.0).abs() < 4.0 * 51.0, "{chi_squared}");
    }
}
