//! [`SharedPages`]: memory that several processes of a recording wrote, counted once.

use std::collections::BTreeMap;

use pagetrail::{PageRange, PageSet};
use pagetrail_trail::{SharedMemory, Trail, TreeTrail};
use serde::Serialize;

/// Pages of shared memory that more than one process wrote. The totals of a process have all that
/// it wrote, so that their sum counts such a page several times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct SharedPages {
    /// Processes that wrote to memory which others wrote to as well.
    pub processes: usize,
    /// Different pages of this memory that were dirty in any of them, each once.
    pub distinct_pages: u64,
    /// These pages, each once for every process in which it was dirty.
    pub distinct_pages_of_each: u64,
    /// Bytes of a page.
    pub page_size: u64,
}

/// Device and inode.
type File = ((u32, u32), u64);

impl SharedPages {
    /// Counts the pages of a recording; `None` if no memory was written by several processes, or
    /// the recording does not say which memory is shared.
    pub fn of(tree: &TreeTrail) -> Option<Self> {
        // Of each file: the pages of each process, at their offsets.
        let mut files = BTreeMap::<File, Vec<(usize, PageSet)>>::new();
        for (number, process) in tree.processes.iter().enumerate() {
            for (file, pages) in shared(&process.trail) {
                files.entry(file).or_default().push((number, pages));
            }
        }
        let page_size = tree.processes.first()?.trail.header.page_size.max(1);
        let mut counts = Self {
            page_size,
            ..Self::default()
        };
        let mut processes = Vec::new();
        for of_each in files.values().filter(|of_each| of_each.len() > 1) {
            let mut all = PageSet::default();
            for (number, pages) in of_each {
                all.union_with(pages);
                counts.distinct_pages_of_each += pages.bytes() / page_size;
                processes.push(*number);
            }
            counts.distinct_pages += all.bytes() / page_size;
        }
        processes.sort_unstable();
        processes.dedup();
        counts.processes = processes.len();
        (counts.processes > 0).then_some(counts)
    }
}

/// The pages that a process wrote in shared memory, by file, at their offsets.
fn shared(trail: &Trail) -> BTreeMap<File, PageSet> {
    let mut files = BTreeMap::<File, PageSet>::new();
    for mapping in &trail.mappings {
        let Some(SharedMemory {
            device,
            inode,
            offset,
        }) = mapping.shared
        else {
            continue;
        };
        let whole: PageSet = [mapping.range].into_iter().collect();
        let mut written = PageSet::default();
        for round in &trail.rounds {
            let last = mapping.last_round.unwrap_or(u32::MAX);
            if (mapping.first_round..=last).contains(&round.index) {
                written.union_with(&round.written.intersection(&whole));
            }
        }
        let start = mapping.range.start();
        let at_offset = written.ranges().iter().filter_map(|range| {
            let from = (range.start() - start).checked_add(offset)?;
            PageRange::new(from, from.checked_add(range.bytes())?)
        });
        let at_offset: PageSet = at_offset.collect();
        if !at_offset.is_empty() {
            files
                .entry((device, inode))
                .or_default()
                .union_with(&at_offset);
        }
    }
    files
}

#[cfg(test)]
mod tests {
    use pagetrail_trail::{Mapping, ProcessTrail};

    use super::*;
    use crate::testing::{self, mapping, pages};

    const BASE: u64 = 0x7000_0000_0000;

    /// A process that wrote some pages of a mapping at `base`, which shows a file from a page on.
    fn process(base: u64, inode: u64, from_page: u64, written: &[u64]) -> ProcessTrail {
        let mut trail = testing::program(1);
        trail.mappings = vec![Mapping {
            permissions: "rw-s".into(),
            shared: Some(SharedMemory {
                device: (0, 1),
                inode,
                offset: from_page * 4096,
            }),
            ..mapping(pages(base, 0, 100), "/dev/zero (deleted)", 0)
        }];
        let written = written.iter().map(|page| pages(base, *page, 1));
        trail.rounds[0].written = written.collect();
        ProcessTrail {
            trail,
            ..ProcessTrail::default()
        }
    }

    fn counts(processes: Vec<ProcessTrail>) -> Option<(usize, u64, u64)> {
        let shared = SharedPages::of(&TreeTrail {
            processes,
            short_lives: 0,
        })?;
        Some((
            shared.processes,
            shared.distinct_pages,
            shared.distinct_pages_of_each,
        ))
    }

    #[test]
    fn a_page_of_several_processes_counts_once() {
        let (first, other) = (
            process(BASE, 5, 0, &[1, 2, 3]),
            process(BASE, 5, 0, &[3, 9]),
        );
        assert_eq!(counts(vec![first.clone()]), None);
        assert_eq!(counts(vec![first.clone(), other]), Some((2, 4, 5)));
        // Elsewhere, and from another page of the file on.
        let moved = process(2 * BASE, 5, 2, &[0, 1]);
        assert_eq!(counts(vec![first.clone(), moved]), Some((2, 3, 5)));
        let of_another_file = process(BASE, 6, 0, &[3]);
        assert_eq!(counts(vec![first.clone(), of_another_file]), None);
        let idle = process(BASE, 5, 0, &[]);
        assert_eq!(counts(vec![first, idle]), None);
    }

    #[test]
    fn a_mapping_counts_while_it_is_there() {
        let mut first = process(BASE, 5, 0, &[1, 2]);
        first.trail.mappings[0].first_round = 1;
        let other = process(BASE, 5, 0, &[1]);
        assert_eq!(counts(vec![first, other]), None);
    }
}
