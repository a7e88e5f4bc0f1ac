//! [`Units`]: which aliases of a page are merged, so that the page-table entries of all of them
//! point to the guest-physical page of the first. Pure.
//!
//! A write through a merged alias is logged as one of that first alias. [`Units::expand`] turns a
//! logged page back into all aliases whose writes it may stand for. A processor may go on using an
//! entry that was changed until it has flushed its TLB, and its log of such a write may arrive
//! late. What a log entry stands for is therefore only narrowed by [`Units::settle`].

use std::collections::BTreeMap;

use pagetrail::{PageRange, PageSet};

use super::PAGE;
use crate::rounds::unit_change::{Aliased, UnitChange};

/// The state of a page with all its aliases.
#[derive(Clone, Copy, Debug, Default)]
struct Page {
    /// The aliases whose entries point to the page of the first of them.
    merged: u64,
    /// The aliases for which an entry of a log that names one of them may stand.
    reported: u64,
}

/// The alias to whose page the entry of `alias` points.
fn target(merged: u64, alias: u32) -> u32 {
    match merged >> alias & 1 {
        0 => alias,
        _ => merged.trailing_zeros(),
    }
}

#[derive(Debug)]
struct Heap {
    of: Aliased,
    pages: Vec<Page>,
}

/// The merged aliases of all memory.
#[derive(Debug, Default)]
pub(crate) struct Units {
    heaps: BTreeMap<u64, Heap>,
    is_unsettled: bool,
}

impl Units {
    /// The address of the page to whose guest-physical page the entry of a page points.
    pub(crate) fn target(&self, page: u64) -> u64 {
        let Some((_, heap)) = self.heaps.range(..=page).next_back() else {
            return page;
        };
        match heap.of.find(page) {
            Some((alias, number)) => {
                let merged = heap.pages[number as usize].merged;
                heap.of.page(target(merged, alias), number)
            }
            None => page,
        }
    }

    /// Whether any of these addresses are of memory some of whose pages may be merged.
    pub(crate) fn concern(&self, start: u64, end: u64) -> bool {
        let before = self.heaps.range(..end).next_back();
        before.is_some_and(|(_, heap)| heap.of.end() > start)
    }

    /// Whether pages of this memory have been merged.
    pub(crate) fn knows(&self, of: &Aliased) -> bool {
        let heap = self.heaps.get(&of.base);
        heap.is_some_and(|heap| heap.of == *of)
    }

    /// Whether log entries may stand for more than what is merged now.
    pub(crate) fn is_unsettled(&self) -> bool {
        self.is_unsettled
    }

    /// Whether a change takes an alias out of a merge, so that processors must forget an entry.
    pub(crate) fn separates(&self, change: &UnitChange) -> bool {
        let Some(heap) = self.heaps.get(&change.of.base) else {
            return false;
        };
        let pages = change.first..change.first + change.pages;
        pages.into_iter().any(|number| {
            let Some(page) = heap.pages.get(number as usize) else {
                return false;
            };
            let mut others = heap.of.among(page.merged);
            let first = others.next();
            others.any(|alias| Some(target(change.merged, alias)) != first)
        })
    }

    /// Sets which aliases of a page are merged. Returns the pages whose entries must change, each
    /// with the page that it is to point to; `None` where the memory overlaps other memory that is
    /// known.
    pub(crate) fn set(&mut self, change: &UnitChange, number: u64) -> Option<Vec<(u64, u64)>> {
        let of = change.of;
        if !self.heaps.contains_key(&of.base) {
            let before = self.heaps.range(..of.end()).next_back();
            if before.is_some_and(|(_, heap)| heap.of.end() > of.base) {
                return None;
            }
            let pages = vec![Page::default(); of.pages() as usize];
            self.heaps.insert(of.base, Heap { of, pages });
        }
        let heap = self.heaps.get_mut(&of.base)?;
        if heap.of != of {
            return None;
        }
        let page = heap.pages.get_mut(number as usize)?;
        let (old, new) = (page.merged, change.merged);
        page.merged = new;
        page.reported |= new;
        let changed = of.among(old | new).filter_map(|alias| {
            let (from, to) = (target(old, alias), target(new, alias));
            self.is_unsettled |= from != to && from != alias;
            (from != to).then(|| (of.page(alias, number), of.page(to, number)))
        });
        Some(changed.collect())
    }

