//! Entries of x86-64 page tables, as the processor's manuals have them (Intel's volume 3, 5.5:
//! paging with four and five levels).

/// Entries of a table.
pub(super) const ENTRIES: u64 = 512;
/// Bytes of a table, and of the smallest page.
pub(super) const TABLE_BYTES: u64 = 4096;
/// Entries of a root that map what a process has; the others are the kernel's.
pub(super) const USER_ENTRIES: u64 = ENTRIES / 2;

const PRESENT: u64 = 1;
const ACCESSED: u64 = 1 << 5;
/// In tables of the second and third level: the entry maps a page.
const LARGE: u64 = 1 << 7;
const ADDRESS: u64 = 0x000f_ffff_ffff_f000;
/// Above it, the bit is reserved (AMD: must be zero), and a processor faults instead of going on.
const LARGEST_PAGE_LEVEL: u8 = 3;

/// What an entry of a table points to, by guest-physical addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    Nothing,
    Table(u64),
    Page(u64),
}

/// Reads an entry of a table of this level; the tables that map pages of 4 KiB have level 1.
pub(super) fn target(entry: u64, level: u8) -> Target {
    if entry & PRESENT == 0 {
        return Target::Nothing;
    }
    let address = entry & ADDRESS;
    if level == 1 {
        return Target::Page(address);
    }
    match (entry & LARGE != 0, level <= LARGEST_PAGE_LEVEL) {
        (false, _) => Target::Table(address),
        // Bit 12 is a memory type here.
        (true, true) => Target::Page(address & !(page_bytes(level) - 1)),
        // No processor takes for a table what such an entry points to.
        (true, false) => Target::Nothing,
    }
}

/// The bytes that an entry of this level maps as a page.
pub(super) fn page_bytes(level: u8) -> u64 {
    TABLE_BYTES << (9 * u32::from(level - 1))
}

pub(super) fn is_accessed(entry: u64) -> bool {
    entry & ACCESSED != 0
}

pub(super) fn without_accessed(entry: u64) -> u64 {
    entry & !ACCESSED
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_are_read_as_the_processor_does() {
        for (entry, level, expected) in [
            (0, 1, Target::Nothing),
            // A page of the guest that is swapped out, or that it samples itself.
            (0x1234_5000 | 0x120, 1, Target::Nothing),
            // Not executable, with a protection key; bit 7 is a memory type.
            (0xf800_0001_2345_6000 | 0xe7, 1, Target::Page(0x1_2345_6000)),
            (0x1_2345_6067, 2, Target::Table(0x1_2345_6000)),
            (0x1_2340_10e7, 2, Target::Page(0x1_2340_0000)),
            (0x1_4000_00e7, 3, Target::Page(0x1_4000_0000)),
            (0x1_2345_6067, 4, Target::Table(0x1_2345_6000)),
            (0x1_2345_60e7, 4, Target::Nothing),
            (0x1_2345_60e7, 5, Target::Nothing),
        ] {
            assert_eq!(target(entry, level), expected, "{entry:#x} {level}");
        }
        assert_eq!([1, 2, 3].map(page_bytes), [4096, 2 << 20, 1 << 30]);
        assert!(is_accessed(0x67) && !is_accessed(without_accessed(0x67)));
    }
}
