//! [`Kept`]: pages that a fault handler keeps for a reader. It lies in mappings of its own, and
//! using it allocates nothing: the memory whose faults are handled may be the heap.

use pagetrail::page_size;
use rustix::io::{Errno, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};
use std::ptr::{NonNull, null_mut};
use std::slice;
use std::sync::atomic::{AtomicU8, Ordering};

/// A page's state. It goes from the first to one of the last three, once.
const UNTOUCHED: u8 = 0;
const CLAIMED: u8 = 1;
/// Its contents are here.
const KEPT: u8 = 2;
/// It was read.
const READ: u8 = 3;
/// It could not be read.
const LOST: u8 = 4;

/// Room for pages, by number, and the state of each. Pages that nobody keeps take no memory.
#[derive(Debug)]
pub(crate) struct Kept {
    contents: NonNull<u8>,
    states: NonNull<AtomicU8>,
    pages: usize,
    bytes: usize,
}

// SAFETY: the mappings belong to this value alone. States are atomic; contents are written by who
// has claimed the page only, and read once that is over.
unsafe impl Send for Kept {}
// SAFETY: as above; what is shared are the atomic states, and contents that are settled.
unsafe impl Sync for Kept {}

/// Where a page is.
#[derive(Debug)]
pub(crate) enum Page<'a> {
    /// Where it always was, until this is settled: nobody else reads it.
    Claimed(Claim<'a>),
    /// Kept here.
    Kept(&'a [u8]),
    /// Somebody has read it.
    Read,
    /// Nowhere.
    Lost,
}

impl Kept {
    /// Room for so many pages.
    pub(crate) fn new(pages: usize) -> Result<Self> {
        let bytes = pages
            .checked_mul(page_size() as usize)
            .filter(|bytes| *bytes > 0 && isize::try_from(*bytes).is_ok())
            .ok_or(Errno::INVAL)?;
        let map = |bytes| {
            let rights = ProtFlags::READ | ProtFlags::WRITE;
            let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
            // SAFETY: a fresh mapping at an address of the kernel's choice touches no existing
            // memory.
            let start = unsafe { mmap_anonymous(null_mut(), bytes, rights, flags)? };
            NonNull::new(start).ok_or(Errno::NOMEM)
        };
        let contents = map(bytes)?.cast::<u8>();
        let states = match map(pages) {
            Ok(states) => states.cast::<AtomicU8>(),
            Err(errno) => {
                // SAFETY: this function made the mapping, and nobody has it.
                let _ = unsafe { munmap(contents.as_ptr().cast(), bytes) };
                return Err(errno);
            }
        };
        Ok(Self {
            contents,
            states,
            pages,
            bytes,
        })
    }

    fn state(&self, page: usize) -> &AtomicU8 {
        assert!(page < self.pages);
        // SAFETY: in the mapping, as just checked, which is zeroed, readable and writable for as
        // long as this value lives; nothing accesses it but by these atomics.
        unsafe { self.states.add(page).as_ref() }
    }

    /// Claims a page, or says where it is; waits while another thread has it claimed, which takes
    /// as long as copying it.
    pub(crate) fn claim(&self, page: usize) -> Page<'_> {
        let state = self.state(page);
        loop {
            let (acquire, relaxed) = (Ordering::Acquire, Ordering::Relaxed);
            match state.compare_exchange(UNTOUCHED, CLAIMED, acquire, relaxed) {
                Ok(_) => return Page::Claimed(Claim { kept: self, page }),
                Err(_) => match state.load(acquire) {
                    KEPT => return Page::Kept(self.contents(page)),
                    READ => return Page::Read,
                    LOST => return Page::Lost,
                    _ => std::thread::yield_now(),
                },
            }
        }
    }

    fn contents(&self, page: usize) -> &[u8] {
        let size = page_size() as usize;
        // SAFETY: in the mapping, for `state` has checked the page; it is `KEPT`, after which
        // nobody writes to it.
        unsafe { slice::from_raw_parts(self.contents.add(page * size).as_ptr(), size) }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        for (start, bytes) in [
            (self.contents, self.bytes),
            (self.states.cast(), self.pages),
        ] {
            // SAFETY: this value made the mapping, and nothing borrows from it any more.
            let _ = unsafe { munmap(start.as_ptr().cast(), bytes) };
        }
    }
}

/// A page that nobody else reads. Dropped, it counts as read.
#[derive(Debug)]
pub(crate) struct Claim<'a> {
    kept: &'a Kept,
    page: usize,
}

impl Claim<'_> {
    /// Keeps the contents that `fill` writes to the room for the page, unless `fill` fails.
    pub(crate) fn keep(self, fill: impl FnOnce(&mut [u8]) -> bool) {
        let size = page_size() as usize;
        let start = self.kept.contents.as_ptr();
        // SAFETY: in the mapping, for `state` has checked the page; it is `CLAIMED` by this value,
        // so that nobody else accesses its room.
        let room = unsafe { slice::from_raw_parts_mut(start.add(self.page * size), size) };
        let state = if fill(room) { KEPT } else { LOST };
        self.settle(state);
    }

    /// Says that it could not be read.
    pub(crate) fn lose(self) {
        self.settle(LOST);
    }

    fn settle(self, state: u8) {
        self.kept.state(self.page).store(state, Ordering::Release);
        std::mem::forget(self);
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        self.kept.state(self.page).store(READ, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_claimed_once() {
        let kept = Kept::new(3).unwrap();
        let claimed = |page| match kept.claim(page) {
            Page::Claimed(claim) => claim,
            other => panic!("{other:?}"),
        };
        claimed(0).keep(|room| {
            room.fill(7);
            true
        });
        assert!(matches!(kept.claim(0), Page::Kept(contents) if contents[9] == 7));
        claimed(1).keep(|_| false);
        assert!(matches!(kept.claim(1), Page::Lost));
        drop(claimed(2));
        assert!(matches!(kept.claim(2), Page::Read));
        assert!(Kept::new(0).is_err() && Kept::new(usize::MAX).is_err());
    }
}
