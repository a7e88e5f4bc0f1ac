//! The program's mappings, as its recorder sees them: those of its process without the machine's,
//! with the names that they have natively.

use pagetrail::{Heaps, PageRange, PageSet, Region};

use super::Collected;

/// The program's mappings at a round.
pub(super) fn at(pid: u32, collected: &Collected) -> Vec<Region> {
    let mut regions = cut(&of_process(pid), &collected.areas);
    let heap = collected.heap.map(|range| (range, "[heap]"));
    let stack = collected.stack.map(|range| (range, "[stack]"));
    for (range, name) in heap.into_iter().chain(stack) {
        regions = named(regions, range, name);
    }
    regions
}

/// Removes the pages of new sub-page heaps that were never used from what this process has written.
///
/// For a round that is sent before `execve(2)`: when the recorder looks, the heap and what it says
/// of itself may be gone, and all aliases of new memory would count.
pub(crate) fn forget_unused(collected: &mut Collected) {
    let pid = std::process::id();
    let regions = at(pid, collected);
    Heaps::new(pid).subpages_of(&regions, &mut collected.written);
}

/// The addresses whose mapping is in `after`, and was not in `before`.
///
/// Where memory was replaced by memory of the same kind, its pages are dirty instead.
pub(super) fn new_since(before: &[Region], after: &[Region]) -> PageSet {
    let is_continued = |old: &Region, new: &Region| {
        let origin = |region: &Region| region.offset.wrapping_sub(region.range.start());
        let is_same_file = (old.device, old.inode) == (new.device, new.inode);
        let at_same_offset = new.inode == 0 || origin(old) == origin(new);
        is_same_file && at_same_offset && old.permissions.shared == new.permissions.shared
    };
    let mut known = PageSet::new();
    for new in after {
        let first = before.partition_point(|old| old.range.end() <= new.range.start());
        let overlapping = before[first..].iter();
        let overlapping = overlapping.take_while(|old| old.range.start() < new.range.end());
        let continued = overlapping.filter(|old| is_continued(old, new));
        known.extend(continued.filter_map(|old| old.range.intersection(&new.range)));
    }
    let all: PageSet = after.iter().map(|region| region.range).collect();
    all.difference(&known)
}

/// The mappings of a process. They are read through another thread when the first thread has ended.
fn of_process(pid: u32) -> Vec<Region> {
    let regions = Region::of_process(pid).unwrap_or_default();
    if !regions.is_empty() {
        return regions;
    }
    let threads = std::fs::read_dir(format!("/proc/{pid}/task"));
    let threads = threads.into_iter().flatten().flatten();
    let numbers = threads.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    numbers
        .map(|thread: u32| Region::of_process(thread).unwrap_or_default())
        .find(|regions| !regions.is_empty())
        .unwrap_or_default()
}

fn cut(regions: &[Region], areas: &PageSet) -> Vec<Region> {
    let areas = areas.ranges();
    let mut cut = Vec::new();
    for region in regions {
        let first = areas.partition_point(|area| area.end() <= region.range.start());
        let overlapping = areas[first..].iter();
        let overlapping = overlapping.take_while(|area| area.start() < region.range.end());
        cut.extend(overlapping.filter_map(|area| region.cut(*area)));
    }
    cut
}

/// Gives this name to the nameless memory of a range.
fn named(regions: Vec<Region>, range: PageRange, name: &str) -> Vec<Region> {
    let (below, above) = (
        PageRange::new(0, range.start()),
        PageRange::new(range.end(), u64::MAX),
    );
    let mut cut = Vec::with_capacity(regions.len() + 2);
    for region in regions {
        let is_nameless = region.inode == 0 && region.name.is_empty();
        match region.cut(range) {
            Some(mut within) if is_nameless => {
                cut.extend(below.and_then(|below| region.cut(below)));
                within.name = name.into();
                cut.push(within);
                cut.extend(above.and_then(|above| region.cut(above)));
            }
            _ => cut.push(region),
        }
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nameless_memory_is_named_within_a_range() {
        let some = Region::of_process(std::process::id()).expect("mappings");
        let region = |start: u64, end: u64, inode: u64, name: &str| {
            let range = PageRange::new(start << 12, end << 12).expect("a range");
            let mut region = Region::new(range, some[0].permissions);
            region.inode = inode;
            region.name = name.into();
            region
        };
        let range = |start: u64, end: u64| PageRange::new(start << 12, end << 12).expect("a range");
        let regions = vec![
            region(1, 4, 7, "/bin/file"),
            region(4, 10, 0, ""),
            region(10, 12, 0, ""),
            region(14, 15, 0, "[anon: x]"),
            region(20, 24, 0, ""),
        ];
        let expected = vec![
            region(1, 4, 7, "/bin/file"),
            region(4, 6, 0, ""),
            region(6, 10, 0, "[heap]"),
            region(10, 11, 0, "[heap]"),
            region(11, 12, 0, ""),
            region(14, 15, 0, "[anon: x]"),
            region(20, 24, 0, ""),
        ];
        assert_eq!(named(regions.clone(), range(6, 11), "[heap]"), expected);
        assert_eq!(named(regions.clone(), range(1, 4), "[heap]"), regions);
        let whole = named(regions, range(20, 24), "[stack]");
        assert_eq!(whole[4..], [region(20, 24, 0, "[stack]")]);
    }

    #[test]
    fn mappings_are_new_where_nothing_or_something_else_was() {
        let some = Region::of_process(std::process::id()).expect("mappings");
        let range = |start: u64, end: u64| PageRange::new(start << 12, end << 12).expect("a range");
        let region = |start: u64, end: u64, inode: u64, offset: u64| {
            let mut region = Region::new(range(start, end), some[0].permissions);
            (region.inode, region.offset) = (inode, offset << 12);
            region
        };
        let before = [
            region(0, 4, 0, 0),
            region(4, 8, 7, 0),
            region(8, 12, 7, 4),
            region(20, 24, 0, 0),
        ];
        let after = [
            region(0, 5, 0, 0),
            region(5, 8, 7, 1),
            region(8, 12, 7, 5),
            region(22, 24, 8, 0),
            region(30, 31, 0, 0),
        ];
        let expected = [range(4, 5), range(8, 12), range(22, 24), range(30, 31)];
        assert_eq!(new_since(&before, &after), PageSet::from_iter(expected));
        assert_eq!(new_since(&after, &after), PageSet::new());
        let mut shared = after.clone();
        shared[0].permissions.shared ^= true;
        assert_eq!(
            new_since(&after, &shared),
            PageSet::from_iter([range(0, 5)])
        );
    }
}
