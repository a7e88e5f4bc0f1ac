//! Whether a mapping is still the one that was there before, judged by what backs it. Pure.

use crate::page_set::PageSet;
use crate::region::Region;

/// Where a mapping of `now` replaced a mapping of `before` with another backing; addresses that
/// were not mapped before are left out.
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

/// The mappings of `now` that are not among those `before` as they are.
pub(super) fn changed(before: &[Region], now: &[Region]) -> PageSet {
    let mut changed = PageSet::new();
    let mut rest = before.iter().peekable();
    for region in now {
        let start = region.range.start();
        while rest.next_if(|old| old.range.start() < start).is_some() {}
        if rest.peek() != Some(&region) {
            changed.insert(region.range);
        }
    }
    changed
}

/// Whether two mappings with common addresses may be the same mapping.
fn continues(before: &Region, now: &Region) -> bool {
    let backing = |region: &Region| {
        // The address that the beginning of the file would have; anonymous memory has no file.
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
    fn replaced_mappings_are_distinguished_from_split_and_merged_ones() {
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
        assert_eq!(changed(&before, &before), set(&[]));
        assert_eq!(
            changed(&[], &before),
            before.iter().map(|now| now.range).collect()
        );
        assert_eq!(changed(&before, &before[2..]), set(&[]));
        assert_eq!(
            changed(&before, &now),
            now.iter().map(|now| now.range).collect()
        );
        let grown = [
            before[0].clone(),
            region(20, 31, false, 7, 4),
            before[3].clone(),
        ];
        assert_eq!(changed(&before, &grown), set(&[(20, 31)]));
    }
}
