//! [`Subpages`]: what was written in sub-page heaps, with a resolution finer than a page.

use super::areas::Areas;
use super::description::{PAGE, SLAB_PAGES, Superblock};
use super::slab::{Word, reached};
use crate::page_set::{PageRange, PageSet};

/// What was written in sub-page heaps (`pagetrail-alloc`), with a resolution finer than a page.
///
/// A sub-page of a page that is divided into 8 has 512 bytes. All addresses are in the first alias
/// of a heap's memory, whichever alias the program used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Subpages {
    pub(crate) subpages_per_page: u32,
    pub(crate) aliases: PageSet,
    pub(crate) superblocks: Vec<Superblock>,
    pub(crate) pages: PageSet,
    pub(crate) dirty: PageSet,
    pub(crate) bytes: PageSet,
    pub(crate) count: u64,
}

impl Subpages {
    /// The number of sub-pages into which a page is divided; the largest, if the process has
    /// several heaps that differ.
    pub fn subpages_per_page(&self) -> u32 {
        self.subpages_per_page
    }

    /// The addresses of all aliases of all heaps. For these, this type is more exact than
    /// [`Round::dirty`](crate::Round::dirty).
    pub fn aliases(&self) -> &PageSet {
        &self.aliases
    }

    /// The addresses of all aliases except the first of each superblock: memory that is also found
    /// at another address.
    pub fn secondary_aliases(&self) -> PageSet {
        let firsts = self.superblocks.iter().map(Superblock::first_alias);
        self.aliases.difference(&firsts.collect())
    }

    /// Translates pages to the addresses of first aliases; pages outside of heaps keep their
    /// addresses.
    pub fn at_first_aliases(&self, pages: &PageSet) -> PageSet {
        let mut out = pages.difference(&self.aliases);
        for superblock in &self.superblocks {
            let mut moved = Vec::new();
            for subpage in 0..u64::from(superblock.subpages_per_page) {
                let by = subpage * superblock.alias_bytes;
                let first = superblock.first_alias();
                let alias = PageRange::new(first.start() + by, first.end() + by);
                let there = pages.intersection(&alias.into_iter().collect());
                moved.extend(
                    there
                        .ranges()
                        .iter()
                        .filter_map(|range| PageRange::new(range.start() - by, range.end() - by)),
                );
            }
            out.extend(moved);
        }
        out
    }

    /// The pages of which at least one sub-page is dirty, each once.
    pub fn pages(&self) -> &PageSet {
        &self.pages
    }

    /// The dirty sub-pages as ranges of addresses.
    ///
    /// An object belongs to the sub-page in which it begins, even if it extends farther;
    /// [`bytes`](Self::bytes) has what may have changed.
    pub fn dirty(&self) -> &PageSet {
        &self.dirty
    }

    /// The number of dirty sub-pages.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// The size of a sub-page in bytes.
    pub fn subpage_bytes(&self) -> u64 {
        PAGE / u64::from(self.subpages_per_page.max(1))
    }

    /// The bytes that may have changed: those of all objects that begin in a dirty sub-page.
    pub fn bytes(&self) -> &PageSet {
        &self.bytes
    }
}

