//! Mappings that are lent to the userfaultfd of a freeze: which of them still are, and ending that.
//!
//! While it runs, a target may do with a registered mapping what it likes: unmap a part, put
//! something else there, let it grow. To end the registration of a range fails as a whole if a
//! part of it cannot be registered (`userfaultfd_unregister` in fs/userfaultfd.c), a file in a
//! hole, say. So where that fails it is done mapping by mapping, as they are now.

use crate::page_set::{PageRange, PageSet, page_size};
use crate::proc::maps::Maps;
use crate::region::Region;
use crate::sys::uffd::Uffd;

/// Ends the registration of ranges, and lets the threads go on that wait in them.
///
/// Only missing pages make `UFFDIO_UNREGISTER` wake anybody. A thread that waits for a protected
/// page has begun to before the registration ended, so it is woken once, after that.
pub(super) fn let_go(uffd: &Uffd, pid: u32, ranges: &[PageRange]) {
    let mut left = Vec::new();
    for range in ranges {
        if uffd.unregister(*range).is_err() {
            left.push(*range);
        }
        let _ = uffd.wake(*range);
    }
    if left.is_empty() {
        return;
    }
    let Ok(regions) = regions(pid) else {
        return;
    };
    for range in left {
        for piece in pieces(range, &regions).map(|(piece, _)| piece) {
            if uffd.unregister(piece).is_err() {
                let _ = uffd.release(piece);
            }
            let _ = uffd.wake(piece);
        }
    }
}

/// The parts of mappings that still are registered as they were when they were lent, while the
/// target is held; and whether all is as it was.
pub(super) fn still_lent(uffd: &Uffd, lent: &[Region], regions: &[Region]) -> (PageSet, bool) {
    let (mut still, mut as_it_was) = (PageSet::new(), true);
    for region in lent {
        let at = regions.partition_point(|now| now.range.start() < region.range.start());
        if regions.get(at) == Some(region) {
            still.insert(region.range);
            continue;
        }
        as_it_was = false;
        for (piece, now) in pieces(region.range, regions) {
            let first = PageRange::new(piece.start(), piece.start() + page_size());
            // What has come anew is not registered, and has nothing to release. Else the page is
            // in the next round, written or not.
            if now.inode == 0
                && !now.permissions.shared
                && first.is_some_and(|first| uffd.release(first).is_ok())
            {
                still.insert(piece);
            }
        }
    }
    (still, as_it_was)
}

/// The mappings of a process.
pub(super) fn regions(pid: u32) -> std::io::Result<Vec<Region>> {
    let regions = Maps::open(Some(pid)).and_then(|mut maps| maps.changed())?;
    Ok(regions.unwrap_or_default())
}

/// What mappings have of a range.
fn pieces(range: PageRange, regions: &[Region]) -> impl Iterator<Item = (PageRange, &Region)> {
    let at = regions.partition_point(|region| region.range.end() <= range.start());
    let within = regions[at..].iter();
    within
        .take_while(move |region| region.range.start() < range.end())
        .filter_map(move |region| {
            let start = range.start().max(region.range.start());
            let end = range.end().min(region.range.end());
            Some((PageRange::new(start, end)?, region))
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::region::Permissions;

    #[test]
    fn pieces_of_a_range_are_what_mappings_have_of_it() {
        let page = page_size();
        let range = |from: u64, to: u64| PageRange::new(from * page, to * page).unwrap();
        let permissions = Permissions {
            read: true,
            write: true,
            execute: false,
            shared: false,
        };
        let regions = [range(1, 3), range(4, 5), range(5, 9), range(12, 13)]
            .map(|range| Region::new(range, permissions));
        let found: Vec<_> = pieces(range(2, 8), &regions)
            .map(|(piece, _)| piece)
            .collect();
        assert_eq!(found, [range(2, 3), range(4, 5), range(5, 8)]);
        assert_eq!(pieces(range(9, 12), &regions).count(), 0);
        assert_eq!(pieces(range(20, 30), &regions).count(), 0);
    }
}
