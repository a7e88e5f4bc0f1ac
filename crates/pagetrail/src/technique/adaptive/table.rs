//! [`Table`]: the history of each page in three bytes, in blocks that exist only where something
//! was written.
//!
//! Nothing here decides what is reported: the kernel's page tables alone know which pages are
//! unprotected. A table that is wrong, or lost, costs time and no write.

use super::cost::{self, Share};
use crate::page_set::{PageRange, page_size};

/// The history of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    /// The share of rounds in which it is written, as far as observed.
    pub(super) written: Share,
    /// [`Standing`] in the two highest bits, the level in the others.
    standing_and_level: u8,
    /// The round of the last observation, modulo 256. (An older one reads as newer than it is,
    /// which costs a fault.)
    seen: u8,
}

/// The state in which the last round left a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Armed.
    Armed = 0,
    /// Unprotected and predicted dirty: each round reports it.
    Predicted = 1,
    /// Predicted dirty until then, and armed to check whether it is still written.
    Checking = 2,
    /// Unprotected, because arming it alone is not worth a call yet.
    Waiting = 3,
}

impl Page {
    pub(super) fn standing(self) -> Standing {
        match self.standing_and_level >> 6 {
            0 => Standing::Armed,
            1 => Standing::Predicted,
            2 => Standing::Checking,
            _ => Standing::Waiting,
        }
    }

    /// The amount of evidence that the page is written in every round.
    pub(super) fn level(self) -> u8 {
        self.standing_and_level & cost::LEVEL_MAX
    }

    /// Whether the page is predicted dirty with at least this level of evidence.
    pub(super) fn rests(self, level: u8) -> bool {
        let predicted = (Standing::Predicted as u8) << 6;
        (predicted + level..=predicted + cost::LEVEL_MAX).contains(&self.standing_and_level)
    }

    pub(super) fn set(&mut self, standing: Standing, level: u8) {
        self.standing_and_level = (standing as u8) << 6 | level.min(cost::LEVEL_MAX);
    }

    pub(super) fn stand(&mut self, standing: Standing) {
        self.set(standing, self.level());
    }

    /// Records that the page was armed and was written in `round`.
    pub(super) fn observe_write(&mut self, round: u32) {
        let quiet = self.rounds_since_seen(round).saturating_sub(1);
        let before = cost::after_quiet(self.written, quiet);
        if before == 0 {
            // The last observation is so old that it belongs to another phase of the program.
            self.set(self.standing(), 0);
        }
        self.written = cost::after_write(before);
        self.seen = round as u8;
    }

    /// Records that the page was armed and was not written in `round`.
    pub(super) fn observe_quiet(&mut self, round: u32) {
        self.written = cost::after_quiet(self.written, 1);
        self.seen = round as u8;
    }

    /// Records that it is unknown whether the page was written in `round`.
    pub(super) fn pass_over(&mut self, round: u32) {
        self.seen = round as u8;
    }

    /// Whether the last observation was made in `round`.
    pub(super) fn seen_in(self, round: u32) -> bool {
        self.rounds_since_seen(round) == 0
    }

    pub(super) fn rounds_since_seen(self, round: u32) -> u32 {
        (round as u8).wrapping_sub(self.seen).into()
    }
}

/// The pages that one page table maps.
#[derive(Debug)]
pub(super) struct Block {
    start: u64,
    pub(super) pages: Box<[Page]>,
    /// The last round in which one of its pages was reported.
    used: u32,
    /// The first round in which its pages may be predicted dirty.
    pub(super) not_before: u32,
    /// The number of pages that were better left unprotected, in the last round in which any was
    /// reported.
    pub(super) hot: u32,
}

/// The history of all pages.
#[derive(Debug)]
pub(super) struct Table {
    /// Sorted by address.
    blocks: Vec<Block>,
    block_bytes: u64,
    block_pages: usize,
    /// The index of the block that was found last.
    near: usize,
}

/// A block is forgotten when none of its pages was reported for so many rounds.
const FORGOTTEN_AFTER: u32 = 250;

impl Table {
    pub(super) fn new(block_bytes: u64) -> Self {
        Self {
            blocks: Vec::new(),
            block_bytes,
            block_pages: (block_bytes / page_size()) as usize,
            near: 0,
        }
    }

    /// The size of the table, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        let pages = self.block_pages * size_of::<Page>();
        (self.blocks.len() * pages) as u64 + (self.blocks.capacity() * size_of::<Block>()) as u64
    }

    /// The block that begins at `start`, because pages of it are reported in `round`; it is created
    /// if needed.
    pub(super) fn block_mut(&mut self, start: u64, round: u32) -> &mut Block {
        let at = match self.blocks.get(self.near) {
            Some(block) if block.start == start => self.near,
            // Blocks are mostly looked up in ascending order.
            _ => match self.blocks.get(self.near + 1) {
                Some(block) if block.start == start => self.near + 1,
                _ => self.find(start, round),
            },
        };
        self.near = at;
        let block = &mut self.blocks[at];
        block.used = round;
        block
    }

    fn find(&mut self, start: u64, round: u32) -> usize {
        match self
            .blocks
            .binary_search_by_key(&start, |block| block.start)
        {
            Ok(at) => at,
            Err(at) => {
                let block = Block {
                    start,
                    pages: vec![Page::default(); self.block_pages].into_boxed_slice(),
                    used: round,
                    not_before: round,
                    hot: 0,
                };
                self.blocks.insert(at, block);
                at
            }
        }
    }

    /// Forgets the pages of `range`.
    pub(super) fn forget(&mut self, range: PageRange) {
        let block_bytes = self.block_bytes;
        self.blocks.retain_mut(|block| {
            let whole = PageRange::new(block.start, block.start + block_bytes);
            let Some(part) = whole.and_then(|whole| whole.intersection(&range)) else {
                return true;
            };
            let first = ((part.start() - block.start) / page_size()) as usize;
            let count = part.page_count() as usize;
            block.pages[first..first + count].fill(Page::default());
            part.bytes() < block_bytes
        });
    }

    /// Forgets blocks that are no longer written.
    pub(super) fn prune(&mut self, round: u32) {
        self.blocks
            .retain(|block| round.wrapping_sub(block.used) <= FORGOTTEN_AFTER);
    }
}
