//! [`run`]: work that goes on when this process is killed.
//!
//! It is done by a process of its own, made by `clone(2)` with `CLONE_VM` and without
//! `CLONE_THREAD`: a thread in all but the thread group that a `SIGKILL` ends. It shares the
//! memory, so making it copies no page tables and nothing must be sent to it or back; it has the
//! thread's place in the C library, as after `vfork(2)`, while the thread waits for its end.
//!
//! The program around us notices nothing of it. It ends without a signal, and no `wait(2)` without
//! `__WALL` or `__WCLONE` finds it. It has a session of its own, so that what is sent to the
//! process group or by the terminal does not reach it, and blocks all signals. Descriptors are
//! closed in it, in a table of its own.
//!
//! Threads of a process that is killed leave locks as they are, that of `malloc(3)` included. So
//! the work must take none and allocate nothing at times when somebody depends on its end. Should
//! it hang all the same, it is killed some seconds after this process.

use crate::page_set::page_size;
use crate::sys::urgent;
use rustix::fd::RawFd;
use rustix::io::Errno;
use rustix::mm::{
    Advice, MapFlags, MprotectFlags, ProtFlags, madvise, mmap_anonymous, mprotect, munmap,
};
use rustix::process::{Pid, WaitId, WaitIdOptions, waitid};
use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::ptr::null_mut;

/// How large its stack is, in bytes.
const STACK_BYTES: usize = 1 << 20;
/// How much of it is populated beforehand: faults would take time while others wait.
const POPULATED_BYTES: usize = 1 << 17;
/// For how many seconds the work may go on when this process has ended.
const ALONE_SECONDS: libc::c_uint = 5;
/// The signal by which it learns of that.
const END_OF_TRACKER: libc::c_int = libc::SIGUSR1;
/// Signals that an instruction causes: these are not blocked, since a technique may handle them.
const BY_INSTRUCTIONS: [i32; 6] = [
    libc::SIGSEGV,
    libc::SIGBUS,
    libc::SIGILL,
    libc::SIGFPE,
    libc::SIGTRAP,
    libc::SIGSYS,
];

/// Why work was not done, or not to its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotDone {
    /// There can be no such process: a limit, or a filter of system calls.
    NotStarted(Errno),
    /// It was killed.
    Killed,
}

/// Does the work in a process that survives this one, and waits for its end. Of the descriptors
/// those to `keep`, in ascending order, stay open in it.
pub(crate) fn run<T: Send>(keep: &[RawFd], work: impl FnOnce() -> T + Send) -> Result<T, NotDone> {
    let stack = Stack::new().map_err(NotDone::NotStarted)?;
    let mut outcome: Option<Result<T, Box<dyn Any + Send>>> = None;
    let mut work = Some(work);
    let mut call = || {
        if let Some(work) = work.take() {
            outcome = Some(catch_unwind(AssertUnwindSafe(work)));
        }
    };
    let mut start = Start {
        keep,
        tracker: std::process::id(),
        call: &mut call,
    };
    let blocked = BlockedSignals::new();
    // SAFETY: the new process runs `begin` on a stack of its own with a pointer to `start`, which
    // lives until it has ended: this thread waits for that below. It has this thread's TLS as well,
    // of which this thread makes no use meanwhile: no signal is handled, and the wait is a bare
    // system call. If this process is killed instead, its memory stays until the other has ended.
    let child = unsafe { libc::clone(begin, stack.top(), libc::CLONE_VM, (&raw mut start).cast()) };
    if child == -1 {
        let error = std::io::Error::last_os_error();
        drop(blocked);
        return Err(NotDone::NotStarted(
            Errno::from_io_error(&error).unwrap_or(Errno::AGAIN),
        ));
    }
    wait(child);
    drop(blocked);
    match outcome {
        Some(Ok(result)) => Ok(result),
        Some(Err(panic)) => resume_unwind(panic),
        None => Err(NotDone::Killed),
    }
}

/// Waits for the end of a process, by bare system calls. One that somebody else has waited for has
/// ended as well.
fn wait(child: libc::pid_t) {
    let Some(child) = Pid::from_raw(child) else {
        return;
    };
    let options = WaitIdOptions::EXITED | WaitIdOptions::from_bits_retain(libc::__WALL as u32);
    while matches!(waitid(WaitId::Pid(child), options), Err(Errno::INTR)) {}
}

/// What the new process is to do.
struct Start<'a> {
    keep: &'a [RawFd],
    tracker: u32,
    call: &'a mut (dyn FnMut() + Send),
}

