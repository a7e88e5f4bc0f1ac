//! [`Pending`]: samples of page faults until the round of their page, and the rule by which a page
//! is attributed to one of them.
//!
//! A page becomes dirty by its last fault in a round: it may fault for a read first, and once it is
//! writable it faults no more until it is write-protected again. So of the samples before a collect
//! the last one counts. While a collect runs it is not known when the page was write-protected:
//! a sample from that time is taken for the page only if there is none from before, and otherwise
//! kept for the next round.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use pagetrail::{PageRange, PageSet};
use pagetrail_trail::StackWrites;

/// A sampled fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Fault {
    pub(crate) time_ns: u64,
    /// The address of the page.
    pub(crate) page: u64,
    pub(crate) stack: u32,
    pub(crate) thread: u32,
}

/// Samples at which superfluous ones are dropped, so that memory grows with pages, not with time.
const COMPACT_AT: usize = 1 << 20;

/// Samples that no collect has used yet.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    faults: Vec<Fault>,
    /// Number of samples after the last compaction.
    compacted: usize,
}

impl Pending {
    /// Adds a sample. The order does not matter.
    pub(crate) fn push(&mut self, fault: Fault) {
        self.faults.push(fault);
        if self.faults.len() >= COMPACT_AT.max(2 * self.compacted) {
            self.faults = last_of_each(std::mem::take(&mut self.faults));
            self.compacted = self.faults.len();
        }
    }

    /// Attributes dirty pages that were collected between two points in time, and forgets samples
    /// from before that no later round can need.
    pub(crate) fn attribute(
        &mut self,
        began_ns: u64,
        ended_ns: u64,
        page_bytes: u64,
        dirty: &PageSet,
    ) -> Vec<StackWrites> {
        let mut faults = std::mem::take(&mut self.faults);
        faults.sort_by_key(|fault| fault.time_ns);
        let before = faults.partition_point(|fault| fault.time_ns <= began_ns);
        let mut writer_of = HashMap::with_capacity(before);
        for fault in &faults[..before] {
            if dirty.contains(fault.page) {
                writer_of.insert(fault.page, (fault.stack, fault.thread));
            }
        }
        for fault in &faults[before..] {
            let is_earlier = fault.time_ns <= ended_ns && dirty.contains(fault.page);
            match writer_of.entry(fault.page) {
                Entry::Vacant(entry) if is_earlier => {
                    entry.insert((fault.stack, fault.thread));
                }
                _ => self.faults.push(*fault),
            }
        }
        self.compacted = self.faults.len();
        group(writer_of, page_bytes)
    }
}

/// The last sample of each page. No collect is under way, so earlier ones cannot count.
fn last_of_each(faults: Vec<Fault>) -> Vec<Fault> {
    let mut last: HashMap<u64, Fault> = HashMap::with_capacity(faults.len() / 2);
    for fault in faults {
        match last.entry(fault.page) {
            Entry::Occupied(mut entry) if entry.get().time_ns <= fault.time_ns => {
                entry.insert(fault);
            }
            Entry::Occupied(_) => {}
            Entry::Vacant(entry) => {
                entry.insert(fault);
            }
        }
    }
    last.into_values().collect()
}

/// Pages by stack and thread, in ascending order.
fn group(writer_of: HashMap<u64, (u32, u32)>, page_bytes: u64) -> Vec<StackWrites> {
    let mut pages: Vec<_> = writer_of
        .into_iter()
        .map(|(page, (stack, thread))| (stack, thread, page))
        .collect();
    pages.sort_unstable();
    let same_writer = |a: &(u32, u32, u64), b: &(u32, u32, u64)| (a.0, a.1) == (b.0, b.1);
    let writers = pages.chunk_by(same_writer).map(|pages| StackWrites {
        stack: pages[0].0,
        thread: pages[0].1,
        pages: pages
            .iter()
            .filter_map(|(.., page)| PageRange::new(*page, page + page_bytes))
            .collect(),
    });
    writers.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;

    fn fault(time_ns: u64, page: u64, stack: u32) -> Fault {
        Fault {
            time_ns,
            page: page * PAGE,
            stack,
            thread: 1,
        }
    }

    fn dirty(pages: &[u64]) -> PageSet {
        let ranges = pages.iter();
        ranges
            .filter_map(|page| PageRange::new(page * PAGE, (page + 1) * PAGE))
            .collect()
    }

    /// Pairs of page and stack.
    fn attributed(pending: &mut Pending, began: u64, ended: u64, set: &[u64]) -> Vec<(u64, u32)> {
        let writers = pending.attribute(began, ended, PAGE, &dirty(set));
        let mut pages: Vec<_> = writers
            .iter()
            .flat_map(|writer| {
                let pages = writer.pages.iter_units(PAGE);
                pages.map(|page| (page / PAGE, writer.stack))
            })
            .collect();
        pages.sort_unstable();
        pages
    }

    #[test]
    fn the_last_fault_before_a_collect_counts() {
        let mut pending = Pending::default();
        for fault in [fault(3, 1, 30), fault(1, 1, 10), fault(2, 2, 20)] {
            pending.push(fault);
        }
        assert_eq!(attributed(&mut pending, 5, 6, &[1, 3]), [(1, 30)]);
        assert_eq!(attributed(&mut pending, 8, 9, &[1, 2, 3]), [], "forgotten");
    }

    #[test]
    fn a_fault_during_a_collect_belongs_to_either_round() {
        let mut pending = Pending::default();
        // Page 1 is dirty already, page 2 becomes dirty meanwhile, page 3 after its turn.
        for fault in [
            fault(1, 1, 10),
            fault(15, 1, 11),
            fault(15, 2, 20),
            fault(16, 3, 30),
        ] {
            pending.push(fault);
        }
        assert_eq!(
            attributed(&mut pending, 10, 20, &[1, 2]),
            [(1, 10), (2, 20)]
        );
        assert_eq!(
            attributed(&mut pending, 30, 40, &[1, 2, 3]),
            [(1, 11), (3, 30)]
        );
    }

    #[test]
    fn faults_after_a_collect_wait_for_the_next() {
        let mut pending = Pending::default();
        pending.push(fault(25, 1, 10));
        assert_eq!(attributed(&mut pending, 10, 20, &[1]), []);
        assert_eq!(attributed(&mut pending, 30, 40, &[1]), [(1, 10)]);
    }

    #[test]
    fn memory_grows_with_pages_not_with_samples() {
        let mut pending = Pending::default();
        for time in 0..3 * COMPACT_AT as u64 {
            pending.push(fault(time, time % 100, (time % 7) as u32));
        }
        assert!(pending.faults.len() < COMPACT_AT);
        let last = 3 * COMPACT_AT as u64 - 1;
        let found = attributed(&mut pending, last, last, &[last % 100]);
        assert_eq!(found, [(last % 100, (last % 7) as u32)]);
    }
}
