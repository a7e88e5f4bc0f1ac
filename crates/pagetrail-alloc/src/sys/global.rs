//! The heap of the whole process, for `malloc` and as a [`GlobalAlloc`]: each thread has a cache of
//! its own.

use super::cache::Cache;
use super::core::Core;
use super::fork;
use super::thread::{self, Word};
use crate::fatal;
use crate::settings;
use crate::subpage_count::SubpageCount;
use libc::{c_void, pthread_key_t};
use std::alloc::{GlobalAlloc, Layout};
use std::ptr::{NonNull, null_mut};
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

static CORE: AtomicPtr<Core> = AtomicPtr::new(null_mut());

/// Gives a thread's cache back at its end; this less 1.
static KEY: AtomicU32 = AtomicU32::new(0);

/// Forks by `fork`, libc's own, and fails with `ENOMEM` where this heap cannot be copied for the
/// child. Without it such a child ends with status 127, and the parent gets its PID.
///
/// # Safety
///
/// The conditions of `fork(2)` hold.
pub unsafe fn fork_or_fail(fork: unsafe extern "C" fn() -> libc::pid_t) -> libc::pid_t {
    // SAFETY: the caller keeps the rules of `fork(2)`, the only ones that the callee has.
    unsafe { fork::fork_or_fail(fork) }
}

/// The heap of the process as Rust's allocator.
///
/// ```
/// #[global_allocator]
/// static HEAP: pagetrail_alloc::GlobalHeap = pagetrail_alloc::GlobalHeap;
///
/// let numbers: Vec<u64> = (0..1000).collect();
/// assert_eq!(numbers.iter().sum::<u64>(), 499_500);
/// ```
///
/// The environment variable `PAGETRAIL_SUBPAGES` sets the number of sub-pages per page; the default
/// is 8.
#[derive(Clone, Copy, Debug, Default)]
pub struct GlobalHeap;

/// The heap, made on first use; `None` if there is no memory for it.
fn core() -> Option<&'static Core> {
    let core = CORE.load(Ordering::Acquire);
    if !core.is_null() {
        // SAFETY: this heap stays.
        return Some(unsafe { &*core });
    }
    start()
}

/// Without a lock: a thread that holds one may not be there in a forked child, and what is called
/// here may call `malloc`.
#[cold]
fn start() -> Option<&'static Core> {
    let made = Core::make(settings::subpages()).ok()?;
    // SAFETY: the new heap stays for good, unless another thread was first; then no other thread
    // has a pointer to it.
    unsafe {
        fork::join(made);
        let first = CORE.compare_exchange(null_mut(), made, Ordering::AcqRel, Ordering::Acquire);
        if let Err(core) = first {
            fork::leave(made);
            Core::destroy(made);
            return Some(&*core);
        }
        let mut key: pthread_key_t = 0;
        if libc::pthread_key_create(&raw mut key, Some(at_thread_end)) == 0 {
            KEY.store(key + 1, Ordering::Release);
        }
        Some(&*made)
    }
}

/// Calls `call` with the heap and a cache; `None` if there is no memory for them.
#[inline]
fn with<R>(call: impl FnOnce(&Core, &mut Cache) -> R) -> Option<R> {
    if let Word::Has(cache) = thread::get() {
        // SAFETY: a thread gets its cache after the heap was made, which stays for good; the cache
        // belongs to this thread alone, and nothing in a call comes back here.
        unsafe {
            let core = &*CORE.load(Ordering::Relaxed);
            return Some(call(core, &mut *cache));
        }
    }
    with_slowly(call)
}

#[cold]
#[inline(never)]
fn with_slowly<R>(call: impl FnOnce(&Core, &mut Cache) -> R) -> Option<R> {
    let core = core()?;
    if matches!(thread::get(), Word::Fresh) {
        let cache = core.take_cache();
        if !cache.is_null() {
            // First, since what follows may call `malloc`.
            thread::set(Word::Has(cache));
            if let Some(key) = KEY.load(Ordering::Acquire).checked_sub(1) {
                // SAFETY: a key that exists.
                unsafe { libc::pthread_setspecific(key, cache.cast::<c_void>()) };
            }
            // SAFETY: it is this thread's.
            return Some(call(core, unsafe { &mut *cache }));
        }
    }
    core.with_shared_cache(call)
}

unsafe extern "C" fn at_thread_end(cache: *mut c_void) {
    // From here on: another destructor may free or even ask for memory.
    thread::set(Word::Leaving);
    if let Some(core) = core() {
        // SAFETY: the value of the key is this thread's cache.
        unsafe { core.give_cache(cache.cast()) };
    }
}

