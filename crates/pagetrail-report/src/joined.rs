//! Mappings for tables: neighbours of one name and with the same rights as one.
//!
//! A heap that grows while it is tracked stays in pieces for the kernel, a new one with each
//! growth; to a reader it is one heap. Memory with a name that the recorder gave it is one wherever
//! its parts lie: V8 maps its heap in hundreds of places.

use std::collections::{BTreeMap, HashMap};

use pagetrail::PageRange;
use pagetrail_trail::analysis::MappingCounts;
use pagetrail_trail::{Analysis, Mapping, Trail};

/// Makes one mapping of those of one name, rights and neighbourhood, whenever they were there, and
/// returns the mappings as they were recorded.
///
/// A heap that grows is a new mapping to the recording each time, over the addresses of the one
/// before.
pub fn group(trail: &mut Trail) -> Vec<Mapping> {
    name_from_the_start(&mut trail.mappings);
    let grouped = grouped(&trail.mappings);
    std::mem::replace(&mut trail.mappings, grouped)
}

/// Whether a name is one that the recorder gave to memory which has none of the kernel's.
pub fn is_given(name: &str) -> bool {
    const KERNELS: [&str; 7] = [
        "[heap]",
        "[stack]",
        "[anon:",
        "[anon_shmem:",
        "[vdso",
        "[vvar",
        "[vsyscall",
    ];
    name.starts_with('[') && !KERNELS.iter().any(|kernels| name.starts_with(kernels))
}

/// Names mappings that were recognized a while after they appeared: such a mapping vanished, and is
/// there under its name from the next round on.
pub fn name_from_the_start(mappings: &mut [Mapping]) {
    let place = |mapping: &Mapping, round| (mapping.range, mapping.permissions.clone(), round);
    let given = mappings.iter().filter(|mapping| is_given(&mapping.name));
    let given: HashMap<_, _> = given
        .map(|mapping| (place(mapping, mapping.first_round), mapping.name.clone()))
        .collect();
    for mapping in mappings.iter_mut().filter(|m| m.name.is_empty()) {
        let next = mapping.last_round.and_then(|last| last.checked_add(1));
        let name = next.and_then(|next| given.get(&place(mapping, next)));
        if let Some(name) = name {
            mapping.name.clone_from(name);
        }
    }
}

/// Joins mappings alone. They keep the order in which they appeared.
pub fn grouped(mappings: &[Mapping]) -> Vec<Mapping> {
    let mut mappings = mappings.to_vec();
    name_from_the_start(&mut mappings);
    let mut order: Vec<_> = mappings.iter().enumerate().collect();
    order.sort_by_key(|(_, mapping)| (mapping.range, mapping.first_round));
    let mut groups: Vec<(usize, Mapping)> = Vec::new();
    // Where two names share addresses, at different times, neighbours are those of the same name.
    let mut last: BTreeMap<(&str, &str, Option<&str>), usize> = BTreeMap::new();
    for (index, mapping) in order {
        let key = kind(mapping);
        let group = last.get(&key).and_then(|&place| groups.get_mut(place));
        let group = group.filter(|(_, group)| mapping.range.start() <= group.range.end());
        let Some((first, group)) = group else {
            last.insert(key, groups.len());
            groups.push((index, mapping.clone()));
            continue;
        };
        *first = index.min(*first);
        let end = group.range.end().max(mapping.range.end());
        group.range = PageRange::new(group.range.start(), end).unwrap_or(group.range);
        group.first_round = group.first_round.min(mapping.first_round);
        // One that is still there has no last round.
        group.last_round = group
            .last_round
            .zip(mapping.last_round)
            .map(|(a, b)| a.max(b));
    }
    groups.sort_by_key(|(index, _)| *index);
    groups.into_iter().map(|(_, mapping)| mapping).collect()
}

