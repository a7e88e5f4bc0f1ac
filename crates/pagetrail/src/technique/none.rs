//! `none`: detects nothing and reports every populated page in every round.
//!
//! It is the baseline for costs, and the fallback of a consumer that can always copy everything.

use super::{ArmError, Armed, Collected, Missed, Tracker};
use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet};
use crate::region::Region;
use crate::sys::pagemap::{Pagemap, Vector};

/// The technique's state for one address space.
pub(crate) struct None {
    pagemap: Pagemap,
    vector: Vector,
    private: PageSet,
    shared: PageSet,
}

impl None {
    /// Starts without armed memory; `pid` is `None` for the own address space.
    pub(crate) fn new(pid: Option<u32>) -> Result<Self> {
        Ok(Self {
            pagemap: Pagemap::open(pid).map_err(Error::io("opening pagemap"))?,
            vector: Vector::new(),
            private: PageSet::new(),
            shared: PageSet::new(),
        })
    }
}

impl Tracker for None {
    fn arm(&mut self, region: &Region) -> Result<(), ArmError> {
        if region.permissions.shared {
            self.shared.insert(region.range);
        } else {
            self.private.insert(region.range);
        }
        Ok(())
    }

    fn add_populated(&mut self, _: &Region, _: &mut PageSet) -> Result<()> {
        Ok(()) // The next collect reports it.
    }

    fn splits_mappings(&self) -> bool {
        false
    }

    fn refuses_read_only(&self) -> bool {
        false
    }

    fn forget(&mut self, range: PageRange) {
        self.private.remove(range);
        self.shared.remove(range);
    }

    fn misses(&self) -> Missed {
        Missed::All
    }

    fn collect(&mut self, _: &[Armed], out: &mut PageSet) -> Result<Collected> {
        for range in self.private.ranges() {
            self.pagemap
                .populated(*range, &mut self.vector, out)
                .map_err(Error::io("reading pagemap"))?;
        }
        // Pages of shared mappings may have been written and left the page table since.
        out.union_with(&self.shared);
        Ok(Collected::default())
    }
}
