//! Scanning ranges: by one call where nothing was replaced, mapping by mapping where something was,
//! and by two threads while the target stands still.

use super::PagemapScan;
use super::helper::{BYTES_MIN, Helper};
use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet};
use crate::proc::maps::Maps;
use crate::sys::pagemap::Query;
use rustix::io::Errno;
use std::sync::Arc;

impl PagemapScan {
    pub(super) fn scan_ranges(
        &mut self,
        ranges: &PageSet,
        query: Query,
        out: &mut PageSet,
        replaced: &mut Vec<PageRange>,
    ) -> Result<()> {
        for range in ranges.ranges() {
            self.scan_range(*range, query, out, replaced)?;
        }
        Ok(())
    }

    pub(super) fn scan_range(
        &mut self,
        range: PageRange,
        query: Query,
        out: &mut PageSet,
        replaced: &mut Vec<PageRange>,
    ) -> Result<()> {
        match self
            .pagemap
            .scan(range, query, &mut self.vector, |found| out.insert(found))
        {
            Ok(()) => Ok(()),
            Err(Errno::PERM) => self.scan_piecewise(range, query, out, replaced),
            Err(errno) => Err(self.failed("PAGEMAP_SCAN")(errno)),
        }
    }

    /// Finds which mappings of an armed range are no longer registered, mapping by mapping.
    fn scan_piecewise(
        &mut self,
        range: PageRange,
        query: Query,
        out: &mut PageSet,
        replaced: &mut Vec<PageRange>,
    ) -> Result<()> {
        let mut maps = Maps::open(Some(self.pid)).map_err(Error::io("opening maps"))?;
        let regions = maps
            .changed()
            .map_err(Error::io("reading maps"))?
            .unwrap_or_default();
        for part in regions
            .iter()
            .filter_map(|region| region.range.intersection(&range))
        {
            match self
                .pagemap
                .scan(part, query, &mut self.vector, |found| out.insert(found))
            {
                Ok(()) => {}
                Err(Errno::PERM) => replaced.push(part),
                Err(errno) => return Err(self.failed("PAGEMAP_SCAN")(errno)),
            }
        }
        Ok(())
    }

    /// Whether memory is to be scanned by two threads. From the second hold on: within the first
    /// there is no time to start one.
    pub(super) fn is_for_two(&mut self, ranges: &PageSet) -> bool {
        // A program that tracks itself may have reasons not to have another thread.
        if self.pid == std::process::id() || ranges.bytes() < BYTES_MIN {
            return false;
        }
        if !self.is_held {
            if std::mem::take(&mut self.wants_helper) {
                self.helper = Helper::start();
            }
            return false;
        }
        self.wants_helper |= self.helper.is_none();
        self.helper.is_some()
    }

    /// Scans ranges with another thread.
    pub(super) fn scan_by_two(
        &mut self,
        ranges: &PageSet,
        query: Query,
        out: &mut PageSet,
        replaced: &mut Vec<PageRange>,
    ) -> Result<()> {
        let Some(helper) = self.helper.take() else {
            return self.scan_ranges(ranges, query, out, replaced);
        };
        let pagemap = Arc::clone(&self.pagemap);
        let (found, mut outcome) = helper.scan(&pagemap, query, ranges, |span| {
            self.scan_range(span, query, out, replaced)
        });
        self.helper = Some(helper);
        // All of it was re-armed, whatever has failed.
        for found in found {
            found
                .pages
                .ranges()
                .iter()
                .for_each(|pages| out.insert(*pages));
            let more = match found.outcome {
                Ok(()) => Ok(()),
                Err(Errno::PERM) => self.scan_piecewise(found.span, query, out, replaced),
                Err(errno) => Err(self.failed("PAGEMAP_SCAN")(errno)),
            };
            outcome = outcome.and(more);
        }
        outcome
    }
}
