//! [`Areas`]: which addresses are the program's, and how it may access them. Pure.
//!
//! The kernel knows what is mapped there. The areas decide what the page tables may contain, and
//! distinguish the program's memory from the machine's own.

use std::collections::BTreeMap;

use pagetrail::{PageRange, PageSet};

/// An access that faulted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Read,
    Write,
    Execute,
}

/// How the program may access a mapping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Allowed {
    pub(crate) read: bool,
    pub(crate) write: bool,
    pub(crate) execute: bool,
    /// The protection that the program requested, which may be less.
    pub(crate) declared: u8,
}

impl Allowed {
    /// Whether the program requested `PROT_READ`.
    pub(crate) fn declares_reading(self) -> bool {
        self.declared & libc::PROT_READ as u8 != 0
    }

    /// The rights as `/proc/PID/maps` shows them.
    pub(crate) fn shown(self) -> [u8; 3] {
        let shown = [
            (libc::PROT_READ, b'r'),
            (libc::PROT_WRITE, b'w'),
            (libc::PROT_EXEC, b'x'),
        ];
        shown.map(|(bit, letter)| match self.declared & bit as u8 {
            0 => b'-',
            _ => letter,
        })
    }

    /// The rights for the `prot` argument of `mmap(2)`. On x86, memory that is writable or
    /// executable is also readable.
    pub(crate) fn from_protection(protection: u64) -> Self {
        let has = |bit: libc::c_int| protection & bit as u64 != 0;
        Self {
            read: has(libc::PROT_READ) || has(libc::PROT_WRITE) || has(libc::PROT_EXEC),
            write: has(libc::PROT_WRITE),
            execute: has(libc::PROT_EXEC),
            declared: protection as u8 & 7,
        }
    }

    pub(crate) fn allows(self, access: Access) -> bool {
        match access {
            Access::Read => self.read,
            Access::Write => self.write,
            Access::Execute => self.execute,
        }
    }
}

/// Address ranges that do not overlap, each with its rights.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Areas {
    ranges: BTreeMap<u64, (u64, Allowed)>,
    /// The number of bytes that are writable.
    writable_bytes: u64,
}

impl Areas {
    /// Records a mapping, which replaces what was there.
    pub(crate) fn insert(&mut self, range: PageRange, allowed: Allowed) {
        self.remove(range);
        if allowed.write {
            self.writable_bytes += range.bytes();
        }
        let (mut start, mut end) = (range.start(), range.end());
        if let Some((&before, &(to, same))) = self.ranges.range(..start).next_back()
            && to == start
            && same == allowed
        {
            start = before;
        }
        if let Some(&(to, same)) = self.ranges.get(&end)
            && same == allowed
        {
            self.ranges.remove(&end);
            end = to;
        }
        self.ranges.insert(start, (end, allowed));
    }

    /// Records that nothing is mapped here.
    pub(crate) fn remove(&mut self, range: PageRange) {
        for (piece, allowed) in self.pieces(range) {
            // The area around this piece, which may reach further on both sides.
            let Some((&start, &(end, _))) = self.ranges.range(..=piece.start()).next_back() else {
                continue;
            };
            self.ranges.remove(&start);
            if allowed.write {
                self.writable_bytes -= piece.bytes();
            }
            if start < piece.start() {
                self.ranges.insert(start, (piece.start(), allowed));
            }
            if piece.end() < end {
                self.ranges.insert(piece.end(), (end, allowed));
            }
        }
    }

    /// Changes the rights of what is mapped here.
    pub(crate) fn protect(&mut self, range: PageRange, allowed: Allowed) {
        for (piece, _) in self.pieces(range) {
            self.insert(piece, allowed);
        }
    }

    /// The area around an address.
    pub(crate) fn at(&self, address: u64) -> Option<(PageRange, Allowed)> {
        let (&start, &(end, allowed)) = self.ranges.range(..=address).next_back()?;
        let range = PageRange::new(start, end)?;
        range.contains(address).then_some((range, allowed))
    }

    /// The parts of a range that are the program's, ascending.
    pub(crate) fn pieces(&self, range: PageRange) -> Vec<(PageRange, Allowed)> {
        let first = self.ranges.range(..=range.start()).next_back();
        let first = first.map_or(range.start(), |(&start, _)| start);
        let areas = self.ranges.range(first..range.end());
        areas
            .filter_map(|(&start, &(end, allowed))| {
                let piece = PageRange::new(start, end)?.intersection(&range)?;
                Some((piece, allowed))
            })
            .collect()
    }

