//! [`Heap`]: a heap that is separate from that of the process.

use super::cache::Cache;
use super::core::Core;
use super::fork;
use crate::stats::Stats;
use crate::subpage_count::SubpageCount;
use std::alloc::Layout;
use std::io;
use std::ptr::NonNull;

/// A heap that is separate from that of the process.
///
/// ```
/// use pagetrail_alloc::{Heap, SubpageCount};
/// use std::alloc::Layout;
/// let heap = Heap::new(SubpageCount::new(8).unwrap())?;
/// let layout = Layout::new::<[u64; 8]>();
/// let object = heap.allocate(layout).unwrap();
/// unsafe {
///     object.cast::<[u64; 8]>().write([7; 8]);
///     heap.free(object);
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// All threads may use it; they share a few caches. When it is dropped, all its objects are freed.
#[derive(Debug)]
pub struct Heap {
    core: NonNull<Core>,
}

// SAFETY: the heap is not bound to a thread: all state that changes is behind locks, or atomic.
unsafe impl Send for Heap {}
// SAFETY: `Core` is `Sync`: all state that changes is behind locks, or atomic.
unsafe impl Sync for Heap {}

impl Heap {
    /// Makes a heap with this number of sub-pages per page.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn new(subpages: SubpageCount) -> io::Result<Self> {
        let core = Core::make(subpages)?;
        // SAFETY: it leaves the list when it is dropped.
        unsafe { fork::join(core) };
        NonNull::new(core)
            .map(|core| Self { core })
            .ok_or_else(|| io::ErrorKind::OutOfMemory.into())
    }

    fn core(&self) -> &Core {
        // SAFETY: it lives as long as this.
        unsafe { self.core.as_ref() }
    }

    fn with(&self, call: impl FnOnce(&Core, &mut Cache) -> *mut u8) -> Option<NonNull<u8>> {
        self.core().with_shared_cache(call).and_then(NonNull::new)
    }

    /// The number of sub-pages per page.
    pub fn subpages_per_page(&self) -> SubpageCount {
        self.core().subpages_per_page()
    }

    /// Memory of a size (0 is fine) and alignment; `None` if there is none.
    pub fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.with(|core, cache| core.allocate_aligned(cache, layout.size(), layout.align()))
    }

    /// Allocates zeroed memory, aligned to 16 bytes; `None` if there is none.
    pub fn allocate_zeroed(&self, bytes: usize) -> Option<NonNull<u8>> {
        self.with(|core, cache| core.allocate_zeroed(cache, bytes))
    }

    /// Frees an object. An address that is no object of this heap ends the program.
    ///
    /// # Safety
    ///
    /// The object is not used any more.
    pub unsafe fn free(&self, object: NonNull<u8>) {
        // SAFETY: the caller does not use the object any more.
        let freed = self
            .core()
            .with_shared_cache(|core, cache| unsafe { core.free(cache, object.as_ptr()) });
        // Without memory for a cache nothing can have been allocated.
        debug_assert!(freed.is_some());
    }

    /// Gives an object another size, and perhaps another place, aligned to 16 bytes; `None` if
    /// there is no memory, and it stays what it was.
    ///
    /// # Safety
    ///
    /// Unless the result is `None`, the old place is not used any more.
    pub unsafe fn reallocate(&self, object: NonNull<u8>, bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: the caller uses only the new place, unless the call fails.
        self.with(|core, cache| unsafe { core.reallocate(cache, object.as_ptr(), bytes) })
    }

    /// How many bytes an object has room for. An address that is no object of this heap ends the
    /// program.
    pub fn usable(&self, object: NonNull<u8>) -> usize {
        self.core().usable(object.as_ptr())
    }

    /// What the heap takes.
    pub fn stats(&self) -> Stats {
        self.core().stats()
    }
}

impl Drop for Heap {
    fn drop(&mut self) {
        fork::leave(self.core.as_ptr());
        // SAFETY: `drop` has the only reference to the heap, and the list of heaps does not have it
        // any more.
        unsafe { Core::destroy(self.core.as_ptr()) };
    }
}
