//! Mappings that are lent to the userfaultfd of a freeze: which of them still are, and ending that.
//!
//! While it runs, a target may do with a registered mapping what it likes: unmap a part, put
//! something else there, let it grow. To end the registration of a range fails as a whole if a
//! part of it cannot be registered (`userfaultfd_unregister` in fs/userfaultfd.c), a file in a
//! hole, say. So where that fails it is done mapping by mapping, as they are now.

use crate::page_set::{PageRange, PageSet, page_size};
use crate::proc::maps::Maps;
use crate::region::Region;
use crate::sys::pagemap::{Pagemap, Vector};
use crate::sys::uffd::{Mode, Uffd};
use rustix::io::Errno;

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

/// Lets go, like [`let_go`], of ranges that were lent, and of what the mappings there have grown by
/// since.
pub(super) fn let_go_grown(uffd: &Uffd, pid: u32, lent: &PageSet) {
    let mut all = lent.clone();
    if let Ok(regions) = regions(pid) {
        for range in lent.ranges() {
            let now = pieces(*range, &regions).map(|(_, region)| region);
            all.extend(now.filter(|now| may_be_lent(now)).map(|now| now.range));
        }
    }
    let_go(uffd, pid, all.ranges());
}

/// What knows with which userfaultfd a mapping of a held process is registered.
pub(super) struct Registrations<'a> {
    /// The asynchronous one.
    pub(super) lender: &'a Uffd,
    /// The one of the freeze.
    pub(super) uffd: &'a Uffd,
    pub(super) pagemap: &'a Pagemap,
}

impl Registrations<'_> {
    /// The mappings that still are registered with the userfaultfd of the freeze; and whether all
    /// is as it was when they were lent. They include what they have grown by: it is registered
    /// with them, and nobody else can register it until that ends.
    pub(super) fn still_lent(&self, lent: &[Region], regions: &[Region]) -> (PageSet, bool) {
        let (mut still, mut as_it_was) = (PageSet::new(), true);
        let mut vector = Vector::new();
        let ranges: PageSet = lent.iter().map(|region| region.range).collect();
        for region in lent {
            let at = regions.partition_point(|now| now.range.start() < region.range.start());
            if regions.get(at) == Some(region) {
                still.insert(region.range);
                continue;
            }
            as_it_was = false;
            for (_, now) in pieces(region.range, regions) {
                still.extend(self.is_lent(now, &mut vector).then_some(now.range));
            }
            // Grown, and cut off from it since, by a change of protection, say.
            let (below, above) = adjacent(region.range, regions);
            for now in below.take_while(|now| !ranges.intersects(now.range)) {
                if !self.is_lent(now, &mut vector) {
                    break;
                }
                still.insert(now.range);
            }
            for now in above.take_while(|now| !ranges.intersects(now.range)) {
                if !self.is_lent(now, &mut vector) {
                    break;
                }
                still.insert(now.range);
            }
        }
        (still, as_it_was)
    }

    /// Whether a mapping is registered with the userfaultfd of the freeze. Others may be new, or
    /// the target's own business: to ask changes nothing in them.
    fn is_lent(&self, region: &Region, vector: &mut Vector) -> bool {
        let start = region.range.start();
        let Some(first) = PageRange::new(start, start + page_size()) else {
            return false;
        };
        if !may_be_lent(region) || self.pagemap.is_tracked_asynchronously(first, vector) {
            return false;
        }
        match self.lender.register(first, Mode::WriteProtect) {
            Ok(()) => {
                // Nobody had it.
                let _ = self.lender.unregister(first);
                false
            }
            // Nothing changes where it is registered so already.
            Err(Errno::BUSY) => self.uffd.register(region.range, Mode::WriteProtect).is_ok(),
            Err(_) => false,
        }
    }
}

/// Whether a mapping is of the only kind that is lent.
fn may_be_lent(region: &Region) -> bool {
    region.inode == 0 && !region.permissions.shared
}

/// The mappings that follow each other without a gap: below what mappings have of a range,
/// downwards, and above that, upwards.
fn adjacent(
    range: PageRange,
    regions: &[Region],
) -> (impl Iterator<Item = &Region>, impl Iterator<Item = &Region>) {
    let from = regions.partition_point(|region| region.range.end() <= range.start());
    let to = regions.partition_point(|region| region.range.start() < range.end());
    let here = &regions[from..to];
    let start = here.first().map_or(range, |region| region.range).start();
    let end = here.last().map_or(range, |region| region.range).end();
    let below = regions[..from].iter().rev().scan(start, |start, region| {
        let is_next = region.range.end() == *start;
        *start = region.range.start();
        is_next.then_some(region)
    });
    let above = regions[to..].iter().scan(end, |end, region| {
        let is_next = region.range.start() == *end;
        *end = region.range.end();
        is_next.then_some(region)
    });
    (below, above)
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
    fn what_mappings_have_of_a_range_and_beside_it() {
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
        let beside = |of: PageRange| {
            let (below, above) = adjacent(of, &regions);
            let ranges = |region: &Region| region.range;
            (
                below.map(ranges).collect::<Vec<_>>(),
                above.map(ranges).collect::<Vec<_>>(),
            )
        };
        assert_eq!(beside(range(6, 7)), (vec![range(4, 5)], vec![]));
        assert_eq!(beside(range(4, 5)), (vec![], vec![range(5, 9)]));
        assert_eq!(beside(range(9, 12)).0, [range(5, 9), range(4, 5)]);
        assert_eq!(beside(range(9, 12)).1, [range(12, 13)]);
        assert_eq!(pieces(range(20, 30), &regions).count(), 0);
    }
}