/// Adds the dirty sub-pages of a superblock, and notes its pages in `areas`. `then` and `now` are
/// its table before the first write that counts, and now: where they may differ, all of a page
/// counts as written.
pub(crate) fn add(
    subpages: &mut Subpages,
    superblock: &Superblock,
    written: &PageSet,
    then: Option<&[Word]>,
    now: &[Word],
    areas: &mut Areas,
) {
    let (mut pages, mut dirty) = (Vec::new(), Vec::new());
    let mut bytes = Vec::new();
    let mut count = 0;
    for_each_page(superblock, written, |page, bits| {
        let slab = (page / SLAB_PAGES) as usize;
        let word = now.get(slab).copied().unwrap_or_default();
        if word.is_untouched(page % SLAB_PAGES) {
            return;
        }
        let start = superblock.base + page * PAGE;
        let whole = || PageRange::new(start, start + PAGE);
        push(&mut pages, whole());
        // In the first use of a slab, no other object can have been there. In a later one, a page
        // that was discarded and created again has lost its previous contents entirely.
        let is_same = word.generation() == 1
            || then.and_then(|then| then.get(slab)).is_some_and(|then| {
                then.generation() == word.generation() && page % SLAB_PAGES < then.touched_pages()
            });
        let all = u64::MAX >> (64 - superblock.subpages_per_page);
        areas.note(
            superblock.subpages_per_page,
            word,
            bits.count_ones(),
            is_same,
        );
        if !is_same || word.size() == 0 || bits == all || word.is_merged() {
            count += u64::from(superblock.subpages_per_page);
            push(&mut dirty, whole());
            push(&mut bytes, whole());
            return;
        }
        let subpage_bytes = PAGE / u64::from(superblock.subpages_per_page);
        count += u64::from(bits.count_ones());
        for subpage in (0..superblock.subpages_per_page).filter(|subpage| bits >> subpage & 1 != 0)
        {
            let from = start + u64::from(subpage) * subpage_bytes;
            dirty.extend(PageRange::new(from, from + subpage_bytes));
            let reached = reached(
                word.size(),
                page % SLAB_PAGES,
                subpage,
                superblock.subpages_per_page,
            );
            bytes
                .extend(reached.filter_map(|range| {
                    PageRange::new(start + range.start(), start + range.end())
                }));
        }
    });
    subpages.count += count;
    subpages.pages.extend(pages);
    subpages.dirty.extend(dirty);
    subpages.bytes.extend(bytes);
}

/// Adds a range, or extends the last one if it continues there, so that long runs take little
/// memory.
fn push(ranges: &mut Vec<PageRange>, range: Option<PageRange>) {
    let Some(range) = range else { return };
    match ranges.last_mut() {
        Some(last) if last.end() == range.start() => {
            *last = PageRange::new(last.start(), range.end()).unwrap_or(*last);
        }
        _ => ranges.push(range),
    }
}

/// Calls `each` with the number of each page with a dirty alias, ascending, and one bit for each
/// such alias.
fn for_each_page(superblock: &Superblock, written: &PageSet, mut each: impl FnMut(u64, u64)) {
    let aliases = PageSet::from_iter([superblock.aliases()]);
    let mut found: Vec<u64> = Vec::new();
    for range in written.intersection(&aliases).ranges() {
        for address in (range.start()..range.end()).step_by(PAGE as usize) {
            let at = address - superblock.base;
            let (subpage, at) = (at / superblock.alias_bytes, at % superblock.alias_bytes);
            found.push(((at / PAGE) << 6) | subpage);
        }
    }
    found.sort_unstable();
    for page in found.chunk_by(|a, b| a >> 6 == b >> 6) {
        let bits = page.iter().fold(0, |bits, found| bits | 1 << (found & 63));
        each(page[0] >> 6, bits);
    }
}

