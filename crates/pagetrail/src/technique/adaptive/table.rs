//! [`Table`]: what is remembered of each page, three bytes, in blocks that exist only where something was written.
//!
//! Nothing here decides what is reported: the kernel's page tables alone know which pages are unprotected. A table that is
//! wrong, or gone, costs time and no write.

use super::cost::{self, Share};
use crate::page_set::{PageRange, page_size};

/// What is remembered of a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Page {
    /// In which share of the rounds it is written, as far as seen.
    pub(super) written: Share,
    /// [`Standing`] in the two highest bits, the level in the others.
    standing_and_level: u8,
    /// The round of the last observation, modulo 256. (What is older looks newer than it is, which costs a fault.)
    seen: u8,
}

/// What was done about a page at the end of the last round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    /// Armed.
    Armed = 0,
    /// Left unprotected and predicted dirty: it is reported in each round.
    Predicted = 1,
    /// Predicted written until then, and armed to see whether it still is.
    Asked = 2,
    /// Left unprotected since arming it by itself was not worth a call yet.
    Waiting = 3,
}

impl Page {
    pub(super) fn standing(self) -> Standing {
        match self.standing_and_level >> 6 {
            0 => Standing::Armed,
            1 => Standing::Predicted,
            2 => Standing::Asked,
            _ => Standing::Waiting,
        }
    }

    /// How much evidence there is that it is written in every round.
    pub(super) fn level(self) -> u8 {
        self.standing_and_level & cost::LEVEL_MAX
    }

    /// Whether it is predicted dirty on that much evidence, or more.
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

    /// It was armed, and was written in `round`.
    pub(super) fn observe_write(&mut self, round: u32) {
        let quiet = self.rounds_since_seen(round).saturating_sub(1);
        let before = cost::after_quiet(self.written, quiet);
        if before == 0 {
            // That long ago it was another phase of the program.
            self.set(self.standing(), 0);
        }
        self.written = cost::after_write(before);
        self.seen = round as u8;
    }

    /// It was armed, and was not written in `round`.
    pub(super) fn observe_quiet(&mut self, round: u32) {
        self.written = cost::after_quiet(self.written, 1);
        self.seen = round as u8;
    }

    /// Nobody can tell whether it was written in `round`.
    pub(super) fn pass_over(&mut self, round: u32) {
        self.seen = round as u8;
    }

    /// Whether the last observation is of `round`.
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
    /// The last round in which a page of it was reported.
    used: u32,
    /// The round before which nothing in it is predicted.
    pub(super) not_before: u32,
    /// Pages that were better left alone, in the last round in which any was reported.
    pub(super) hot: u32,
}

/// What is remembered of all pages.
#[derive(Debug)]
pub(super) struct Table {
    /// Ascending.
    blocks: Vec<Block>,
    block_bytes: u64,
    block_pages: usize,
    /// Where the last block was found.
    near: usize,
}

/// A block of which nothing was reported for so many rounds is forgotten.
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

    /// The bytes that it takes.
    pub(super) fn bytes(&self) -> u64 {
        let pages = self.block_pages * size_of::<Page>();
        (self.blocks.len() * pages) as u64 + (self.blocks.capacity() * size_of::<Block>()) as u64
    }

    /// The block that begins at `start`, of which pages are reported in `round`.
    pub(super) fn block_mut(&mut self, start: u64, round: u32) -> &mut Block {
        let at = match self.blocks.get(self.near) {
            Some(block) if block.start == start => self.near,
            // Blocks are asked for in ascending order, most often.
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

    /// Forgets blocks that nobody writes to any more.
    pub(super) fn prune(&mut self, round: u32) {
        self.blocks
            .retain(|block| round.wrapping_sub(block.used) <= FORGOTTEN_AFTER);
    }
}
