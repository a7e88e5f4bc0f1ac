//! [`WriteSet`]: what a technique reports for a round.

use crate::machine::Gva;

/// Units written, each once, in order. A unit is a page, or a part of a page.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WriteSet {
    unit_bytes: u64,
    units: Vec<Gva>,
}

impl WriteSet {
    /// The units that hold `addresses`.
    pub fn new(unit_bytes: u64, addresses: impl IntoIterator<Item = Gva>) -> Self {
        let unit = |gva: Gva| Gva::new(gva.get() - gva.get() % unit_bytes);
        let mut units: Vec<Gva> = addresses.into_iter().map(unit).collect();
        units.sort_unstable();
        units.dedup();
        Self { unit_bytes, units }
    }

    /// Size of a unit.
    pub fn unit_bytes(&self) -> u64 {
        self.unit_bytes
    }

    /// The units, by the address of their first byte.
    pub fn units(&self) -> &[Gva] {
        &self.units
    }

    /// Whether the unit that holds `gva` is in the set.
    pub fn contains(&self, gva: Gva) -> bool {
        self.units
            .binary_search(&Gva::new(gva.get() - gva.get() % self.unit_bytes))
            .is_ok()
    }

    /// Number of units.
    pub fn len(&self) -> usize {
        self.units.len()
    }

    /// Whether nothing was written.
    pub fn is_empty(&self) -> bool {
        self.units.is_empty()
    }

    /// What a consumer has to copy.
    pub fn bytes(&self) -> u64 {
        self.units.len() as u64 * self.unit_bytes
    }

    /// The pages of this set that `other` does not hold.
    pub fn missing_from<'a>(&'a self, other: &'a Self) -> impl Iterator<Item = Gva> + 'a {
        self.units
            .iter()
            .copied()
            .filter(|&unit| !other.contains(unit))
    }
}
