//! [`Histogram`]: how many bytes of each rank there are, in fast and in slow memory.

use super::page::Page;
use super::table::Place;

/// Bytes by rank and place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Bytes in fast memory that can be moved, by rank (the degree, unless another ranking was
    /// set).
    pub fast: Vec<u64>,
    /// Bytes in slow memory that can be moved, by rank.
    pub slow: Vec<u64>,
    /// Bytes in fast memory that cannot be moved.
    pub fixed_fast: u64,
    /// Bytes in slow memory that cannot be moved.
    pub fixed_slow: u64,
}

/// Counts units by place and rank, as cheaply as can be: this is done for every page in every
/// window.
#[derive(Debug)]
pub(super) struct Tally {
    /// For each rank: bytes by the kind of place of the page.
    bytes: Vec<[u64; Page::KINDS]>,
}

impl Tally {
    pub(super) fn new(rank_max: u16) -> Self {
        Self {
            bytes: vec![[0; Page::KINDS]; usize::from(rank_max) + 1],
        }
    }

    #[inline]
    pub(super) fn add(&mut self, kind: usize, rank: u16, bytes: u64) {
        self.bytes[usize::from(rank)][kind] += bytes;
    }

    pub(super) fn finish(self) -> Histogram {
        let mut histogram = Histogram {
            fast: vec![0; self.bytes.len()],
            slow: vec![0; self.bytes.len()],
            ..Histogram::default()
        };
        for (rank, row) in self.bytes.iter().enumerate() {
            for (kind, bytes) in row.iter().enumerate() {
                if let Some(sum) = histogram.of(kind, rank as u16) {
                    *sum += bytes;
                }
            }
        }
        histogram
    }
}

impl Histogram {
    /// The bytes that a page of some kind and rank counts among; none for one that is nowhere.
    fn of(&mut self, kind: usize, rank: u16) -> Option<&mut u64> {
        match Page::place_of(kind) {
            (Place::Absent, _) => None,
            (Place::Fast, true) => Some(&mut self.fixed_fast),
            (Place::Slow, true) => Some(&mut self.fixed_slow),
            (Place::Fast, false) => self.fast.get_mut(usize::from(rank)),
            (Place::Slow, false) => self.slow.get_mut(usize::from(rank)),
        }
    }

    /// Counts a unit elsewhere, after it has become of another kind.
    pub(super) fn shift(&mut self, from: usize, to: usize, rank: u16, bytes: u64) {
        if let Some(sum) = self.of(from, rank) {
            *sum -= bytes;
        }
        if let Some(sum) = self.of(to, rank) {
            *sum += bytes;
        }
    }
}

impl Histogram {
    /// Bytes in fast memory.
    pub fn fast_bytes(&self) -> u64 {
        self.fast.iter().sum::<u64>() + self.fixed_fast
    }

    /// Bytes in slow memory.
    pub fn slow_bytes(&self) -> u64 {
        self.slow.iter().sum::<u64>() + self.fixed_slow
    }

    /// Bytes of rank `least` and above that can be moved.
    pub fn bytes_from(&self, least: u16) -> u64 {
        let above = |buckets: &[u64]| buckets.iter().skip(least.into()).sum::<u64>();
        above(&self.fast) + above(&self.slow)
    }
}