    /// Separates all aliases of the pages in a range, which is about to change. Returns the pages
    /// whose entries point elsewhere than to their own guest-physical pages, and must be removed.
    pub(crate) fn dissolve(&mut self, range: PageRange) -> Vec<u64> {
        let mut removed = Vec::new();
        let heaps = self.heaps.range_mut(..range.end());
        for heap in heaps.map(|(_, heap)| heap) {
            let of = heap.of;
            for alias in 0..of.aliases {
                let start = of.page(alias, 0);
                let common = PageRange::new(start, start + of.alias_bytes)
                    .and_then(|all| all.intersection(&range));
                let Some(common) = common else { continue };
                let numbers = (common.start() - start) / PAGE..(common.end() - start) / PAGE;
                for number in numbers {
                    let page = &mut heap.pages[number as usize];
                    if page.merged >> alias & 1 != 0 {
                        let others = of.among(page.merged).skip(1);
                        removed.extend(others.map(|alias| of.page(alias, number)));
                        page.merged = 0;
                    }
                }
            }
        }
        self.is_unsettled |= !removed.is_empty();
        removed
    }

    /// Adds to logged pages all aliases for which they may stand.
    pub(crate) fn expand(&self, logged: &mut PageSet) {
        let mut added = Vec::new();
        for heap in self.heaps.values() {
            let of = heap.of;
            let mut numbers = Vec::new();
            for range in logged
                .intersection(&of.range().into_iter().collect())
                .ranges()
            {
                for page in (range.start()..range.end()).step_by(PAGE as usize) {
                    let found = of.find(page);
                    let found = found.filter(|(alias, number)| {
                        heap.pages[*number as usize].reported >> alias & 1 != 0
                    });
                    numbers.extend(found.map(|(_, number)| number));
                }
            }
            numbers.sort_unstable();
            numbers.dedup();
            for alias in 0..of.aliases {
                let numbers = numbers.iter();
                let numbers = numbers
                    .filter(|number| heap.pages[**number as usize].reported >> alias & 1 != 0);
                let pages = numbers.map(|number| of.page(alias, *number));
                added.extend(pages.filter_map(|page| PageRange::new(page, page + PAGE)));
            }
        }
        if !added.is_empty() {
            logged.union_with(&added.into_iter().collect());
        }
    }

    /// From now on log entries stand for what is merged now. No processor may still use an older
    /// entry, and all logs must have been expanded.
    pub(crate) fn settle(&mut self) {
        if !std::mem::take(&mut self.is_unsettled) {
            return;
        }
        self.heaps.retain(|_, heap| {
            let mut any = 0;
            for page in &mut heap.pages {
                page.reported = page.merged;
                any |= page.merged;
            }
            any != 0
        });
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::prelude::*;

    use super::*;

    const PAGES: u64 = 3;
    const HEAP: Aliased = Aliased {
        base: 0x10_0000,
        alias_bytes: PAGES * PAGE,
        aliases: 4,
    };

    fn change(first: u64, pages: u64, merged: u64) -> UnitChange {
        UnitChange {
            of: HEAP,
            first,
            pages,
            merged,
        }
    }

    #[derive(Clone, Debug)]
    enum Step {
        /// Processor, alias, page.
        Write(usize, u32, u64),
        Set(u64, u64),
        Dissolve(u32, u64),
        /// A processor forgets an entry by itself.
        Evict(usize, u32, u64),
        /// Ends a round; with `true` all processors forget their entries.
        Round(bool),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            8 => (0..2usize, 0..4u32, 0..PAGES).prop_map(|(cpu, alias, page)| Step::Write(cpu, alias, page)),
            3 => (0..PAGES, 0..16u64).prop_map(|(page, mask)| Step::Set(page, mask)),
            1 => (0..4u32, 0..PAGES).prop_map(|(alias, page)| Step::Dissolve(alias, page)),
            2 => (0..2usize, 0..4u32, 0..PAGES).prop_map(|(cpu, alias, page)| Step::Evict(cpu, alias, page)),
            2 => any::<bool>().prop_map(Step::Round),
        ];
        prop::collection::vec(step, 0..120)
    }

