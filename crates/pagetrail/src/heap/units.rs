//! [`Units`]: what was written of sub-page heaps, told apart within pages.

use super::description::{PAGE, SLAB_PAGES, Superblock};
use super::slab::{Word, reached};
use crate::page_set::{PageRange, PageSet};

/// What was written of sub-page heaps (`pagetrail-alloc`), told apart within pages.
///
/// A *unit* is a part of a page: with 8 parts, 512 bytes. All addresses are in the first window of a heap's memory, whichever
/// window the program has used.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Units {
    pub(crate) parts: u32,
    pub(crate) windows: PageSet,
    pub(crate) superblocks: Vec<Superblock>,
    pub(crate) pages: PageSet,
    pub(crate) units: PageSet,
    pub(crate) bytes: PageSet,
    pub(crate) count: u64,
}

impl Units {
    /// Into how many parts a page is divided; the most, where a process has several heaps that differ.
    pub fn parts(&self) -> u32 {
        self.parts
    }

    /// The addresses of all heaps, all windows: what [`Round::dirty`](crate::Round::dirty) has there, this tells more exactly.
    pub fn windows(&self) -> &PageSet {
        &self.windows
    }

    /// The addresses at which memory can be found that is in a first window too.
    pub fn aliases(&self) -> PageSet {
        let firsts = self.superblocks.iter().map(Superblock::first_window);
        self.windows.difference(&firsts.collect())
    }

