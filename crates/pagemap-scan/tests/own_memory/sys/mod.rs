//! [`Mapping`]: anonymous memory whose pages do not exist until they are touched.
#![allow(unsafe_code, reason = "a mapping of its own for each test")]

use pagemap_scan::page_size;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::ops::Range;

/// An anonymous mapping, without huge pages.
pub(super) struct Mapping {
    base: *mut c_void,
    pages: u64,
}

impl Mapping {
    pub(super) fn new(pages: u64) -> Self {
        let bytes = (pages * page_size()) as usize;
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no existing memory.
        let base = unsafe {
            mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE).unwrap()
        };
        // SAFETY: the advice changes no contents. Kernels without huge pages refuse it.
        let _ = unsafe { madvise(base, bytes, Advice::LinuxNoHugepage) };
        Self { base, pages }
    }

    pub(super) fn range(&self) -> Range<u64> {
        self.page(0).start..self.page(self.pages - 1).end
    }

    pub(super) fn page(&self, number: u64) -> Range<u64> {
        assert!(number < self.pages);
        let start = self.base as u64 + number * page_size();
        start..start + page_size()
    }

    pub(super) fn write(&mut self, number: u64) {
        let at = self.page(number).start as *mut u8;
        // SAFETY: the page is in the mapping, which is writable and which `self` borrows.
        unsafe { at.write_volatile(1) };
    }

    pub(super) fn read(&self, number: u64) -> u8 {
        let at = self.page(number).start as *const u8;
        // SAFETY: the page is in the mapping, which is readable and lives as long as `self`.
        unsafe { at.read_volatile() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: `new` made a mapping of this size, and borrows of it cannot outlive `self`.
        unsafe { munmap(self.base, (self.pages * page_size()) as usize).unwrap() };
    }
}