/// One or more mappings that follow each other without a gap, or have one given name.
#[derive(Clone, Debug)]
pub struct Joined<'a> {
    /// The lowest of them.
    pub first: &'a Mapping,
    /// Indices of all of them in the trail's mappings, in ascending order of addresses.
    pub members: Vec<usize>,
    /// How many gaps there are between them.
    pub gaps: usize,
    /// Their bytes.
    pub bytes: u64,
    /// What was written in them. The rounds are those of the busiest.
    pub counts: MappingCounts,
    /// Different pages accessed in rounds of accesses, where they took turns with those of writes.
    pub accessed_pages: u64,
    end: u64,
}

/// All mappings in which something was written or accessed, in ascending order of addresses.
///
/// `analysis` is of the trail's writes, `accesses` of its accesses where the two took turns.
pub fn touched<'a>(
    trail: &'a Trail,
    analysis: &Analysis,
    accesses: Option<&Analysis>,
) -> Vec<Joined<'a>> {
    let mut all: Vec<_> = trail.mappings.iter().enumerate().collect();
    all.sort_by_key(|(_, mapping)| (mapping.range, mapping.first_round));
    let mut joined: Vec<Joined<'_>> = Vec::new();
    let mut given: HashMap<_, usize> = HashMap::new();
    for (index, mapping) in all {
        let counts = &analysis.mappings[index];
        let before = match is_given(&mapping.name) {
            true => given.get(&kind(mapping)).copied(),
            false => joined.len().checked_sub(1),
        };
        let accessed_pages = accesses.map_or(0, |all| all.mappings[index].distinct_pages);
        match before.filter(|place| joined[*place].takes(mapping)) {
            Some(place) => joined[place].add(index, mapping, counts, accessed_pages),
            None => {
                given.insert(kind(mapping), joined.len());
                joined.push(Joined::of(index, mapping, counts, accessed_pages));
            }
        }
    }
    joined.retain(|joined| joined.counts.page_writes > 0 || joined.accessed_pages > 0);
    joined
}

/// Name, permissions, and the reason for which it is not tracked.
fn kind(mapping: &Mapping) -> (&str, &str, Option<&str>) {
    let untracked = mapping.untracked.as_deref();
    (&mapping.name, &mapping.permissions, untracked)
}

impl<'a> Joined<'a> {
    fn of(index: usize, first: &'a Mapping, counts: &MappingCounts, accessed_pages: u64) -> Self {
        Self {
            first,
            members: vec![index],
            gaps: 0,
            bytes: first.range.bytes(),
            counts: *counts,
            accessed_pages,
            end: first.range.end(),
        }
    }

    fn takes(&self, next: &Mapping) -> bool {
        (next.range.start() == self.end || is_given(&next.name)) && kind(next) == kind(self.first)
    }

