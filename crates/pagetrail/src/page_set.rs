//! [`PageRange`] and [`PageSet`]: which pages, as sorted ranges of addresses.
//!
//! A set contains byte addresses, not page numbers, so that it also serves sub-pages and trails
//! from machines with another page size. It stores only ranges: memory and time grow with the
//! number of ranges, never with the number of pages in them.

use std::fmt;
use std::ops::{BitAnd, BitOr, BitOrAssign, Range, Sub};

/// The page size of this machine, in bytes (`getauxval(AT_PAGESZ)`).
pub fn page_size() -> u64 {
    pagemap_scan::page_size()
}

/// A half-open range of addresses, `start..end`, in bytes; never empty.
///
/// Its layout is two `u64`, start and end, so that a C interface can return slices of it.
#[repr(C)]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageRange {
    start: u64,
    end: u64,
}

impl PageRange {
    /// The range `start..end`, or `None` if it is empty.
    pub const fn new(start: u64, end: u64) -> Option<Self> {
        if start < end {
            Some(Self { start, end })
        } else {
            None
        }
    }

    /// The first address.
    pub const fn start(&self) -> u64 {
        self.start
    }

    /// The first address after the range.
    pub const fn end(&self) -> u64 {
        self.end
    }

    /// The length in bytes.
    pub const fn bytes(&self) -> u64 {
        self.end - self.start
    }

    /// The length in pages of this machine.
    pub fn page_count(&self) -> u64 {
        self.bytes() / page_size()
    }

    /// Whether `address` is in the range.
    pub const fn contains(&self, address: u64) -> bool {
        self.start <= address && address < self.end
    }

    /// The part that both ranges have in common.
    pub fn intersection(&self, other: &Self) -> Option<Self> {
        Self::new(self.start.max(other.start), self.end.min(other.end))
    }

    /// The smallest range of whole multiples of `unit` bytes (a power of two) that covers this one.
    /// At the very end of the address space, where no whole multiple is left, it ends with the last
    /// address.
    pub fn align_outwards(&self, unit: u64) -> Self {
        debug_assert!(unit.is_power_of_two());
        Self {
            start: self.start & !(unit - 1),
            end: self.end.checked_next_multiple_of(unit).unwrap_or(u64::MAX),
        }
    }

    /// The largest range of whole multiples of `unit` bytes (a power of two) within this one, if
    /// there is any.
    pub fn align_inwards(&self, unit: u64) -> Option<Self> {
        debug_assert!(unit.is_power_of_two());
        let start = self.start.checked_next_multiple_of(unit)?;
        Self::new(start, self.end & !(unit - 1))
    }
}

impl From<PageRange> for Range<u64> {
    fn from(range: PageRange) -> Self {
        range.start..range.end
    }
}

/// The error for a range without addresses, which no [`PageRange`] can represent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("an empty range of addresses")]
#[non_exhaustive]
pub struct EmptyRange;

impl TryFrom<Range<u64>> for PageRange {
    type Error = EmptyRange;

    fn try_from(range: Range<u64>) -> Result<Self, EmptyRange> {
        Self::new(range.start, range.end).ok_or(EmptyRange)
    }
}

impl fmt::Debug for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}..{:#x}", self.start, self.end)
    }
}

impl fmt::Display for PageRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// A set of pages: ranges of addresses, sorted, neither overlapping nor touching.
///
/// Building it from sorted ranges and all of union, intersection and difference take time linear in
/// the number of ranges.
///
/// ```
/// use pagetrail::{PageRange, PageSet};
/// let mut set = PageSet::new();
/// set.insert(PageRange::new(0x1000, 0x3000).unwrap());
/// set.insert(PageRange::new(0x3000, 0x4000).unwrap());
/// assert_eq!(set.ranges().len(), 1);
/// assert_eq!(set.bytes(), 0x3000);
///
/// let other = PageSet::from(PageRange::try_from(0x2000..0x8000)?);
/// assert_eq!((&set | &other).bytes(), 0x7000);
/// assert_eq!((&set & &other).bytes(), 0x2000);
/// assert_eq!((&set - &other).bytes(), 0x1000);
/// for range in &set {
///     println!("{range}");
/// }
/// # Ok::<(), pagetrail::EmptyRange>(())
/// ```
#[derive(Clone, Default, PartialEq, Eq, Hash)]
pub struct PageSet {
    ranges: Vec<PageRange>,
}

impl PageSet {
    /// The empty set.
    pub const fn new() -> Self {
        Self { ranges: Vec::new() }
    }