/// The pages in all aliases of a superblock that were never used.
pub(crate) fn untouched(superblock: &Superblock, now: &[Word]) -> Vec<PageRange> {
    let mut ranges = Vec::new();
    for subpage in 0..u64::from(superblock.subpages_per_page) {
        let alias = superblock.base + subpage * superblock.alias_bytes;
        for (slab, word) in now.iter().enumerate() {
            let from = match word.generation() {
                0 => 0,
                1 => word.touched_pages().min(SLAB_PAGES),
                _ => continue,
            };
            let start = alias + slab as u64 * SLAB_PAGES * PAGE;
            let end = start + SLAB_PAGES * PAGE;
            push(&mut ranges, PageRange::new(start + from * PAGE, end));
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    const SUPERBLOCK: Superblock = Superblock {
        base: 0x10_0000,
        alias_bytes: 1 << 20,
        table: 0,
        subpages_per_page: 4,
        description: 0,
        takes_advice: false,
    };

    fn range(start: u64, bytes: u64) -> PageRange {
        PageRange::new(start, start + bytes).unwrap()
    }

    fn add_all(written: &PageSet, then: Option<&[Word]>, now: &[Word]) -> Subpages {
        let mut subpages = Subpages {
            subpages_per_page: 4,
            ..Subpages::default()
        };
        let areas = &mut Areas::default();
        add(&mut subpages, &SUPERBLOCK, written, then, now, areas);
        subpages
    }

    #[test]
    fn aliases_of_one_page_are_its_subpages() {
        let now = [Word(256 | 16 << 16 | 5 << 32); 16];
        // Page 3 is dirty in aliases 1 and 3; page 5 in all.
        let address = |page: u64, subpage: u64| 0x10_0000 + (subpage << 20) + page * PAGE;
        let written: PageSet = [(3, 1), (3, 3), (5, 0), (5, 1), (5, 2), (5, 3)]
            .map(|(page, subpage)| range(address(page, subpage), PAGE))
            .into_iter()
            .collect();
        let subpages = add_all(&written, Some(&now), &now);
        assert_eq!((subpages.count(), subpages.pages().bytes()), (6, 2 * PAGE));
        let right: PageSet = [
            range(0x10_3400, 0x400),
            range(0x10_3c00, 0x400),
            range(0x10_5000, 0x1000),
        ]
        .into_iter()
        .collect();
        assert_eq!((subpages.dirty(), subpages.bytes()), (&right, &right));
        // The slab may have been reused meanwhile.
        let mut other = now;
        other[0] = Word(other[0].0 + (1 << 32));
        for then in [None, Some(&other[..])] {
            let subpages = add_all(&written, then, &now);
            assert_eq!((subpages.count(), subpages.bytes().bytes()), (8, 2 * PAGE));
        }
    }

    #[test]
    fn a_page_of_a_merged_slab_is_whole() {
        let now = [Word(256 | 16 << 16 | 1 << 31 | 5 << 32); 16];
        assert_eq!((now[0].touched_pages(), now[0].size()), (16, 256));
        let written = PageSet::from_iter([range(0x10_3000, PAGE)]);
        let subpages = add_all(&written, Some(&now), &now);
        assert_eq!((subpages.count(), subpages.bytes()), (4, &written));
    }

    #[test]
    fn secondary_aliases_are_other_addresses_of_the_first() {
        let subpages = Subpages {
            superblocks: vec![SUPERBLOCK],
            aliases: PageSet::from_iter([SUPERBLOCK.aliases()]),
            ..Subpages::default()
        };
        assert_eq!(
            subpages.secondary_aliases().ranges(),
            [range(0x20_0000, 3 << 20)]
        );
        let pages = [0x1000, 0x10_2000, 0x20_1000, 0x40_2000, 0x50_0000];
        let pages: PageSet = pages.map(|start| range(start, PAGE)).into_iter().collect();
        let firsts = [0x1000, 0x10_1000, 0x10_2000, 0x50_0000];
        let right = firsts.map(|start| range(start, PAGE)).into_iter().collect();
        assert_eq!(subpages.at_first_aliases(&pages), right);
    }

    #[test]
    fn pages_that_were_never_used_are_not_dirty() {
        let mut now = [Word(0); 16];
        now[0] = Word(64 | 3 << 16 | 1 << 32);
        let written = PageSet::from_iter([SUPERBLOCK.aliases()]);
        let subpages = add_all(&written, None, &now);
        assert_eq!(subpages.pages().ranges(), [range(0x10_0000, 3 * PAGE)]);
        let untouched: PageSet = untouched(&SUPERBLOCK, &now).into_iter().collect();
        assert_eq!(written.difference(&untouched).bytes(), 4 * 3 * PAGE);
    }
}
