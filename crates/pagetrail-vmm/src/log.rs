//! [`DirtyLog`]: what knows of writes to guest memory, no matter who made them.
//!
//! It is the seam between what finds dirty pages and the tracker: KVM's logs, userfaultfd, and the
//! monitor's own writes are one each, and a monitor can bring more, for a device in another
//! process, say.

use crate::error::Result;
use crate::pages::DirtyPages;
use crate::regions::Regions;

/// Knows of writes to guest memory.
///
/// Each promises for its kind of writes: one that completes before [`drain`](Self::drain)
/// returns is found by that call or by the next, never by none.
pub trait DirtyLog: Send {
    /// Adds the pages that were written since the last call to `dirty`, and makes the next write to
    /// each visible again. The contents of these pages are read after that, so that what is written
    /// meanwhile is found by the next call.
    ///
    /// # Errors
    ///
    /// A page that was added before the error counts. One that was not added must be found by the
    /// next call: nothing may be forgotten that is not in `dirty`.
    fn drain(&mut self, regions: &Regions, dirty: &mut DirtyPages) -> Result<()>;

    /// Says that the regions are others from now on. Pages of regions that are new are dirty for
    /// every consumer, whatever the log says.
    ///
    /// # Errors
    ///
    /// The log cannot follow; the tracker keeps the regions that it had.
    fn regions_changed(&mut self, regions: &Regions) -> Result<()> {
        let _ = regions;
        Ok(())
    }
}
