//! [`Table`]: the pages of a target, the place of each, and its history.
//!
//! Memory comes in blocks of 512 pages, as it does in page tables: a block holds small pages, or is
//! a huge one, which is remembered, counted and moved as one.

use std::ops::Range;

use pagetrail::PageRange;

use super::page::Page;

/// Pages of a huge page, and entries of a page table.
pub(super) const BLOCK_PAGES: u64 = 512;

/// The place of a page.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Place {
    /// Not in memory, or not mapped.
    Absent,
    /// In fast memory.
    Fast,
    /// In slow memory, or swapped out.
    Slow,
}

/// Neighbouring pages that are alike.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Their addresses.
    pub range: PageRange,
    /// Where they are.
    pub place: Place,
    /// Whether the kernel maps them by huge pages.
    pub huge: bool,
    /// Whether they cannot be moved.
    pub fixed: bool,
}

pub(super) struct Block {
    pub(super) base: u64,
    pub(super) units: Units,
}

pub(super) enum Units {
    Small(Box<[Page; BLOCK_PAGES as usize]>),
    Huge(Page),
}

/// All blocks in ascending order of addresses.
pub(super) struct Table {
    page_bytes: u64,
    blocks: Vec<Block>,
}

impl Block {
    fn empty(base: u64) -> Self {
        Self {
            base,
            units: Units::Small(Box::new([Page::default(); BLOCK_PAGES as usize])),
        }
    }

    /// Its pages, or its huge page, and how large each is.
    pub(super) fn units_mut(&mut self, page_bytes: u64, block_bytes: u64) -> (&mut [Page], u64) {
        match &mut self.units {
            Units::Huge(page) => (std::slice::from_mut(page), block_bytes),
            Units::Small(pages) => (&mut pages[..], page_bytes),
        }
    }

    fn page(&self, index: usize) -> Page {
        match &self.units {
            Units::Small(pages) => pages[index],
            Units::Huge(page) => *page,
        }
    }

    /// The history of a huge page that takes the place of these pages.
    fn merged(&self) -> Page {
        match &self.units {
            Units::Huge(page) => *page,
            Units::Small(pages) => pages
                .iter()
                .filter(|page| !page.is_absent())
                .copied()
                .reduce(Page::merge)
                .unwrap_or_default(),
        }
    }

    /// Its pages, after a huge one is split: each is what the huge one was.
    fn split(&mut self) -> &mut [Page; BLOCK_PAGES as usize] {
        if let Units::Huge(page) = self.units {
            self.units = Units::Small(Box::new([page; BLOCK_PAGES as usize]));
        }
        match &mut self.units {
            Units::Small(pages) => pages,
            Units::Huge(_) => unreachable!("it was split"),
        }
    }

    fn is_empty(&self) -> bool {
        match &self.units {
            Units::Small(pages) => pages.iter().all(Page::is_absent),
            Units::Huge(page) => page.is_absent(),
        }
    }

    /// Sets the places of pages; `before` is the earlier state of this block.
    fn put(&mut self, pages: Range<usize>, run: &Run, before: Option<&Self>) {
        let whole = pages.len() == BLOCK_PAGES as usize;
        if run.huge && whole {
            let mut page = before.unwrap_or(self).merged();
            place(&mut page, run);
            self.units = Units::Huge(page);
            return;
        }
        let own = self.split();
        for index in pages {
            let mut page = before.map_or(own[index], |before| before.page(index));
            place(&mut page, run);
            own[index] = page;
        }
    }
}

/// Sets the place of a page. A page that was absent is new and has no history.
fn place(page: &mut Page, run: &Run) {
    if page.is_absent() || run.place == Place::Absent {
        *page = Page::new(run.place, run.fixed);
    } else {
        page.set_place(run.place);
        page.set_fixed(run.fixed);
    }
}

impl Table {
    pub(super) fn new(page_bytes: u64) -> Self {
        Self {
            page_bytes,
            blocks: Vec::new(),
        }
    }

    pub(super) fn page_bytes(&self) -> u64 {
        self.page_bytes
    }

    pub(super) fn block_bytes(&self) -> u64 {
        self.page_bytes * BLOCK_PAGES
    }

    pub(super) fn blocks_mut(&mut self) -> &mut [Block] {
        &mut self.blocks
    }

