//! [`UntrackedRegion`]: what is not watched as it should be, and for how long that holds.

use crate::page_set::PageSet;
use crate::region::Region;
use std::fmt;

/// A region that should be watched and cannot be by the technique.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UntrackedRegion {
    /// The region.
    pub region: Region,
    /// Why not, one line.
    pub reason: String,
    /// Whether `compare` watches it instead, its writes that is; otherwise they are not seen either.
    pub compared: bool,
}

impl fmt::Display for UntrackedRegion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let instead = if self.compared {
            "watched by compare"
        } else {
            "not watched"
        };
        write!(
            f,
            "{} {}: {} ({instead})",
            self.region.range, self.region.name, self.reason
        )
    }
}

/// Whether a region is still what it was, as far as its mappings tell, and all of it is there.
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
                    // One that becomes writable gets another chance.
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
