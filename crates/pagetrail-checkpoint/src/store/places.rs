//! [`Places`]: which pages of a pack are meant, by their places; ranges of them, since what a
//! manifest says may be any number.

use crate::format::pack::Pack;
use crate::format::patch::FIRST_PATCH;
use pagetrail::{PageRange, PageSet};

/// Places of pages in a pack.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Places(PageSet);

impl Places {
    /// The pages of a pack that there are.
    pub(crate) fn of(pack: &Pack) -> Self {
        let mut places = Self::default();
        places.insert(0, pack.plain_pages().into());
        places.insert(FIRST_PATCH, pack.patched_pages().into());
        places
    }

    pub(crate) fn insert(&mut self, from: u32, count: u64) {
        let from = u64::from(from);
        if let Some(range) = PageRange::new(from, from.saturating_add(count)) {
            self.0.insert(range);
        }
    }

    /// Adds a place; says whether it is new.
    pub(crate) fn add(&mut self, place: u32) -> bool {
        let is_new = !self.contains(place);
        self.insert(place, 1);
        is_new
    }

    pub(crate) fn contains(&self, place: u32) -> bool {
        self.0.contains(place.into())
    }

    pub(crate) fn intersects(&self, from: u32, count: u64) -> bool {
        let from = u64::from(from);
        PageRange::new(from, from.saturating_add(count)).is_some_and(|r| self.0.intersects(r))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(crate) fn count(&self) -> u64 {
        self.0.bytes()
    }

    pub(crate) fn union(&self, other: &Self) -> Self {
        Self(self.0.union(&other.0))
    }

    pub(crate) fn intersection(&self, other: &Self) -> Self {
        Self(self.0.intersection(&other.0))
    }

    /// Places of patched pages.
    pub(crate) fn patches(&self) -> Self {
        let mut patches = Self::default();
        patches.insert(FIRST_PATCH, u64::from(u32::MAX - FIRST_PATCH));
        self.intersection(&patches)
    }

    /// One after the other. The set should be within a pack's own places ([`Self::of`]).
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter_units(1).map(|place| place as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_of_places_is_a_range() {
        let mut places = Places::default();
        places.insert(3, u64::MAX);
        assert!(places.contains(3) && places.contains(u32::MAX) && !places.contains(2));
        let mut few = Places::default();
        assert!(few.add(7) && !few.add(7) && few.add(FIRST_PATCH + 1));
        let both = places.intersection(&few);
        assert_eq!(both.iter().collect::<Vec<_>>(), [7, FIRST_PATCH + 1]);
        assert_eq!(both.patches().count(), 1);
        assert!(few.intersects(0, 8) && !few.intersects(8, 100));
    }
}
