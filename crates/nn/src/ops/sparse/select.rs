//! Which elements are the largest: of a row, or of a whole batch.

use candle_core::WithDType;
use rayon::prelude::*;
use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use super::super::cpu::CHUNK;
use super::super::real::Real;

/// A value and its place. The larger value is greater, and of equal ones the one that comes first.
struct Entry<T>(T, usize);

impl<T: Real> Ord for Entry<T> {
    fn cmp(&self, other: &Self) -> Ordering {
        rank(self.0).total_cmp(&rank(other.0)).then_with(|| other.1.cmp(&self.1))
    }
}

impl<T: Real> PartialOrd for Entry<T> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<T: Real> PartialEq for Entry<T> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl<T: Real> Eq for Entry<T> {}

/// NaN counts as the largest, as in PyTorch: it must not get lost.
fn rank<T: Real>(value: T) -> f64 {
    if value.is_nan() { f64::INFINITY } else { WithDType::to_f64(value) }
}

/// The places of the `k` largest of `len` values, ascending. Of equal values those that come first are taken.
pub(super) fn largest_of_row<T: Real>(len: usize, k: usize, value: impl Fn(usize) -> T) -> Vec<usize> {
    // Most elements are only compared with the smallest that is kept: whole stretches of them at once.
    const STRETCH: usize = 32;
    let mut kept: BinaryHeap<Reverse<Entry<T>>> = BinaryHeap::with_capacity(k + 1);
    let filled = k.min(len);
    kept.extend((0..filled).map(|i| Reverse(Entry(value(i), i))));
    let mut start = filled;
    while start < len && k > 0 {
        let end = (start + STRETCH).min(len);
        let least = kept.peek().map_or(T::neg_infinity(), |Reverse(entry)| entry.0);
        let any = (start..end).map(&value).fold(false, |any, value| any | (value > least) | value.is_nan());
        if any {
            for i in start..end {
                let entry = Entry(value(i), i);
                if kept.peek().is_some_and(|Reverse(least)| entry > *least) {
                    kept.pop();
                    kept.push(Reverse(entry));
                }
            }
        }
        start = end;
    }
    let mut places: Vec<usize> = kept.into_iter().map(|Reverse(entry)| entry.1).collect();
    places.sort_unstable();
    places
}

/// What separates the `count` largest positive values of a batch from the rest: everything above `value` is in, and of those that equal it
/// the first `ties`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cut {
    pub(super) key: u64,
    pub(super) ties: usize,
}

/// Positive numbers in the order of their bits; all others are 0. NaN is the largest.
#[inline(always)]
pub(super) fn key<T: Real>(value: T) -> u64 {
    let value = rank(value);
    if value > 0.0 { value.to_bits() } else { 0 }
}

/// Finds the cut by looking at 16 bits of the keys after the other, so that nothing has to be sorted or copied.
pub(super) fn cut_of_batch<T: Real>(values: usize, count: usize, value: impl Fn(usize) -> T + Sync) -> Cut {
    let (mut prefix, mut wanted) = (0u64, count);
    for shift in [48u32, 32, 16, 0] {
        let histogram = (0..values.div_ceil(CHUNK))
            .into_par_iter()
            .fold(
                || vec![0usize; 1 << 16],
                |mut histogram, chunk| {
                    for i in chunk * CHUNK..((chunk + 1) * CHUNK).min(values) {
                        let key = key(value(i));
                        let same_prefix = shift == 48 || key >> (shift + 16) == prefix >> (shift + 16);
                        if key != 0 && same_prefix {
                            histogram[(key >> shift) as usize & 0xFFFF] += 1;
                        }
                    }
                    histogram
                },
            )
            .reduce(
                || vec![0usize; 1 << 16],
                |mut a, b| {
                    a.iter_mut().zip(b).for_each(|(a, b)| *a += b);
                    a
                },
            );
        // Whole numbers add up to the same in any order.
        let mut bin = histogram.len();
        while bin > 0 {
            bin -= 1;
            if histogram[bin] >= wanted {
                break;
            }
            wanted -= histogram[bin];
        }
        if bin == 0 && histogram[0] < wanted {
            // Fewer positive values than wanted: all of them are in.
            return Cut { key: 0, ties: 0 };
        }
        prefix |= (bin as u64) << shift;
    }
    Cut { key: prefix, ties: wanted }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted_choice(values: &[f64], k: usize) -> Vec<usize> {
        let mut places: Vec<usize> = (0..values.len()).collect();
        places.sort_by(|a, b| values[*b].total_cmp(&values[*a]).then(a.cmp(b)));
        places.truncate(k);
        places.sort_unstable();
        places
    }

    /// Numbers with many ties.
    fn numbers(len: usize, seed: u64) -> Vec<f64> {
        (0..len as u64).map(|i| (((i * 2_654_435_761 + seed * 97) >> 7) % 41) as f64 * 0.25 - 4.0).collect()
    }

    #[test]
    fn rows_give_what_sorting_gives() {
        for (len, seed) in [(1, 1), (7, 2), (64, 3), (200, 4), (1000, 5)] {
            let values = numbers(len, seed);
            for k in [0, 1, 2, 5, 32, 199, len] {
                let k = k.min(len);
                assert_eq!(largest_of_row(len, k, |i| values[i]), sorted_choice(&values, k), "{len} {k}");
            }
        }
    }

    #[test]
    fn nan_is_never_left_out() {
        let mut values = numbers(100, 1);
        values[77] = f64::NAN;
        assert!(largest_of_row(100, 3, |i| values[i]).contains(&77));
        assert_eq!(key(f64::NAN), f64::INFINITY.to_bits());
    }

    #[test]
    fn a_batch_is_cut_where_sorting_cuts_it() {
        for (len, seed) in [(9, 1), (300, 2), (40_000, 3)] {
            let values = numbers(len, seed);
            let mut positive: Vec<f64> = values.iter().copied().filter(|v| *v > 0.0).collect();
            positive.sort_by(|a, b| b.total_cmp(a));
            for count in [1, 2, 3, 100, positive.len(), positive.len() + 1] {
                let cut = cut_of_batch(len, count, |i| values[i] as f32);
                match positive.get(count - 1) {
                    None => assert_eq!(cut, Cut { key: 0, ties: 0 }),
                    Some(value) => {
                        let above = positive.iter().filter(|other| *other > value).count();
                        assert_eq!(cut, Cut { key: value.to_bits(), ties: count - above });
                    }
                }
            }
        }
    }
}
