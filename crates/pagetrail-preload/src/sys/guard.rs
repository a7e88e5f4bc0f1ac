//! [`with_state`]: the one way to the state that a clear changes, safe at any moment of a program
//! that is not ours.
//!
//! * A thread that holds the lock has all signals blocked. So no handler runs in the middle and
//!   comes back for the lock, and a collector that stops the world by signals stops no thread that
//!   holds it.
//! * A call of libc's that our own code makes while it is inside passes through: it does not come
//!   here again.
//! * A forked child finds its lock page wiped (`MADV_WIPEONFORK`) and starts with fresh state: the
//!   watch was its parent's. After `vfork` the memory is the parent's own, the page is not wiped,
//!   and the state stays the parent's. Neither depends on handlers that `_Fork(3)` or a bare
//!   `clone(2)` would skip.
//! * No panic leaves it, and `errno` stays what it was. No thread is cancelled in it
//!   (`pthread_cancel(3)`): what it calls may be cancellation points, and it has the lock.

use crate::machine;
use crate::tracker::State;
use linux_raw_sys::general::MADV_WIPEONFORK;
use std::cell::{Cell, UnsafeCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU32, Ordering};

/// In the wiped page: this process has set up its state.
const OURS: u32 = 1;
/// In the wiped page: a thread of a forked child is throwing its parent's state away.
const RESETTING: u32 = 2;

static PAGE: AtomicPtr<AtomicU32> = AtomicPtr::new(std::ptr::null_mut());

/// 0 free, 1 held, 2 held and waited for.
static LOCK: AtomicU32 = AtomicU32::new(0);

struct Shared(UnsafeCell<State>);

// SAFETY: it is reached only by the thread that holds `LOCK`.
unsafe impl Sync for Shared {}

static STATE: Shared = Shared(UnsafeCell::new(State::new()));

/// Whether the quiet panic hook is in place.
static QUIET: AtomicBool = AtomicBool::new(false);

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether every intercepted call of this process passes through: it is a child of ours.
static PASSES_THROUGH: AtomicBool = AtomicBool::new(false);

/// Whether this thread is inside [`with_state`], or all of the process is ours.
pub(crate) fn is_inside() -> bool {
    INSIDE.get() || PASSES_THROUGH.load(Ordering::Relaxed)
}

/// Makes every intercepted call in this process, a forked child of ours, pass through to libc.
pub(crate) fn disable_interposition() {
    PASSES_THROUGH.store(true, Ordering::Relaxed);
}

/// Runs `body` with the state, alone in this process; `None` when this thread is inside already or
/// `body` panicked.
pub(crate) fn with_state<R>(body: impl FnOnce(&mut State) -> R) -> Option<R> {
    if is_inside() {
        return None;
    }
    let _errno = Errno::keep();
    let _cancelling = Cancelling::forbid();
    let _signals = Signals::block();
    INSIDE.set(true);
    let forked = lock();
    // SAFETY: we hold the lock, and INSIDE keeps this thread from coming here twice.
    let state = unsafe { &mut *STATE.0.get() };
    match forked {
        None => {}
        // Consistent, so its descriptors can be closed and its memory freed.
        Some(Before::Free) => *state = State::new(),
        Some(Before::Held) => {
            // SAFETY: a thread that no longer exists was in the middle of changing it; what it held
            // leaks. So does its heap, which may have been caught in the middle too.
            unsafe {
                #[cfg(not(test))]
                super::heap::start_anew();
                std::ptr::write(state, State::new());
            }
        }
    }
    if !QUIET.swap(true, Ordering::Relaxed) {
        std::panic::set_hook(Box::new(|_| {}));
    }
    let outcome = catch_unwind(AssertUnwindSafe(|| body(state)));
    if outcome.is_err() {
        // Whatever it was doing, without a watch every page counts as written.
        state.give_up("a panic");
    }
    unlock();
    INSIDE.set(false);
    outcome.ok()
}

/// How a forked child found the lock.
enum Before {
    Free,
    Held,
}

/// Takes the lock; in a child that was forked since the last time, says how the lock was.
fn lock() -> Option<Before> {
    let page = page();
    if let Some(page) = page {
        match page.compare_exchange(0, RESETTING, Ordering::Acquire, Ordering::Acquire) {
            Ok(_) => {
                let before = LOCK.swap(1, Ordering::Acquire);
                machine::forget();
                store_owner(page);
                page.store(OURS, Ordering::Release);
                return Some(match before {
                    0 => Before::Free,
                    _ => Before::Held,
                });
            }
            Err(RESETTING) => {
                while page.load(Ordering::Acquire) == RESETTING {
                    rustix::thread::sched_yield();
                }
            }
            Err(_) => {}
        }
    }
    if LOCK
        .compare_exchange(0, 1, Ordering::Acquire, Ordering::Relaxed)
        .is_err()
    {
        while LOCK.swap(2, Ordering::Acquire) != 0 {
            let flags = rustix::thread::futex::Flags::PRIVATE;
            let _ = rustix::thread::futex::wait(&LOCK, flags, 2, None);
        }
    }
    None
}