    /// The parts of a range that are not the program's, ascending.
    pub(crate) fn gaps(&self, range: PageRange) -> Vec<PageRange> {
        let mut gaps = Vec::new();
        let mut from = range.start();
        for (piece, _) in self.pieces(range) {
            gaps.extend(PageRange::new(from, piece.start()));
            from = piece.end();
        }
        gaps.extend(PageRange::new(from, range.end()));
        gaps
    }

    /// The part of a range before its first gap.
    pub(crate) fn before_gap(&self, range: PageRange) -> Option<PageRange> {
        let end = self
            .gaps(range)
            .first()
            .map_or(range.end(), PageRange::start);
        PageRange::new(range.start(), end)
    }

    /// Whether all of a range is the program's.
    pub(crate) fn cover(&self, range: PageRange) -> bool {
        self.gaps(range).is_empty()
    }

    /// The number of bytes that the program may write to.
    pub(crate) fn writable_bytes(&self) -> u64 {
        self.writable_bytes
    }

    /// The number of bytes in a range that the program may write to.
    pub(crate) fn writable_bytes_in(&self, range: PageRange) -> u64 {
        let pieces = self.pieces(range).into_iter();
        let writable = pieces.filter(|(_, allowed)| allowed.write);
        writable.map(|(piece, _)| piece.bytes()).sum()
    }

    /// The pages that the program may write to.
    pub(crate) fn writable(&self) -> PageSet {
        let all = self.ranges.iter();
        all.filter(|(_, (_, allowed))| allowed.write)
            .filter_map(|(&start, &(end, _))| PageRange::new(start, end))
            .collect()
    }

    /// All areas, as a set of pages.
    pub(crate) fn all(&self) -> PageSet {
        let all = self.ranges.iter();
        all.filter_map(|(&start, &(end, _))| PageRange::new(start, end))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PAGES: u64 = 24;

    fn range(start: u64, end: u64) -> PageRange {
        PageRange::new(start << 12, end << 12).unwrap()
    }

    fn allowed(bits: u8) -> Allowed {
        Allowed::from_protection(u64::from(bits))
    }

    #[derive(Clone, Debug)]
    enum Change {
        Insert(u8),
        Remove,
        Protect(u8),
    }

    fn changes() -> impl Strategy<Value = Vec<(u64, u64, Change)>> {
        let change = prop_oneof![
            (0u8..8).prop_map(Change::Insert),
            Just(Change::Remove),
            (0u8..8).prop_map(Change::Protect)
        ];
        let range = (0..PAGES, 1..=PAGES);
        prop::collection::vec(
            (range, change)
                .prop_map(|((start, len), change)| (start, (start + len).min(PAGES), change)),
            0..40,
        )
    }

    proptest! {
        /// The areas are compared with a plain array of pages.
        #[test]
        fn areas_are_what_was_done_to_their_pages(changes in changes()) {
            let mut areas = Areas::default();
            let mut pages = [None; PAGES as usize];
            for (start, end, change) in changes {
                let touched = &mut pages[start as usize..end as usize];
                match change {
                    Change::Insert(bits) => {
                        areas.insert(range(start, end), allowed(bits));
                        touched.fill(Some(allowed(bits)));
                    }
                    Change::Remove => {
                        areas.remove(range(start, end));
                        touched.fill(None);
                    }
                    Change::Protect(bits) => {
                        areas.protect(range(start, end), allowed(bits));
                        touched.iter_mut().flatten().for_each(|page| *page = allowed(bits));
                    }
                }
            }
            for (page, expected) in pages.iter().enumerate() {
                let found = areas.at((page as u64) << 12);
                prop_assert_eq!(found.map(|(_, allowed)| allowed), *expected);
            }
            let whole = range(0, PAGES);
            let pieces: PageSet = areas.pieces(whole).into_iter().map(|(piece, _)| piece).collect();
            let gaps: PageSet = areas.gaps(whole).into_iter().collect();
            prop_assert_eq!(&pieces, &areas.all());
            prop_assert!(pieces.intersection(&gaps).is_empty());
            prop_assert_eq!(pieces.union(&gaps).page_count(), PAGES);
            let writable = pages.iter().flatten().filter(|allowed| allowed.write).count() as u64;
            prop_assert_eq!(areas.writable_bytes(), writable << 12);
            prop_assert_eq!(areas.writable_bytes_in(whole), writable << 12);
            let before = areas.before_gap(whole).map_or(0, |range| range.page_count());
            let expected = pages.iter().take_while(|page| page.is_some()).count() as u64;
            prop_assert_eq!(before, expected);
        }
    }
}
