//! Collects that leave pages unarmed, and arming these pages later: for consumers that do not need
//! a fault for each of them.

use super::{HugePages, PagemapScan, Plan, WRITTEN, WRITTEN_SMALL};
use crate::error::Result;
use crate::page_set::{PageRange, PageSet};
use crate::sys::pagemap::Query;

impl PagemapScan {
    /// Scans all memory that may have been written, and re-arms only the blocks `fresh`, of which
    /// not all entries are armed yet.
    pub(super) fn scan_unarmed(
        &mut self,
        plan: &Plan,
        fresh: &PageSet,
        out: &mut PageSet,
        replaced: &mut Vec<PageRange>,
    ) -> Result<()> {
        self.scan_ranges(fresh, WRITTEN, out, replaced)?;
        let rest = plan.all.difference(fresh);
        let query = Query {
            write_protect: false,
            ..WRITTEN
        };
        let mut found = PageSet::new();
        let outcome = self.scan_ranges(&rest, query, &mut found, replaced);
        out.union_with(&found);
        outcome
    }

    /// Scans with a query that re-arms, but without re-arming in `left`.
    pub(super) fn scan_leaving(
        &mut self,
        ranges: &PageSet,
        query: Query,
        left: &PageSet,
        out: &mut PageSet,
        replaced: &mut Vec<PageRange>,
    ) -> Result<()> {
        let look = Query {
            write_protect: false,
            ..query
        };
        let mut left = left.ranges().iter().peekable();
        for range in ranges.ranges() {
            let mut start = range.start();
            while start < range.end() {
                // In ascending order, so that `out` grows at its end.
                while left.next_if(|part| part.end() <= start).is_some() {}
                let (query, end) = match left.peek() {
                    Some(part) if part.start() <= start => (look, part.end()),
                    Some(part) => (query, part.start()),
                    None => (query, range.end()),
                };
                let end = end.min(range.end());
                if let Some(part) = PageRange::new(start, end) {
                    self.scan_range(part, query, out, replaced)?;
                }
                start = end;
            }
        }
        Ok(())
    }

    /// Re-arms what was written in `span`, which lies within armed memory, and adds it to `out`.
    /// That includes pages written since the last collect, so one call may span pages that are
    /// armed. Adds mappings that lost their registration to `replaced`.
    pub(in crate::technique) fn rearm_span(
        &mut self,
        span: PageRange,
        out: &mut PageSet,
        replaced: &mut Vec<PageRange>,
    ) -> Result<()> {
        let query = match self.huge_pages {
            HugePages::Keep if !self.shared.intersects(span) => WRITTEN_SMALL,
            _ => WRITTEN,
        };
        self.scan_range(span, query, out, replaced)
    }

    /// The part of a range, beginning at its start, that is armed and has page tables.
    pub(in crate::technique) fn known_part(&self, range: PageRange) -> Option<PageRange> {
        let part = |set: &PageSet| {
            let ranges = set.ranges();
            let at = ranges.partition_point(|known| known.end() <= range.start());
            let known = ranges.get(at)?;
            PageRange::new(
                range.start().max(known.start()),
                range.end().min(known.end()),
            )
            .filter(|part| part.start() == range.start())
        };
        let armed = part(&self.armed)?;
        let known = part(&self.seen).or_else(|| part(&self.shared))?;
        armed.intersection(&known)
    }

    /// Lifts the protection of armed memory, so that it is reported as dirty until it is re-armed;
    /// returns whether that succeeded.
    pub(in crate::technique) fn release(&self, range: PageRange) -> bool {
        self.uffd.release(range).is_ok()
    }
}
