//! [`Latent`]: private file mappings without write permission in which the process owns no page:
//! program text and constants. To arm them would cost much and detect nothing.
//!
//! A write to such memory (by a debugger, or by the program after `mprotect(2)`) copies the page,
//! and the copy is the process's own, as `/proc/PID/pagemap` shows. So each round checks for owned
//! pages, and a mapping is armed when the process owns a page in it. Registering such mappings from
//! the start would make the kernel map one page per fault instead of its neighbours as well
//! (`uffd_disable_fault_around()` in `include/linux/userfaultfd_k.h`), which would slow down the
//! start of every program.

use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet};
use crate::sys::pagemap::{OWNED, Pagemap, Vector, is_owned};
use rustix::io::Errno;

/// How a watch treats mappings without write permission.
///
/// A program may make them writable, write, and make them read-only again between two rounds, as
/// just-in-time compilers and the dynamic loader do. Debuggers write to them as they are. Shared
/// mappings that can never be made writable are not tracked in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unwritable {
    /// They are not tracked: a write is missed if the memory is not writable whenever a round is
    /// collected.
    LeaveOut,
    /// They are tracked. Private file mappings, most of which are program text, are write-protected
    /// only when the process owns a page in them; until then each round checks whether it does.
    #[default]
    WhenOwned,
    /// They are all write-protected at once. Choose this where all private memory must be
    /// registered with the userfaultfd.
    Always,
}

/// The latent mappings of one address space.
pub(super) struct Latent {
    pid: Option<u32>,
    /// Opened when the first mapping is followed.
    pagemap: Option<Pagemap>,
    vector: Vector,
    ranges: PageSet,
}

impl Latent {
    pub(super) fn new(pid: Option<u32>) -> Self {
        Self {
            pid,
            pagemap: None,
            vector: Vector::new(),
            ranges: PageSet::new(),
        }
    }

    /// Follows exactly these ranges from now on.
    pub(super) fn watch(&mut self, ranges: PageSet) {
        self.ranges = ranges;
    }

    /// Stops following a range, and returns the part of it that was followed.
    pub(super) fn take(&mut self, range: PageRange) -> PageSet {
        let taken = self.ranges.within(range);
        self.ranges.remove(range);
        taken
    }

    /// The pages in the followed ranges that the process owns.
    pub(super) fn owned(&mut self) -> Result<PageSet> {
        let mut owned = PageSet::new();
        if self.ranges.is_empty() {
            return Ok(owned);
        }
        let pagemap = match &mut self.pagemap {
            Some(pagemap) => pagemap,
            none => none.insert(Pagemap::open(self.pid).map_err(Error::io("opening pagemap"))?),
        };
        for range in self.ranges.ranges() {
            match pagemap.scan(*range, OWNED, &mut self.vector, |found| owned.insert(found)) {
                // Linux before 6.7 has no PAGEMAP_SCAN.
                Err(Errno::NOTTY) => pagemap
                    .matching_entries(*range, is_owned, &mut owned)
                    .map_err(Error::io("reading pagemap"))?,
                Err(Errno::SRCH) => {
                    return Err(Error::Gone {
                        pid: self.pid.unwrap_or_else(std::process::id),
                    });
                }
                outcome => outcome.map_err(Error::os("PAGEMAP_SCAN without re-arming"))?,
            }
        }
        Ok(owned)
    }
}
