//! [`Spread`]: whether a program that touches a page will touch the pages around it; pure.
//!
//! To unpack and give a block of pages takes ten times as long as a page. So a fault brings a
//! page alone, where nothing says that others of its block will be needed; and the whole block
//! when a second fault is in it, or beside one that was brought so.
//!
//! Programs that need nearly all of their memory, in any order, should get blocks at once. They are
//! recognized by how often faults come back to a block of which there is one page: as often as they
//! would by chance, if all pages were needed alike, or more often.

use pagetrail::PageRange;
use std::collections::{BTreeSet, VecDeque};

/// The length of a block, in bytes.
pub(crate) const BLOCK_BYTES: u64 = 1 << 16;
/// How many blocks that were brought whole are remembered: as many streams are followed.
const STREAMS: usize = 16;
/// So many returns, expected or seen, are enough to judge by.
const ENOUGH: f64 = 4.0;
/// From so many expected returns on, later ones count for more than earlier ones.
const MANY: f64 = 64.0;
/// Of so many blocks that are brought at once, one is not: to see whether that is still right.
const PROBE_EVERY: u64 = 8;

/// What a fault should bring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Bring {
    Page,
    Block,
}

/// What the faults of a program were like.
#[derive(Debug, Default)]
pub(crate) struct Spread {
    /// The blocks of which faults have brought a page alone.
    alone: BTreeSet<u64>,
    /// The blocks that faults have brought last.
    whole: VecDeque<u64>,
    /// How often a fault came back to a block.
    returns: f64,
    /// How often one would have, by chance.
    expected: f64,
    at_once: u64,
}

/// The block around an address.
pub(crate) fn block_around(address: u64) -> Option<PageRange> {
    let start = address - address % BLOCK_BYTES;
    PageRange::new(start, start.checked_add(BLOCK_BYTES)?)
}

impl Spread {
    /// What a fault at an address of the image should bring, where so many bytes are lacking.
    pub(crate) fn fault(&mut self, address: u64, lacking_bytes: u64) -> Bring {
        let block = address / BLOCK_BYTES;
        if self.alone.remove(&block) {
            self.returns += 1.0;
            return self.brings(block);
        }
        if self.whole.iter().any(|other| other.abs_diff(block) <= 1) {
            return self.brings(block);
        }
        let blocks = (lacking_bytes / BLOCK_BYTES).max(self.alone.len() as u64 + 1);
        self.expected += self.alone.len() as f64 / blocks as f64;
        if self.expected > MANY {
            self.expected /= 2.0;
            self.returns /= 2.0;
        }
        if self.is_dense() {
            self.at_once += 1;
            if !self.at_once.is_multiple_of(PROBE_EVERY) {
                return self.brings(block);
            }
        }
        self.alone.insert(block);
        Bring::Page
    }

    fn is_dense(&self) -> bool {
        self.returns.max(self.expected) >= ENOUGH && self.returns >= self.expected / 2.0
    }

    fn brings(&mut self, block: u64) -> Bring {
        if self.whole.len() == STREAMS {
            self.whole.pop_front();
        }
        self.whole.push_back(block);
        Bring::Block
    }

    /// Pages were brought that nobody waited for: their block is not lacking any more.
    pub(crate) fn brought(&mut self, range: PageRange) {
        self.alone.remove(&(range.start() / BLOCK_BYTES));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    const PAGE: u64 = 4096;
    const PAGES_PER_BLOCK: u64 = BLOCK_BYTES / PAGE;
    const BLOCKS: u64 = 4096;

    /// The number of faults when a program touches pages in an order, and how many pages were
    /// brought.
    fn faults(order: impl Iterator<Item = u64>) -> (u64, u64) {
        let mut spread = Spread::default();
        let mut there: BTreeMap<u64, [bool; PAGES_PER_BLOCK as usize]> = BTreeMap::new();
        let (mut faults, mut brought) = (0, 0);
        for page in order {
            let block = there.entry(page / PAGES_PER_BLOCK).or_default();
            let within = (page % PAGES_PER_BLOCK) as usize;
            if block[within] {
                continue;
            }
            faults += 1;
            let lacking = (BLOCKS * PAGES_PER_BLOCK - brought) * PAGE;
            let new = match spread.fault(page * PAGE, lacking) {
                Bring::Page => within..within + 1,
                Bring::Block => 0..PAGES_PER_BLOCK as usize,
            };
            for here in &mut block[new] {
                brought += u64::from(!std::mem::replace(here, true));
            }
        }
        (faults, brought)
    }

    fn shuffled(mut pages: Vec<u64>) -> impl Iterator<Item = u64> {
        fastrand::Rng::with_seed(5).shuffle(&mut pages);
        pages.into_iter()
    }

    #[test]
    fn single_pages_far_apart_come_alone() {
        let apart = (0..BLOCKS).map(|block| block * PAGES_PER_BLOCK + block * 7 % PAGES_PER_BLOCK);
        let apart: Vec<u64> = apart.collect();
        assert_eq!(faults(shuffled(apart)), (BLOCKS, BLOCKS));
    }

    #[test]
    fn streams_come_by_blocks() {
        let all = BLOCKS * PAGES_PER_BLOCK;
        let (ahead, brought) = faults(0..all);
        assert!(ahead <= BLOCKS + 1 && brought == all, "{ahead}");
        let (backwards, _) = faults((0..all).rev());
        assert!(backwards <= BLOCKS + 1, "{backwards}");
        let both = (0..all / 2).flat_map(|page| [page, all - 1 - page]);
        assert!(faults(both).0 <= BLOCKS + 2);
    }

    #[test]
    fn all_pages_in_any_order_come_by_blocks_soon() {
        let all: Vec<u64> = (0..BLOCKS * PAGES_PER_BLOCK).collect();
        let (found, brought) = faults(shuffled(all.clone()));
        assert_eq!(brought, all.len() as u64);
        assert!(found < BLOCKS * 4 / 3, "{found}");
    }

    #[test]
    fn a_program_that_changes_its_ways_is_followed() {
        let dense = shuffled((0..BLOCKS / 2 * PAGES_PER_BLOCK).collect());
        let apart = (BLOCKS / 2..BLOCKS).map(|block| block * PAGES_PER_BLOCK);
        let (_, first) = faults(shuffled((0..BLOCKS / 2 * PAGES_PER_BLOCK).collect()));
        let (_, both) = faults(dense.chain(shuffled(apart.collect())));
        let of_all = (BLOCKS / 2) * PAGES_PER_BLOCK;
        // Less than three quarters of what blocks at once would have brought.
        assert!(
            (both - first) * 4 < of_all * 3,
            "{} of {of_all}",
            both - first
        );
    }
}
