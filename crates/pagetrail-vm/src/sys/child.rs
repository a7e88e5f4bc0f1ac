//! Child processes: `fork(2)`, and `vfork(2)` with its shared memory.
#![allow(
    unsafe_code,
    reason = "processes that go on in the middle of a function"
)]

use std::convert::Infallible;
use std::ffi::{CString, c_char, c_int, c_void};
use std::io;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};

use super::{descriptors, signal};

/// The length of the stack on which the machine runs a child of `vfork(2)` until that executes
/// another program.
const STACK_BYTES: usize = 1 << 20;

/// The side of a fork on which the caller is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Parent(i32),
    Child,
}

/// `fork(2)`, with the given flags of `clone(2)` and the signal at the child's end. The child has
/// only the calling thread, and must not rely on anything that another thread held. With flags
/// other than those of `fork(2)`, no other thread may be running code of the C library.
pub(crate) fn fork(flags: c_int) -> io::Result<Side> {
    let forked = match flags & !libc::CLONE_IO {
        // SAFETY: fork(3) of the C library frees its own locks in the child. The callers hold this
        // crate's locks, so that the child finds them consistent.
        libc::SIGCHLD => unsafe { libc::fork() }.into(),
        // SAFETY: clone(2) without CLONE_VM copies this process, and this thread continues on its
        // copy of the stack. The C library's fork(3) would also free locks, which no other
        // thread holds: the caller promises that none runs code of the C library.
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

/// Runs `child` in a child process that shares this memory, while this thread waits until the child
/// executes another program or ends. `child` must end the process and never return. Returns the
/// child's PID, and a descriptor for it if the flags have `CLONE_PIDFD`.
pub(crate) fn vfork(flags: c_int, child: &mut dyn FnMut()) -> io::Result<(i32, Option<i32>)> {
    struct Start<'a>(&'a mut dyn FnMut());
    extern "C" fn begin(start: *mut c_void) -> c_int {
        // SAFETY: `start` is the pointer to `Start` that `vfork` passed to clone(2); the thread
        // that owns it waits (CLONE_VFORK), so that this is the only reference.
        let start = unsafe { &mut *start.cast::<Start<'_>>() };
        (start.0)();
        libc::EXIT_FAILURE
    }
    let mut stack = vec![0u128; STACK_BYTES / size_of::<u128>()];
    let mut start = Start(child);
    let mut descriptor: c_int = -1;
    // SAFETY: the stack is 16-byte aligned, and lives until the child is done with it
    // (CLONE_VFORK). The two processes share this thread's storage, as with any vfork(2), and only
    // one of them runs at a time.
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

/// Starts a thread with all signals blocked, so that the process's signals go to other threads.
pub(crate) fn spawn_quiet(name: &str, body: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let before = signal::mask();
    signal::block_exactly(u64::MAX);
    let spawned = std::thread::Builder::new().name(name.into()).spawn(body);
    signal::set_mask(before);
    spawned.map(drop)
}

/// Whether `SIGPIPE` was ignored when this process started. Rust's runtime ignores it before
/// `main`, whatever it was.
static IGNORED_PIPE: AtomicBool = AtomicBool::new(false);

/// A bit for each of the first three descriptors that was closed when this process started. Rust's
/// runtime opens /dev/null in their place.
static CLOSED: AtomicU8 = AtomicU8::new(0);

extern "C" fn look_around() {
    for number in 0..3 {
        // SAFETY: fcntl(2) takes integers only, and rejects a number that is not open.
        if unsafe { libc::fcntl(number, libc::F_GETFD) } == -1 {
            CLOSED.fetch_or(1 << number, Ordering::Relaxed);
        }
    }
    let ignored = libc::SIG_IGN as u64;
    let is_ignored = signal::action_now(libc::SIGPIPE as u32) == ignored;
    IGNORED_PIPE.store(is_ignored, Ordering::Relaxed);
}

// SAFETY: the C library calls the functions in .init_array before `main`, by the C calling
// convention. This one makes system calls and stores bytes, which needs no runtime.
#[used]
#[unsafe(link_section = ".init_array")]
static BEFORE_RUNTIME: extern "C" fn() = look_around;

/// Restores the actions that this process was executed with, where Rust's runtime has changed them:
/// that of `SIGPIPE` always, those of faults where they were not ignored.
pub(crate) fn reset_signals() {
    let ignored = libc::SIG_IGN as u64;
    for signal in [libc::SIGPIPE, libc::SIGSEGV, libc::SIGBUS] {
        let keeps = match signal {
            libc::SIGPIPE => IGNORED_PIPE.load(Ordering::Relaxed),
            _ => signal::action_now(signal as u32) == ignored,
        };
        let action = if keeps { libc::SIG_IGN } else { libc::SIG_DFL };
        // SAFETY: SIG_IGN and SIG_DFL run no code of this process.
        unsafe { libc::signal(signal, action) };
    }
}

/// Closes those of the first three descriptors again that this process was started without.
pub(crate) fn close_standard_descriptors_again() {
    let closed = CLOSED.load(Ordering::Relaxed);
    for number in (0..3).filter(|number| closed & 1 << number != 0) {
        descriptors::close_inherited(number);
    }
}

/// Executes a program in this process.
pub(crate) fn execute(
    file: &impl AsRawFd,
    arguments: &[CString],
    environment: &[CString],
) -> io::Result<Infallible> {
    let pointers = |texts: &[CString]| -> Vec<*const c_char> {
        let pointers = texts.iter().map(|text| text.as_ptr());
        pointers.chain([std::ptr::null()]).collect()
    };
    let (arguments, environment) = (pointers(arguments), pointers(environment));
    // SAFETY: both lists end with a null pointer, and they and their texts outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            file.as_raw_fd(),
            c"".as_ptr(),
            arguments.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        )
    };
    Err(io::Error::last_os_error())
}

/// Ends the process at once.
pub(crate) fn exit(status: i32) -> ! {
    // SAFETY: _exit(2) ends the process without running any of its code.
    unsafe { libc::_exit(status) }
}

/// Ends the process by a signal's default action.
pub(crate) fn die_of(signal: i32) -> ! {
    // SAFETY: the default action runs no code of this process, and `set` is initialized by
    // sigemptyset(3) before its use.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        let mut set = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        libc::sigaddset(&raw mut set, signal);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const set, std::ptr::null_mut());
        libc::raise(signal);
    }
    // Only signals whose default action ends the process are passed here, so that this is not
    // reached.
    exit(128 + signal)
}
