//! A timer on the process's own time, whose signal has a sample taken.

use core::cell::UnsafeCell;
use core::mem;
use core::ptr;
use core::sync::atomic::{AtomicBool, Ordering};
use core::time::Duration;

use crate::sampling::Wanted;

/// Whether there is a timer.
static CLAIMED: AtomicBool = AtomicBool::new(false);
/// Whether a thread has what [`WANTED`] holds.
static IS_TAKING: AtomicBool = AtomicBool::new(false);

struct Shared(UnsafeCell<Option<Wanted>>);

// SAFETY: only the thread that has set `IS_TAKING` reaches it.
unsafe impl Sync for Shared {}

static WANTED: Shared = Shared(UnsafeCell::new(None));

/// A timer that is running, and what its signal did before.
pub(crate) struct Timer {
    timer: libc::timer_t,
    signal: i32,
    before: libc::sigaction,
}

// SAFETY: a timer's ID is the process's, whichever thread uses it.
unsafe impl Send for Timer {}
// SAFETY: a shared timer can do nothing.
unsafe impl Sync for Timer {}

extern "C" fn on_signal(_: i32, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid siginfo to a handler that has SA_SIGINFO.
    let is_timer = unsafe { (*info).si_code } == libc::SI_TIMER;
    // A sample that comes while another thread takes one is left to the next.
    if !is_timer || IS_TAKING.swap(true, Ordering::Acquire) {
        return;
    }
    let before = errno();
    // SAFETY: this thread has set `IS_TAKING`, and the value is copied.
    if let Some(wanted) = unsafe { *WANTED.0.get() } {
        wanted.take();
    }
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() = before };
    IS_TAKING.store(false, Ordering::Release);
}

/// Sets what is sampled. Not in a handler of the signal.
fn set(wanted: Option<Wanted>) {
    while IS_TAKING.swap(true, Ordering::Acquire) {
        core::hint::spin_loop();
    }
    // SAFETY: this thread has set `IS_TAKING`.
    unsafe { *WANTED.0.get() = wanted };
    IS_TAKING.store(false, Ordering::Release);
}

fn errno() -> i32 {
    // SAFETY: errno is this thread's own.
    unsafe { *libc::__errno_location() }
}

/// Has samples taken, in a handler of `signal`, each time that the process has used so much time.
/// The error is a number; `EBUSY` where there is such a timer.
pub(crate) fn start(every: Duration, signal: i32, wanted: Wanted) -> Result<Timer, i32> {
    let seconds = libc::time_t::try_from(every.as_secs()).map_err(|_| libc::EINVAL)?;
    if every.is_zero() {
        return Err(libc::EINVAL);
    }
    if CLAIMED.swap(true, Ordering::AcqRel) {
        return Err(libc::EBUSY);
    }
    set(Some(wanted));
    let started = start_claimed(every, seconds, signal);
    if started.is_err() {
        release();
    }
    started
}

fn release() {
    set(None);
    CLAIMED.store(false, Ordering::Release);
}

fn start_claimed(every: Duration, seconds: libc::time_t, signal: i32) -> Result<Timer, i32> {
    let interval = libc::timespec {
        tv_sec: seconds,
        tv_nsec: every.subsec_nanos().into(),
    };
    let every = libc::itimerspec {
        it_interval: interval,
        it_value: interval,
    };
    // SAFETY: the structures are plain data, for which zeros are valid; all pointers are to them,
    // and the handler has the type that SA_SIGINFO asks for.
    unsafe {
        let mut action: libc::sigaction = mem::zeroed();
        let mut before: libc::sigaction = mem::zeroed();
        action.sa_sigaction = on_signal as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
        if libc::sigaction(signal, &raw const action, &raw mut before) != 0 {
            return Err(errno());
        }
        let mut event: libc::sigevent = mem::zeroed();
        event.sigev_notify = libc::SIGEV_SIGNAL;
        event.sigev_signo = signal;
        let mut timer: libc::timer_t = ptr::null_mut();
        let clock = libc::CLOCK_PROCESS_CPUTIME_ID;
        if libc::timer_create(clock, &raw mut event, &raw mut timer) != 0 {
            let error = errno();
            libc::sigaction(signal, &raw const before, ptr::null_mut());
            return Err(error);
        }
        if libc::timer_settime(timer, 0, &raw const every, ptr::null_mut()) != 0 {
            let error = errno();
            libc::timer_delete(timer);
            libc::sigaction(signal, &raw const before, ptr::null_mut());
            return Err(error);
        }
        Ok(Timer {
            timer,
            signal,
            before,
        })
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        // SAFETY: the timer is ours, and the structures are valid: plain data with the handler
        // `SIG_IGN`, and what sigaction(2) has returned.
        unsafe {
            libc::timer_delete(self.timer);
            let mut ignored: libc::sigaction = mem::zeroed();
            ignored.sa_sigaction = libc::SIG_IGN;
            // Discards what is pending (sigaction(2)).
            libc::sigaction(self.signal, &raw const ignored, ptr::null_mut());
            libc::sigaction(self.signal, &raw const self.before, ptr::null_mut());
        }
        release();
    }
}
