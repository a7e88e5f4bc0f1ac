//! Where nothing is mapped, neither now nor in the image: room for the stub; pure.

use pagetrail::{PageRange, PageSet};

/// The first address that is used: above what any setting of `vm.mmap_min_addr` forbids.
pub(crate) const FIRST: u64 = 0x10_0000;
/// The end of the addresses of a process that asks for no others (x86-64, four levels of tables).
pub(crate) const END: u64 = 0x7fff_ffff_f000;

/// The first free range of this many bytes, whole pages, with a free page on either side.
pub(crate) fn find(taken: &PageSet, bytes: u64) -> Option<PageRange> {
    const PAGE: u64 = 4096;
    let room = bytes.checked_add(2 * PAGE)?;
    let mut at = FIRST;
    for range in taken.ranges() {
        if range.start().saturating_sub(at) >= room {
            break;
        }
        at = at.max(range.end());
    }
    let start = at + PAGE;
    let end = start.checked_add(bytes)?;
    (end + PAGE <= END).then(|| PageRange::new(start, end))?
}

/// All addresses but those.
pub(crate) fn outside(kept: &PageSet) -> PageSet {
    let all = PageRange::new(0, END).map(|all| PageSet::from_iter([all]));
    all.unwrap_or_default().difference(kept)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(start, end).unwrap()
    }

    #[test]
    fn room_is_found_between_mappings() {
        let mut taken = PageSet::new();
        assert_eq!(find(&taken, 0x1000).unwrap().start(), FIRST + 0x1000);
        taken.insert(range(0x10_0000, 0x40_0000));
        taken.insert(range(0x40_2000, 0x50_0000));
        assert_eq!(find(&taken, 0x1000).unwrap().start(), 0x50_1000);
        taken.insert(range(0x60_0000, END));
        assert_eq!(find(&taken, 0xf_e000).unwrap().start(), 0x50_1000);
        assert_eq!(find(&taken, 0xf_f000), None);
        assert_eq!(find(&taken, u64::MAX), None);
    }
}
