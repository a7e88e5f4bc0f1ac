//! Which bytes of a page a part's window reaches. Arithmetic only.

use super::description::{PAGE, SLAB_PAGES};
use crate::page_set::PageRange;

/// What the table of a superblock says of a slab.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) u64);

impl Word {
    /// Bytes of each object; 0 without objects.
    pub(crate) fn size(self) -> u64 {
        self.0 & 0xffff
    }

    /// Pages of the slab, from its first on, that objects have reached.
    pub(crate) fn touched_pages(self) -> u64 {
        self.0 >> 16 & 0xffff
    }

    /// Changes whenever the slab is used for something else; 0 if it never was used.
    pub(crate) fn generation(self) -> u64 {
        self.0 >> 32
    }

    /// Whether nothing was ever in this page of the slab.
    pub(crate) fn is_untouched(self, page: u64) -> bool {
        match self.generation() {
            0 => true,
            1 => page >= self.touched_pages(),
            _ => false,
        }
    }
}

/// The bytes, counted from the page's first, that objects which begin in `part` have in page `page` of a slab of objects of
/// `size` bytes: of those that begin there, and of one that begins in that part of the page before.
pub(crate) fn reached(
    size: u64,
    page: u64,
    part: u32,
    parts: u32,
) -> impl Iterator<Item = PageRange> {
    let part_bytes = PAGE / u64::from(parts);
    let start = page * PAGE;
    let capacity = SLAB_PAGES * PAGE / size;
    let first = start + u64::from(part) * part_bytes;
    let begins_from = first.div_ceil(size);
    let begins_to = (first + part_bytes).div_ceil(size).min(capacity);
    let own = PageRange::new(begins_from * size, (begins_to * size).min(start + PAGE))
        .filter(|_| begins_from < begins_to);
    // The last object that begins before the page.
    let before = start
        .div_ceil(size)
        .checked_sub(1)
        .filter(|&object| object < capacity);
    let head = before.and_then(|object| {
        let begins = object * size;
        let is_of_part = begins % PAGE / part_bytes == u64::from(part);
        PageRange::new(start, begins + size).filter(|_| is_of_part)
    });
    [head, own]
        .into_iter()
        .flatten()
        .filter_map(move |range| PageRange::new(range.start() - start, range.end() - start))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The same, object by object and byte by byte.
    fn naive(size: u64, page: u64, part: u32, parts: u32) -> Vec<bool> {
        let mut bytes = vec![false; PAGE as usize];
        for object in 0..SLAB_PAGES * PAGE / size {
            let begins = object * size;
            if begins % PAGE * u64::from(parts) / PAGE == u64::from(part) {
                for byte in begins..begins + size {
                    // In the window of this part it is reached where it is.
                    if byte / PAGE == page {
                        bytes[(byte % PAGE) as usize] = true;
                    }
                }
            }
        }
        bytes
    }

    #[test]
    fn a_window_reaches_the_objects_of_its_part() {
        for parts in [1, 2, 4, 8, 16, 32, 64] {
            for size in [16, 48, 112, 256, 352, 1000, 1152, 2048, 2304, 3840] {
                for page in [0, 1, 2, 7, 14, 15] {
                    for part in 0..parts {
                        let mut bytes = vec![false; PAGE as usize];
                        for range in reached(size, page, part, parts) {
                            bytes[range.start() as usize..range.end() as usize].fill(true);
                        }
                        let right = naive(size, page, part, parts);
                        assert!(bytes == right, "{size} bytes, page {page}, {part}/{parts}");
                    }
                }
            }
        }
    }
}
