//! Random numbers that are the same everywhere: SplitMix64 and Zipf's law in whole numbers.

/// SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `bound`, which is not 0 (multiply-shift; the bias is below 2^-32 for our
    /// bounds).
    pub(super) fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// Ranks with a popularity of 1, 1/2, 1/3, ...
#[derive(Clone, Debug)]
pub(super) struct Zipf {
    /// Sums of the popularities up to each rank.
    sums: Vec<u64>,
}

impl Zipf {
    pub(super) fn new(ranks: u64) -> Self {
        let mut sum = 0;
        let sums = (1..=ranks).map(|rank| {
            sum += (1_u64 << 40) / rank;
            sum
        });
        Self {
            sums: sums.collect(),
        }
    }

    pub(super) fn rank(&self, random: &mut Random) -> u64 {
        let total = self.sums.last().copied().unwrap_or(1);
        let at = random.below(total);
        self.sums.partition_point(|&sum| sum <= at) as u64
    }
}