/// The life of the new process.
extern "C" fn begin(start: *mut libc::c_void) -> libc::c_int {
    // SAFETY: `run` passes a pointer to a `Start` that lives until this process has ended, and does
    // not touch it meanwhile.
    let start = unsafe { &mut *start.cast::<Start<'_>>() };
    end_some_time_after(start.tracker);
    // SAFETY: `setsid` has no requirements; a process that leads no group can always make one. Nor
    // has this `prctl`, which is for this thread: its sleeps are as short as they are meant to be.
    unsafe {
        libc::setsid();
        libc::prctl(libc::PR_SET_TIMERSLACK, 1);
    }
    // Threads of a target stand still while it works.
    urgent::stay();
    close_all_but(start.keep);
    (start.call)();
    0
}

/// Has this process killed some time after the tracker's end.
fn end_some_time_after(tracker: u32) {
    // SAFETY: all pointers are to locals of the right types, for which zeros are valid; the handler
    // is a function with the signature that goes with these flags. Handlers and mask are those of
    // this process alone. `getppid` and `alarm` have no requirements.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_flags = libc::SA_RESTART;
        action.sa_sigaction = tracker_has_ended as extern "C" fn(libc::c_int) as usize;
        libc::sigaction(END_OF_TRACKER, &raw const action, null_mut());
        action.sa_sigaction = libc::SIG_DFL;
        libc::sigaction(libc::SIGALRM, &raw const action, null_mut());
        let mut signals: libc::sigset_t = std::mem::zeroed();
        libc::sigaddset(&raw mut signals, END_OF_TRACKER);
        libc::sigaddset(&raw mut signals, libc::SIGALRM);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const signals, null_mut());
        libc::prctl(libc::PR_SET_PDEATHSIG, END_OF_TRACKER);
        if libc::getppid() as u32 != tracker {
            tracker_has_ended(END_OF_TRACKER);
        }
    }
}

/// The handler of the signal that the kernel sends at the tracker's end: once for each of its
/// threads that was the parent in its turn (`forget_original_parent` in `kernel/exit.c`).
extern "C" fn tracker_has_ended(_: libc::c_int) {
    // SAFETY: `alarm` has no requirements, and may be called by a handler.
    unsafe { libc::alarm(ALONE_SECONDS) };
}

/// Closes all descriptors but these, which ascend. Before Linux 5.9 all stay open until the end.
fn close_all_but(keep: &[RawFd]) {
    let mut from = 0;
    for &kept in keep {
        if kept > from {
            close_range(from, kept - 1);
        }
        from = kept + 1;
    }
    close_range(from, RawFd::MAX);
}

fn close_range(first: RawFd, last: RawFd) {
    // SAFETY: the table of descriptors is this process's own. What refers to their numbers belongs
    // to the threads of the other, whose table stays.
    unsafe { libc::syscall(libc::SYS_close_range, first as u32, last as u32, 0) };
}

/// Keeps handlers from running on the current thread, until it is dropped.
struct BlockedSignals(libc::sigset_t);

impl BlockedSignals {
    fn new() -> Self {
        // SAFETY: zeros are a valid `sigset_t`, and all pointers are to locals of that type.
        unsafe {
            let (mut wanted, mut before) = (std::mem::zeroed(), std::mem::zeroed());
            libc::sigfillset(&raw mut wanted);
            for signal in BY_INSTRUCTIONS {
                libc::sigdelset(&raw mut wanted, signal);
            }
            libc::pthread_sigmask(libc::SIG_BLOCK, &raw const wanted, &raw mut before);
            Self(before)
        }
    }
}

impl Drop for BlockedSignals {
    fn drop(&mut self) {
        // SAFETY: `pthread_sigmask` has filled the set.
        unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const self.0, null_mut()) };
    }
}

/// Memory for a stack, whose lowest page cannot be accessed.
struct Stack(*mut libc::c_void);

impl Stack {
    fn new() -> Result<Self, Errno> {
        let rights = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE | MapFlags::STACK;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps no existing memory.
        let stack = Self(unsafe { mmap_anonymous(null_mut(), STACK_BYTES, rights, flags)? });
        // SAFETY: the page belongs to the mapping just made, which nobody uses yet.
        unsafe { mprotect(stack.0, page_size() as usize, MprotectFlags::empty())? };
        let upper = stack.top().wrapping_byte_sub(POPULATED_BYTES);
        // SAFETY: the range is the upper part of the mapping, whose contents stay. Before Linux
        // 5.14 there is no such advice, and the pages come by faults.
        let _ = unsafe { madvise(upper, POPULATED_BYTES, Advice::LinuxPopulateWrite) };
        Ok(stack)
    }

    /// Where it begins; it grows downwards, and the ABI wants it aligned to 16 bytes.
    fn top(&self) -> *mut libc::c_void {
        self.0.wrapping_byte_add(STACK_BYTES)
    }
}

impl Drop for Stack {
    fn drop(&mut self) {
        // SAFETY: `new` made this mapping; the process that used it has ended.
        let _ = unsafe { munmap(self.0, STACK_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    #[test]
    fn work_is_done_by_another_process_in_this_memory() {
        let mut own = 1;
        let ids = AtomicU32::new(0);
        let session = run(&[], || {
            own += 1;
            ids.store(std::process::id(), Ordering::Relaxed);
            assert!(std::fs::File::open("/proc/self/stat").is_ok());
            let open = std::fs::read_dir("/proc/self/fd").unwrap().count();
            // SAFETY: `getsid` has no requirements.
            (unsafe { libc::getsid(0) }, open)
        });
        let (session, open) = session.unwrap();
        assert_eq!(own, 2);
        let worker = ids.load(Ordering::Relaxed);
        assert_ne!(worker, std::process::id());
        assert_eq!(session as u32, worker, "a session of its own");
        assert_eq!(open, 1, "the directory that is being read");
    }

    #[test]
    fn a_panic_is_passed_on() {
        let outcome = std::panic::catch_unwind(|| run(&[], || panic!("on purpose")));
        assert!(outcome.is_err());
    }

    #[test]
    fn work_that_is_killed_says_so() {
        let outcome = run(&[], || {
            // SAFETY: `kill` has no requirements; this is the process that does the work.
            unsafe { libc::kill(libc::getpid(), libc::SIGKILL) };
        });
        assert_eq!(outcome, Err(NotDone::Killed));
    }
}
