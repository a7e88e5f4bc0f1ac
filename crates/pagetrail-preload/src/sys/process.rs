//! A process of our own beside the program: forked twice, so that the program does not have to wait
//! for it, with nothing of the program's but a copy of its memory.

use super::guard;
use std::io::{self, Error};
use std::os::fd::AsRawFd;

/// Runs `body` with one descriptor in a process that is adopted by init. Only inside
/// [`guard::with_state`].
pub(crate) fn daemon<T: AsRawFd>(keep: T, body: impl FnOnce(T)) -> io::Result<()> {
    // SAFETY: the child has one thread and uses our own heap, which no thread was changing: we hold
    // the lock under which it is used. It ends without running anything of the program's.
    let child = unsafe { libc::fork() };
    match child {
        -1 => Err(Error::last_os_error()),
        0 => {
            guard::disable_interposition();
            // SAFETY: this process has one thread, and we hold the lock of the heap that its child
            // uses.
            if unsafe { libc::fork() } == 0 {
                close_all_but(keep.as_raw_fd());
                let body = std::panic::AssertUnwindSafe(move || body(keep));
                let _ = std::panic::catch_unwind(body);
            }
            // SAFETY: no destructors, no handlers: they are the program's.
            unsafe { libc::_exit(0) }
        }
        child => {
            let mut status = 0;
            // SAFETY: our own child, which ends at once.
            while unsafe { libc::waitpid(child, &raw mut status, 0) } == -1 {
                if Error::last_os_error().raw_os_error() != Some(libc::EINTR) {
                    break;
                }
            }
            Ok(())
        }
    }
}

/// Gives up the program's session, directory, descriptors and name; of signals only SIGTERM comes
/// through.
fn close_all_but(keep: i32) {
    let keep = keep as u32;
    // SAFETY: none of these touches memory; no other thread of this process uses the descriptors.
    unsafe {
        libc::setsid();
        libc::chdir(c"/".as_ptr());
        libc::umask(0o077);
        if keep > 0 {
            libc::syscall(libc::SYS_close_range, 0, keep - 1, 0);
        }
        libc::syscall(libc::SYS_close_range, keep + 1, u32::MAX, 0);
        for _ in 0..3 {
            if libc::open(c"/dev/null".as_ptr(), libc::O_RDWR) > 2 {
                break;
            }
        }
        libc::prctl(libc::PR_SET_NAME, c"pagetrail-hold".as_ptr());
        libc::signal(libc::SIGTERM, libc::SIG_DFL);
        let mut term = std::mem::zeroed();
        libc::sigemptyset(&raw mut term);
        libc::sigaddset(&raw mut term, libc::SIGTERM);
        libc::sigprocmask(libc::SIG_UNBLOCK, &raw const term, std::ptr::null_mut());
    }
}
