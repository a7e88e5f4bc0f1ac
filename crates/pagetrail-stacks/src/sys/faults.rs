//! [`Pages`]: page faults of this thread, made on purpose to measure what a sample costs.
//!
//! # Safety
//!
//! All writes go to a private mapping of the value's own. While a page is written the frame
//! pointer refers to a list of frames made up for the kernel's walk, as a program that uses the
//! register for anything else may have it; no code but the one store runs meanwhile.
#![allow(
    unsafe_code,
    reason = "memory is mapped, discarded and written by hand"
)]

use std::ptr::{self, NonNull};

use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

/// Pages that can be made to fault again and again.
pub(crate) struct Pages {
    memory: NonNull<u8>,
    page_bytes: usize,
    count: usize,
}

impl Pages {
    /// Maps so many pages.
    pub(crate) fn new(count: usize) -> Result<Self, Errno> {
        let page_bytes = rustix::param::page_size();
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses aliases nothing.
        let memory = unsafe { mmap_anonymous(ptr::null_mut(), count * page_bytes, access, flags) }?;
        let pages = Self {
            memory: NonNull::new(memory.cast()).ok_or(Errno::NOMEM)?,
            page_bytes,
            count,
        };
        // One fault would fill a huge page. Kernels without them refuse, which is as good.
        let _ = pages.advise(Advice::LinuxNoHugepage);
        Ok(pages)
    }

    /// Discards all pages, so that the next write to each faults.
    pub(crate) fn discard(&self) -> Result<(), Errno> {
        self.advise(Advice::LinuxDontNeed)
    }

    /// Writes to each page, once, with a list of `frames` as the stack of calls.
    pub(crate) fn write(&self, frames: &Frames) {
        for page in 0..self.count {
            // SAFETY: the page lies in the mapping.
            let address = unsafe { self.memory.as_ptr().add(page * self.page_bytes) };
            write_under(address, frames.0.as_ptr());
        }
    }

    fn advise(&self, advice: Advice) -> Result<(), Errno> {
        let memory = self.memory.as_ptr().cast();
        // SAFETY: the mapping is this value's own, and nothing else refers to its contents.
        unsafe { madvise(memory, self.count * self.page_bytes, advice) }
    }
}

impl Drop for Pages {
    fn drop(&mut self) {
        let memory = self.memory.as_ptr().cast();
        // SAFETY: the mapping is this value's own, and nothing refers to it any more.
        let _ = unsafe { munmap(memory, self.count * self.page_bytes) };
    }
}

/// A list of stack frames: each holds the address of the next and a return address.
pub(crate) struct Frames(Vec<[u64; 2]>);

impl Frames {
    /// Makes `depth` frames, at least one.
    pub(crate) fn new(depth: usize) -> Self {
        let mut frames = vec![[0, 0x1000]; depth.max(1)];
        for next in 1..frames.len() {
            let address = frames[next].as_ptr() as u64;
            frames[next - 1][0] = address;
        }
        Self(frames)
    }
}

#[cfg(target_arch = "x86_64")]
fn write_under(address: *mut u8, frames: *const [u64; 2]) {
    // SAFETY: the caller gives an address in its own mapping; the frame pointer, which the compiler
    // lets no block name, is restored by the block itself.
    unsafe {
        std::arch::asm!(
            "push rbp",
            "mov rbp, {frames}",
            "mov byte ptr [{address}], 1",
            "pop rbp",
            frames = in(reg) frames,
            address = in(reg) address,
        );
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn write_under(address: *mut u8, _: *const [u64; 2]) {
    // SAFETY: the caller gives an address in its own mapping.
    unsafe { address.write_volatile(1) };
}
