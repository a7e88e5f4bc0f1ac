//! `ptrace(2)`: stopping a thread, its registers, its events.
//!
//! The kernel ties a tracee to the thread that seized it, so a [`Tracee`] cannot leave its thread. `nix` is
//! not used here: its wait status cannot hold real-time signals, which Java, Go and glibc send.

use rustix::io::Errno;
use std::marker::PhantomData;
use std::ptr::null_mut;

/// A thread under trace by the current thread.
///
/// Dropping does nothing; the kernel detaches when the tracing thread ends.
#[derive(Debug)]
pub(crate) struct Tracee {
    tid: i32,
    not_send: PhantomData<*const ()>,
}

/// General registers (`user_regs_struct` of `sys/user.h`).
pub(crate) type Registers = libc::user_regs_struct;

/// Options for [`Tracee::seize`] (`PTRACE_O_*`).
pub(crate) mod option {
    pub(crate) const SYSGOOD: i32 = libc::PTRACE_O_TRACESYSGOOD;
    pub(crate) const EXEC: i32 = libc::PTRACE_O_TRACEEXEC;
    pub(crate) const EXIT: i32 = libc::PTRACE_O_TRACEEXIT;
    /// The tracee's seccomp filters are not run while it is traced (Linux 4.3, needs `CAP_SYS_ADMIN`).
    pub(crate) const SUSPEND_SECCOMP: i32 = 1 << 21;
}

/// How to go on after a stop.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Resume {
    /// Until the next event.
    Free,
    /// Until the next entry to or exit from a system call.
    ToSyscall,
    /// Stay in the group stop and wait for `SIGCONT`.
    Listen,
}

/// Why a thread changed state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// Stopped by an interrupt, or part of a group stop: between two instructions of user space.
    Trap {
        /// Whether the whole process is stopped (`SIGSTOP`, Ctrl-Z).
        group_stop: bool,
    },
    /// Stopped in `execve` after the new image is in place.
    Exec,
    /// Stopped at the beginning of its exit, memory still there.
    Exit,
    /// Stopped at entry to or exit from a system call.
    Syscall,
    /// Stopped before this signal is delivered.
    Signal(i32),
    /// Ended with this exit code.
    Exited(i32),
    /// Ended by this signal.
    Killed(i32),
}

impl Tracee {
    /// Starts to trace a thread without stopping it.
    pub(crate) fn seize(tid: u32, options: i32) -> Result<Self, Errno> {
        let tracee = Self {
            tid: tid as i32,
            not_send: PhantomData,
        };
        // SAFETY: PTRACE_SEIZE takes no pointers; it changes only who traces the thread.
        unsafe { tracee.request(libc::PTRACE_SEIZE, null_mut(), options as usize as *mut _)? };
        Ok(tracee)
    }

    /// Another handle on the same thread, for the same tracer.
    pub(crate) fn again(&self) -> Self {
        Self {
            tid: self.tid,
            not_send: PhantomData,
        }
    }

    pub(crate) fn tid(&self) -> u32 {
        self.tid as u32
    }

    /// Asks for a [`Change::Trap`] as soon as possible.
    pub(crate) fn interrupt(&self) -> Result<(), Errno> {
        // SAFETY: takes no pointers.
        unsafe { self.request(libc::PTRACE_INTERRUPT, null_mut(), null_mut()) }
    }

    /// Lets a stopped thread go on, with a signal unless 0.
    pub(crate) fn resume(&self, how: Resume, signal: i32) -> Result<(), Errno> {
        let request = match how {
            Resume::Free => libc::PTRACE_CONT,
            Resume::ToSyscall => libc::PTRACE_SYSCALL,
            Resume::Listen => libc::PTRACE_LISTEN,
        };
        // SAFETY: takes no pointers; the last argument is a number.
        unsafe { self.request(request, null_mut(), signal as usize as *mut _) }
    }

    /// Lets a stopped thread go for good.
    pub(crate) fn detach(&self, signal: i32) -> Result<(), Errno> {
        // SAFETY: takes no pointers; the last argument is a number.
        unsafe { self.request(libc::PTRACE_DETACH, null_mut(), signal as usize as *mut _) }
    }

    /// The registers of a stopped thread.
    pub(crate) fn registers(&self) -> Result<Registers, Errno> {
        // SAFETY: all zeros are valid numbers.
        let mut registers: Registers = unsafe { std::mem::zeroed() };
        // SAFETY: the kernel fills the struct, whose layout is its ABI.
        unsafe {
            self.request(
                libc::PTRACE_GETREGS,
                null_mut(),
                (&raw mut registers).cast(),
            )?
        };
        Ok(registers)
    }

    /// Sets the registers of a stopped thread.
    pub(crate) fn set_registers(&self, registers: &Registers) -> Result<(), Errno> {
        // SAFETY: the kernel reads the struct, whose layout is its ABI.
        unsafe {
            self.request(
                libc::PTRACE_SETREGS,
                null_mut(),
                (&raw const *registers).cast_mut().cast(),
            )
        }
    }

    /// Writes eight bytes into the memory of a stopped thread, whatever the access rights there.
    pub(crate) fn poke(&self, address: u64, bytes: [u8; 8]) -> Result<(), Errno> {
        let word = u64::from_ne_bytes(bytes) as usize;
        // SAFETY: both are numbers to us; the memory written is the tracee's.
        unsafe {
            self.request(
                libc::PTRACE_POKEDATA,
                address as usize as *mut _,
                word as *mut _,
            )
        }
    }

    /// The next change of state, or `None` when there is none and `block` is false.
    pub(crate) fn wait(&self, block: bool) -> Result<Option<Change>, Errno> {
        let mut status = 0;
        let flags = libc::__WALL | if block { 0 } else { libc::WNOHANG };
        loop {
            // SAFETY: the kernel writes the status.
            match unsafe { libc::waitpid(self.tid, &raw mut status, flags) } {
                0 => return Ok(None),
                -1 => match last_errno() {
                    Errno::INTR => {}
                    errno => return Err(errno),
                },
                _ => match Change::decode(status) {
                    // Other events were not asked for; they are stops all the same.
                    None => self.resume(Resume::Free, 0)?,
                    change => return Ok(change),
                },
            }
        }
    }

    /// # Safety
    ///
    /// The pointers must be what `request` expects.
    unsafe fn request(
        &self,
        request: libc::c_uint,
        address: *mut libc::c_void,
        data: *mut libc::c_void,
    ) -> Result<(), Errno> {
        // SAFETY: as promised by the caller.
        match unsafe { libc::ptrace(request, self.tid, address, data) } {
            -1 => Err(last_errno()),
            _ => Ok(()),
        }
    }
}

impl Change {
    fn decode(status: i32) -> Option<Self> {
        if libc::WIFEXITED(status) {
            return Some(Self::Exited(libc::WEXITSTATUS(status)));
        }
        if libc::WIFSIGNALED(status) {
            return Some(Self::Killed(libc::WTERMSIG(status)));
        }
        let signal = libc::WSTOPSIG(status);
        match status >> 16 {
            0 if signal == libc::SIGTRAP | 0x80 => Some(Self::Syscall),
            0 => Some(Self::Signal(signal)),
            libc::PTRACE_EVENT_STOP => Some(Self::Trap {
                group_stop: signal != libc::SIGTRAP,
            }),
            libc::PTRACE_EVENT_EXEC => Some(Self::Exec),
            libc::PTRACE_EVENT_EXIT => Some(Self::Exit),
            _ => None,
        }
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
