//! `ptrace(2)` on threads that are traced already: they were started so.

use rustix::io::Errno;
use std::ptr::null_mut;

/// General registers (`user_regs_struct` of `sys/user.h`).
pub(crate) type Registers = libc::user_regs_struct;
/// General registers as the bytes that a core file has.
pub(crate) type RegisterBytes = [u8; size_of::<Registers>()];

#[cfg(target_env = "musl")]
type Request = libc::c_int;
#[cfg(not(target_env = "musl"))]
type Request = libc::c_uint;

/// `PTRACE_SETSIGMASK`, missing from the crate libc for some C libraries.
const SETSIGMASK: Request = 0x420b;

/// A thread that the calling thread traces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tracee(pub(crate) u32);

/// Why a thread stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// At entry to or exit from a system call.
    Syscall,
    /// It has created a thread, which is traced as well.
    Clone,
    /// Before this signal is delivered.
    Signal(i32),
    /// It has ended: with an exit code, or killed by a signal.
    Ended {
        /// The exit code, 0 if it was killed.
        code: i32,
        /// The signal that killed it, 0 if it has exited.
        signal: i32,
    },
}

/// Converts the bytes of a core file to general registers.
pub(crate) fn from_bytes(bytes: &RegisterBytes) -> Registers {
    // SAFETY: the struct consists of integers only, for which any bit pattern is valid.
    unsafe { std::mem::transmute(*bytes) }
}

impl Tracee {
    /// Says that the process is killed when this thread ends, that it shows the threads that it
    /// creates, and that stops at system calls are marked.
    pub(crate) fn set_options(self) -> Result<(), Errno> {
        let options =
            libc::PTRACE_O_EXITKILL | libc::PTRACE_O_TRACECLONE | libc::PTRACE_O_TRACESYSGOOD;
        // SAFETY: PTRACE_SETOPTIONS takes no pointers; its last argument is a number.
        unsafe {
            self.request(
                libc::PTRACE_SETOPTIONS,
                null_mut(),
                options as usize as *mut _,
            )
        }
    }

    /// Goes on; with `to_call` until the next entry to or exit from a system call.
    pub(crate) fn resume(self, to_call: bool) -> Result<(), Errno> {
        let request = match to_call {
            true => libc::PTRACE_SYSCALL,
            false => libc::PTRACE_CONT,
        };
        // SAFETY: these requests take no pointers.
        unsafe { self.request(request, null_mut(), null_mut()) }
    }

    /// Lets the thread go on by itself.
    pub(crate) fn detach(self) -> Result<(), Errno> {
        // SAFETY: PTRACE_DETACH takes no pointers.
        unsafe { self.request(libc::PTRACE_DETACH, null_mut(), null_mut()) }
    }

    /// The general registers.
    pub(crate) fn registers(self) -> Result<Registers, Errno> {
        let mut bytes: RegisterBytes = [0; size_of::<Registers>()];
        // SAFETY: PTRACE_GETREGS fills one `user_regs_struct`, for which there is room.
        unsafe { self.request(libc::PTRACE_GETREGS, null_mut(), bytes.as_mut_ptr().cast())? };
        Ok(from_bytes(&bytes))
    }

    /// Sets the general registers.
    pub(crate) fn set_registers(self, registers: &Registers) -> Result<(), Errno> {
        let pointer = (&raw const *registers).cast_mut().cast();
        // SAFETY: PTRACE_SETREGS only reads one `user_regs_struct`, to which the pointer is valid.
        unsafe { self.request(libc::PTRACE_SETREGS, null_mut(), pointer) }
    }

    /// Sets a register set (`NT_*` of `elf.h`).
    pub(crate) fn set_register_set(self, note: u32, bytes: &[u8]) -> Result<(), Errno> {
        let mut vector = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: the kernel only reads `iov_len` bytes of `bytes`, and checks them.
        unsafe {
            self.request(
                libc::PTRACE_SETREGSET,
                note as usize as *mut _,
                (&raw mut vector).cast(),
            )
        }
    }

    /// Sets the signals that the thread blocks.
    pub(crate) fn block_signals(self, mask: u64) -> Result<(), Errno> {
        let pointer = (&raw const mask).cast_mut().cast();
        // SAFETY: the kernel reads eight bytes, the size given by the second argument, from `mask`.
        unsafe { self.request(SETSIGMASK, 8 as *mut _, pointer) }
    }

    /// The thread that was created ([`Stop::Clone`]).
    pub(crate) fn created(self) -> Result<Self, Errno> {
        let mut number: libc::c_ulong = 0;
        let pointer = (&raw mut number).cast();
        // SAFETY: PTRACE_GETEVENTMSG writes one `unsigned long`, to which the pointer is valid.
        unsafe { self.request(libc::PTRACE_GETEVENTMSG, null_mut(), pointer)? };
        Ok(Self(number as u32))
    }

    /// Writes eight bytes, whatever the access rights there.
    pub(crate) fn poke(self, address: u64, bytes: [u8; 8]) -> Result<(), Errno> {
        let word = u64::from_ne_bytes(bytes) as usize;
        // SAFETY: PTRACE_POKEDATA takes two numbers; it writes to the tracee's memory.
        unsafe {
            self.request(
                libc::PTRACE_POKEDATA,
                address as usize as *mut _,
                word as *mut _,
            )
        }
    }

    /// Waits for the next stop, or the end.
    pub(crate) fn wait(self) -> Result<Stop, Errno> {
        let mut status = 0;
        loop {
            // SAFETY: `status` is a valid place for the `int` that the kernel writes.
            let result = unsafe { libc::waitpid(self.0 as i32, &raw mut status, libc::__WALL) };
            if result == -1 {
                match last_errno() {
                    Errno::INTR => continue,
                    errno => return Err(errno),
                }
            }
            return Ok(if libc::WIFEXITED(status) {
                Stop::Ended {
                    code: libc::WEXITSTATUS(status),
                    signal: 0,
                }
            } else if libc::WIFSIGNALED(status) {
                Stop::Ended {
                    code: 0,
                    signal: libc::WTERMSIG(status),
                }
            } else {
                match (libc::WSTOPSIG(status), status >> 16) {
                    (_, libc::PTRACE_EVENT_CLONE) => Stop::Clone,
                    (signal, _) if signal == libc::SIGTRAP | 0x80 => Stop::Syscall,
                    (signal, _) => Stop::Signal(signal),
                }
            });
        }
    }

    /// Makes a `ptrace(2)` request on this thread.
    ///
    /// # Safety
    ///
    /// `address` and `data` must be what `request` requires: numbers, or pointers valid for what
    /// the kernel reads or writes through them.
    unsafe fn request(
        self,
        request: Request,
        address: *mut libc::c_void,
        data: *mut libc::c_void,
    ) -> Result<(), Errno> {
        // SAFETY: the caller guarantees arguments that fit `request`.
        match unsafe { libc::ptrace(request, self.0 as i32, address, data) } {
            -1 => Err(last_errno()),
            _ => Ok(()),
        }
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
