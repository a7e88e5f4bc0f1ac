//! [`Bitmap`] and [`DirtyPages`]: sets of pages per memory region, in the layout of KVM's dirty
//! log.

use crate::regions::Regions;
use crate::sys::memory::Region;
use pagetrail::page_size;
use std::collections::BTreeMap;
use std::ops::Range;

/// A bit per page of a memory region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bitmap {
    words: Vec<u64>,
    pages: u64,
}

impl Bitmap {
    pub(crate) fn new(pages: u64) -> Self {
        Self {
            words: vec![0; pages.div_ceil(64) as usize],
            pages,
        }
    }

    /// The number of pages of the region, dirty or not.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// The bits as KVM's dirty log has them: page `n` is bit `n % 64` of word `n / 64`.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Whether no page is dirty.
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// The number of dirty pages.
    pub fn count(&self) -> u64 {
        self.words
            .iter()
            .map(|word| u64::from(word.count_ones()))
            .sum()
    }

    /// Whether a page is dirty.
    pub fn contains(&self, page: u64) -> bool {
        page < self.pages && self.words[(page / 64) as usize] >> (page % 64) & 1 != 0
    }

    /// Adds a range of pages; those beyond the region's end do not exist.
    pub fn insert(&mut self, pages: Range<u64>) {
        for page in pages.start..pages.end.min(self.pages) {
            self.words[(page / 64) as usize] |= 1 << (page % 64);
        }
    }

    /// Removes a range of pages.
    #[cfg(any(feature = "store", target_arch = "x86_64"))]
    pub(crate) fn remove(&mut self, pages: Range<u64>) {
        for page in pages.start..pages.end.min(self.pages) {
            self.words[(page / 64) as usize] &= !(1 << (page % 64));
        }
    }

    /// The first page from `from` on.
    #[cfg(feature = "store")]
    pub(crate) fn first_from(&self, from: u64) -> Option<u64> {
        self.next(from, true)
    }

    /// The first run of pages within a range. Its cost is that of the clean words before it, and of
    /// the range's pages.
    #[cfg(feature = "store")]
    pub(crate) fn first_run(&self, within: &Range<u64>) -> Option<Range<u64>> {
        let start = self.next(within.start, true)?;
        let clean = (start..within.end).find(|page| !self.contains(*page));
        let end = clean.unwrap_or(within.end);
        (start < end).then_some(start..end)
    }

    /// Adds bits in the layout of [`Self::words`]; those beyond the region's end do not exist.
    pub fn insert_words(&mut self, words: &[u64]) {
        for (word, more) in self.words.iter_mut().zip(words) {
            *word |= more;
        }
        if let Some(last) = self
            .words
            .last_mut()
            .filter(|_| !self.pages.is_multiple_of(64))
        {
            *last &= (1 << (self.pages % 64)) - 1;
        }
    }

    /// The dirty pages as ranges, ascending, none adjacent to another.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut from = 0;
        std::iter::from_fn(move || {
            let start = self.next(from, true)?;
            from = self.next(start, false).unwrap_or(self.pages);
            Some(start..from)
        })
    }

    /// The first page from `from` on that is dirty, or is not.
    fn next(&self, from: u64, dirty: bool) -> Option<u64> {
        let mut page = from;
        while page < self.pages {
            let word = self.words[(page / 64) as usize];
            let rest = if dirty { word } else { !word } >> (page % 64);
            if rest != 0 {
                let found = page + u64::from(rest.trailing_zeros());
                return (found < self.pages).then_some(found);
            }
            page = (page / 64 + 1) * 64;
        }
        None
    }
}

/// Dirty pages of a guest: a bitmap per memory region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DirtyPages {
    bitmaps: BTreeMap<u32, Bitmap>,
}

impl DirtyPages {
    /// A set with no page of these regions.
    pub fn none_of(regions: &Regions) -> Self {
        let bitmap = |region: &Region| (region.slot(), Bitmap::new(region.bytes() / page_size()));
        Self {
            bitmaps: regions.iter().map(bitmap).collect(),
        }
    }

    /// A set with all pages of these regions.
    pub fn all_of(regions: &Regions) -> Self {
        let mut all = Self::none_of(regions);
        for bitmap in all.bitmaps.values_mut() {
            bitmap.insert(0..bitmap.pages);
        }
        all
    }

