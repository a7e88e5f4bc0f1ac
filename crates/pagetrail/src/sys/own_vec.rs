//! [`OwnVec`]: a list in a mapping of its own, for code that must not allocate: a killed process
//! leaves the allocator's locks held, and what survives it ([`super::survivor`]) would wait for
//! ever.

use rustix::io::Errno;
use rustix::mm::{MapFlags, MremapFlags, ProtFlags, mmap_anonymous, mremap, munmap};
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut};

/// How many bytes the first mapping has.
const FIRST_BYTES: usize = 1 << 16;

/// A list that grows, without the allocator.
#[derive(Debug)]
pub(crate) struct OwnVec<T> {
    start: NonNull<T>,
    len: usize,
    /// The size of the mapping, 0 without one.
    bytes: usize,
}

// SAFETY: the list owns its elements and its mapping, as `Vec` does.
unsafe impl<T: Send> Send for OwnVec<T> {}

impl<T> OwnVec<T> {
    /// An empty list, which has no mapping.
    pub(crate) const fn new() -> Self {
        Self {
            start: NonNull::dangling(),
            len: 0,
            bytes: 0,
        }
    }

    /// Appends an element.
    pub(crate) fn push(&mut self, value: T) -> Result<(), Errno> {
        if (self.len + 1) * size_of::<T>() > self.bytes {
            self.grow()?;
        }
        // SAFETY: the mapping has room for this element, and nothing is there.
        unsafe { self.start.add(self.len).write(value) };
        self.len += 1;
        Ok(())
    }

    /// Takes an element out; the last takes its place.
    pub(crate) fn swap_remove(&mut self, index: usize) -> T {
        let last = self.len - 1;
        self.swap(index, last);
        self.len = last;
        // SAFETY: the element was the last, which does not belong to the list any more.
        unsafe { self.start.add(last).read() }
    }

    /// Takes the last element out.
    pub(crate) fn pop(&mut self) -> Option<T> {
        (!self.is_empty()).then(|| self.swap_remove(self.len - 1))
    }

    /// Keeps the elements that are `wanted`, in any order.
    pub(crate) fn retain(&mut self, mut wanted: impl FnMut(&T) -> bool) {
        let mut at = 0;
        while at < self.len {
            match wanted(&self[at]) {
                true => at += 1,
                false => drop(self.swap_remove(at)),
            }
        }
    }

    fn grow(&mut self) -> Result<(), Errno> {
        const { assert!(size_of::<T>() > 0 && size_of::<T>() <= FIRST_BYTES) };
        let bytes = (2 * self.bytes).max(FIRST_BYTES);
        let start = match self.bytes {
            0 => {
                let rights = ProtFlags::READ | ProtFlags::WRITE;
                let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
                // SAFETY: a new mapping at an address of the kernel's choice overlaps no memory.
                unsafe { mmap_anonymous(null_mut(), bytes, rights, flags)? }
            }
            before => {
                let start = self.start.as_ptr().cast();
                // SAFETY: the mapping is this list's, and no reference to its elements exists.
                unsafe { mremap(start, before, bytes, MremapFlags::MAYMOVE)? }
            }
        };
        self.start = NonNull::new(start.cast()).ok_or(Errno::NOMEM)?;
        self.bytes = bytes;
        Ok(())
    }
}

impl<T: Copy> OwnVec<T> {
    /// Appends copies of elements.
    pub(crate) fn extend(&mut self, elements: &[T]) -> Result<(), Errno> {
        elements.iter().try_for_each(|&element| self.push(element))
    }
}

impl<T> Deref for OwnVec<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        // SAFETY: the mapping holds `len` elements; without one there are none. A page is aligned
        // for any type.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T> DerefMut for OwnVec<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as for `deref`; the borrow of the list makes this the only reference.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T> Drop for OwnVec<T> {
    fn drop(&mut self) {
        if self.bytes == 0 {
            return;
        }
        // SAFETY: the elements are this list's, and nobody uses them after it.
        unsafe { std::ptr::drop_in_place(&raw mut **self) };
        // SAFETY: the mapping is this list's, and its elements are gone.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;

    #[test]
    fn elements_stay_while_the_list_grows_and_shrinks() {
        let mut list = OwnVec::new();
        assert!(list.is_empty());
        for number in 0..100_000u64 {
            list.push(number).unwrap();
        }
        assert!(list.iter().copied().eq(0..100_000));
        list.retain(|number| number % 3 == 0);
        list.sort_unstable();
        assert!(list.iter().copied().eq((0..100_000).step_by(3)));
        assert_eq!(list.swap_remove(1), 3);
        assert_eq!((list.len(), list[1]), (33_333, 99_999));
    }

    #[test]
    fn elements_are_dropped_once() {
        let element = Rc::new(());
        let mut list = OwnVec::new();
        for _ in 0..5 {
            list.push(Rc::clone(&element)).unwrap();
        }
        drop(list.swap_remove(0));
        assert_eq!(Rc::strong_count(&element), 5);
        drop(list);
        assert_eq!(Rc::strong_count(&element), 1);
    }
}
