//! [`Frames`]: which physical pages hold the memory of a process, by `/proc/PID/pagemap`.
//!
//! Page numbers are shown to a reader that has `CAP_SYS_ADMIN`
//! (`Documentation/admin-guide/mm/pagemap.rst`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use pagetrail::{PageRange, PageSet, page_size};

use crate::error::{Error, Result};

/// Bits of an entry of `pagemap`: whether there is a page, and which.
const PRESENT: u64 = 1 << 63;
const FRAME: u64 = (1 << 55) - 1;
/// Entries that one call reads.
const BATCH: usize = 4096;
const ENTRY_BYTES: u64 = 8;

/// The physical pages of a process.
pub struct Frames {
    pid: u32,
    pagemap: File,
}

impl Frames {
    /// Opens the page map of a process.
    ///
    /// # Errors
    ///
    /// It has ended, or is another user's.
    pub fn open(pid: u32) -> Result<Self> {
        let path = format!("/proc/{pid}/pagemap");
        let pagemap = File::open(&path).map_err(|source| Error::Io {
            what: format!("opening {path}"),
            source,
        })?;
        Ok(Self { pid, pagemap })
    }

    /// The pages of a set that are in memory, and huge ones as one, each with the number of its
    /// (first) physical page.
    ///
    /// # Errors
    ///
    /// The process has ended, or physical pages are hidden from this one.
    pub fn of(&self, pages: &PageSet, huge: &PageSet) -> Result<Vec<(PageRange, u64)>> {
        let mut frames = Vec::new();
        let whole = page_size() * 512;
        let mut add = |range: PageRange, step: u64| -> io::Result<()> {
            let step_pages = (step / page_size()) as usize;
            let mut entries = vec![0; BATCH * ENTRY_BYTES as usize];
            let mut start = range.start();
            while start < range.end() {
                let pages = ((range.end() - start) / page_size()).min(BATCH as u64) as usize;
                let entries = &mut entries[..pages * ENTRY_BYTES as usize];
                self.pagemap
                    .read_exact_at(entries, start / page_size() * ENTRY_BYTES)?;
                for (index, entry) in words(entries).enumerate().step_by(step_pages) {
                    let first = start + index as u64 * page_size();
                    let unit = PageRange::new(first, first + step);
                    if entry & PRESENT != 0 {
                        frames.extend(unit.map(|unit| (unit, entry & FRAME)));
                    }
                }
                start += pages as u64 * page_size();
            }
            Ok(())
        };
        let (small, huge) = (pages.difference(huge), pages.intersection(huge));
        let small = small.ranges().iter().map(|range| (range, page_size()));
        let huge = huge.ranges().iter().map(|range| {
            let is_whole = range.start() % whole == 0 && range.bytes() % whole == 0;
            (range, if is_whole { whole } else { page_size() })
        });
        for (range, step) in small.chain(huge) {
            add(*range, step).map_err(|source| Error::Io {
                what: format!("reading the page tables of process {}", self.pid),
                source,
            })?;
        }
        if !frames.is_empty() && frames.iter().all(|(_, frame)| *frame == 0) {
            return Err(Error::NotHere(
                "physical pages are hidden: it takes CAP_SYS_ADMIN".into(),
            ));
        }
        Ok(frames)
    }
}

/// The words of a file of the kernel.
pub(super) fn words(bytes: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let (words, _) = bytes.as_chunks();
    words.iter().map(|word| u64::from_ne_bytes(*word))
}
