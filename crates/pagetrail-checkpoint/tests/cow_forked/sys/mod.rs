//! Forking, mapping, and limits, for tests of snapshots in programs that fork.

use pagetrail::PageRange;
use rustix::mm::{MapFlags, ProtFlags, mmap, mmap_anonymous, munmap};
use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::ptr::null_mut;

/// A forked child, which is killed at the end.
pub(crate) struct Child(libc::pid_t);

impl Child {
    /// Forks; the child does some work and ends with the exit code that this gives.
    pub(crate) fn fork(work: impl FnOnce() -> u8) -> Self {
        // SAFETY: the child has one thread, does its work and ends, without a return into the
        // test; glibc's allocator can be used after a fork.
        let pid = unsafe { libc::fork() };
        if pid == 0 {
            let code = catch_unwind(AssertUnwindSafe(work)).unwrap_or(101);
            // SAFETY: ends the child.
            unsafe { libc::_exit(code.into()) }
        }
        assert!(pid > 0, "{}", std::io::Error::last_os_error());
        Self(pid)
    }

    /// Waits for its end; its exit code, and `None` where a signal ended it.
    pub(crate) fn code(self) -> Option<i32> {
        let status = self.wait();
        std::mem::forget(self);
        libc::WIFEXITED(status).then(|| libc::WEXITSTATUS(status))
    }

    fn wait(&self) -> i32 {
        let mut status = 0;
        // SAFETY: writes to `status` alone; the child was not waited for.
        unsafe { libc::waitpid(self.0, &raw mut status, 0) };
        status
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: it was not waited for, so that the PID is its own.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
        self.wait();
    }
}

/// Pages of private memory, which stay as long as the process.
#[derive(Clone, Copy)]
pub(crate) struct Pages(PageRange);

impl Pages {
    /// Pages that say 1.
    pub(crate) fn new(count: u64) -> Self {
        let bytes = count * pagetrail::page_size();
        let (rights, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE);
        // SAFETY: a fresh mapping at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(null_mut(), bytes as usize, rights, flags) };
        let start = start.expect("there is memory") as u64;
        let pages = Self(PageRange::new(start, start + bytes).expect("whole pages"));
        (0..count).for_each(|n| pages.write(n, 1));
        pages
    }

    pub(crate) fn range(&self) -> PageRange {
        self.0
    }

    fn at(&self, page: u64) -> u64 {
        let address = self.0.start() + page * pagetrail::page_size();
        assert!(address < self.0.end());
        address
    }

    /// Writes to the first byte of a page.
    pub(crate) fn write(&self, page: u64, value: u8) {
        let address = self.at(page) as *mut u8;
        // SAFETY: within the mapping, in a page that is writable; no reference leads there.
        unsafe { address.write_volatile(value) }
    }

    /// Maps a file over a page, to be read only.
    pub(crate) fn map_over(&self, page: u64, file: &File) {
        let (address, bytes) = (self.at(page) as *mut _, pagetrail::page_size() as usize);
        let flags = MapFlags::PRIVATE | MapFlags::FIXED;
        // SAFETY: replaces a page that is this value's own, and that nobody reads.
        let mapped = unsafe { mmap(address, bytes, ProtFlags::READ, flags, file, 0) };
        mapped.expect("the file can be mapped");
    }

    /// Unmaps all of it; nobody may write there any more.
    pub(crate) fn unmap(self) {
        // SAFETY: the mapping is this value's own.
        let _ = unsafe { munmap(self.0.start() as *mut _, self.0.bytes() as usize) };
    }
}
