//! For how long a region counts as untrackable.

use crate::page_set::PageSet;
use crate::region::Region;
use crate::types::UntrackedRegion;

/// Whether all of the region is still mapped, and by mappings of the same kind.
pub(super) fn still_there(
    untracked: &UntrackedRegion,
    regions: &[Region],
    mapped: &PageSet,
) -> bool {
    let region = &untracked.region;
    mapped.covers(region.range)
        && regions
            .iter()
            .filter(|now| now.range.intersection(&region.range).is_some())
            .all(|now| {
                (
                    now.device,
                    now.inode,
                    now.permissions.shared,
                    now.is_trackable(),
                    // A region that becomes writable is tried again.
                    untracked.compared || now.permissions.write,
                ) == (
                    region.device,
                    region.inode,
                    region.permissions.shared,
                    region.is_trackable(),
                    untracked.compared || region.permissions.write,
                )
            })
}
