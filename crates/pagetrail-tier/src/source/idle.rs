//! [`PageIdle`]: the kernel's idle page tracking as a source: accessed bits, by
//! `/sys/kernel/mm/page_idle/bitmap`.
//!
//! It costs the process no faults, only the setting of bits. It reports single pages, and no
//! writes. The bitmap is of physical pages, which `/proc/PID/pagemap` shows to a process that
//! has `CAP_SYS_ADMIN`. It needs `CONFIG_IDLE_PAGE_TRACKING`, which Debian's kernels are built
//! without. `Documentation/admin-guide/mm/idle_page_tracking.rst`.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use pagetrail::{Mapped, PageRange, PageSet, mapped_pages};

use super::frames::{Frames, words};
use super::{Source, SourceInfo, everywhere};
use crate::error::{Error, Result};
use crate::policy::{Sample, SourceCaps};

const BITMAP: &str = "/sys/kernel/mm/page_idle/bitmap";
/// Words of the bitmap that one call reads or writes.
const BATCH: usize = 4096;
const WORD_BYTES: u64 = 8;

/// The pages of a process whose accessed bits are set.
pub struct PageIdle {
    pid: u32,
    frames: Frames,
    bitmap: File,
    /// The pages that are sampled; nothing is known about others.
    armed: PageSet,
}

impl PageIdle {
    /// Starts to track a process.
    ///
    /// # Errors
    ///
    /// The kernel has no idle page tracking, or it is not permitted.
    pub fn start(pid: u32) -> Result<Self> {
        Self::start_at(Path::new(BITMAP), pid)
    }

    fn start_at(bitmap: &Path, pid: u32) -> Result<Self> {
        let opened = OpenOptions::new().read(true).write(true).open(bitmap);
        let bitmap = opened.map_err(|error| {
            Error::NotHere(format!(
                "this kernel tracks no idle pages ({}: {error})",
                bitmap.display()
            ))
        })?;
        Ok(Self {
            pid,
            frames: Frames::open(pid)?,
            bitmap,
            armed: PageSet::new(),
        })
    }

    /// The pages of a set that were accessed since they were marked idle.
    fn used(&self, frames: &[(PageRange, u64)]) -> Result<PageSet> {
        let mut idle: BTreeMap<u64, u64> =
            frames.iter().map(|(_, frame)| (frame / 64, 0)).collect();
        self.each_run(&mut idle, |bitmap, bytes, at| {
            bitmap.read_exact_at(bytes, at)
        })?;
        let is_idle = |frame: u64| {
            idle.get(&(frame / 64))
                .is_some_and(|word| word >> (frame % 64) & 1 == 1)
        };
        let used = frames.iter().filter(|(_, frame)| !is_idle(*frame));
        Ok(used.map(|(range, _)| *range).collect())
    }

    /// Reads or writes words of the bitmap, neighbours in one call.
    fn each_run(
        &self,
        bits: &mut BTreeMap<u64, u64>,
        call: impl Fn(&File, &mut [u8], u64) -> io::Result<()>,
    ) -> Result<()> {
        let mut all: Vec<(u64, &mut u64)> = bits
            .iter_mut()
            .map(|(index, word)| (*index, word))
            .collect();
        for run in all.chunk_by_mut(|(before, _), (index, _)| before + 1 == *index) {
            for batch in run.chunks_mut(BATCH) {
                let mut bytes: Vec<u8> = batch
                    .iter()
                    .flat_map(|(_, word)| word.to_ne_bytes())
                    .collect();
                let first = batch.first().map_or(0, |(index, _)| *index);
                call(&self.bitmap, &mut bytes, first * WORD_BYTES).map_err(|source| Error::Io {
                    what: "reading which pages are idle".into(),
                    source,
                })?;
                for ((_, word), read) in batch.iter_mut().zip(words(&bytes)) {
                    **word = read;
                }
            }
        }
        Ok(())
    }
}

