//! [`UntrackedRegion`]: regions that the technique cannot track, and for how long that holds.

use crate::page_set::PageSet;
use crate::region::Region;
use std::fmt;

/// A region that should be tracked, but cannot be by the technique in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntrackedRegion {
    /// The region.
    pub region: Region,
    /// Why it cannot be tracked, in one line.
    pub reason: String,
    /// Whether `compare` tracks its writes instead; if not, they are not seen.
    pub compared: bool,
}

impl fmt::Display for UntrackedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instead = if self.compared {
            "tracked by compare"
        } else {
            "not tracked"
        };
        write!(
            f,
            "{} {}: {} ({instead})",
            self.region.range, self.region.name, self.reason
        )
    }
}

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
