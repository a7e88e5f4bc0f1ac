//! [`Mapping`]: memory of our own, whole pages, whose second mapping, where it has one, changes it
//! without a trace in the page tables of the first.

use pagetrail::{PageRange, page_size};
use rustix::fs::MemfdFlags;
use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::ptr::{NonNull, null_mut};
use std::slice;

/// Zeroed memory.
#[derive(Debug)]
pub(crate) struct Mapping {
    start: NonNull<u8>,
    /// A second mapping of this memory.
    alias: Option<NonNull<u8>>,
    bytes: usize,
}

// SAFETY: the memory belongs to this value alone, wherever that is; access follows the borrow of
// the value.
unsafe impl Send for Mapping {}
// SAFETY: as above; a shared borrow only reads.
unsafe impl Sync for Mapping {}

fn whole_pages(bytes: usize) -> Result<usize> {
    let page = page_size() as usize;
    bytes
        .max(1)
        .checked_next_multiple_of(page)
        .filter(|bytes| isize::try_from(*bytes).is_ok())
        .ok_or(Errno::NOMEM)
}

const RIGHTS: ProtFlags = ProtFlags::READ.union(ProtFlags::WRITE);

impl Mapping {
    /// Private memory of at least so many bytes.
    pub(crate) fn private(bytes: usize) -> Result<Self> {
        let bytes = whole_pages(bytes)?;
        // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing memory.
        let start = unsafe { mmap_anonymous(null_mut(), bytes, RIGHTS, MapFlags::PRIVATE)? };
        Ok(Self {
            start: NonNull::new(start.cast()).ok_or(Errno::NOMEM)?,
            alias: None,
            bytes,
        })
    }

    /// Memory with an alias: a memory file, mapped twice.
    pub(crate) fn twin(bytes: usize) -> Result<Self> {
        let bytes = whole_pages(bytes)?;
        let file = rustix::fs::memfd_create("pagetrail-snapshot", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&file, bytes as u64)?;
        let map = || {
            // SAFETY: as above; the file is nobody else's.
            let start = unsafe { mmap(null_mut(), bytes, RIGHTS, MapFlags::SHARED, &file, 0)? };
            NonNull::new(start.cast()).ok_or(Errno::NOMEM)
        };
        let start = map()?;
        let mut mapping = Self {
            start,
            alias: None,
            bytes,
        };
        mapping.alias = Some(map()?);
        Ok(mapping)
    }

    pub(crate) fn range(&self) -> PageRange {
        let start = self.start.as_ptr() as u64;
        // Never empty: it has a page at least.
        PageRange::new(start, start + self.bytes as u64).unwrap_or_else(|| unreachable!())
    }

    pub(crate) fn as_slice(&self) -> &[u8] {
        // SAFETY: mapped readable and initialised for as long as this value lives, and not written
        // while it is borrowed: the alias is written to by methods that borrow it mutably only.
        unsafe { slice::from_raw_parts(self.start.as_ptr(), self.bytes) }
    }

    pub(crate) fn as_mut_slice(&mut self) -> &mut [u8] {
        // SAFETY: as above; the borrow is exclusive.
        unsafe { slice::from_raw_parts_mut(self.start.as_ptr(), self.bytes) }
    }

    /// Copies `bytes` to `offset`, by the alias where there is one.
    pub(crate) fn write_behind(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset.checked_add(bytes.len());
        assert!(end.is_some_and(|end| end <= self.bytes));
        let to = self.alias.unwrap_or(self.start);
        // SAFETY: within the mapping, which is exclusively borrowed; `bytes` cannot be part of it,
        // for it is borrowed too.
        unsafe {
            to.as_ptr()
                .add(offset)
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        for start in [Some(self.start), self.alias].into_iter().flatten() {
            // SAFETY: this value made the mapping, and nothing borrows from it any more.
            let _ = unsafe { munmap(start.as_ptr().cast(), self.bytes) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alias_is_the_same_memory() {
        let mut twin = Mapping::twin(10_000).unwrap();
        assert_eq!(twin.as_slice().len() % page_size() as usize, 0);
        twin.as_mut_slice()[5000] = 1;
        twin.write_behind(5001, &[2, 3]);
        assert_eq!(twin.as_slice()[4999..5004], [0, 1, 2, 3, 0]);
        let mut private = Mapping::private(1).unwrap();
        private.write_behind(0, &[9]);
        assert_eq!(private.as_slice()[0], 9);
        assert!(Mapping::private(usize::MAX).is_err());
    }
}