impl Source for PageIdle {
    fn info(&self) -> SourceInfo {
        SourceInfo {
            name: "page_idle",
            caps: SourceCaps {
                accesses: true,
                ..SourceCaps::default()
            },
            pages: true,
            // A bit that is set costs a walk through the page tables: what HMM-V's queue is made to
            // save.
            saves_faults: true,
        }
    }

    fn window(&mut self) -> Result<Sample> {
        let mapped = self.mapped()?;
        let armed = mapped.present.intersection(&self.armed);
        let used = self.used(&self.frames.of(&armed, &mapped.huge)?)?;
        self.armed = armed.difference(&used);
        Ok(Sample {
            accessed: Some(mapped.present.difference(&self.armed)),
            written: None,
        })
    }

    fn rearm(&mut self, pages: &PageSet) -> Result<()> {
        let mapped = self.mapped_within(pages)?;
        let mut bits = BTreeMap::<u64, u64>::new();
        for (_, frame) in self.frames.of(&mapped.present, &mapped.huge)? {
            *bits.entry(frame / 64).or_default() |= 1 << (frame % 64);
        }
        self.each_run(&mut bits, |bitmap, bytes, at| {
            bitmap.write_all_at(bytes, at)
        })?;
        self.armed.union_with(&mapped.present);
        Ok(())
    }

    fn suspend(&mut self) -> Result<()> {
        self.armed = PageSet::new();
        Ok(())
    }

    fn mapped(&mut self) -> Result<Mapped> {
        // What is mapped from files is left out by being shared with others.
        self.mapped_within(&everywhere())
    }

    fn mapped_within(&mut self, addresses: &PageSet) -> Result<Mapped> {
        Ok(mapped_pages(self.pid, addresses)?)
    }
}

#[cfg(test)]
#[allow(clippy::print_stderr, reason = "a test that cannot run says so")]
mod tests {
    use super::*;
    use pagetrail::page_size;

    const PAGES: u64 = 64;

    /// Pages of this process that are in memory, and locked there.
    fn own_pages() -> (Vec<u8>, PageSet) {
        let mut buffer = vec![0u8; ((PAGES + 1) * page_size()) as usize];
        buffer.fill(1);
        let start = (buffer.as_ptr() as u64).next_multiple_of(page_size());
        let range = PageRange::new(start, start + PAGES * page_size());
        (buffer, PageSet::from_iter(range))
    }

    #[test]
    fn pages_whose_bit_the_kernel_clears_are_reported() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("bitmap");
        let missing = PageIdle::start_at(&path, std::process::id()).err().unwrap();
        assert!(missing.is_machine_limit(), "{missing}");
        // The kernel's file stands in for itself: as long as all physical memory, and sparse.
        File::create(&path).unwrap().set_len(1 << 40).unwrap();
        let (buffer, own) = own_pages();
        let mut source = PageIdle::start_at(&path, std::process::id()).unwrap();
        match source.rearm(&own) {
            Err(error) if error.is_machine_limit() => {
                pagetrail_skips::not_here(&error);
                return;
            }
            done => done.unwrap(),
        }
        let touched = |source: &mut PageIdle| {
            let sample = source.window().unwrap();
            sample.accessed.unwrap().intersection(&own)
        };
        assert_eq!(touched(&mut source), PageSet::new(), "all are idle");
        // The kernel clears the bit of a page that was used.
        let page = own.ranges()[0].start() + 3 * page_size();
        let one = PageSet::from_iter(PageRange::new(page, page + page_size()));
        let (_, frame) = source.frames.of(&one, &PageSet::new()).unwrap()[0];
        let mut word = [0; 8];
        source
            .bitmap
            .read_exact_at(&mut word, frame / 64 * 8)
            .unwrap();
        let bits = u64::from_ne_bytes(word) & !(1 << (frame % 64));
        source
            .bitmap
            .write_all_at(&bits.to_ne_bytes(), frame / 64 * 8)
            .unwrap();
        assert_eq!(touched(&mut source), one);
        // Until it is armed, nothing is known of it.
        assert_eq!(touched(&mut source), one);
        source.rearm(&one).unwrap();
        assert!(!touched(&mut source).intersects(one.ranges()[0]));
        drop(buffer);
    }
}
