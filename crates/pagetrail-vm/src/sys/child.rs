//! Child processes: `fork(2)`, and `vfork(2)` with its shared memory.
#![allow(
    unsafe_code,
    reason = "processes that go on in the middle of a function"
)]

use std::ffi::{c_int, c_void};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

use super::signal;

/// The stack on which the machine runs a child of `vfork(2)`, until that executes another program.
const STACK_BYTES: usize = 1 << 20;

/// On which side of a fork one is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Parent(i32),
    Child,
}

/// `fork(2)`, with these flags of `clone(2)` and this signal at the child's end. The child has the calling thread only, and must
/// not count on anything that another one held. With other flags than `fork(2)` has, there must be no other thread that runs
/// code of the C library.
pub(crate) fn fork(flags: c_int) -> io::Result<Side> {
    let forked = match flags & !libc::CLONE_IO {
        // SAFETY: libc's own function, so that its locks are free in the child. The callers hold those of this crate.
        libc::SIGCHLD => unsafe { libc::fork() }.into(),
        // SAFETY: a copy of this process, in which this thread goes on, on the copy of its stack. What the C library does besides
        // is to free locks, which no other thread holds, as promised to this function.
        _ => unsafe {
            libc::syscall(
                libc::SYS_clone,
                flags as libc::c_long,
                0usize,
                0usize,
                0usize,
                0usize,
            )
        },
    };
    match forked as i32 {
        -1 => Err(io::Error::last_os_error()),
        0 => Ok(Side::Child),
        pid => Ok(Side::Parent(pid)),
    }
}

/// Runs `child` in a child process that shares our memory, while this thread waits: until the child executes another
/// program, or ends. `child` must end the process and never return. The child's PID, and a descriptor for it if the flags have
/// `CLONE_PIDFD`.
pub(crate) fn vfork(flags: c_int, child: &mut dyn FnMut()) -> io::Result<(i32, Option<i32>)> {
    struct Start<'a>(&'a mut dyn FnMut());
    extern "C" fn begin(start: *mut c_void) -> c_int {
        // SAFETY: the pointer that `vfork` gave to clone(2); the thread that owns it waits.
        let start = unsafe { &mut *start.cast::<Start<'_>>() };
        (start.0)();
        libc::EXIT_FAILURE
    }
    let mut stack = vec![0u128; STACK_BYTES / size_of::<u128>()];
    let mut start = Start(child);
    let mut descriptor: c_int = -1;
    // SAFETY: the stack is 16-byte aligned and stays until the child has done with it: CLONE_VFORK. The two processes
    // share this thread's storage, as with any vfork(2), and only one of them runs at a time.
    let pid = unsafe {
        libc::clone(
            begin,
            stack.as_mut_ptr_range().end.cast(),
            libc::CLONE_VM | libc::CLONE_VFORK | flags,
            (&raw mut start).cast(),
            &raw mut descriptor,
        )
    };
    match pid {
        -1 => Err(io::Error::last_os_error()),
        pid => Ok((pid, (flags & libc::CLONE_PIDFD != 0).then_some(descriptor))),
    }
}

/// Starts a thread that no signal of the process goes to.
pub(crate) fn spawn_quiet(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let before = signal::mask();
    signal::block_exactly(u64::MAX);
    let spawned = std::thread::Builder::new().name(name.into()).spawn(body);
    signal::set_mask(before);
    spawned.map(drop)
}

/// Whether `SIGPIPE` was ignored when this process began: Rust's runtime ignores it before `main`, whatever it was.
static IGNORED_PIPE: AtomicBool = AtomicBool::new(false);

extern "C" fn look_at_pipe() {
    let ignored = libc::SIG_IGN as u64;
    let is_ignored = signal::action_now(libc::SIGPIPE as u32) == ignored;
    IGNORED_PIPE.store(is_ignored, Ordering::Relaxed);
}

// SAFETY: the C library calls what is listed there before `main`, as C functions; this one makes a system call and stores a byte.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_RUNTIME: extern "C" fn() = look_at_pipe;

/// Signals as this process was executed with, where Rust's runtime has changed them: `SIGPIPE` always, faults where they were
/// not ignored.
pub(crate) fn reset_signals() {
    let ignored = libc::SIG_IGN as u64;
    for signal in [libc::SIGPIPE, libc::SIGSEGV, libc::SIGBUS] {
        let keeps = match signal {
            libc::SIGPIPE => IGNORED_PIPE.load(Ordering::Relaxed),
            _ => signal::action_now(signal as u32) == ignored,
        };
        let action = if keeps { libc::SIG_IGN } else { libc::SIG_DFL };
        // SAFETY: sets an action that runs nothing of ours.
        unsafe { libc::signal(signal, action) };
    }
}

/// Ends the process at once.
pub(crate) fn exit(status: i32) -> ! {
    // SAFETY: ends the process and runs nothing of it any more.
    unsafe { libc::_exit(status) }
}

/// Ends the process by a signal's default action.
pub(crate) fn die_of(signal: i32) -> ! {
    // SAFETY: resets an action and a mask of this process, and signals it.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::raise(signal);
    }
    // Signals whose default is not the end do not come here.
    exit(128 + signal)
}
