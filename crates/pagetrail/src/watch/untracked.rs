//! For how long a region counts as untrackable.

use crate::page_set::PageSet;
use crate::region::Region;
use crate::types::UntrackedRegion;

/// What of the region is still mapped, and by mappings of the same kind. `kept`: what is mapped
/// and was not replaced by another backing. A file may be mapped over itself at another offset,
/// and a new file often has the inode number of a deleted one.
pub(super) fn still_there(
    untracked: &UntrackedRegion,
    regions: &[Region],
    kept: &PageSet,
) -> PageSet {
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