/// Allocates like `malloc(3)`, without setting `errno`.
#[inline]
pub fn allocate(size: usize) -> *mut u8 {
    with(|core, cache| core.allocate(cache, size)).unwrap_or(null_mut())
}

/// Allocates if that takes only a few instructions; on `None` the caller uses [`allocate`].
#[inline(always)]
pub fn allocate_at_hand(size: usize) -> Option<NonNull<u8>> {
    match thread::get() {
        // SAFETY: a thread's cache is its own, and nothing in a call comes back here.
        Word::Has(cache) => Core::allocate_at_hand(unsafe { &mut *cache }, size),
        Word::Fresh | Word::Leaving => None,
    }
}

/// Frees an object if that takes only a few instructions; on false, also for null, nothing was done
/// and the caller uses [`free`].
///
/// # Safety
///
/// The conditions of `free(3)` hold.
#[inline(always)]
pub unsafe fn free_at_hand(object: *mut u8) -> bool {
    match thread::get() {
        // SAFETY: a thread with a cache has a heap, which stays, and the cache belongs to this
        // thread alone; the caller does not use the object any more.
        Word::Has(cache) => unsafe {
            (*CORE.load(Ordering::Relaxed)).free_at_hand(&mut *cache, object)
        },
        Word::Fresh | Word::Leaving => false,
    }
}

/// Allocates one zeroed object like `calloc(3)`, without setting `errno`.
#[inline]
pub fn allocate_zeroed(size: usize) -> *mut u8 {
    with(|core, cache| core.allocate_zeroed(cache, size)).unwrap_or(null_mut())
}

/// Allocates like `aligned_alloc(3)`, without setting `errno`; `align` is a power of two.
#[inline]
pub fn allocate_aligned(size: usize, align: usize) -> *mut u8 {
    with(|core, cache| core.allocate_aligned(cache, size, align)).unwrap_or(null_mut())
}

/// Frees an object that is not null, like `free(3)`.
///
/// # Safety
///
/// The conditions of `free(3)` hold. An address that is no object of the heap ends the program.
#[inline]
pub unsafe fn free(object: *mut u8) {
    // SAFETY: the caller keeps the rules of `free(3)`: the object is not used any more.
    if with(|core, cache| unsafe { core.free(cache, object) }).is_none() {
        fatal::abort("free of ", object as usize, ": there is no heap");
    }
}

/// Resizes an object that is not null to a size that is not 0, like `realloc(3)`, without setting
/// `errno`.
///
/// # Safety
///
/// The conditions of `realloc(3)` hold.
#[inline]
pub unsafe fn reallocate(object: *mut u8, size: usize) -> *mut u8 {
    // SAFETY: the caller keeps the rules of `realloc(3)`: only the new place is used unless the
    // call fails.
    with(|core, cache| unsafe { core.reallocate(cache, object, size) }).unwrap_or(null_mut())
}

/// Returns the room of an object that is not null, like `malloc_usable_size(3)`.
pub fn usable(object: *mut u8) -> usize {
    core().map_or(0, |core| core.usable(object))
}

/// The number of sub-pages per page in the heap of the process.
pub fn subpages_per_page() -> SubpageCount {
    core().map_or(SubpageCount::ONE, Core::subpages_per_page)
}

// SAFETY: an object has the size and alignment that were requested and is handed out to no other
// caller until it is freed.
unsafe impl GlobalAlloc for GlobalHeap {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        allocate_aligned(layout.size(), layout.align())
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= crate::classes::ALIGN {
            return allocate_zeroed(layout.size());
        }
        let object = allocate_aligned(layout.size(), layout.align());
        if !object.is_null() {
            // SAFETY: fresh, and of this size.
            unsafe { object.write_bytes(0, layout.size()) };
        }
        object
    }

    unsafe fn dealloc(&self, object: *mut u8, _: Layout) {
        // SAFETY: the rules of `GlobalAlloc::dealloc` include those of `free(3)`.
        unsafe { free(object) }
    }

    unsafe fn realloc(&self, object: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if layout.align() <= crate::classes::ALIGN {
            // SAFETY: `GlobalAlloc::realloc` is called with an object of this heap and a size that
            // is not 0.
            return unsafe { reallocate(object, size) };
        }
        let to = allocate_aligned(size, layout.align());
        if !to.is_null() {
            // SAFETY: two objects that are there, the old one the caller's no more.
            unsafe {
                std::ptr::copy_nonoverlapping(object, to, layout.size().min(size));
                free(object);
            }
        }
        to
    }
}
