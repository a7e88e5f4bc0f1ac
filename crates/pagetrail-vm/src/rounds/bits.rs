//! [`SlotPages`]: a set of pages that are added by memslot and page number, in any order, and
//! returned by address. Pure.
//!
//! It has a bit per page and a bit per 64 of those: an entry of a dirty ring costs two stores,
//! whatever the order of the entries, and nothing is sorted.

use std::mem;

use pagetrail::PageRange;

use crate::memory::PAGE;
use crate::memory::slots::{SLOT, Slot};

/// The number of pages whose bits share a word, which is also how many KVM re-protects together.
pub(super) const NEAR: u64 = 64;
/// The number of words per memslot.
const WORDS: usize = (SLOT / PAGE / NEAR) as usize;

/// The pages of one memslot.
#[derive(Debug)]
struct Bits {
    words: Box<[u64]>,
    /// A bit per word that is not zero.
    filled: [u64; WORDS / 64],
}

impl Bits {
    fn empty() -> Self {
        Self {
            words: vec![0; WORDS].into(),
            filled: [0; WORDS / 64],
        }
    }

    fn set(&mut self, page: u64) {
        self.add((page / NEAR) as usize % WORDS, 1 << (page % NEAR));
    }

    fn add(&mut self, word: usize, bits: u64) {
        self.words[word] |= bits;
        self.filled[word / 64] |= 1 << (word % 64);
    }

    /// Removes all words that are not zero, and yields them in ascending order.
    fn drain(&mut self, mut each: impl FnMut(usize, u64)) {
        for (group, filled) in self.filled.iter_mut().enumerate() {
            for bit in ones(mem::take(filled)) {
                let word = group * 64 + bit as usize;
                each(word, mem::take(&mut self.words[word]));
            }
        }
    }
}

/// The positions of the set bits, ascending.
fn ones(mut bits: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let place = bits.trailing_zeros();
        bits &= bits.wrapping_sub(1);
        (place < 64).then_some(place.into())
    })
}

/// Pages of all memslots, indexed by the memslot's number.
#[derive(Debug, Default)]
pub(super) struct SlotPages(Vec<Option<Bits>>);

impl SlotPages {
    pub(super) fn set(&mut self, slot: u32, page: u64) {
        self.of(slot as usize).set(page);
    }

    fn of(&mut self, slot: usize) -> &mut Bits {
        if self.0.len() <= slot {
            self.0.resize_with(slot + 1, || None);
        }
        self.0[slot].get_or_insert_with(Bits::empty)
    }

    /// Removes the pages of these memslots, and returns them in that order.
    pub(super) fn drain(&mut self, slots: impl Iterator<Item = Slot>) -> Vec<PageRange> {
        let mut ranges = Vec::new();
        for slot in slots {
            if let Some(Some(bits)) = self.0.get_mut(slot.number as usize) {
                bits.drain(|word, bits| {
                    let first = slot.address + word as u64 * NEAR * PAGE;
                    add_runs(bits, first, &mut ranges);
                });
            }
        }
        ranges
    }

    /// The number of aligned runs of [`NEAR`] pages that have any page.
    pub(super) fn runs(&self) -> u64 {
        let filled = self.0.iter().flatten().flat_map(|bits| bits.filled);
        filled.map(|word| u64::from(word.count_ones())).sum()
    }

    /// Moves all pages to `other`, and yields each once; those of a memslot in ascending order.
    pub(super) fn drain_to(&mut self, other: &mut Self, mut each: impl FnMut(u32, u64)) {
        for (slot, pages) in self.0.iter_mut().enumerate() {
            if let Some(pages) = pages {
                let into = other.of(slot);
                pages.drain(|word, bits| {
                    into.add(word, bits);
                    ones(bits).for_each(|bit| each(slot as u32, word as u64 * NEAR + bit));
                });
            }
        }
    }
}

/// Appends the pages whose bits are set. The first bit's page is at `address`, which is not below
/// the end of `ranges`.
pub(crate) fn add_runs(word: u64, address: u64, ranges: &mut Vec<PageRange>) {
    let mut rest = word;
    while rest != 0 {
        let first = rest.trailing_zeros();
        let count = (rest >> first).trailing_ones();
        let start = address + u64::from(first) * PAGE;
        let end = start + u64::from(count) * PAGE;
        match ranges.last_mut() {
            Some(last) if last.end() == start => {
                *last = PageRange::new(last.start(), end).unwrap_or(*last);
            }
            _ => ranges.extend(PageRange::new(start, end)),
        }
        rest &= u64::MAX.checked_shl(first + count).unwrap_or(0);
    }
}

#[cfg(test)]
mod tests {
    use pagetrail::PageSet;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// The set is compared with a plain set of pages.
        #[test]
        fn pages_come_out_as_they_went_in(
            pages in prop::collection::vec((1u32..4, prop_oneof![0u64..200, 0u64..SLOT / PAGE]), 0..300)
        ) {
            // The memslots' numbers are in another order than their addresses.
            let slots = [3u32, 1, 2].map(|number| Slot { number, address: u64::from(4 - number % 3) << 30 });
            let mut sorted = slots.to_vec();
            sorted.sort_by_key(|slot| slot.address);
            let (mut new_pages, mut collected) = (SlotPages::default(), SlotPages::default());
            let mut expected = PageSet::new();
            for (number, page) in pages {
                new_pages.set(number, page);
                if page % 7 == 0 {
                    collected.set(number, page);
                }
                let slot = slots.iter().find(|slot| slot.number == number).unwrap();
                let start = slot.address + page * PAGE;
                expected.insert(PageRange::new(start, start + PAGE).unwrap());
            }
            let runs = new_pages.runs();
            let mut moved = Vec::new();
            new_pages.drain_to(&mut collected, |slot, page| moved.push((slot, page)));
            prop_assert!(moved.is_sorted_by(|one, next| one < next));
            prop_assert_eq!(moved.len() as u64 * PAGE, expected.bytes());
            moved.dedup_by_key(|(slot, page)| (*slot, *page / NEAR));
            prop_assert_eq!(moved.len() as u64, runs);
            prop_assert_eq!(new_pages.runs(), 0);
            let ranges = collected.drain(sorted.iter().copied());
            prop_assert!(ranges.is_sorted());
            let set: PageSet = ranges.into_iter().collect();
            prop_assert_eq!(&set, &expected);
            prop_assert!(collected.drain(sorted.into_iter()).is_empty());
        }
    }

    #[test]
    fn runs_go_on_from_word_to_word() {
        let mut ranges = Vec::new();
        add_runs(1 << 63 | 0b110, 0x4000_0000, &mut ranges);
        add_runs(u64::MAX, 0x4004_0000, &mut ranges);
        add_runs(1, 0x4008_0000, &mut ranges);
        let expected = [
            PageRange::new(0x4000_1000, 0x4000_3000).unwrap(),
            PageRange::new(0x4003_f000, 0x4008_1000).unwrap(),
        ];
        assert_eq!(ranges, expected);
    }
}
