//! [`Lasting`]: a pointer to metadata that stays where it is until its heap is destroyed.

use std::ops::Deref;
use std::ptr::NonNull;

/// A reference to metadata of a heap: slabs, superblocks and arenas, whose memory is given back
/// with the heap alone. Destroying a heap is unsafe, and its caller promises that nothing uses it
/// any more; that promise covers these.
#[repr(transparent)]
pub(crate) struct Lasting<T>(NonNull<T>);

impl<T> Lasting<T> {
    /// Makes one.
    ///
    /// # Safety
    ///
    /// A `T` is there, or zeros where these are a `T`; it stays until its heap is destroyed, and
    /// there is no exclusive reference to it.
    #[inline]
    pub(crate) unsafe fn new(at: *const T) -> Self {
        // SAFETY: something is there, as the caller promises, so the pointer is not null.
        Self(unsafe { NonNull::new_unchecked(at.cast_mut()) })
    }

    /// The metadata's address.
    #[inline]
    pub(crate) fn as_ptr(self) -> *const T {
        self.0.as_ptr()
    }

    /// The metadata, for as long as the caller has the heap.
    #[inline]
    pub(crate) fn get<'heap>(self) -> &'heap T {
        // SAFETY: the metadata is there until the heap is destroyed, whose caller promises that
        // nobody uses the heap then, so no reference from here is used either.
        unsafe { self.0.as_ref() }
    }
}

impl<T> Clone for Lasting<T> {
    #[inline]
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Lasting<T> {}

impl<T> PartialEq for Lasting<T> {
    #[inline]
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl<T> Deref for Lasting<T> {
    type Target = T;

    #[inline]
    fn deref(&self) -> &T {
        self.get()
    }
}

// SAFETY: it gives shared references alone.
unsafe impl<T: Sync> Send for Lasting<T> {}
// SAFETY: it gives shared references alone.
unsafe impl<T: Sync> Sync for Lasting<T> {}