    fn add(
        &mut self,
        index: usize,
        mapping: &Mapping,
        counts: &MappingCounts,
        accessed_pages: u64,
    ) {
        self.accessed_pages += accessed_pages;
        self.members.push(index);
        self.gaps += usize::from(mapping.range.start() != self.end);
        self.bytes += mapping.range.bytes();
        self.end = mapping.range.end();
        let sum = &mut self.counts;
        sum.page_writes += counts.page_writes;
        sum.newly_mapped_page_writes += counts.newly_mapped_page_writes;
        sum.distinct_pages += counts.distinct_pages;
        sum.rounds_written = sum.rounds_written.max(counts.rounds_written);
        sum.share += counts.share;
        sum.pages_per_second += counts.pages_per_second;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{mapping, pages};

    /// Each growth of a heap ends a mapping and begins one at the same place.
    #[test]
    fn a_heap_that_grew_is_one_heap_and_its_pages_count_once() {
        const BASE: u64 = 0x5000_0000;
        let until = |range, name: &str, from, last_round| Mapping {
            last_round,
            ..mapping(range, name, from)
        };
        let mut trail = crate::testing::program(3);
        trail.mappings = vec![
            until(pages(BASE, 0, 4), "[heap]", 0, Some(0)),
            until(pages(BASE, 40, 4), "", 0, None),
            until(pages(BASE, 0, 8), "[heap]", 1, Some(1)),
            until(pages(BASE, 0, 16), "[heap]", 2, None),
            until(pages(BASE, 44, 4), "", 2, None),
            until(pages(BASE, 60, 4), "", 2, None),
        ];
        for round in &mut trail.rounds {
            round.written = [pages(BASE, 1, 3)].into_iter().collect();
        }
        let recorded = trail.mappings.clone();
        assert_eq!(group(&mut trail), recorded);
        let expected = [
            until(pages(BASE, 0, 16), "[heap]", 0, None),
            until(pages(BASE, 40, 8), "", 0, None),
            until(pages(BASE, 60, 4), "", 2, None),
        ];
        assert_eq!(trail.mappings, expected);
        let joined = touched(&trail, &Analysis::of(&trail), None);
        let [heap] = &joined[..] else {
            panic!("{joined:?}")
        };
        assert_eq!(
            (heap.counts.distinct_pages, heap.counts.page_writes),
            (3, 9)
        );
    }

    #[test]
    fn memory_with_a_given_name_is_one_wherever_it_lies() {
        const BASE: u64 = 0x5000_0000;
        let mut trail = crate::testing::program(3);
        let until = |range, name: &str, from, last_round| Mapping {
            last_round,
            ..mapping(range, name, from)
        };
        trail.mappings = vec![
            mapping(pages(BASE, 0, 4), "[v8 heap]", 0),
            mapping(pages(BASE, 10, 4), "", 0),
            // Recognized in the second round.
            until(pages(BASE, 20, 4), "", 0, Some(0)),
            mapping(pages(BASE, 20, 4), "[v8 heap]", 1),
            until(pages(BASE, 30, 4), "", 0, Some(0)),
            Mapping {
                permissions: "r--p".into(),
                ..mapping(pages(BASE, 40, 4), "[v8 heap]", 0)
            },
        ];
        for round in &mut trail.rounds {
            let first = [0, 10, 20, 30, 40].map(|page| pages(BASE, page, 1));
            round.written = first.into_iter().collect();
        }
        group(&mut trail);
        let joined = touched(&trail, &Analysis::of(&trail), None);
        let seen: Vec<_> = joined
            .iter()
            .map(|j| {
                let counts = &j.counts;
                (
                    j.first.name.as_str(),
                    j.gaps,
                    counts.distinct_pages,
                    counts.page_writes,
                )
            })
            .collect();
        assert_eq!(
            seen,
            [
                ("[v8 heap]", 1, 2, 6),
                ("", 0, 1, 3),
                ("", 0, 1, 1),
                ("[v8 heap]", 0, 1, 3)
            ]
        );
        for kernels in ["", "[heap]", "[anon:x]", "[vdso]", "/lib/[x]"] {
            assert!(!is_given(kernels), "{kernels}");
        }
    }

    #[test]
    fn a_heap_in_pieces_is_one_heap() {
        const BASE: u64 = 0x5000_0000;
        let mut trail = crate::testing::program(1);
        trail.mappings = vec![
            mapping(pages(BASE, 0, 4), "[heap]", 0),
            mapping(pages(BASE, 8, 4), "[heap]", 0),
            mapping(pages(BASE, 4, 2), "[heap]", 0),
            mapping(pages(BASE, 12, 4), "other", 0),
            mapping(pages(BASE, 16, 4), "other", 0),
        ];
        trail.rounds[0].written = [pages(BASE, 3, 2), pages(BASE, 9, 1), pages(BASE, 16, 1)]
            .into_iter()
            .collect();
        let joined = touched(&trail, &Analysis::of(&trail), None);
        let seen: Vec<_> = joined
            .iter()
            .map(|j| {
                (
                    j.members.as_slice(),
                    j.bytes / 4096,
                    j.counts.distinct_pages,
                )
            })
            .collect();
        let expected: [(&[usize], _, _); 3] = [(&[0, 2], 6, 2), (&[1], 4, 1), (&[3, 4], 8, 1)];
        assert_eq!(seen, expected);
        let shares: f64 = joined.iter().map(|joined| joined.counts.share).sum();
        assert!((shares - 1.0).abs() < 1e-9);
    }
}
