//! [`Ring`]: the ring buffer in which the kernel puts records of events of one processor.
//!
//! # Safety
//!
//! A ring is a mapping of one page of metadata and 2^n pages of data, which lives as long as the
//! value. The kernel writes records after `data_head` only, and none over bytes from `data_tail`
//! on, which this side moves after it has copied them.
#![allow(unsafe_code, reason = "a ring is memory that the kernel writes to")]

use std::ffi::c_void;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

/// Where fields of `struct perf_event_mmap_page` lie, in bytes.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;

/// The ring buffer of an event, and of others that were directed to it.
#[derive(Debug)]
pub(crate) struct Ring {
    event: OwnedFd,
    memory: NonNull<u8>,
    page_bytes: usize,
    data_bytes: usize,
}

// SAFETY: the mapping belongs to this value alone, and any thread may read and unmap it.
unsafe impl Send for Ring {}

impl Ring {
    /// Maps a ring of at most `bytes_max` bytes for an event, a smaller one if the limit on locked
    /// memory asks for it, down to eight pages.
    pub(crate) fn new(event: OwnedFd, bytes_max: usize) -> Result<Self, Errno> {
        let page_bytes = rustix::param::page_size();
        let mut data_bytes = bytes_max.max(8 * page_bytes).next_power_of_two();
        loop {
            // SAFETY: a new mapping at an address that the kernel chooses aliases nothing.
            let mapped = unsafe {
                mmap(
                    ptr::null_mut(),
                    page_bytes + data_bytes,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::SHARED,
                    &event,
                    0,
                )
            };
            match mapped.map(NonNull::new) {
                Ok(Some(memory)) => {
                    return Ok(Self {
                        event,
                        memory: memory.cast(),
                        page_bytes,
                        data_bytes,
                    });
                }
                Err(Errno::PERM | Errno::NOMEM) if data_bytes > 8 * page_bytes => data_bytes /= 2,
                Err(errno) => return Err(errno),
                Ok(None) => return Err(Errno::NOMEM),
            }
        }
    }

    /// The event's descriptor, which becomes readable at the event's watermark.
    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }

    /// Appends all records to `bytes` and frees their place in the ring.
    pub(crate) fn read(&mut self, bytes: &mut Vec<u8>) {
        let tail = self.word(DATA_TAIL).load(Ordering::Relaxed);
        let head = self.word(DATA_HEAD).load(Ordering::Acquire);
        let length = (head.wrapping_sub(tail) as usize).min(self.data_bytes);
        let begin = tail as usize & (self.data_bytes - 1);
        let first = length.min(self.data_bytes - begin);
        bytes.reserve(length);
        for (offset, part) in [(begin, first), (0, length - first)] {
            let to = bytes.len();
            // SAFETY: both parts lie within the data pages, and the reserved vector has room for
            // them; the kernel does not write there before the tail moves.
            unsafe {
                let from = self.memory.as_ptr().add(self.page_bytes + offset);
                ptr::copy_nonoverlapping(from, bytes.as_mut_ptr().add(to), part);
                bytes.set_len(to + part);
            }
        }
        self.word(DATA_TAIL).store(head, Ordering::Release);
    }

    fn word(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the offset lies in the first page of the mapping and is a multiple of 8; the
        // kernel accesses these words atomically as well.
        unsafe { &*self.memory.as_ptr().add(offset).cast::<AtomicU64>() }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        let memory = self.memory.as_ptr().cast::<c_void>();
        // SAFETY: the mapping is this value's own, and nothing refers to it any more.
        let _ = unsafe { munmap(memory, self.page_bytes + self.data_bytes) };
    }
}
