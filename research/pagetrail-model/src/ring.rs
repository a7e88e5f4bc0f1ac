//! [`Ring`]: the buffer through which logged addresses reach a tracker.
//!
//! It lies in the guest's memory, one per tracked process, and is written by the thread that
//! empties the log: the hypervisor (SPML) or the guest kernel (EPML). Both reach it through
//! [`Words`]. The first page holds two counters that only grow (entries produced, entries consumed)
//! and a third of entries that did not fit; the others hold the entries. The guest can write
//! nonsense into the counters: the positions computed from them stay inside the ring whatever they
//! are.

use crate::Error;
use crate::machine::{Gpa, PAGE_BYTES};

/// Access to guest-physical memory, word by word.
pub(crate) trait Words {
    fn read(&mut self, at: Gpa) -> Result<u64, Error>;
    fn write(&mut self, at: Gpa, value: u64) -> Result<(), Error>;
}

const PRODUCED: u64 = 0;
const CONSUMED: u64 = 8;
const LOST: u64 = 16;
const ENTRIES_PER_PAGE: u64 = PAGE_BYTES / 8;

/// Where a ring lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Ring {
    header: Gpa,
    pages: Vec<Gpa>,
}

/// What a tracker found in a ring.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Drained {
    pub(crate) addresses: Vec<u64>,
    /// Some addresses did not fit: nothing may be concluded from their absence.
    pub(crate) lost: bool,
}

impl Ring {
    /// A ring on pages that read as zero, or `None` when there are fewer than two.
    pub(crate) fn new(pages: &[Gpa]) -> Option<Self> {
        let (&header, pages) = pages.split_first()?;
        (!pages.is_empty()).then(|| Self {
            header,
            pages: pages.to_vec(),
        })
    }

    /// All pages of the ring.
    pub(crate) fn pages(&self) -> impl Iterator<Item = Gpa> {
        std::iter::once(self.header).chain(self.pages.iter().copied())
    }

    fn capacity(&self) -> u64 {
        self.pages.len() as u64 * ENTRIES_PER_PAGE
    }

    fn slot(&self, count: u64) -> Gpa {
        let position = count % self.capacity();
        self.pages[(position / ENTRIES_PER_PAGE) as usize].add(position % ENTRIES_PER_PAGE * 8)
    }

    /// Appends `addresses`; returns how many did not fit.
    pub(crate) fn push(&self, memory: &mut impl Words, addresses: &[u64]) -> Result<u64, Error> {
        let mut produced = memory.read(self.header.add(PRODUCED))?;
        let consumed = memory.read(self.header.add(CONSUMED))?;
        let room = self
            .capacity()
            .saturating_sub(produced.wrapping_sub(consumed));
        let (fit, lost) = addresses.split_at(addresses.len().min(room as usize));
        for &address in fit {
            memory.write(self.slot(produced), address)?;
            produced = produced.wrapping_add(1);
        }
        memory.write(self.header.add(PRODUCED), produced)?;
        if !lost.is_empty() {
            let before = memory.read(self.header.add(LOST))?;
            memory.write(
                self.header.add(LOST),
                before.saturating_add(lost.len() as u64),
            )?;
        }
        Ok(lost.len() as u64)
    }

    /// Takes everything out.
    pub(crate) fn drain(&self, memory: &mut impl Words) -> Result<Drained, Error> {
        let produced = memory.read(self.header.add(PRODUCED))?;
        let mut consumed = memory.read(self.header.add(CONSUMED))?;
        let mut addresses = Vec::new();
        while consumed != produced && (addresses.len() as u64) < self.capacity() {
            addresses.push(memory.read(self.slot(consumed))?);
            consumed = consumed.wrapping_add(1);
        }
        memory.write(self.header.add(CONSUMED), produced)?;
        let lost = memory.read(self.header.add(LOST))? != 0;
        memory.write(self.header.add(LOST), 0)?;
        Ok(Drained { addresses, lost })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Memory that refuses everything outside of the ring's pages.
    struct Fenced {
        pages: Vec<Gpa>,
        words: BTreeMap<Gpa, u64>,
    }

    impl Words for Fenced {
        fn read(&mut self, at: Gpa) -> Result<u64, Error> {
            assert!(
                self.pages.contains(&at.page()),
                "read outside of the ring: {at:?}"
            );
            Ok(self.words.get(&at).copied().unwrap_or(0))
        }

        fn write(&mut self, at: Gpa, value: u64) -> Result<(), Error> {
            assert!(
                self.pages.contains(&at.page()),
                "write outside of the ring: {at:?}"
            );
            self.words.insert(at, value);
            Ok(())
        }
    }

    fn ring() -> (Ring, Fenced) {
        let pages = [0x10_0000, 0x20_0000, 0x7000].map(Gpa::new).to_vec();
        (
            Ring::new(&pages).unwrap(),
            Fenced {
                pages,
                words: BTreeMap::new(),
            },
        )
    }

    #[test]
    fn what_goes_in_comes_out_in_order_past_the_end_of_the_ring() {
        let (ring, mut memory) = ring();
        let mut next = 0;
        for round in 0..10 {
            let batch: Vec<u64> = (next..next + 300 + round).collect();
            next += 300 + round;
            assert_eq!(ring.push(&mut memory, &batch).unwrap(), 0);
            assert_eq!(
                ring.drain(&mut memory).unwrap(),
                Drained {
                    addresses: batch,
                    lost: false
                }
            );
        }
    }

    #[test]
    fn a_full_ring_says_so_once_and_keeps_what_it_has() {
        let (ring, mut memory) = ring();
        let batch: Vec<u64> = (0..1500).collect();
        assert_eq!(ring.push(&mut memory, &batch).unwrap(), 1500 - 1024);
        let drained = ring.drain(&mut memory).unwrap();
        assert_eq!(
            (drained.addresses.as_slice(), drained.lost),
            (&batch[..1024], true)
        );
        assert_eq!(ring.drain(&mut memory).unwrap(), Drained::default());
    }

    #[test]
    fn nonsense_in_the_counters_leads_nowhere_else() {
        for produced in [0, 1, 1023, 1024, 1025, u64::MAX, 1 << 63] {
            for consumed in [0, 1, 5000, u64::MAX, 1 << 63] {
                let (ring, mut memory) = ring();
                memory.words.insert(ring.header.add(PRODUCED), produced);
                memory.words.insert(ring.header.add(CONSUMED), consumed);
                ring.push(&mut memory, &[1; 2000]).unwrap();
                ring.drain(&mut memory).unwrap();
            }
        }
    }
}