fn unlock() {
    if LOCK.swap(0, Ordering::Release) == 2 {
        let flags = rustix::thread::futex::Flags::PRIVATE;
        let _ = rustix::thread::futex::wake(&LOCK, flags, 1);
    }
}

/// Whether the state, and what stands beside it for readers without the lock, is this process's: a
/// forked child has its parent's until it comes here.
#[inline]
pub(crate) fn has_own_state() -> bool {
    let page = PAGE.load(Ordering::Acquire);
    // SAFETY: where there is one, it is a page of our own that is never unmapped.
    unsafe { page.as_ref() }.is_some_and(|page| page.load(Ordering::Acquire) == OURS)
}

/// Notes in the wiped page that this process is the one whose memory it is.
fn store_owner(page: &AtomicU32) {
    // SAFETY: `page` is the first of the 1024 and more numbers of a mapping that is never unmapped.
    let owner = unsafe { &*std::ptr::from_ref(page).add(1) };
    owner.store(std::process::id(), Ordering::Release);
}

/// Whether this process runs in the memory of another, as a child of `vfork(2)` does.
pub(crate) fn is_in_borrowed_memory() -> bool {
    let Some(page) = page() else { return true };
    // SAFETY: the second number of the mapping whose first `store_owner` writes; it exists for
    // good.
    let owner = unsafe { &*std::ptr::from_ref(page).add(1) };
    owner.load(Ordering::Acquire) != std::process::id()
}

/// The page that forked children find empty; made on first use.
fn page() -> Option<&'static AtomicU32> {
    let known = PAGE.load(Ordering::Acquire);
    let page = if known.is_null() { make_page()? } else { known };
    // SAFETY: a page of our own that is never unmapped.
    Some(unsafe { &*page })
}

fn make_page() -> Option<*mut AtomicU32> {
    let bytes = rustix::param::page_size();
    // SAFETY: a fresh mapping; nothing else knows of it.
    let page = unsafe {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        mmap_anonymous(std::ptr::null_mut(), bytes, protection, MapFlags::PRIVATE)
    };
    let page = page.ok()?;
    // SAFETY: the page is ours and aligned; the advice (Linux 4.14) concerns children only.
    unsafe {
        if libc::madvise(page, bytes, MADV_WIPEONFORK as i32) != 0 {
            let _ = rustix::mm::munmap(page, bytes);
            return None;
        }
        store_owner(&*page.cast::<AtomicU32>());
        (*page.cast::<AtomicU32>()).store(OURS, Ordering::Release);
    }
    let page = page.cast::<AtomicU32>();
    match PAGE.compare_exchange(
        std::ptr::null_mut(),
        page,
        Ordering::AcqRel,
        Ordering::Acquire,
    ) {
        Ok(_) => Some(page),
        Err(other) => {
            // SAFETY: no other thread has the address of the page that lost the race.
            let _ = unsafe { rustix::mm::munmap(page.cast(), bytes) };
            Some(other)
        }
    }
}

/// `errno` as it was, put back at the end.
struct Errno(i32);

impl Errno {
    fn keep() -> Self {
        // SAFETY: the address of this thread's own errno.
        Self(unsafe { *libc::__errno_location() })
    }
}

impl Drop for Errno {
    fn drop(&mut self) {
        // SAFETY: libc's errno of this thread, which is always valid.
        unsafe { *libc::__errno_location() = self.0 }
    }
}

unsafe extern "C" {
    /// Missing from the crate `libc`.
    fn pthread_setcancelstate(state: i32, before: *mut i32) -> i32;
}

/// `PTHREAD_CANCEL_DISABLE` of glibc and musl.
const CANCEL_DISABLE: i32 = 1;

/// This thread cannot be cancelled; as before at the end.
struct Cancelling(i32);

impl Cancelling {
    fn forbid() -> Self {
        let mut before = 0;
        // SAFETY: `before` is written; the call concerns this thread alone.
        unsafe { pthread_setcancelstate(CANCEL_DISABLE, &raw mut before) };
        Self(before)
    }
}

impl Drop for Cancelling {
    fn drop(&mut self) {
        let mut before = 0;
        // SAFETY: as in `forbid`; the state is one that libc has said.
        unsafe { pthread_setcancelstate(self.0, &raw mut before) };
    }
}

/// All signals blocked, libc's internal ones (which cancel threads) included; as before at the end.
struct Signals(u64);

impl Signals {
    fn block() -> Self {
        Self(set_mask(u64::MAX))
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        set_mask(self.0);
    }
}

fn set_mask(mask: u64) -> u64 {
    let mut before = 0_u64;
    // SAFETY: `rt_sigprocmask(2)` with the kernel's own mask size, which libc's wrapper would not
    // let through.
    unsafe {
        libc::syscall(
            libc::SYS_rt_sigprocmask,
            libc::SIG_SETMASK,
            &raw const mask,
            &raw mut before,
            size_of::<u64>(),
        );
    }
    before
}