    /// The ranges in ascending order; between two of them at least one byte is not in the set.
    pub fn ranges(&self) -> &[PageRange] {
        &self.ranges
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The size of the set in bytes.
    pub fn bytes(&self) -> u64 {
        self.ranges.iter().map(PageRange::bytes).sum()
    }

    /// The size of the set in pages of this machine.
    pub fn page_count(&self) -> u64 {
        self.bytes() / page_size()
    }

    /// The addresses of the set in steps of `unit` bytes, ascending, beginning with the start of
    /// each range.
    ///
    /// # Panics
    ///
    /// If `unit` is 0.
    pub fn iter_units(&self, unit: u64) -> impl Iterator<Item = u64> + '_ {
        self.ranges
            .iter()
            .flat_map(move |r| (r.start..r.end).step_by(unit as usize))
    }

    /// Whether `address` is in the set.
    pub fn contains(&self, address: u64) -> bool {
        let after = self.ranges.partition_point(|r| r.start <= address);
        after > 0 && self.ranges[after - 1].contains(address)
    }

    /// Whether all of `range` is in the set.
    pub fn covers(&self, range: PageRange) -> bool {
        let after = self.ranges.partition_point(|r| r.start <= range.start);
        after > 0 && self.ranges[after - 1].end >= range.end
    }

    /// Whether any of `range` is in the set.
    pub fn intersects(&self, range: PageRange) -> bool {
        let first = self.ranges.partition_point(|r| r.end <= range.start);
        self.ranges.get(first).is_some_and(|r| r.start < range.end)
    }

    /// Adds a range: in constant time after the last range, otherwise in time linear in the ranges
    /// after it.
    #[inline]
    pub fn insert(&mut self, range: PageRange) {
        match self.ranges.last_mut() {
            Some(last) if range.start > last.end => self.ranges.push(range),
            Some(last) if range.start >= last.start => last.end = last.end.max(range.end),
            None => self.ranges.push(range),
            Some(_) => self.insert_inside(range),
        }
    }

    /// Adds `bytes` (not 0), beginning at `address`.
    pub(crate) fn extend_back(&mut self, address: u64, bytes: u64) {
        self.insert(PageRange {
            start: address,
            end: address + bytes,
        });
    }

    fn insert_inside(&mut self, range: PageRange) {
        let first = self.ranges.partition_point(|r| r.end < range.start);
        let end = self.ranges.partition_point(|r| r.start <= range.end);
        let merged = self.ranges[first..end]
            .iter()
            .fold(range, |m, r| PageRange {
                start: m.start.min(r.start),
                end: m.end.max(r.end),
            });
        self.ranges.splice(first..end, [merged]);
    }

    /// Removes a range.
    pub fn remove(&mut self, range: PageRange) {
        let first = self.ranges.partition_point(|r| r.end <= range.start);
        let end = self.ranges.partition_point(|r| r.start < range.end);
        if first >= end {
            return;
        }
        let head = PageRange::new(self.ranges[first].start, range.start);
        let tail = PageRange::new(range.end, self.ranges[end - 1].end);
        self.ranges.splice(first..end, head.into_iter().chain(tail));
    }

    /// Reserves memory for this many ranges.
    pub(crate) fn reserve(&mut self, ranges: usize) {
        self.ranges
            .reserve(ranges.saturating_sub(self.ranges.len()));
    }

    /// Empties the set, but keeps its memory for reuse.
    pub fn clear(&mut self) {
        self.ranges.clear();
    }

