//! [`Histogram`]: how many bytes of each rank there are, in fast and in slow memory.

/// Bytes by rank and place.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Histogram {
    /// Bytes in fast memory that can be moved, by rank (the degree, unless another ranking was set).
    pub fast: Vec<u64>,
    /// Bytes in slow memory that can be moved, by rank.
    pub slow: Vec<u64>,
    /// Bytes in fast memory that cannot be moved.
    pub fixed_fast: u64,
    /// Bytes in slow memory that cannot be moved.
    pub fixed_slow: u64,
}

/// Counts units by place and rank, as cheaply as can be: this is done for every page in every window.
#[derive(Debug)]
pub(super) struct Tally {
    /// For each of slow, fast, slow and fixed, fast and fixed: bytes by rank.
    bytes: Vec<u64>,
    ranks: usize,
}

impl Tally {
    pub(super) fn new(rank_max: u16) -> Self {
        let ranks = usize::from(rank_max) + 1;
        Self {
            bytes: vec![0; 4 * ranks],
            ranks,
        }
    }

    #[inline]
    pub(super) fn add(&mut self, fast: bool, fixed: bool, rank: u16, bytes: u64) {
        let row = usize::from(fast) + 2 * usize::from(fixed);
        self.bytes[row * self.ranks + usize::from(rank)] += bytes;
    }

    pub(super) fn finish(self) -> Histogram {
        let mut rows = self.bytes.chunks(self.ranks);
        let mut row = || rows.next().unwrap_or_default().to_vec();
        let (slow, fast) = (row(), row());
        Histogram {
            fast,
            slow,
            fixed_slow: row().iter().sum(),
            fixed_fast: row().iter().sum(),
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
