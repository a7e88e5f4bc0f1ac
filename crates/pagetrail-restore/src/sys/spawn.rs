//! A child process that this thread traces, stopped before the first instruction of its program.

use rustix::io::Errno;
use std::ffi::CStr;
use std::ptr::null;

/// `struct clone_args` of `clone3(2)`, its first version with `set_tid`.
#[repr(C)]
#[derive(Default)]
pub(crate) struct CloneArguments {
    pub(crate) flags: u64,
    pub(crate) pidfd: u64,
    pub(crate) child_tid: u64,
    pub(crate) parent_tid: u64,
    pub(crate) exit_signal: u64,
    pub(crate) stack: u64,
    pub(crate) stack_size: u64,
    pub(crate) tls: u64,
    pub(crate) set_tid: u64,
    pub(crate) set_tid_size: u64,
}

impl CloneArguments {
    /// Its bytes, for `clone3(2)` in another process.
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        let words = [
            self.flags,
            self.pidfd,
            self.child_tid,
            self.parent_tid,
            self.exit_signal,
            self.stack,
            self.stack_size,
            self.tls,
            self.set_tid,
            self.set_tid_size,
        ];
        words.into_iter().flat_map(u64::to_ne_bytes).collect()
    }
}

/// Starts a program in a child, with no descriptors but 0, 1 and 2, which is traced by the calling
/// thread; it stops with SIGTRAP once the program is in place. It is killed when the calling thread
/// ends (`PR_SET_PDEATHSIG`), until that is taken back. With `tid`, it gets this PID.
///
/// # Errors
///
/// `EEXIST`: somebody has the PID; `EPERM`: it takes privilege to choose one. A program that cannot
/// be executed ends the child with its `errno` as the exit code.
pub(crate) fn traced(program: &CStr, tid: Option<u32>) -> Result<u32, Errno> {
    let tid = tid.map(|tid| tid as libc::pid_t);
    let arguments = CloneArguments {
        exit_signal: libc::SIGCHLD as u64,
        set_tid: tid.as_ref().map_or(0, |tid| &raw const *tid as u64),
        set_tid_size: tid.is_some().into(),
        ..CloneArguments::default()
    };
    let argv = [program.as_ptr(), null()];
    let parent = std::process::id() as libc::pid_t;
    let environment = [null::<libc::c_char>()];
    // SAFETY: without CLONE_VM the child has a copy of this memory and a stack of its own. Until it
    // executes the program or ends, it makes system calls only, by functions of libc that take no
    // lock and allocate nothing, on memory that is ready before.
    unsafe {
        let child = libc::syscall(
            libc::SYS_clone3,
            &raw const arguments,
            size_of::<CloneArguments>(),
        );
        match child {
            -1 => Err(last_errno()),
            0 => {
                libc::syscall(libc::SYS_close_range, 3, libc::c_uint::MAX, 0);
                reset_signals();
                // Nobody may run the program from its beginning, should this process be killed now.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                if libc::getppid() == parent
                    && libc::ptrace(libc::PTRACE_TRACEME, 0, null::<u8>(), null::<u8>()) == 0
                {
                    libc::execve(program.as_ptr(), argv.as_ptr(), environment.as_ptr());
                }
                libc::_exit(*libc::__errno_location())
            }
            child => Ok(child as u32),
        }
    }
}

/// Makes all signals have their default actions, those that are ignored here among them: a program
/// that is executed keeps these.
///
/// # Safety
///
/// To be called in a child that has its signal actions for itself.
unsafe fn reset_signals() {
    for signal in 1..=64 {
        // `struct sigaction` of the kernel: handler, flags, restorer, mask.
        let default = [0u64; 4];
        // SAFETY: the kernel reads 32 bytes of `default`; no handler is set.
        unsafe {
            libc::syscall(
                libc::SYS_rt_sigaction,
                signal,
                default.as_ptr(),
                null::<u8>(),
                8,
            );
        }
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