    /// The addresses in either set.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        let (mut i, mut j) = (0, 0);
        let mut out = Self {
            ranges: Vec::with_capacity(self.ranges.len() + other.ranges.len()),
        };
        loop {
            // Always the range that starts first, so that every insert is at the end.
            let range = match (self.ranges.get(i), other.ranges.get(j)) {
                (Some(x), Some(y)) if x.start > y.start => {
                    j += 1;
                    y
                }
                (Some(x), _) => {
                    i += 1;
                    x
                }
                (None, Some(y)) => {
                    j += 1;
                    y
                }
                (None, None) => return out,
            };
            out.insert(*range);
        }
    }

    /// Adds all of `other`, in time linear in its ranges and in those of this set from its first
    /// one on: to add what comes after everything else costs nothing for what is there.
    pub fn union_with(&mut self, other: &Self) {
        let Some(first) = other.ranges.first() else {
            return;
        };
        let before = self.ranges.partition_point(|r| r.end < first.start);
        if before == self.ranges.len() {
            self.ranges.extend_from_slice(&other.ranges);
            return;
        }
        let after = Self {
            ranges: self.ranges.split_off(before),
        };
        self.ranges.append(&mut after.union(other).ranges);
    }

    /// The part of the set within a range, in time linear in the ranges of the result.
    pub(crate) fn within(&self, range: PageRange) -> Self {
        let first = self.ranges.partition_point(|r| r.end <= range.start);
        let here = self.ranges[first..].iter();
        let here = here.map_while(|r| r.intersection(&range));
        Self {
            ranges: here.collect(),
        }
    }

    /// The addresses in both sets.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        let (mut i, mut j) = (0, 0);
        // One of the sets mostly has few and long ranges, so the result has at most about as many
        // as the other.
        let mut out = Self {
            ranges: Vec::with_capacity(self.ranges.len().max(other.ranges.len())),
        };
        while let (Some(x), Some(y)) = (self.ranges.get(i), other.ranges.get(j)) {
            out.ranges.extend(x.intersection(y));
            if x.end <= y.end {
                i = first_after(&self.ranges, i + 1, y.start);
            } else {
                j = first_after(&other.ranges, j + 1, x.start);
            }
        }
        out
    }

    /// The addresses in this set that are not in the other.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Self {
        let mut out = Self::new();
        let mut j = 0;
        for range in &self.ranges {
            let mut start = range.start;
            j = first_after(&other.ranges, j, start);
            let mut k = j;
            while let Some(hole) = other.ranges.get(k).filter(|hole| hole.start < range.end) {
                out.ranges.extend(PageRange::new(start, hole.start));
                start = start.max(hole.end);
                k += 1;
            }
            out.ranges.extend(PageRange::new(start, range.end));
            j = k.saturating_sub(1).max(j);
        }
        out
    }
}

/// The index of the first of `ranges`, from `from` on, that ends after `address`. The search is
/// fast when that range is near, and not slow when it is far: each round intersects a set of few
/// ranges with one of many.
fn first_after(ranges: &[PageRange], from: usize, address: u64) -> usize {
    let (mut known, mut step) = (from, 1);
    while ranges
        .get(known + step - 1)
        .is_some_and(|range| range.end <= address)
    {
        known += step;
        step *= 2;
    }
    let rest = &ranges[known.min(ranges.len())..ranges.len().min(known + step - 1)];
    known + rest.partition_point(|range| range.end <= address)
}

impl Extend<PageRange> for PageSet {
    /// Adds ranges in any order; sorted ones are not sorted again.
    fn extend<I: IntoIterator<Item = PageRange>>(&mut self, ranges: I) {
        let mut added: Vec<PageRange> = ranges.into_iter().collect();
        if !added.is_sorted() {
            added.sort_unstable();
        }
        added.dedup_by(|range, last| {
            let touches = range.start <= last.end;
            if touches {
                last.end = last.end.max(range.end);
            }
            touches
        });
        if self.is_empty() {
            self.ranges = added;
        } else {
            self.union_with(&Self { ranges: added });
        }
    }
}

impl FromIterator<PageRange> for PageSet {
    fn from_iter<I: IntoIterator<Item = PageRange>>(ranges: I) -> Self {
        let mut set = Self::new();
        set.extend(ranges);
        set
    }
}

impl From<PageRange> for PageSet {
    fn from(range: PageRange) -> Self {
        Self {
            ranges: vec![range],
        }
    }
}

impl<'a> IntoIterator for &'a PageSet {
    type Item = PageRange;
    type IntoIter = std::iter::Copied<std::slice::Iter<'a, PageRange>>;

    /// The ranges in ascending order.
    fn into_iter(self) -> Self::IntoIter {
        self.ranges.iter().copied()
    }
}

impl IntoIterator for PageSet {
    type Item = PageRange;
    type IntoIter = std::vec::IntoIter<PageRange>;

    /// The ranges in ascending order.
    fn into_iter(self) -> Self::IntoIter {
        self.ranges.into_iter()
    }
}

impl BitOr for &PageSet {
    type Output = PageSet;

    /// [`PageSet::union`]
    fn bitor(self, other: Self) -> PageSet {
        self.union(other)
    }
}

impl BitOrAssign<&Self> for PageSet {
    /// [`PageSet::union_with`]
    fn bitor_assign(&mut self, other: &Self) {
        self.union_with(other);
    }
}

impl BitAnd for &PageSet {
    type Output = PageSet;

    /// [`PageSet::intersection`]
    fn bitand(self, other: Self) -> PageSet {
        self.intersection(other)
    }
}

impl Sub for &PageSet {
    type Output = PageSet;

    /// [`PageSet::difference`]
    fn sub(self, other: Self) -> PageSet {
        self.difference(other)
    }
}

impl fmt::Debug for PageSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.ranges).finish()
    }
}