    /// The bitmap of a memslot's region.
    pub fn of_slot(&self, slot: u32) -> Option<&Bitmap> {
        self.bitmaps.get(&slot)
    }

    /// The bitmap of a memslot's region, to add pages to.
    pub fn of_slot_mut(&mut self, slot: u32) -> Option<&mut Bitmap> {
        self.bitmaps.get_mut(&slot)
    }

    /// Whether no page is dirty.
    pub fn is_empty(&self) -> bool {
        self.bitmaps.values().all(Bitmap::is_empty)
    }

    /// The number of dirty pages.
    pub fn count(&self) -> u64 {
        self.bitmaps.values().map(Bitmap::count).sum()
    }

    /// Adds the pages of another set to regions that both have, with the same length.
    pub fn union_with(&mut self, other: &Self) {
        for (slot, more) in &other.bitmaps {
            let bitmap = self.bitmaps.get_mut(slot);
            if let Some(bitmap) = bitmap.filter(|bitmap| bitmap.pages == more.pages) {
                bitmap.insert_words(&more.words);
            }
        }
    }

    /// The pages that both sets have.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn intersection(&self, other: &Self) -> Self {
        let mut both = self.clone();
        for (slot, bitmap) in &mut both.bitmaps {
            let words = other.of_slot(*slot).map_or(&[][..], Bitmap::words);
            let words = words.iter().chain(std::iter::repeat(&0));
            for (word, more) in bitmap.words.iter_mut().zip(words) {
                *word &= more;
            }
        }
        both
    }

    /// Leaves no page dirty.
    pub(crate) fn clear(&mut self) {
        for bitmap in self.bitmaps.values_mut() {
            bitmap.words.fill(0);
        }
    }
}

/// Adjacent dirty pages of one memory region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct DirtyRange {
    /// The memslot.
    pub slot: u32,
    /// The guest-physical address of the first byte.
    pub guest_address: u64,
    /// The address of the first byte in this process.
    pub host_address: u64,
    /// Where in the region the first byte is.
    pub region_offset: u64,
    /// Where in the region's file the first byte is, if a file is mapped there.
    pub file_offset: Option<u64>,
    /// The length in bytes.
    pub bytes: u64,
}

impl DirtyRange {
    pub(crate) fn new(region: &Region, pages: Range<u64>) -> Self {
        let region_offset = pages.start * page_size();
        Self {
            slot: region.slot(),
            guest_address: region.guest_address() + region_offset,
            host_address: region.host_address() + region_offset,
            region_offset,
            file_offset: region.file_offset().map(|start| start + region_offset),
            bytes: (pages.end - pages.start) * page_size(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_the_pages_that_were_inserted() {
        let mut random = fastrand::Rng::with_seed(7);
        for pages in [1, 63, 64, 65, 200, 1000] {
            let (mut bitmap, mut model) = (Bitmap::new(pages), vec![false; pages as usize]);
            for _ in 0..20 {
                let start = random.u64(0..pages);
                let end = start + random.u64(0..70);
                bitmap.insert(start..end);
                let end = end.min(pages);
                model[start as usize..end as usize].fill(true);
                let ranges: Vec<Range<u64>> = bitmap.ranges().collect();
                assert!(ranges.windows(2).all(|pair| pair[0].end < pair[1].start));
                let listed: Vec<u64> = ranges.into_iter().flatten().collect();
                let expected: Vec<u64> = (0..pages).filter(|page| model[*page as usize]).collect();
                assert_eq!(listed, expected);
                assert_eq!(bitmap.count(), expected.len() as u64);
                #[cfg(feature = "store")]
                for within in [0..pages, start..end, pages / 2..pages] {
                    let first = expected.iter().find(|page| within.contains(page));
                    let run = bitmap.first_run(&within);
                    assert_eq!(run.as_ref().map(|run| run.start), first.copied());
                    let whole = |run: Range<u64>| {
                        run.clone().all(|page| bitmap.contains(page))
                            && (run.end == within.end || !bitmap.contains(run.end))
                    };
                    assert!(run.is_none_or(whole));
                }
            }
            bitmap.insert_words(&vec![u64::MAX; 100]);
            assert!(bitmap.ranges().eq(std::iter::once(0..pages)));
            assert_eq!(bitmap.count(), pages);
            assert!(!bitmap.contains(pages));
        }
    }
}
