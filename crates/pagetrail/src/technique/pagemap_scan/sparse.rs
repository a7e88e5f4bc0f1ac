//! [`Sparse`]: large holes of shared memory, which are left unarmed until there is data in them.
//!
//! Shared memory is armed whole, holes included, because a page that was written can leave the page
//! table again. Arming a hole creates page tables for its markers: 512 MiB for a reservation of
//! 256 GiB, which stay. A page of shared memory that is written first gets a page in its file,
//! though (`shmem_fault` in `mm/shmem.c`), and keeps it when it leaves the page table. So a hole of
//! the file is left alone, and each collect asks the file whether it has data by now (`SEEK_DATA`,
//! lseek(2)): that counts as written, and the page tables around it are armed. Data that was
//! removed from the file again meanwhile leaves nothing: the contents are zeros, as before.

use super::{PagemapScan, block_bytes, blocks};
use crate::error::{Error, Result};
use crate::page_set::{PageRange, PageSet};
use crate::proc::map_files;
use crate::region::Region;
use crate::sys::pagemap::{Categories, Query};
use rustix::fs::fstatfs;
use rustix::io::Errno;
use std::fs::File;

/// Smaller mappings are armed whole, in bytes: their page tables are 128 KiB at most.
const SPARSE_MIN: u64 = 64 << 20;
/// Smaller holes are armed, in bytes.
const HOLE_MIN: u64 = 8 << 20;
/// The most holes of a mapping.
const HOLES_MAX: u64 = 4096;
/// The most mappings whose files are kept open.
const MAPPINGS_MAX: usize = 64;
/// `TMPFS_MAGIC` in `include/uapi/linux/magic.h`: also that of shared anonymous memory, System V
/// segments, and memfds.
const TMPFS_MAGIC: i64 = 0x0102_1994;

/// Selects pages that are in the page table, and checks that the mapping is still registered.
const MAPPED: Query = Query {
    write_protect: false,
    only_registered: true,
    inverted: Categories::NONE,
    all_of: Categories::PRESENT,
    any_of: Categories::NONE,
    report: Categories::NONE,
};

/// A shared mapping with large holes.
pub(super) struct Sparse {
    file: File,
    range: PageRange,
    /// Where the mapping begins in the file, in bytes.
    offset: u64,
}

impl Sparse {
    /// `None` for mappings that are not large, or whose file cannot be asked: not of memory, or
    /// without permission (`proc_pid_map_files(5)`).
    pub(super) fn open(pid: u32, region: &Region) -> Option<Self> {
        if region.range.bytes() < SPARSE_MIN || !region.permissions.shared {
            return None;
        }
        let file = File::open(map_files::link(Some(pid), region.range)).ok()?;
        let is_memory = fstatfs(&file).is_ok_and(|system| system.f_type == TMPFS_MAGIC);
        is_memory.then_some(Self {
            file,
            range: region.range,
            offset: region.offset,
        })
    }

    /// The holes of a part of the mapping that are worth leaving alone.
    pub(super) fn holes(&self, part: &PageSet) -> Result<PageSet> {
        let least = HOLE_MIN.max(self.range.bytes() / HOLES_MAX);
        let holes = part.difference(&self.data(part)?);
        Ok(holes
            .ranges()
            .iter()
            .filter_map(|hole| hole.align_inwards(block_bytes()))
            .filter(|hole| hole.bytes() >= least)
            .collect())
    }

    /// The pages of a part of the mapping for which the file has data.
    fn data(&self, part: &PageSet) -> Result<PageSet> {
        let mut found = PageSet::new();
        for range in part.ranges() {
            if let Some(range) = range.intersection(&self.range) {
                let start = self.range.start();
                map_files::add_data(&self.file, start, self.offset, range, &mut found)
                    .map_err(Error::os("lseek(2) for data of a mapped file"))?;
            }
        }
        Ok(found)
    }
}

impl PagemapScan {
    /// The holes of a shared mapping that are not armed with it.
    pub(super) fn leave_holes(&mut self, region: &Region) -> PageSet {
        if self.sparse.len() == MAPPINGS_MAX {
            return PageSet::new();
        }
        let Some(sparse) = Sparse::open(self.pid, region) else {
            return PageSet::new();
        };
        // A file that cannot be asked has no holes.
        let holes = sparse.holes(&PageSet::from(region.range));
        let holes = holes.unwrap_or_default();
        if !holes.is_empty() {
            self.sparse.push(sparse);
            self.holes.union_with(&holes);
        }
        holes
    }

    /// Arms the holes in which there is data by now, and adds that to `out`. Adds mappings that
    /// lost their registration to `replaced`.
    pub(super) fn arm_filled_holes(
        &mut self,
        out: &mut PageSet,
        replaced: &mut Vec<PageRange>,
    ) -> Result<()> {
        if self.holes.is_empty() {
            return Ok(());
        }
        let mut filled = PageSet::new();
        let holes = self.holes.clone();
        self.scan_ranges(&holes, MAPPED, &mut filled, replaced)?;
        for sparse in &self.sparse {
            filled.union_with(&sparse.data(&holes)?);
        }
        let filled = blocks(&filled).intersection(&holes);
        if filled.is_empty() {
            return Ok(());
        }
        let mut left = PageSet::new();
        for sparse in &self.sparse {
            let part = holes.within(sparse.range);
            left.union_with(&sparse.holes(&part.difference(&filled))?);
        }
        let armed = holes.difference(&left);
        for range in armed.ranges() {
            match self.pagemap.arm(*range) {
                // The next scan finds which mappings lost their registration.
                Ok(()) | Err(Errno::PERM) => {}
                Err(errno) => return Err(self.failed("PAGEMAP_SCAN of filled holes")(errno)),
            }
        }
        // Armed first: what comes later is found by the page tables.
        self.holes = left;
        self.shared.union_with(&armed);
        self.plan = None;
        for sparse in &self.sparse {
            out.union_with(&sparse.data(&armed)?);
        }
        Ok(())
    }

    /// Forgets the holes of a range.
    pub(super) fn forget_holes(&mut self, range: PageRange) {
        self.holes.remove(range);
        let holes = &self.holes;
        self.sparse.retain(|sparse| holes.intersects(sparse.range));
    }
}
