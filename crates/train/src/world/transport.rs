//! How bytes get from rank to rank.

/// What a world needs of the machinery below it. All ranks call the same in the same order.
pub(super) trait Transport: Send + Sync {
    fn rank(&self) -> usize;

    fn size(&self) -> usize;

    /// The bytes of all ranks, in order; they need not be equally many.
    fn gather(&self, bytes: &[u8]) -> Vec<Vec<u8>>;

    /// `send` has a part for every rank, all of one length: rank `i` gets the `i`-th part of each, in the order of the ranks.
    fn all_to_all(&self, send: &[u8], receive: &mut [u8]);

    /// The bytes of all ranks, one behind the other; equally many of each.
    fn all_gather(&self, mine: &[u8], all: &mut [u8]);

    /// What rank 0 has.
    fn broadcast(&self, bytes: &mut [u8]);
}

/// A world of one.
pub(super) struct Alone;

impl Transport for Alone {
    fn rank(&self) -> usize {
        0
    }

    fn size(&self) -> usize {
        1
    }

    fn gather(&self, bytes: &[u8]) -> Vec<Vec<u8>> {
        vec![bytes.to_vec()]
    }

    fn all_to_all(&self, send: &[u8], receive: &mut [u8]) {
        receive.copy_from_slice(send);
    }

    fn all_gather(&self, mine: &[u8], all: &mut [u8]) {
        all.copy_from_slice(mine);
    }

    fn broadcast(&self, _bytes: &mut [u8]) {}
}
