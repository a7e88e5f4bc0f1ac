//! Which bytes of a page are reached through an alias. Arithmetic only.

use super::description::{PAGE, SLAB_PAGES};
use crate::page_set::PageRange;

/// The word that describes a slab in the table of its superblock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) u64);

impl Word {
    /// The size of each object in bytes; 0 without objects.
    pub(crate) fn size(self) -> u64 {
        self.0 & 0xffff
    }

    /// The number of pages, from the first of the slab on, that objects have reached.
    pub(crate) fn touched_pages(self) -> u64 {
        self.0 >> 16 & 0x7fff
    }

    /// Whether all objects are handed out in the first alias.
    pub(crate) fn is_merged(self) -> bool {
        self.0 >> 31 & 1 != 0
    }

    /// The number of the slab's current use; 0 if it was never used.
    pub(crate) fn generation(self) -> u64 {
        self.0 >> 32
    }

    /// Whether this page of the slab was never used.
    pub(crate) fn is_untouched(self, page: u64) -> bool {
        match self.generation() {
            0 => true,
            1 => page >= self.touched_pages(),
            _ => false,
        }
    }
}

/// The bytes in page `page` of a slab, counted from the page's first, that objects which begin in
/// `subpage` have: objects that begin in this page, and one that begins in that sub-page of the
/// page before. `size` is the size of an object in bytes.
pub(crate) fn reached(
    size: u64,
    page: u64,
    subpage: u32,
    subpages_per_page: u32,
) -> impl Iterator<Item = PageRange> {
    let subpage_bytes = PAGE / u64::from(subpages_per_page);
    let start = page * PAGE;
    let capacity = SLAB_PAGES * PAGE / size;
    let first = start + u64::from(subpage) * subpage_bytes;
    let begins_from = first.div_ceil(size);
    let begins_to = (first + subpage_bytes).div_ceil(size).min(capacity);
    let own = PageRange::new(begins_from * size, (begins_to * size).min(start + PAGE))
        .filter(|_| begins_from < begins_to);
    // The last object that begins before the page.
    let before = start
        .div_ceil(size)
        .checked_sub(1)
        .filter(|&object| object < capacity);
    let head = before.and_then(|object| {
        let begins = object * size;
        let is_of_subpage = begins % PAGE / subpage_bytes == u64::from(subpage);
        PageRange::new(start, begins + size).filter(|_| is_of_subpage)
    });
    [head, own]
        .into_iter()
        .flatten()
        .filter_map(move |range| PageRange::new(range.start() - start, range.end() - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Computes what [`reached`] does, object by object and byte by byte.
    fn naive(size: u64, page: u64, subpage: u32, subpages_per_page: u32) -> Vec<bool> {
        let mut bytes = vec![false; PAGE as usize];
        for object in 0..SLAB_PAGES * PAGE / size {
            let begins = object * size;
            if begins % PAGE * u64::from(subpages_per_page) / PAGE == u64::from(subpage) {
                for byte in begins..begins + size {
                    // Through the alias of this sub-page, the byte is reached in its own page.
                    if byte / PAGE == page {
                        bytes[(byte % PAGE) as usize] = true;
                    }
                }
            }
        }
        bytes
    }

    #[test]
    fn an_alias_reaches_the_objects_of_its_subpage() {
        for subpages_per_page in [1, 2, 4, 8, 16, 32, 64] {
            for size in [16, 48, 112, 256, 352, 1000, 1152, 2048, 2304, 3840] {
                for page in [0, 1, 2, 7, 14, 15] {
                    for subpage in 0..subpages_per_page {
                        let mut bytes = vec![false; PAGE as usize];
                        for range in reached(size, page, subpage, subpages_per_page) {
                            bytes[range.start() as usize..range.end() as usize].fill(true);
                        }
                        let right = naive(size, page, subpage, subpages_per_page);
                        assert!(
                            bytes == right,
                            "{size} bytes, page {page}, {subpage}/{subpages_per_page}"
                        );
                    }
                }
            }
        }
    }
}
