//! [`Heap`]: a heap apart from that of the process.

use super::cache::Cache;
use super::core::Core;
use super::fork;
use crate::parts::Parts;
use crate::stats::Stats;
use std::alloc::Layout;
use std::io;
use std::ptr::NonNull;

/// A heap of one's own, apart from that of the process.
///
/// ```
/// use pagetrail_alloc::{Heap, Parts};
/// use std::alloc::Layout;
/// let heap = Heap::new(Parts::new(8).unwrap())?;
/// let layout = Layout::new::<[u64; 8]>();
/// let object = heap.allocate(layout).unwrap();
/// unsafe {
///     object.cast::<[u64; 8]>().write([7; 8]);
///     heap.free(object);
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// All threads may use it; they share a few caches. Dropped, all its objects go with it.
#[derive(Debug)]
pub struct Heap {
    core: NonNull<Core>,
}

// SAFETY: all that changes is behind locks, or atomic.
unsafe impl Send for Heap {}
// SAFETY: the same.
unsafe impl Sync for Heap {}

impl Heap {
    /// Makes a heap whose pages are divided into so many parts.
    ///
    /// # Errors
    ///
    /// There is no memory.
    pub fn new(parts: Parts) -> io::Result<Self> {
        let core = Core::make(parts)?;
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

    /// Into how many parts pages are divided.
    pub fn parts(&self) -> Parts {
        self.core().parts()
    }

    /// Memory of a size (0 is fine) and alignment; `None` if there is none.
    pub fn allocate(&self, layout: Layout) -> Option<NonNull<u8>> {
        self.with(|core, cache| core.allocate_aligned(cache, layout.size(), layout.align()))
    }

    /// The same, zeroed, and aligned to 16 bytes.
    pub fn allocate_zeroed(&self, bytes: usize) -> Option<NonNull<u8>> {
        self.with(|core, cache| core.allocate_zeroed(cache, bytes))
    }

    /// Takes memory back. What is no object of this heap ends the program.
    ///
    /// # Safety
    ///
    /// Nobody uses the object any more.
    pub unsafe fn free(&self, object: NonNull<u8>) {
        // SAFETY: as the caller promises.
        let freed = self
            .core()
            .with_shared_cache(|core, cache| unsafe { core.free(cache, object.as_ptr()) });
        // Without memory for a cache nothing can have been allocated.
        debug_assert!(freed.is_some());
    }

    /// Gives an object another size, and perhaps another place, aligned to 16 bytes; `None` if there is no memory, and it
    /// stays what it was.
    ///
    /// # Safety
    ///
    /// Unless it is `None`, nobody uses the old place any more.
    pub unsafe fn reallocate(&self, object: NonNull<u8>, bytes: usize) -> Option<NonNull<u8>> {
        // SAFETY: as the caller promises.
        self.with(|core, cache| unsafe { core.reallocate(cache, object.as_ptr(), bytes) })
    }

    /// How many bytes an object has room for. What is no object of this heap ends the program.
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
        // SAFETY: nobody has a reference any more.
        unsafe { Core::destroy(self.core.as_ptr()) };
    }
}
