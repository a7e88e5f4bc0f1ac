//! `ptrace(2)`: stopping a thread, its registers, its events.
//!
//! The kernel ties a tracee to the thread that seized it, so a [`Tracee`] cannot leave its thread. `nix` is
//! not used here: its wait status cannot hold real-time signals, which Java, Go and glibc send.

use rustix::io::Errno;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::null_mut;

/// A thread under trace by the current thread.
///
/// Dropping does nothing; the kernel detaches when the tracing thread ends.
#[derive(Debug)]
pub(crate) struct Tracee {
    tid: i32,
    /// The options in force.
    options: Cell<i32>,
    not_send: PhantomData<*const ()>,
}

/// General registers (`user_regs_struct` of `sys/user.h`).
pub(crate) type Registers = libc::user_regs_struct;

/// Registers that are all zero.
pub(crate) fn no_registers() -> Registers {
    // SAFETY: all zeros are valid numbers.
    unsafe { std::mem::zeroed() }
}

/// General registers as a core file has them (`elf_gregset_t`), and back.
pub(crate) fn to_bytes(registers: &Registers) -> Vec<u8> {
    // SAFETY: the struct is made of 27 numbers of 64 bits without padding, so all of its bytes are set.
    let bytes: [u8; size_of::<Registers>()] = unsafe { std::mem::transmute(*registers) };
    bytes.to_vec()
}

/// General registers from the bytes of a core file; `None` when there are not as many as there must be.
pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Registers> {
    let bytes: [u8; size_of::<Registers>()] = bytes.try_into().ok()?;
    // SAFETY: any bit pattern is a valid number, and the struct is made of nothing else.
    Some(unsafe { std::mem::transmute::<[u8; size_of::<Registers>()], Registers>(bytes) })
}

/// Options for [`Tracee::seize`] (`PTRACE_O_*`).
pub(crate) mod option {
    pub(crate) const SYSGOOD: i32 = libc::PTRACE_O_TRACESYSGOOD;
    pub(crate) const EXEC: i32 = libc::PTRACE_O_TRACEEXEC;
    pub(crate) const EXIT: i32 = libc::PTRACE_O_TRACEEXIT;
    /// The tracee is killed when its tracer ends.
    pub(crate) const EXITKILL: i32 = libc::PTRACE_O_EXITKILL;
    /// What the tracee creates by `CLONE_VFORK` is traced as well.
    pub(crate) const VFORK: i32 = libc::PTRACE_O_TRACEVFORK;
}

// include/uapi/linux/ptrace.h; missing from the crate libc for some C libraries.
const GETSIGMASK: libc::c_uint = 0x420a;
const SETSIGMASK: libc::c_uint = 0x420b;
const SECCOMP_GET_FILTER: libc::c_uint = 0x420c;
const GET_RSEQ_CONFIGURATION: libc::c_uint = 0x420f;
const GET_SYSCALL_USER_DISPATCH_CONFIG: libc::c_uint = 0x4211;

/// More than the extended state of any x86-64 processor, AMX tiles included (11 KiB).
const REGISTER_SET_BYTES_MAX: usize = 1 << 15;

/// Tracees of the current thread alone: each thread of a process may be a tracer, and a wait of one would take the stops
/// that another waits for, whichever kind of change it asked for (`wait_task_stopped` in `kernel/exit.c`).
const OWN: i32 = libc::__WNOTHREAD;

/// An instruction of a seccomp filter (`struct sock_filter` in `include/uapi/linux/filter.h`).
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct FilterInstruction {
    pub(crate) code: u16,
    pub(crate) jt: u8,
    pub(crate) jf: u8,
    pub(crate) k: u32,
}

