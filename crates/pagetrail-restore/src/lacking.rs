//! [`Lacking`]: which addresses of a process still lack their contents, and where these are in the
//! image; pure.
//!
//! A program moves and discards memory that it lacks like any other memory, so a page may come to
//! have another address than it has in the image.

use pagetrail::{PageRange, PageSet};
use std::collections::BTreeMap;

/// Adjacent pages of the process that are adjacent in the image too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// Their addresses in the process.
    pub(crate) range: PageRange,
    /// The address of the first page in the image.
    pub(crate) from: u64,
}

impl Piece {
    /// The part of it within a range.
    pub(crate) fn within(self, range: PageRange) -> Option<Self> {
        let start = self.range.start().max(range.start());
        let end = self.range.end().min(range.end());
        let range = PageRange::new(start, end).filter(|range| range.bytes() > 0)?;
        Some(Self {
            range,
            from: self.from + (start - self.range.start()),
        })
    }

    /// The part of it that is within a range of the image.
    pub(crate) fn within_image(self, range: PageRange) -> Option<Self> {
        let start = range.start().max(self.from);
        let end = range.end().min(self.from + self.range.bytes());
        let here = |address: u64| self.range.start() + (address - self.from);
        match start < end {
            true => self.within(PageRange::new(here(start), here(end))?),
            false => None,
        }
    }
}

/// What an address space lacks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Lacking {
    /// Pieces, which do not overlap, by start address: end address, and start in the image.
    pieces: BTreeMap<u64, (u64, u64)>,
}

impl Lacking {
    /// An address space that lacks these pages, each at its address in the image.
    pub(crate) fn of(pages: &PageSet) -> Self {
        let piece = |range: &PageRange| (range.start(), (range.end(), range.start()));
        Self {
            pieces: pages.ranges().iter().map(piece).collect(),
        }
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// The piece at an address.
    pub(crate) fn at(&self, address: u64) -> Option<Piece> {
        let (&start, &(end, from)) = self.pieces.range(..=address).next_back()?;
        match address < end {
            true => piece(start, end, from),
            false => None,
        }
    }

    /// The first piece that begins at an address or after it, or else the first of all.
    pub(crate) fn next(&self, address: u64) -> Option<Piece> {
        let after = self.pieces.range(address..).next();
        let (&start, &(end, from)) = after.or_else(|| self.pieces.iter().next())?;
        piece(start, end, from)
    }

    /// What is lacked first from an address on: the rest of a piece, or the next.
    pub(crate) fn from(&self, address: u64) -> Option<Piece> {
        if let Some(around) = self.at(address) {
            let rest = PageRange::new(address, around.range.end())?;
            return around.within(rest);
        }
        let (&start, &(end, from)) = self.pieces.range(address..).next()?;
        piece(start, end, from)
    }

    /// The pieces within a range.
    pub(crate) fn within(&self, range: PageRange) -> Vec<Piece> {
        let first = self.at(range.start()).map(|piece| piece.range.start());
        let from = first.unwrap_or(range.start());
        let pieces = self.pieces.range(from..range.end());
        pieces
            .filter_map(|(&start, &(end, from))| piece(start, end, from)?.within(range))
            .collect()
    }

    /// Notes that a range has its contents, or needs none any more.
    pub(crate) fn remove(&mut self, range: PageRange) {
        for part in self.within(range) {
            let Some(whole) = self.at(part.range.start()) else {
                continue;
            };
            self.pieces.remove(&whole.range.start());
            let before = (whole.range.start(), part.range.start());
            let after = (part.range.end(), whole.range.end());
            for (start, end) in [before, after] {
                if start < end {
                    let from = whole.from + (start - whole.range.start());
                    self.pieces.insert(start, (end, from));
                }
            }
        }
    }

    /// Notes that the contents of a range were moved to `to`, over what was there.
    pub(crate) fn moved(&mut self, range: PageRange, to: u64) {
        let parts = self.within(range);
        self.remove(range);
        if let Some(there) = PageRange::new(to, to.saturating_add(range.bytes())) {
            self.remove(there);
        }
        for part in parts {
            let start = to + (part.range.start() - range.start());
            self.pieces
                .insert(start, (start + part.range.bytes(), part.from));
        }
    }

    /// The number of bytes that are lacking.
    pub(crate) fn bytes(&self) -> u64 {
        let pieces = self.pieces.iter();
        pieces.map(|(start, (end, _))| end - start).sum()
    }
}

fn piece(start: u64, end: u64, from: u64) -> Option<Piece> {
    let range = PageRange::new(start, end)?;
    Some(Piece { range, from })
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 4096;
    const PAGES: u64 = 64;

    fn range(start: u64, pages: u64) -> PageRange {
        PageRange::new(start * PAGE, (start + pages) * PAGE).unwrap()
    }

    #[test]
    fn moves_and_removals_are_those_of_single_pages() {
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..500 {
            let all: PageSet = (0..PAGES)
                .filter(|_| random.bool())
                .map(|page| range(page, 1))
                .collect();
            let mut lacking = Lacking::of(&all);
            let of = |page: u64| all.contains(page * PAGE).then_some(page * PAGE);
            let mut expected: Vec<Option<u64>> = (0..PAGES).map(of).collect();
            for _ in 0..20 {
                let pages = random.u64(1..9);
                let (start, to) = (random.u64(0..24), random.u64(32..PAGES - 8));
                let (from, to) = match random.bool() {
                    true => (start, to),
                    false => (to, start),
                };
                let mut taken = Vec::new();
                for page in from..from + pages {
                    taken.push(expected[page as usize].take());
                }
                if random.bool() {
                    lacking.remove(range(from, pages));
                } else {
                    lacking.moved(range(from, pages), to * PAGE);
                    for (page, content) in (to..).zip(taken) {
                        expected[page as usize] = content;
                    }
                }
                for page in 0..PAGES {
                    let found = lacking.at(page * PAGE);
                    let found = found.map(|p| p.from + (page * PAGE - p.range.start()));
                    assert_eq!(found, expected[page as usize]);
                }
                let bytes = expected.iter().flatten().count() as u64 * PAGE;
                assert_eq!(lacking.bytes(), bytes);
                assert_eq!(lacking.is_empty(), bytes == 0);
                let first = lacking
                    .from(40 * PAGE)
                    .map(|piece| piece.range.start() / PAGE);
                let is_lacked = |page: &u64| expected[*page as usize].is_some();
                assert_eq!(first, (40..PAGES).find(is_lacked));
                let next = lacking.next(40 * PAGE).map(|piece| piece.range.start());
                assert_eq!(next.is_none(), bytes == 0);
            }
        }
    }

    #[test]
    fn a_part_of_the_image_is_found_where_it_is_now() {
        let mut lacking = Lacking::of(&PageSet::from_iter([range(10, 10)]));
        lacking.moved(range(12, 4), 40 * PAGE);
        let piece = lacking.at(41 * PAGE).unwrap();
        assert_eq!((piece.range, piece.from), (range(40, 4), 12 * PAGE));
        let part = piece.within_image(range(13, 20)).unwrap();
        assert_eq!((part.range, part.from), (range(41, 3), 13 * PAGE));
        assert_eq!(piece.within_image(range(16, 4)), None);
    }
}