    /// The same pages at their addresses in first windows; what lies in no heap stays.
    pub fn in_first_windows(&self, pages: &PageSet) -> PageSet {
        let mut out = pages.difference(&self.windows);
        for superblock in &self.superblocks {
            let mut moved = Vec::new();
            for part in 0..u64::from(superblock.parts) {
                let by = part * superblock.window_bytes;
                let first = superblock.first_window();
                let window = PageRange::new(first.start() + by, first.end() + by);
                let there = pages.intersection(&window.into_iter().collect());
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

    /// The pages of which something was written, once each.
    pub fn pages(&self) -> &PageSet {
        &self.pages
    }

    /// The units that were written, as the parts of pages that they are.
    ///
    /// An object belongs to the part in which it begins, also where it reaches farther; what it may have changed is in
    /// [`bytes`](Self::bytes).
    pub fn units(&self) -> &PageSet {
        &self.units
    }

    /// How many units were written.
    pub fn count(&self) -> u64 {
        self.count
    }

    /// Bytes in a unit.
    pub fn unit_bytes(&self) -> u64 {
        PAGE / u64::from(self.parts.max(1))
    }

    /// The bytes that may have changed: those of all objects that begin in a written unit.
    pub fn bytes(&self) -> &PageSet {
        &self.bytes
    }
}

/// Adds what the written pages in the windows of a superblock say. `then` and `now` are what its slabs were before the first
/// write that counts, and are now: where they may differ, pages count as written whole.
pub(crate) fn add(
    units: &mut Units,
    superblock: &Superblock,
    written: &PageSet,
    then: Option<&[Word]>,
    now: &[Word],
) {
    let (mut pages, mut parts) = (Vec::new(), Vec::new());
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
        // In its first use nothing else can have been there. In a later one, a page that was given back to the system and came
        // again has lost what was there before, all of it.
        let is_same = word.generation() == 1
            || then.and_then(|then| then.get(slab)).is_some_and(|then| {
                then.generation() == word.generation() && page % SLAB_PAGES < then.touched_pages()
            });
        let all = u64::MAX >> (64 - superblock.parts);
        if !is_same || word.size() == 0 || bits == all {
            count += u64::from(superblock.parts);
            push(&mut parts, whole());
            push(&mut bytes, whole());
            return;
        }
        let part_bytes = PAGE / u64::from(superblock.parts);
        count += u64::from(bits.count_ones());
        for part in (0..superblock.parts).filter(|part| bits >> part & 1 != 0) {
            let from = start + u64::from(part) * part_bytes;
            parts.extend(PageRange::new(from, from + part_bytes));
            let reached = reached(word.size(), page % SLAB_PAGES, part, superblock.parts);
            bytes
                .extend(reached.filter_map(|range| {
                    PageRange::new(start + range.start(), start + range.end())
                }));
        }
    });
    units.count += count;
    units.pages.extend(pages);
    units.units.extend(parts);
    units.bytes.extend(bytes);
}

/// Adds a range; with the last one where it continues that, so that long stretches take little memory.
fn push(ranges: &mut Vec<PageRange>, range: Option<PageRange>) {
    let Some(range) = range else { return };
    match ranges.last_mut() {
        Some(last) if last.end() == range.start() => {
            *last = PageRange::new(last.start(), range.end()).unwrap_or(*last);
        }
        _ => ranges.push(range),
    }
}

/// Calls `each` with the number of each page of which a window is written, ascending, and a bit for each such window.
fn for_each_page(superblock: &Superblock, written: &PageSet, mut each: impl FnMut(u64, u64)) {
    let windows = PageSet::from_iter([superblock.windows()]);
    let mut found: Vec<u64> = Vec::new();
    for range in written.intersection(&windows).ranges() {
        for address in (range.start()..range.end()).step_by(PAGE as usize) {
            let at = address - superblock.base;
            let (part, at) = (at / superblock.window_bytes, at % superblock.window_bytes);
            found.push(((at / PAGE) << 6) | part);
        }
    }
    found.sort_unstable();
    for page in found.chunk_by(|a, b| a >> 6 == b >> 6) {
        let bits = page.iter().fold(0, |bits, found| bits | 1 << (found & 63));
        each(page[0] >> 6, bits);
    }
}

/// The pages in a superblock's windows in which nothing ever was.
pub(crate) fn untouched(superblock: &Superblock, now: &[Word]) -> Vec<PageRange> {
    let mut ranges = Vec::new();
    for part in 0..u64::from(superblock.parts) {
        let window = superblock.base + part * superblock.window_bytes;
        for (slab, word) in now.iter().enumerate() {
            let from = match word.generation() {
                0 => 0,
                1 => word.touched_pages().min(SLAB_PAGES),
                _ => continue,
            };
            let start = window + slab as u64 * SLAB_PAGES * PAGE;
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
        window_bytes: 1 << 20,
        table: 0,
        parts: 4,
    };

    fn range(start: u64, bytes: u64) -> PageRange {
        PageRange::new(start, start + bytes).unwrap()
    }

    fn add_all(written: &PageSet, then: Option<&[Word]>, now: &[Word]) -> Units {
        let mut units = Units {
            parts: 4,
            ..Units::default()
        };
        add(&mut units, &SUPERBLOCK, written, then, now);
        units
    }

    #[test]
    fn windows_of_one_page_are_parts_of_it() {
        let now = [Word(256 | 16 << 16 | 5 << 32); 16];
        // Page 3, in windows 1 and 3; page 5 in all.
        let address = |page: u64, part: u64| 0x10_0000 + (part << 20) + page * PAGE;
        let written: PageSet = [(3, 1), (3, 3), (5, 0), (5, 1), (5, 2), (5, 3)]
            .map(|(page, part)| range(address(page, part), PAGE))
            .into_iter()
            .collect();
        let units = add_all(&written, Some(&now), &now);
        assert_eq!((units.count(), units.pages().bytes()), (6, 2 * PAGE));
        let right: PageSet = [
            range(0x10_3400, 0x400),
            range(0x10_3c00, 0x400),
            range(0x10_5000, 0x1000),
        ]
        .into_iter()
        .collect();
        assert_eq!((units.units(), units.bytes()), (&right, &right));
        // Not known to have been the same all the time.
        let mut other = now;
        other[0] = Word(other[0].0 + (1 << 32));
        for then in [None, Some(&other[..])] {
            let units = add_all(&written, then, &now);
            assert_eq!((units.count(), units.bytes().bytes()), (8, 2 * PAGE));
        }
    }

    #[test]
    fn aliases_are_other_addresses_of_first_windows() {
        let units = Units {
            superblocks: vec![SUPERBLOCK],
            windows: PageSet::from_iter([SUPERBLOCK.windows()]),
            ..Units::default()
        };
        assert_eq!(units.aliases().ranges(), [range(0x20_0000, 3 << 20)]);
        let pages = [0x1000, 0x10_2000, 0x20_1000, 0x40_2000, 0x50_0000];
        let pages: PageSet = pages.map(|start| range(start, PAGE)).into_iter().collect();
        let firsts = [0x1000, 0x10_1000, 0x10_2000, 0x50_0000];
        let right = firsts.map(|start| range(start, PAGE)).into_iter().collect();
        assert_eq!(units.in_first_windows(&pages), right);
    }

    #[test]
    fn what_was_never_used_is_not_written() {
        let mut now = [Word(0); 16];
        now[0] = Word(64 | 3 << 16 | 1 << 32);
        let written = PageSet::from_iter([SUPERBLOCK.windows()]);
        let units = add_all(&written, None, &now);
        assert_eq!(units.pages().ranges(), [range(0x10_0000, 3 * PAGE)]);
        let untouched: PageSet = untouched(&SUPERBLOCK, &now).into_iter().collect();
        assert_eq!(written.difference(&untouched).bytes(), 4 * 3 * PAGE);
    }
}
