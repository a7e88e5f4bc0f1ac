//! The library's own heap, over `mmap(2)`: the program's may be locked by a thread that is stopped
//! while we are called.
//!
//! Allocations happen inside [`super::guard::with_state`], which makes them exclusive; the spin
//! lock here is for those that the standard library may make elsewhere.

use std::alloc::{GlobalAlloc, Layout};
use std::cell::UnsafeCell;
use std::sync::atomic::{AtomicBool, Ordering};

struct Heap {
    inner: UnsafeCell<dlmalloc::Dlmalloc>,
    locked: AtomicBool,
}

// SAFETY: `inner` is reached only between `lock` and `unlock`.
unsafe impl Sync for Heap {}

#[global_allocator]
static HEAP: Heap = Heap {
    inner: UnsafeCell::new(dlmalloc::Dlmalloc::new()),
    locked: AtomicBool::new(false),
};

impl Heap {
    fn with<R>(&self, body: impl FnOnce(&mut dlmalloc::Dlmalloc) -> R) -> R {
        while self.locked.swap(true, Ordering::Acquire) {
            std::hint::spin_loop();
        }
        // SAFETY: the lock is ours; `body` only calls the allocator, which does not come back here.
        let result = body(unsafe { &mut *self.inner.get() });
        self.locked.store(false, Ordering::Release);
        result
    }
}

/// Leaves all memory where it is and begins with an empty heap, in a forked child whose parent's
/// was in use.
///
/// # Safety
///
/// The only thread of the process, or at least the only one that allocates here, calls it; nothing
/// that was allocated may be freed afterwards.
pub(super) unsafe fn start_anew() {
    // SAFETY: no other thread allocates here, so that nothing else reaches `inner`; the old heap is
    // not dropped.
    unsafe { std::ptr::write(HEAP.inner.get(), dlmalloc::Dlmalloc::new()) };
    HEAP.locked.store(false, Ordering::Release);
}

// SAFETY: a real allocator does the work; the lock makes each call exclusive.
unsafe impl GlobalAlloc for Heap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // SAFETY: `GlobalAlloc::alloc` is called with a valid layout of a size that is not 0.
        self.with(|heap| unsafe { heap.malloc(layout.size(), layout.align()) })
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        // SAFETY: `GlobalAlloc::alloc_zeroed` is called with a valid layout whose size is
        // positive.
        self.with(|heap| unsafe { heap.calloc(layout.size(), layout.align()) })
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        // SAFETY: `GlobalAlloc::dealloc` is called with an object of this heap and its layout.
        self.with(|heap| unsafe { heap.free(ptr, layout.size(), layout.align()) })
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // SAFETY: `GlobalAlloc::realloc` is called with an object of this heap, its layout and a
        // size that is not 0.
        self.with(|heap| unsafe { heap.realloc(ptr, layout.size(), layout.align(), size) })
    }
}
