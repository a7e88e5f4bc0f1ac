//! Whether a mapping is the one that was there before, as far as what backs it tells. Pure.

use crate::page_set::PageSet;
use crate::region::Region;

/// Where there is another mapping `now` than `before`, as far as what backs them tells; not where there was none.
pub(super) fn others(before: &[Region], now: &[Region]) -> PageSet {
    let mut others = PageSet::new();
    let mut first = 0;
    for region in now {
        first += before[first..].partition_point(|old| old.range.end() <= region.range.start());
        let old = before[first..].iter();
        let old = old.take_while(|old| old.range.start() < region.range.end());
        for old in old.filter(|old| !continues(old, region)) {
            if let Some(both) = old.range.intersection(&region.range) {
                others.insert(both);
            }
        }
    }
    others
}

/// Whether two mappings with addresses in common may be the same.
fn continues(before: &Region, now: &Region) -> bool {
    let backing = |region: &Region| {
        // What address the file's beginning would have; anonymous memory has no file.
        let origin = match region.inode {
            0 => 0,
            _ => region.range.start().wrapping_sub(region.offset),
        };
        (
            region.permissions.shared,
            region.device,
            region.inode,
            origin,
        )
    };
    backing(before) == backing(now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page_set::PageRange;

    fn pages(from: u64, to: u64) -> PageRange {
        PageRange::new(from << 12, to << 12).unwrap()
    }

    fn region(from: u64, to: u64, shared: bool, inode: u64, offset: u64) -> Region {
        let mut region = Region::scratch(pages(from, to));
        region.permissions.shared = shared;
        region.inode = inode;
        region.offset = offset << 12;
        region
    }

    #[test]
    fn other_mappings_are_told_from_parts_and_wholes_of_the_same() {
        let before = [
            region(10, 20, false, 0, 0),
            region(20, 30, false, 7, 4),
            region(30, 40, true, 8, 0),
            region(50, 60, false, 0, 0),
            region(60, 64, true, 9, 0),
        ];
        let set = |ranges: &[(u64, u64)]| -> PageSet {
            ranges.iter().map(|(from, to)| pages(*from, *to)).collect()
        };
        assert_eq!(others(&before, &before), set(&[]));
        assert_eq!(others(&[], &before), set(&[]));
        assert_eq!(others(&before, &[]), set(&[]));
        let mut protected = region(22, 26, false, 7, 6);
        protected.permissions.write = false;
        let now = [
            region(5, 12, false, 0, 0),
            region(14, 16, true, 11, 0),
            region(16, 20, false, 0, 0),
            protected,
            region(26, 30, false, 7, 12),
            region(30, 36, true, 8, 0),
            region(36, 40, true, 8, 0),
            region(44, 62, true, 9, 0),
        ];
        let expected = set(&[(14, 16), (26, 30), (36, 40), (50, 62)]);
        assert_eq!(others(&before, &now), expected);
    }
}
