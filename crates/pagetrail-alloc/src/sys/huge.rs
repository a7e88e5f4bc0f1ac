//! Objects that are mappings of their own.

use super::map;
use super::pool::Pool;
use super::registry::{self, Hint, Kind, STEP};
use crate::geometry::PAGE;
use rustix::io::Errno;
use std::ptr::null;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A mapping with one object.
pub(crate) struct Huge {
    pub(crate) owner: usize,
    start: usize,
    bytes: AtomicUsize,
    next: *const Huge,
    previous: *const Huge,
}

/// All huge objects of a heap.
pub(crate) struct Huges {
    first: *const Huge,
    bytes: usize,
    count: usize,
}

// SAFETY: its pointers are to memory that it alone has.
unsafe impl Send for Huges {}

impl Huge {
    /// The length of the object, if it begins at this address.
    pub(crate) fn bytes_at(&self, address: usize) -> Option<usize> {
        (address == self.start).then(|| self.bytes.load(Ordering::Relaxed))
    }
}

impl Huges {
    pub(crate) const fn new() -> Self {
        Self {
            first: null(),
            bytes: 0,
            count: 0,
        }
    }

    /// How many there are, and their bytes.
    pub(crate) fn size(&self) -> (usize, usize) {
        (self.count, self.bytes)
    }

    /// A mapping of zeros.
    pub(crate) fn take(
        &mut self,
        bytes: usize,
        align: usize,
        owner: usize,
        pool: &mut Pool,
    ) -> Result<*mut u8, Errno> {
        let bytes = bytes.checked_next_multiple_of(PAGE).ok_or(Errno::NOMEM)?;
        let start = map::private(bytes, align.max(STEP), false)?;
        let taken = self.enter(start, bytes, owner, pool);
        taken.inspect_err(|_| {
            // SAFETY: the mapping was made a moment ago, and the program does not have it.
            unsafe { map::unmap(start, bytes) };
        })
    }

    fn enter(
        &mut self,
        start: *mut u8,
        bytes: usize,
        owner: usize,
        pool: &mut Pool,
    ) -> Result<*mut u8, Errno> {
        let place = pool.take(size_of::<Huge>())?.cast::<Huge>();
        let next = self.first.cast_mut();
        // SAFETY: fresh, aligned and large enough; `next` is one of ours, or null.
        unsafe {
            place.write(Huge {
                owner,
                start: start as usize,
                bytes: AtomicUsize::new(bytes),
                next,
                previous: null(),
            });
            let entered = registry::enter(start as usize, 1, Kind::Huge, place as usize, |_| {
                Hint::NONE
            });
            if let Err(errno) = entered {
                pool.give(place.cast(), size_of::<Huge>());
                return Err(errno);
            }
            if !next.is_null() {
                (*next).previous = place;
            }
        }
        self.first = place;
        self.bytes += bytes;
        self.count += 1;
        Ok(start)
    }

    /// Removes a mapping from the list and the registry; it belongs to the caller then.
    ///
    /// # Safety
    ///
    /// `huge` is from the registry, and its object is the caller's.
    unsafe fn leave(&mut self, huge: *const Huge, pool: &mut Pool) -> (*mut u8, usize) {
        // SAFETY: the caller's `huge` is in the list, and so are its neighbours; this list's lock
        // is held.
        unsafe {
            let (start, bytes) = ((*huge).start, (*huge).bytes.load(Ordering::Relaxed));
            registry::leave(start, 1);
            let (next, previous) = ((*huge).next.cast_mut(), (*huge).previous.cast_mut());
            if !next.is_null() {
                (*next).previous = previous;
            }
            if previous.is_null() {
                self.first = next;
            } else {
                (*previous).next = next;
            }
            pool.give(huge.cast_mut().cast(), size_of::<Huge>());
            self.bytes -= bytes;
            self.count -= 1;
            (start as *mut u8, bytes)
        }
    }

    /// Gives an object's mapping back to the system.
    ///
    /// # Safety
    ///
    /// `huge` is from the registry, and its object is not used any more.
    pub(crate) unsafe fn give(&mut self, huge: *const Huge, pool: &mut Pool) {
        // SAFETY: the object is not used any more, so its mapping, which `leave` returns, may go.
        unsafe {
            let (start, bytes) = self.leave(huge, pool);
            map::unmap(start, bytes);
        }
    }

    /// Makes an object longer or shorter, without copying it; where it is then.
    ///
    /// # Safety
    ///
    /// `huge` is from the registry, and the program uses only the new place of its object unless
    /// the call fails.
    pub(crate) unsafe fn resize(
        &mut self,
        huge: *const Huge,
        bytes: usize,
        pool: &mut Pool,
    ) -> Result<*mut u8, Errno> {
        let bytes = bytes.checked_next_multiple_of(PAGE).ok_or(Errno::NOMEM)?;
        // SAFETY: `huge` is in the registry, so `start` and `before` are its mapping; the new place
        // is fresh, and the old one is removed from the list after it has moved.
        unsafe {
            let (start, before) = (
                (*huge).start as *mut u8,
                (*huge).bytes.load(Ordering::Relaxed),
            );
            if map::resize(start, before, bytes).is_ok() {
                (*huge).bytes.store(bytes, Ordering::Relaxed);
                self.bytes = self.bytes + bytes - before;
                return Ok(start);
            }
            let owner = (*huge).owner;
            let to = map::addresses(bytes, STEP)?;
            let entered = self.enter(to, bytes, owner, pool);
            let moved = entered.and_then(|to| map::relocate(start, before, to, bytes));
            if let Err(errno) = moved {
                if entered.is_ok() {
                    self.leave(self.first, pool);
                }
                map::unmap(to, bytes);
                return Err(errno);
            }
            self.leave(huge, pool);
            Ok(to)
        }
    }

    /// Gives everything back to the kernel.
    ///
    /// # Safety
    ///
    /// No object is used any more.
    pub(crate) unsafe fn drop_all(&mut self, pool: &mut Pool) {
        while !self.first.is_null() {
            // SAFETY: `first` is in the list and in the registry, and the caller's objects are not
            // used any more.
            unsafe { self.give(self.first, pool) };
        }
    }
}
