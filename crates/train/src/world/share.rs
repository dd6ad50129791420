//! What of a whole is one rank's.

use std::ops::Range;

/// The part of one rank among `size`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Share {
    /// Which rank.
    pub rank: usize,
    /// Of how many.
    pub size: usize,
}

impl Share {
    /// Everything.
    pub const WHOLE: Self = Self { rank: 0, size: 1 };

    /// Which of `len` things in a row are this rank's: the parts of all ranks follow each other, and none has more than one thing more
    /// than another. With fewer things than ranks some have none.
    ///
    /// ```
    /// use tenterhook_train::Share;
    /// let parts = [0, 1, 2].map(|rank| Share { rank, size: 3 }.of(8));
    /// assert_eq!(parts, [0..2, 2..5, 5..8]);
    /// ```
    pub fn of(self, len: usize) -> Range<usize> {
        let (len, rank, size) = (len as u128, self.rank as u128, self.size.max(1) as u128);
        // Both are at most `len`.
        (len * rank / size) as usize..(len * (rank + 1) / size) as usize
    }

    /// Whether the thing with this number is this rank's, where they are dealt out in turns.
    pub fn has(self, number: u64) -> bool {
        number % self.size.max(1) as u64 == self.rank as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p28_the_parts_are_the_whole_and_nearly_equal() {
        for size in 1..9 {
            for len in [0, 1, 2, 3, 7, 8, 9, 64, 1000, usize::MAX] {
                let parts: Vec<_> = (0..size).map(|rank| Share { rank, size }.of(len)).collect();
                assert!(parts[0].start == 0 && parts[size - 1].end == len);
                assert!(parts.windows(2).all(|pair| pair[0].end == pair[1].start));
                let lengths: Vec<usize> = parts.iter().map(|part| part.end - part.start).collect();
                assert!(lengths.iter().max().unwrap() - lengths.iter().min().unwrap() <= 1);
            }
            for number in 0..20 {
                assert_eq!((0..size).filter(|rank| Share { rank: *rank, size }.has(number)).count(), 1);
            }
        }
    }
}