    /// Sets the places of the pages of `runs`, which ascend. Other pages do not change; with `only`
    /// they are absent.
    pub(super) fn set(&mut self, runs: &[Run], only: bool) {
        let bytes = self.block_bytes();
        let mut old = std::mem::take(&mut self.blocks).into_iter().peekable();
        let mut new: Vec<Block> = Vec::with_capacity(old.len());
        // What was remembered of the last of `new`, where that is made anew.
        let mut before: Option<Block> = None;
        for run in runs {
            let mut start = run.range.start();
            while start < run.range.end() {
                let base = start - start % bytes;
                let end = run.range.end().min(base.saturating_add(bytes));
                if new.last().is_none_or(|last| last.base != base) {
                    while let Some(block) = old.next_if(|block| block.base < base) {
                        if !only {
                            new.push(block);
                        }
                    }
                    let known = old.next_if(|block| block.base == base);
                    before = None;
                    if only {
                        before = known;
                        new.push(Block::empty(base));
                    } else {
                        new.push(known.unwrap_or_else(|| Block::empty(base)));
                    }
                }
                let index = |address: u64| ((address - base) / self.page_bytes) as usize;
                if let Some(block) = new.last_mut() {
                    block.put(index(start)..index(end), run, before.as_ref());
                }
                start = end;
            }
        }
        if !only {
            new.extend(old);
        }
        new.retain(|block| !block.is_empty());
        self.blocks = new;
    }

    /// The page, or huge page, at an address, as far as it is there, and its size.
    pub(super) fn unit_mut(&mut self, address: u64) -> Option<(&mut Page, u64)> {
        let (page_bytes, block_bytes) = (self.page_bytes, self.block_bytes());
        let base = address - address % block_bytes;
        let at = self
            .blocks
            .binary_search_by_key(&base, |block| block.base)
            .ok()?;
        let index = ((address - base) / page_bytes) as usize;
        let (page, bytes) = match &mut self.blocks[at].units {
            Units::Small(pages) => (&mut pages[index], page_bytes),
            Units::Huge(page) => (page, block_bytes),
        };
        (!page.is_absent()).then_some((page, bytes))
    }

    /// Calls `found` with the address, the size and the state of every page or huge page, in
    /// ascending order.
    pub(super) fn for_each(&self, mut found: impl FnMut(u64, u64, &Page)) {
        for block in &self.blocks {
            match &block.units {
                Units::Huge(page) => found(block.base, self.block_bytes(), page),
                Units::Small(pages) => {
                    for (index, page) in pages.iter().enumerate() {
                        if !page.is_absent() {
                            let address = block.base + index as u64 * self.page_bytes;
                            found(address, self.page_bytes, page);
                        }
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn run(pages: Range<u64>, place: Place, huge: bool) -> Run {
        Run {
            range: PageRange::new(pages.start * PAGE, pages.end * PAGE).unwrap(),
            place,
            huge,
            fixed: false,
        }
    }

    fn units(table: &Table) -> Vec<(u64, u64, Place)> {
        let mut units = Vec::new();
        table.for_each(|address, bytes, page| {
            units.push((address / PAGE, bytes / PAGE, page.place()));
        });
        units
    }

    #[test]
    fn pages_come_stay_and_go() {
        let mut table = Table::new(PAGE);
        table.set(&[run(510..514, Place::Fast, false)], true);
        assert_eq!(table.blocks.len(), 2);
        table.set(&[run(5000..5001, Place::Slow, false)], false);
        table.set(&[run(511..512, Place::Slow, false)], false);
        use Place::{Fast, Slow};
        let expected = [
            (510, 1, Fast),
            (511, 1, Slow),
            (512, 1, Fast),
            (513, 1, Fast),
            (5000, 1, Slow),
        ];
        assert_eq!(units(&table), expected);
        table.set(&[run(513..514, Place::Slow, false)], true);
        assert_eq!(units(&table), [(513, 1, Slow)]);
        table.set(&[], true);
        assert!(table.blocks.is_empty());
    }

    #[test]
    fn a_huge_page_is_one_and_may_be_split_and_put_together() {
        let mut table = Table::new(PAGE);
        table.set(&[run(0..1024, Place::Slow, true)], true);
        assert_eq!(
            units(&table),
            [(0, 512, Place::Slow), (512, 512, Place::Slow)]
        );
        assert!(table.unit_mut(700 * PAGE).is_some());
        table.set(
            &[
                run(0..512, Place::Slow, false),
                run(512..1024, Place::Fast, true),
            ],
            true,
        );
        assert_eq!(units(&table).len(), 513);
        table.set(&[run(0..1024, Place::Fast, true)], true);
        assert_eq!(units(&table).len(), 2);
        // A huge page of which only a part is mapped counts as small ones.
        table.set(&[run(0..100, Place::Fast, true)], true);
        assert_eq!(units(&table).len(), 100);
    }
}
