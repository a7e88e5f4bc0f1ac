//! For how long a region counts as untrackable.

use crate::page_set::PageSet;
use crate::region::Region;
use crate::types::UntrackedRegion;

/// Keeps of `all` what is still mapped as it was, and returns what is not. `regions`: the mappings
/// in ascending order. `kept`: what is mapped and was not replaced by another backing.
///
/// Of a compared region the rest stays as it is: what its copies show is not known otherwise, such
/// as that pages were discarded and hold what the file holds. Any other is tried again.
pub(super) fn follow(
    all: &mut Vec<UntrackedRegion>,
    regions: &[Region],
    kept: &PageSet,
) -> PageSet {
    let mut changed = PageSet::new();
    for one in std::mem::take(all) {
        let whole = PageSet::from_iter([one.region.range]);
        let there = still_there(&one, regions, kept);
        if there == whole {
            all.push(one);
            continue;
        }
        changed.union_with(&whole.difference(&there));
        if one.compared {
            let parts = there.ranges().iter();
            let parts = parts.filter_map(|part| one.region.cut(*part));
            all.extend(parts.map(|part| UntrackedRegion::new(part, &*one.reason, true)));
        }
    }
    changed
}

/// What of the region is still mapped, and by mappings of the same kind. A file may be mapped over
/// itself at another offset, and a new file often has the inode number of a deleted one.
fn still_there(untracked: &UntrackedRegion, regions: &[Region], kept: &PageSet) -> PageSet {
    let region = &untracked.region;
    let kind = |region: &Region| {
        (
            region.device,
            region.inode,
            region.permissions.shared,
            region.is_trackable(),
        )
    };
    let first = regions.partition_point(|now| now.range.end() <= region.range.start());
    let here = regions[first..]
        .iter()
        .take_while(|now| now.range.start() < region.range.end());
    let same: PageSet = here
        .filter(|now| kind(now) == kind(region))
        .filter_map(|now| now.range.intersection(&region.range))
        .collect();
    same.intersection(kept)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_set::PageRange;

    fn pages(from: u64, to: u64) -> PageRange {
        PageRange::new(from << 12, to << 12).unwrap()
    }

    /// What is left of an untracked region of pages 10 to 20 when these are still mapped, and what
    /// of it has changed.
    fn left(compared: bool, now: &[PageRange]) -> (Vec<PageRange>, PageSet) {
        let whole = Region::scratch(pages(10, 20));
        let mut all = vec![UntrackedRegion::new(whole, "why", compared)];
        let regions: Vec<Region> = now.iter().map(|range| Region::scratch(*range)).collect();
        let changed = follow(&mut all, &regions, &now.iter().copied().collect());
        let kept = |one: &UntrackedRegion| one.compared == compared && one.reason == "why";
        assert!(all.iter().all(kept), "{all:?}");
        (all.iter().map(|one| one.region.range).collect(), changed)
    }

    #[test]
    fn of_a_compared_region_that_is_cut_the_rest_stays_and_any_other_is_tried_again() {
        let whole = [pages(5, 20)];
        let cut = [pages(10, 13), pages(15, 20)];
        for compared in [false, true] {
            let same = (vec![pages(10, 20)], PageSet::new());
            assert_eq!(left(compared, &whole), same);
            assert_eq!(left(compared, &[]), (vec![], pages(10, 20).into()));
        }
        let middle: PageSet = pages(13, 15).into();
        assert_eq!(left(true, &cut), (cut.to_vec(), middle.clone()));
        assert_eq!(left(false, &cut), (vec![], middle));
    }
}
