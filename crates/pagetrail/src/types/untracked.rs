//! [`UntrackedRegion`]: a region that the technique in use cannot track.

use crate::region::Region;
use std::fmt;

/// A region that should be tracked, but cannot be by the technique in use.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UntrackedRegion {
    /// The region.
    pub region: Region,
    /// Why it cannot be tracked, in one line.
    pub reason: String,
    /// Whether `compare` tracks its writes instead; if not, they are not seen.
    pub compared: bool,
}

impl UntrackedRegion {
    /// A region with the reason why it cannot be tracked, and whether `compare` tracks its writes.
    pub fn new(region: Region, reason: impl Into<String>, compared: bool) -> Self {
        Self {
            region,
            reason: reason.into(),
            compared,
        }
    }
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
