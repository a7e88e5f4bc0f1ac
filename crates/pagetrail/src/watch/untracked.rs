//! For how long a region counts as untrackable.

use crate::page_set::PageSet;
use crate::region::Region;
use crate::types::UntrackedRegion;

/// Keeps of `all` what is still mapped as it was, and returns what is not. `kept`: what is mapped
/// and was not replaced by another backing.
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
            // A region that becomes writable is tried again.
            untracked.compared || region.permissions.write,
        )
    };
    let same = regions
        .iter()
        .filter(|now| now.range.intersection(&region.range).is_some() && kind(now) == kind(region));
    let same: PageSet = same
        .filter_map(|now| now.range.intersection(&region.range))
        .collect();
    same.intersection(kept)
}
