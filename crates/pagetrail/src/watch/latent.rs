//! [`Latent`]: private mappings of files that may not be written at the moment, and in which the process owns no page: program
//! text, constants. To arm them would cost much and tell nothing.
//!
//! A write to such memory (a debugger's, or the program's after `mprotect(2)`) copies the page, and the copy is the
//! process's own, which `/proc/PID/pagemap` says. So they are looked at in each round, and are armed when the process owns a page.
//! Registering them from the start would have the kernel map one page per fault instead of the neighbours as well
//! (`uffd_disable_fault_around()` in `include/linux/userfaultfd_k.h`), by which every program would start more slowly.

use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet};
use crate::sys::pagemap::{Pagemap, Query, Vector, category, entry};
use rustix::io::Errno;

/// What a watch does about mappings that may not be written at the moment.
///
/// A program may make them writable, write, and take that back between two rounds: just-in-time compilers do so, and the dynamic
/// loader. Debuggers write to them as they are. Shared mappings that can never be made writable are not watched in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Unwritable {
    /// They are not watched: a write is missed if the memory is unwritable whenever a round is collected.
    LeaveOut,
    /// They are watched. Private mappings of files, which are program text for the most part, are write-protected only when the
    /// process owns a page there; until then each round looks whether it does.
    #[default]
    WhenOwned,
    /// They are write-protected at once, all of them. For those who need to find all private memory registered with the userfaultfd.
    Always,
}

/// In memory or swapped out, and the process's own, not the file's.
const OWNED: Query = Query {
    rearm: false,
    registered: false,
    inverted: category::FILE,
    all_of: category::FILE,
    any_of: category::PRESENT | category::SWAPPED,
    report: 0,
};

/// The mappings of one address space that are looked at.
pub(super) struct Latent {
    pid: Option<u32>,
    /// Opened when there is something to look at.
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

    /// Looks at these from now on, and at nothing else.
    pub(super) fn watch(&mut self, ranges: PageSet) {
        self.ranges = ranges;
    }

    /// Looks at a part no longer; what of it was looked at.
    pub(super) fn take(&mut self, range: PageRange) -> PageSet {
        let taken = self.ranges.intersection(&PageSet::from_iter([range]));
        self.ranges.remove(range);
        taken
    }

    /// The pages that the process owns.
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
                    .matching_entries(*range, entry::is_owned, &mut owned)
                    .map_err(Error::io("reading pagemap"))?,
                Err(Errno::SRCH) => {
                    return Err(Error::Gone {
                        pid: self.pid.unwrap_or_else(std::process::id),
                    });
                }
                outcome => outcome.map_err(Error::errno("PAGEMAP_SCAN without re-arming"))?,
            }
        }
        Ok(owned)
    }
}
