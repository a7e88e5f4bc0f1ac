//! Alternating rounds of writes and of accesses: [`PagemapScan`] and [`AccessScan`] with one
//! userfaultfd.
//!
//! A mapping is protected either from writes or from every access, so at the end of each collect it
//! is registered again in the other mode. Accesses during the switch are not detected
//! ([`Collected::blind`]): alternation samples, and only within a round is its report a superset.
//! Memory that `access-scan` cannot track stays with `pagemap-scan` all the time: its writes are
//! reported in rounds of writes, none is lost.

use super::access_scan::{self, AccessScan};
use super::pagemap_scan::{self, HugePages, PagemapScan};
use super::{ArmError, Armed, Collected, Tracker};
use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet};
use crate::region::Region;
use crate::sys::uffd::Uffd;
use crate::types::AccessKind;
use rustix::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

/// The technique's state for one address space.
pub(crate) struct Alternate {
    uffd: Arc<Uffd>,
    writes: PagemapScan,
    accesses: AccessScan,
    now: AccessKind,
    /// The regions that are tracked alternately.
    regions: Vec<Region>,
}

impl Alternate {
    /// Takes a new userfaultfd of the target's address space; `pid` is `None` for the own one.
    pub(crate) fn new(fd: OwnedFd, pid: Option<u32>, huge_pages: HugePages) -> Result<Self> {
        let features = pagemap_scan::FEATURES | access_scan::FEATURES;
        let uffd = Arc::new(
            Uffd::handshake(fd, features)
                .map_err(Error::os("userfaultfd handshake with UFFD_FEATURE_RWP"))?,
        );
        Ok(Self {
            writes: PagemapScan::over(uffd.clone(), pid, huge_pages)?,
            accesses: AccessScan::over(uffd.clone(), pid, huge_pages)?,
            uffd,
            now: AccessKind::Writes,
            regions: Vec::new(),
        })
    }

    fn current(&mut self) -> &mut dyn Tracker {
        match self.now {
            AccessKind::Writes => &mut self.writes,
            AccessKind::Accesses => &mut self.accesses,
        }
    }

    /// Removes `range` from the regions that are tracked alternately.
    fn drop_range(&mut self, range: PageRange) {
        let range = PageSet::from_iter([range]);
        self.regions = std::mem::take(&mut self.regions)
            .iter()
            .flat_map(|region| {
                let rest = PageSet::from_iter([region.range]).difference(&range);
                rest.ranges()
                    .iter()
                    .filter_map(|part| region.cut(*part))
                    .collect::<Vec<_>>()
            })
            .collect();
    }

    /// Moves all alternately tracked regions from one technique to the other; returns the ranges
    /// that neither could arm, which the watch then arms again, reports as untracked, or fails on.
    fn switch(&mut self) -> Vec<PageRange> {
        let mut lost = Vec::new();
        let regions = std::mem::take(&mut self.regions);
        for region in &regions {
            self.current().forget(region.range);
            // If it was unmapped or replaced meanwhile, it is no longer registered, which suffices.
            let _ = self.uffd.unregister(region.range);
        }
        self.now = match self.now {
            AccessKind::Writes => AccessKind::Accesses,
            AccessKind::Accesses => AccessKind::Writes,
        };
        for region in regions {
            match self.current().arm(&region) {
                Ok(()) => self.regions.push(region),
                Err(ArmError::Untrackable(_) | ArmError::Failed(_)) => {
                    if self.now == AccessKind::Writes || self.writes.arm(&region).is_err() {
                        lost.push(region.range);
                    }
                }
                Err(ArmError::Gone | ArmError::ReadOnly) => {}
            }
        }
        lost
    }
}

impl Tracker for Alternate {
    fn access_kind(&self) -> AccessKind {
        self.now
    }

    fn arm(&mut self, region: &Region) -> Result<(), ArmError> {
        match self.current().arm(region) {
            Ok(()) => {
                self.regions.push(region.clone());
                Ok(())
            }
            Err(ArmError::Untrackable(_)) if self.now == AccessKind::Accesses => {
                self.writes.arm(region)
            }
            refused => refused,
        }
    }

    fn add_populated(&mut self, region: &Region, out: &mut PageSet) -> Result<()> {
        self.current().add_populated(region, out)
    }

    fn may_be_others(&mut self, span: PageRange) -> bool {
        self.now == AccessKind::Writes && self.writes.may_be_others(span)
    }

    fn is_others(&mut self, range: PageRange) -> bool {
        self.now == AccessKind::Writes && self.writes.is_others(range)
    }

    fn forget(&mut self, range: PageRange) {
        self.writes.forget(range);
        self.accesses.forget(range);
        self.drop_range(range);
    }

    fn distinguishes_shared(&self) -> bool {
        true
    }

    fn needs_layout(&self) -> bool {
        true
    }

    fn collect(&mut self, layout: &[Armed], out: &mut PageSet) -> Result<Collected> {
        let began = Instant::now();
        let mut collected = match self.now {
            AccessKind::Writes => self.writes.collect(layout, out)?,
            AccessKind::Accesses => {
                let turns: PageSet = self.regions.iter().map(|region| region.range).collect();
                let layout: Vec<Armed> = layout
                    .iter()
                    .filter(|armed| turns.covers(armed.range))
                    .copied()
                    .collect();
                self.accesses.collect(&layout, out)?
            }
        };
        for range in collected.replaced.clone() {
            self.forget(range);
        }
        collected.replaced.extend(self.switch());
        collected.blind = began.elapsed();
        Ok(collected)
    }
}
