//! `fork(2)`: the child gets memory of its own.
//!
//! Parent and child would share memory that is mapped shared. So before a fork, with
//! every lock of every heap held, shared memory is copied; the child puts the copies in the place
//! of the originals, at the same addresses, before anything else of it runs (`pthread_atfork(3)`;
//! ours are registered when the program is loaded, or by the first call for memory if that comes
//! before, so they are the last before the fork and the first after it). That costs time and memory
//! in proportion to what small objects take; `vfork(2)` and `posix_spawn(3)` do not come here, and
//! need not.
//!
//! What does not call the handlers leaves both processes with the same memory: a bare `clone(2)`
//! and `_Fork(3)`. Their children may call `execve(2)` and `_exit(2)`.

use super::core::Core;
use super::lock::Locked;
use super::map;
use super::registry;
use super::thread::{self, Word};
use crate::fatal;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

/// All heaps, the newest first.
struct Heaps(*mut Core);

// SAFETY: heaps leave the list before they go.
unsafe impl Send for Heaps {}

static HEAPS: Locked<Heaps> = Locked::new(Heaps(null_mut()));

/// Whether the copies for the child to come are whole.
static COPIED: AtomicBool = AtomicBool::new(false);

/// Held by [`fork_or_fail`].
static FORKING: Locked<()> = Locked::new(());

/// Whether the parent learns from [`fork_or_fail`] that there is no child.
static REPORTED: AtomicBool = AtomicBool::new(false);

static REGISTERED: AtomicBool = AtomicBool::new(false);

/// Registers the handlers when the program is loaded. Registering them with the first call for
/// memory would be too late if another thread is in `fork(2)` at that time: it has already looked
/// its handlers up, and the child would get locks that are never released.
#[used]
// SAFETY: functions in this section are called before `main`, one after the other; it calls nothing
// that needs more.
#[unsafe(link_section = ".init_array")]
static AT_START: extern "C" fn() = register;

extern "C" fn register() {
    if !REGISTERED.swap(true, Ordering::Relaxed) {
        // SAFETY: functions of this signature, that stay.
        unsafe { libc::pthread_atfork(Some(prepare), Some(parent), Some(child)) };
    }
}

/// Makes a heap's memory survive forks.
///
/// # Safety
///
/// The heap stays until it [leaves](leave).
pub(crate) unsafe fn join(core: *mut Core) {
    register();
    let mut heaps = HEAPS.lock();
    // SAFETY: the heap exists until it leaves the list, and the list's lock is held.
    unsafe { (*core).next = std::mem::replace(&mut heaps.0, core) };
}

/// Takes a heap out of the list.
pub(crate) fn leave(core: *mut Core) {
    let mut heaps = HEAPS.lock();
    let mut place = &raw mut heaps.0;
    // SAFETY: all in the list are heaps.
    unsafe {
        while !(*place).is_null() {
            if *place == core {
                *place = (*core).next;
                return;
            }
            place = &raw mut (**place).next;
        }
    }
}

/// Forks by `fork`, libc's own, and fails with `ENOMEM` where the heap cannot be copied for the
/// child.
///
/// Handlers of `pthread_atfork(3)` cannot keep a fork from happening. So there is a child for a
/// moment, which ends before it returns to the program, and for which this waits.
///
/// # Safety
///
/// The conditions of `fork(2)` hold.
pub(crate) unsafe fn fork_or_fail(fork: unsafe extern "C" fn() -> libc::pid_t) -> libc::pid_t {
    FORKING.acquire();
    REPORTED.store(true, Ordering::Relaxed);
    // SAFETY: the caller keeps the rules of `fork(2)`; parent and child both release the lock.
    let pid = unsafe { fork() };
    let failed = pid > 0 && !COPIED.load(Ordering::Relaxed);
    REPORTED.store(false, Ordering::Relaxed);
    FORKING.release();
    if !failed {
        return pid;
    }
    // SAFETY: our own child, of which the program knows nothing; errno is this thread's.
    unsafe {
        while libc::waitpid(pid, null_mut(), 0) == -1 && *libc::__errno_location() == libc::EINTR {}
        *libc::__errno_location() = libc::ENOMEM;
    }
    -1
}

/// Calls `call` with every heap of the process.
///
/// # Safety
///
/// The lock of the list is held.
unsafe fn for_each(mut call: impl FnMut(&Core)) {
    // SAFETY: the caller holds the list's lock, and heaps leave the list before they are destroyed.
    unsafe {
        let mut core = HEAPS.held().0;
        while !core.is_null() {
            call(&*core);
            core = (*core).next;
        }
    }
}

unsafe extern "C" fn prepare() {
    HEAPS.acquire();
    // SAFETY: the locks are taken first.
    unsafe {
        for_each(Core::lock_all);
        registry::WRITING.acquire();
        let mut copied = true;
        for_each(|core| copied &= core.copy_for_child().is_ok());
        copied &= map::can_replace().is_ok();
        COPIED.store(copied, Ordering::Relaxed);
    }
}

unsafe extern "C" fn parent() {
    // SAFETY: `prepare` took the locks.
    unsafe {
        for_each(|core| core.drop_copies());
        registry::WRITING.release();
        for_each(Core::unlock_all);
    }
    HEAPS.release();
}

unsafe extern "C" fn child() {
    // SAFETY: `prepare` took the locks, and of the parent's threads only this one is here.
    unsafe {
        let mut copied = COPIED.load(Ordering::Relaxed);
        for_each(|core| copied &= copied && core.use_copies().is_ok());
        if !copied {
            // The parent knows only of copies that it could not make itself.
            if COPIED.load(Ordering::Relaxed) || !REPORTED.load(Ordering::Relaxed) {
                fatal::say(
                    "no memory for a forked child's copy of the heap; it ends here",
                    None,
                    "",
                );
            }
            libc::_exit(127);
        }
        registry::WRITING.release();
        for_each(Core::unlock_all);
        let mine = match thread::get() {
            Word::Has(cache) => cache,
            Word::Fresh | Word::Leaving => null_mut(),
        };
        for_each(|core| core.abandon_caches(mine));
    }
    HEAPS.release();
}