/// `BPF_MAXINSNS` in `include/uapi/linux/bpf_common.h`: the kernel takes no longer filters.
const FILTER_INSTRUCTIONS_MAX: usize = 4096;

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
    /// Stopped in a `clone` with `CLONE_VFORK`: what it has created exists, and is traced.
    Vfork,
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
            options: Cell::new(options),
            not_send: PhantomData,
        };
        // SAFETY: PTRACE_SEIZE takes no pointers; it changes only who traces the thread.
        unsafe { tracee.request(libc::PTRACE_SEIZE, null_mut(), options as usize as *mut _)? };
        Ok(tracee)
    }

    /// Changes the options of a stopped thread.
    pub(crate) fn set_options(&self, options: i32) -> Result<(), Errno> {
        // SAFETY: takes no pointers; the last argument is a number.
        unsafe {
            self.request(
                libc::PTRACE_SETOPTIONS,
                null_mut(),
                options as usize as *mut _,
            )?
        };
        self.options.set(options);
        Ok(())
    }

    /// The options that were set last.
    pub(crate) fn options(&self) -> i32 {
        self.options.get()
    }

    /// A handle on a thread that the current thread traces already, with no options but [`option::SYSGOOD`].
    pub(crate) fn known(tid: u32) -> Self {
        Self {
            tid: tid as i32,
            options: Cell::new(option::SYSGOOD),
            not_send: PhantomData,
        }
    }

    /// Another handle on the same thread, for the same tracer.
    pub(crate) fn again(&self) -> Self {
        Self {
            tid: self.tid,
            options: self.options.clone(),
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
        let mut registers = no_registers();
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

    /// A set of registers of a stopped thread (`NT_*` of `elf.h`), as a core file has it.
    pub(crate) fn register_set(&self, note: u32) -> Result<Vec<u8>, Errno> {
        let mut bytes = vec![0u8; REGISTER_SET_BYTES_MAX];
        let mut vector = libc::iovec {
            iov_base: bytes.as_mut_ptr().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: the kernel writes at most `iov_len` bytes to the vector's buffer, and how many into `iov_len`.
        unsafe {
            self.request(
                libc::PTRACE_GETREGSET,
                note as usize as *mut _,
                (&raw mut vector).cast(),
            )?
        };
        bytes.truncate(vector.iov_len);
        Ok(bytes)
    }

    /// Sets a set of registers of a stopped thread.
    pub(crate) fn put_register_set(&self, note: u32, bytes: &[u8]) -> Result<(), Errno> {
        let mut vector = libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        };
        // SAFETY: the kernel reads `iov_len` bytes from the vector's buffer, and checks them.
        unsafe {
            self.request(
                libc::PTRACE_SETREGSET,
                note as usize as *mut _,
                (&raw mut vector).cast(),
            )
        }
    }

    /// The signals that a stopped thread blocks, one bit each; inside `ppoll(2)` and its like those of before.
    pub(crate) fn blocked_signals(&self) -> Result<u64, Errno> {
        let mut mask = 0u64;
        // SAFETY: the kernel writes eight bytes, the size that the second argument names.
        unsafe { self.request(GETSIGMASK, 8 as *mut _, (&raw mut mask).cast())? };
        Ok(mask)
    }

    /// Sets the signals that a stopped thread blocks; SIGKILL and SIGSTOP cannot be.
    pub(crate) fn block_signals(&self, mask: u64) -> Result<(), Errno> {
        // SAFETY: the kernel reads eight bytes, the size that the second argument names.
        unsafe { self.request(SETSIGMASK, 8 as *mut _, (&raw const mask).cast_mut().cast()) }
    }

    /// Where a stopped thread keeps its `struct rseq`, `rseq(2)`; `None` without one, and before Linux 5.13.
    pub(crate) fn rseq_area(&self) -> Option<u64> {
        // `struct __ptrace_rseq_configuration`: the address, sizes, signature, flags.
        let mut configuration = [0u64; 3];
        // SAFETY: the kernel writes at most as many bytes as the second argument names.
        let outcome = unsafe {
            self.request(
                GET_RSEQ_CONFIGURATION,
                size_of_val(&configuration) as *mut _,
                configuration.as_mut_ptr().cast(),
            )
        };
        outcome
            .ok()
            .map(|()| configuration[0])
            .filter(|&address| address != 0)
    }

    /// Whether system calls of a stopped thread are turned into signals (`PR_SET_SYSCALL_USER_DISPATCH`), as far
    /// as the kernel tells (Linux 6.4).
    pub(crate) fn dispatches_calls(&self) -> bool {
        // `struct ptrace_sud_config`: mode, selector, offset, length.
        let mut configuration = [0u64; 4];
        // SAFETY: the kernel writes as many bytes as the second argument names.
        let outcome = unsafe {
            self.request(
                GET_SYSCALL_USER_DISPATCH_CONFIG,
                size_of_val(&configuration) as *mut _,
                configuration.as_mut_ptr().cast(),
            )
        };
        outcome.is_ok() && configuration[0] != 0
    }

    /// What a stopped thread has just created ([`Change::Vfork`]).
    pub(crate) fn created(&self) -> Result<Self, Errno> {
        let mut number: libc::c_ulong = 0;
        // SAFETY: the kernel writes one `unsigned long`.
        unsafe {
            self.request(
                libc::PTRACE_GETEVENTMSG,
                null_mut(),
                (&raw mut number).cast(),
            )?
        };
        Ok(Self::known(number as u32))
    }

    /// A seccomp filter of a stopped thread, from the oldest on; `NOENT` behind the last.
    pub(crate) fn filter(&self, index: usize) -> Result<Vec<FilterInstruction>, Errno> {
        let empty = FilterInstruction {
            code: 0,
            jt: 0,
            jf: 0,
            k: 0,
        };
        let mut filter = vec![empty; FILTER_INSTRUCTIONS_MAX];
        // SAFETY: the kernel writes one filter, of at most as many instructions as there is room for.
        let count = unsafe {
            libc::ptrace(
                SECCOMP_GET_FILTER,
                self.tid,
                index as *mut libc::c_void,
                filter.as_mut_ptr().cast::<libc::c_void>(),
            )
        };
        match usize::try_from(count) {
            Ok(count) => {
                filter.truncate(count);
                Ok(filter)
            }
            Err(_) => Err(last_errno()),
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

    /// The next change of state, or `None` when there is none yet. An end is left for the parent to wait for,
    /// which this process may be.
    pub(crate) fn poll(&self) -> Result<Option<Change>, Errno> {
        match self.wait_for(OWN | libc::WSTOPPED | libc::WNOHANG)? {
            Some(change) => Ok(Some(change)),
            None => self.wait_for(OWN | libc::WEXITED | libc::WNOHANG | libc::WNOWAIT),
        }
    }

    /// Waits for the next change of state. An end is left for the parent to wait for.
    pub(crate) fn wait(&self) -> Result<Change, Errno> {
        loop {
            self.wait_for(OWN | libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT)?;
            if let Some(change) = self.poll()? {
                return Ok(change);
            }
        }
    }

    /// Waits for a change of state and leaves it to be taken: by [`Self::take`], or by another thread of this
    /// process, whose tracee it may be by now. (A wait for the own tracees alone would not be woken when this one
    /// is replaced by a thread that is none: `de_thread` in `fs/exec.c`.)
    pub(crate) fn await_change(&self) -> Result<(), Errno> {
        let flags = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT;
        self.wait_for(flags).map(drop)
    }

    /// Takes a change of state of a child of this process, if there is one; after its end it is no more.
    pub(crate) fn take(&self) -> Result<Option<Change>, Errno> {
        self.wait_for(libc::WSTOPPED | libc::WEXITED | libc::WNOHANG)
    }

    fn wait_for(&self, flags: i32) -> Result<Option<Change>, Errno> {
        loop {
            // SAFETY: all zeros are valid numbers, and mean that there is nothing to report.
            let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
            // SAFETY: the kernel fills the struct.
            let result = unsafe {
                libc::waitid(
                    libc::P_PID,
                    self.tid as libc::id_t,
                    &raw mut info,
                    flags | libc::__WALL,
                )
            };
            if result == -1 {
                match last_errno() {
                    Errno::INTR => continue,
                    errno => return Err(errno),
                }
            }
            // SAFETY: `waitid` fills the members of SIGCHLD, or leaves zeros.
            let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
            if pid == 0 {
                return Ok(None);
            }
            match Change::decode(info.si_code, status) {
                // Other events were not asked for; they are stops all the same.
                None => self.resume(Resume::Free, 0)?,
                change => return Ok(change),
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
    /// From `si_code` and `si_status` of `waitid(2)`.
    fn decode(code: i32, status: i32) -> Option<Self> {
        match code {
            libc::CLD_EXITED => return Some(Self::Exited(status)),
            libc::CLD_KILLED | libc::CLD_DUMPED => return Some(Self::Killed(status)),
            _ => {}
        }
        let signal = status & 0xff;
        match status >> 8 {
            0 if signal == libc::SIGTRAP | 0x80 => Some(Self::Syscall),
            0 => Some(Self::Signal(signal)),
            libc::PTRACE_EVENT_STOP => Some(Self::Trap {
                group_stop: signal != libc::SIGTRAP,
            }),
            libc::PTRACE_EVENT_VFORK => Some(Self::Vfork),
            libc::PTRACE_EVENT_EXEC => Some(Self::Exec),
            libc::PTRACE_EVENT_EXIT => Some(Self::Exit),
            _ => None,
        }
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