    proptest! {
        /// Processors that cache entries write through aliases, whose first writes are logged by
        /// what the entry pointed to. Each round has all writes of its time.
        #[test]
        fn every_write_is_in_its_round(steps in steps()) {
            let mut units = Units::default();
            let mut caches = [BTreeMap::new(), BTreeMap::new()];
            let (mut logged, mut written) = (BTreeSet::new(), BTreeSet::new());
            for step in steps.into_iter().chain([Step::Round(false)]) {
                match step {
                    Step::Write(cpu, alias, number) => {
                        let page = HEAP.page(alias, number);
                        let cached = caches[cpu].entry(page).or_insert_with(|| units.target(page));
                        logged.insert(*cached);
                        written.insert(page);
                    }
                    Step::Set(number, merged) if merged.count_ones() != 1 => {
                        let change = change(number, 1, merged);
                        prop_assert!(change.is_sound());
                        let separates = units.separates(&change);
                        let was_settled = !units.is_unsettled();
                        let entries = units.set(&change, number).unwrap();
                        prop_assert!(entries.iter().all(|(page, to)| units.target(*page) == *to));
                        if was_settled {
                            prop_assert_eq!(units.is_unsettled(), separates);
                        }
                    }
                    Step::Set(..) => {}
                    Step::Dissolve(alias, number) => {
                        let page = HEAP.page(alias, number);
                        let removed = units.dissolve(PageRange::new(page, page + PAGE).unwrap());
                        prop_assert!(removed.iter().all(|page| units.target(*page) == *page));
                        prop_assert_eq!(units.target(page), page);
                    }
                    Step::Evict(cpu, alias, number) => {
                        caches[cpu].remove(&HEAP.page(alias, number));
                    }
                    Step::Round(forgets) => {
                        let page = |page: &u64| PageRange::new(*page, page + PAGE).unwrap();
                        let mut round: PageSet = logged.iter().map(page).collect();
                        units.expand(&mut round);
                        let required: PageSet = written.iter().map(page).collect();
                        prop_assert!(required.difference(&round).is_empty(), "{round:?} lacks of {required:?}");
                        (logged, written) = Default::default();
                        if forgets {
                            caches = Default::default();
                            units.settle();
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_log_entry_stands_for_what_is_merged() {
        let mut units = Units::default();
        let set = |units: &mut Units, merged| units.set(&change(1, 1, merged), 1).unwrap();
        let page = |alias| HEAP.page(alias, 1);
        assert_eq!(set(&mut units, 0b1010), [(page(3), page(1))]);
        let expanded = |units: &Units, alias| {
            let page = page(alias);
            let mut pages = PageSet::from_iter(PageRange::new(page, page + PAGE));
            units.expand(&mut pages);
            pages.page_count()
        };
        assert_eq!(
            [0, 1, 2, 3].map(|alias| expanded(&units, alias)),
            [1, 2, 1, 2]
        );
        // More may be merged without a flush; less may not.
        assert!(!units.separates(&change(0, 3, 0b1110)));
        assert_eq!(set(&mut units, 0b1110), [(page(2), page(1))]);
        assert!(!units.is_unsettled());
        assert!(units.separates(&change(0, 3, 0b1100)));
        assert_eq!(set(&mut units, 0), [(page(2), page(2)), (page(3), page(3))]);
        assert!(units.is_unsettled());
        assert_eq!(expanded(&units, 1), 3);
        units.settle();
        assert_eq!(expanded(&units, 1), 1);
        assert!(!units.concern(0, u64::MAX));
    }

    #[test]
    fn memory_that_overlaps_is_not_taken() {
        let mut units = Units::default();
        units.set(&change(0, 1, 3), 0).unwrap();
        let other = Aliased {
            base: HEAP.base + PAGE,
            ..HEAP
        };
        assert_eq!(
            units.set(
                &UnitChange {
                    of: other,
                    ..change(0, 1, 3)
                },
                0
            ),
            None
        );
        let other = Aliased { aliases: 2, ..HEAP };
        assert_eq!(
            units.set(
                &UnitChange {
                    of: other,
                    ..change(0, 1, 3)
                },
                0
            ),
            None
        );
    }
}
