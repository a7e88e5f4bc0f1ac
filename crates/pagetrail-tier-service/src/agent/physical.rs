//! Physical memory, as its own kernel knows it: where it is, and what of it is in use.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;

use pagetrail::{PageRange, PageSet};
use pagetrail_tier::{Error, Result};

use super::wire::PAGE_BYTES;

/// Bits of `/proc/kpageflags` (`Documentation/admin-guide/mm/pagemap.rst`).
const REFERENCED: u64 = 1 << 2;
const LRU: u64 = 1 << 5;
const ACTIVE: u64 = 1 << 6;
const BUDDY: u64 = 1 << 10;
const MMAP: u64 = 1 << 11;
const UNEVICTABLE: u64 = 1 << 18;
const HWPOISON: u64 = 1 << 19;
const NOPAGE: u64 = 1 << 20;
const OFFLINE: u64 = 1 << 23;
const ZERO_PAGE: u64 = 1 << 24;
/// Words that one call reads.
const BATCH: usize = 8192;

/// Memory of this machine by physical addresses.
///
/// # Errors
///
/// The kernel does not show it (`CAP_SYS_ADMIN`).
pub(super) fn ram() -> Result<PageSet> {
    let path = "/proc/iomem";
    let text = fs::read_to_string(path).map_err(|source| Error::Io {
        what: format!("reading {path}"),
        source,
    })?;
    let ram = ram_of(&text);
    match ram.is_empty() {
        false => Ok(ram),
        true => Err(Error::NotHere(
            "physical addresses are hidden: the agent takes CAP_SYS_ADMIN".into(),
        )),
    }
}

/// Whole pages of the lines `START-END : System RAM`, `END` being the last byte.
fn ram_of(iomem: &str) -> PageSet {
    let lines = iomem.lines().filter(|line| !line.starts_with(' '));
    let ranges = lines.filter_map(|line| {
        let (range, name) = line.split_once(" : ")?;
        let (start, last) = range.split_once('-')?;
        let number = |text| u64::from_str_radix(text, 16).ok();
        let end = number(last)?.checked_add(1)?;
        let range = PageRange::new(number(start)?, end)?;
        (name == "System RAM").then(|| range.align_inwards(PAGE_BYTES))?
    });
    ranges.collect()
}

/// Pages of `ram` that are in use: the kernel's own, those that a process has mapped, and of the
/// rest of the page cache those that were used lately. Free pages are not.
///
/// # Errors
///
/// The kernel does not show it.
pub(super) fn in_use(ram: &PageSet) -> Result<PageSet> {
    let path = "/proc/kpageflags";
    let read = || -> io::Result<PageSet> {
        let flags = File::open(path)?;
        let mut ranges: Vec<PageRange> = Vec::new();
        let mut bytes = vec![0; BATCH * 8];
        for range in ram.ranges() {
            let mut at = range.start();
            while at < range.end() {
                let pages = ((range.end() - at) / PAGE_BYTES).min(BATCH as u64) as usize;
                // It ends with the highest page that the kernel has.
                let read = flags.read_at(&mut bytes[..pages * 8], at / PAGE_BYTES * 8)?;
                let (words, _) = bytes[..read].as_chunks();
                for (index, word) in words.iter().enumerate() {
                    if is_in_use(u64::from_ne_bytes(*word)) {
                        let start = at + index as u64 * PAGE_BYTES;
                        ranges.extend(PageRange::new(start, start + PAGE_BYTES));
                    }
                }
                at += pages as u64 * PAGE_BYTES;
            }
        }
        Ok(ranges.into_iter().collect())
    };
    read().map_err(|source| Error::Io {
        what: format!("reading {path}"),
        source,
    })
}

fn is_in_use(flags: u64) -> bool {
    if flags & (NOPAGE | BUDDY | OFFLINE | HWPOISON | ZERO_PAGE) != 0 {
        return false;
    }
    // Not by the lists alone: a kernel with generations (MGLRU) moves no page to an active one.
    flags & LRU == 0 || flags & (ACTIVE | REFERENCED | UNEVICTABLE | MMAP) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_what_the_kernel_calls_so() {
        let text = "00000000-00000fff : Reserved\n\
                    00001000-0009fbff : System RAM\n\
                    00100000-bffdffff : System RAM\n  \
                    01000000-01ffffff : Kernel code\n\
                    fd000000-fdffffff : PCI Bus 0000:00\n\
                    100000000-23fffffff : System RAM\n";
        let expected = [
            (0x1000, 0x9f000),
            (0x10_0000, 0xbffe_0000),
            (0x1_0000_0000, 0x2_4000_0000),
        ];
        let expected = expected.map(|(start, end)| PageRange::new(start, end).unwrap());
        assert_eq!(ram_of(text), PageSet::from_iter(expected));
        // As others see it, and nonsense.
        for hidden in ["00000000-00000000 : System RAM\n", "", "x-y : System RAM"] {
            assert!(ram_of(hidden).is_empty(), "{hidden}");
        }
    }

    #[test]
    fn free_memory_is_not_in_use() {
        for (flags, expected) in [
            (BUDDY, false),
            (NOPAGE, false),
            (LRU, false),
            (LRU | ACTIVE, true),
            (LRU | REFERENCED, true),
            (LRU | MMAP, true),
            (1 << 7, true),
            (0, true),
        ] {
            assert_eq!(is_in_use(flags), expected, "{flags:#x}");
        }
    }

    /// What this process has just touched is not free.
    #[test]
    fn own_pages_are_in_use() {
        let Ok(ram) = ram() else {
            pagetrail_skips::not_here("physical addresses are hidden");
            return;
        };
        let buffer = vec![7u8; 64 * 4096];
        let start = (buffer.as_ptr() as u64).next_multiple_of(4096);
        let pages = PageSet::from_iter(PageRange::new(start, start + 32 * 4096));
        let frames = pagetrail_tier::source::Frames::open(std::process::id()).unwrap();
        let frames = frames.of(&pages, &PageSet::new()).unwrap();
        assert_eq!(frames.len(), 32);
        let used = in_use(&ram).unwrap();
        for (_, frame) in frames {
            assert!(ram.contains(frame * 4096), "{frame:#x}");
            assert!(used.contains(frame * 4096), "{frame:#x}");
        }
        assert!(used.bytes() < ram.bytes(), "nothing is free");
        drop(buffer);
    }
}
