//! `ptrace(2)`: stopping a thread, its registers, its events.
//!
//! The kernel ties a tracee to the thread that seized it, so a [`Tracee`] cannot leave its thread.
//! `nix` is not used here: its wait status cannot represent real-time signals, which Java, Go and
//! glibc send.

use crate::types::RseqArea;
use rustix::io::Errno;
use std::cell::Cell;
use std::marker::PhantomData;
use std::ptr::null_mut;

/// A thread that the current thread traces.
///
/// Dropping it does nothing; the kernel detaches when the tracing thread ends.
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
    // SAFETY: the struct consists of integers, for which zero is a valid value.
    unsafe { std::mem::zeroed() }
}

/// General registers as the bytes that a core file has (`elf_gregset_t`).
pub(crate) type RegisterBytes = [u8; size_of::<Registers>()];

/// Converts general registers to the bytes that a core file has.
pub(crate) fn to_bytes(registers: &Registers) -> RegisterBytes {
    // SAFETY: the struct consists of 27 integers of 64 bits without padding, so all of its bytes
    // are initialized.
    unsafe { std::mem::transmute(*registers) }
}

/// Converts the bytes of a core file to general registers.
pub(crate) fn from_bytes(bytes: &RegisterBytes) -> Registers {
    // SAFETY: the struct consists of integers only, for which any bit pattern is valid.
    unsafe { std::mem::transmute(*bytes) }
}

/// Options for [`Tracee::seize`] (`PTRACE_O_*`).
pub(crate) mod option {
    pub(crate) const SYSGOOD: i32 = libc::PTRACE_O_TRACESYSGOOD;
    pub(crate) const EXEC: i32 = libc::PTRACE_O_TRACEEXEC;
    pub(crate) const EXIT: i32 = libc::PTRACE_O_TRACEEXIT;
    /// The kernel kills the tracee when its tracer ends.
    pub(crate) const EXITKILL: i32 = libc::PTRACE_O_EXITKILL;
    /// Children that the tracee creates with `CLONE_VFORK` are traced as well.
    pub(crate) const VFORK: i32 = libc::PTRACE_O_TRACEVFORK;
}

/// The type of a request: glibc has an enumeration, musl an `int`.
#[cfg(target_env = "musl")]
type Request = libc::c_int;
/// The type of a request: glibc has an enumeration, musl an `int`.
#[cfg(not(target_env = "musl"))]
type Request = libc::c_uint;

// include/uapi/linux/ptrace.h; missing from the crate libc for some C libraries.
const GETSIGMASK: Request = 0x420a;
const SETSIGMASK: Request = 0x420b;
const SECCOMP_GET_FILTER: Request = 0x420c;
const PEEK_SIGINFO: Request = 0x4209;
const GET_RSEQ_CONFIGURATION: Request = 0x420f;
const GET_SYSCALL_USER_DISPATCH_CONFIG: Request = 0x4211;

/// The code segment of a thread in compatibility mode, 32 bits (`__USER32_CS` in
/// `arch/x86/include/asm/segment.h`).
pub(crate) const USER32_CS: u64 = 0x23;

/// More than the extended state of any x86-64 processor, AMX tiles included (11 KiB).
pub(crate) const REGISTER_SET_BYTES_MAX: usize = 1 << 15;

/// Restricts a wait to tracees of the current thread: each thread of a process may be a tracer, and
/// a wait of one would otherwise consume the stops that another waits for (`wait_task_stopped` in
/// `kernel/exit.c`).
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

/// The most instructions of a filter, `BPF_MAXINSNS` in `include/uapi/linux/bpf_common.h`.
const FILTER_INSTRUCTIONS_MAX: usize = 4096;

/// Room for a filter.
pub(crate) type FilterRoom = [FilterInstruction; FILTER_INSTRUCTIONS_MAX];

/// Room for a filter that is empty.
pub(crate) fn filter_room() -> FilterRoom {
    [FilterInstruction {
        code: 0,
        jt: 0,
        jf: 0,
        k: 0,
    }; FILTER_INSTRUCTIONS_MAX]
}

/// How a stopped thread continues.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Resume {
    /// Run until the next event.
    Free,
    /// Run until the next entry to or exit from a system call.
    ToSyscall,
    /// Stay in the group stop and wait for `SIGCONT`.
    Listen,
}

/// Why a thread changed state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// The thread stopped after an interrupt, or as part of a group stop: between two instructions
    /// of user space.
    Trap {
        /// Whether the whole process is stopped (`SIGSTOP`, Ctrl-Z).
        group_stop: bool,
    },
    /// The thread stopped in a `clone` with `CLONE_VFORK`: the child exists, and is traced.
    Vfork,
    /// The thread stopped in `execve` after the new image is in place.
    Exec,
    /// The thread stopped at the beginning of its exit, with its memory still there.
    Exit,
    /// The thread stopped at entry to or exit from a system call.
    Syscall,
    /// The thread stopped before this signal is delivered.
    Signal(i32),
    /// The thread ended with this exit code.
    Exited(i32),
    /// The thread was killed by this signal.
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
        // SAFETY: PTRACE_SEIZE takes no pointers, its last argument is a number; it changes only
        // the thread's tracer.
        unsafe { tracee.request(libc::PTRACE_SEIZE, null_mut(), options as usize as *mut _)? };
        Ok(tracee)
    }

    /// Changes the options of a stopped thread.
    pub(crate) fn set_options(&self, options: i32) -> Result<(), Errno> {
        // SAFETY: PTRACE_SETOPTIONS takes no pointers; its last argument is a number.
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

    /// A handle on a thread that the current thread already traces, with no options but
    /// [`option::SYSGOOD`].
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

    /// Requests a [`Change::Trap`] as soon as possible.
    pub(crate) fn interrupt(&self) -> Result<(), Errno> {
        // SAFETY: PTRACE_INTERRUPT takes no arguments.
        unsafe { self.request(libc::PTRACE_INTERRUPT, null_mut(), null_mut()) }
    }

    /// Continues a stopped thread, and delivers `signal` unless it is 0.
    pub(crate) fn resume(&self, how: Resume, signal: i32) -> Result<(), Errno> {
        let request = match how {
            Resume::Free => libc::PTRACE_CONT,
            Resume::ToSyscall => libc::PTRACE_SYSCALL,
            Resume::Listen => libc::PTRACE_LISTEN,
        };
        // SAFETY: these requests take no pointers; the last argument is a signal number.
        unsafe { self.request(request, null_mut(), signal as usize as *mut _) }
    }

    /// Detaches from a stopped thread, which continues, and delivers `signal` unless it is 0.
    pub(crate) fn detach(&self, signal: i32) -> Result<(), Errno> {
        // SAFETY: PTRACE_DETACH takes no pointers; its last argument is a signal number.
        unsafe { self.request(libc::PTRACE_DETACH, null_mut(), signal as usize as *mut _) }
    }

    /// The registers of a stopped thread.
    pub(crate) fn registers(&self) -> Result<Registers, Errno> {
        let mut registers = no_registers();
        // SAFETY: PTRACE_GETREGS fills one `user_regs_struct`, to which the pointer is valid for
        // writes.
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
        // SAFETY: PTRACE_SETREGS only reads one `user_regs_struct`, to which the pointer is valid.
        unsafe {
            self.request(
                libc::PTRACE_SETREGS,
                null_mut(),
                (&raw const *registers).cast_mut().cast(),
            )
        }
    }

    /// Copies one register set of a stopped thread (`NT_*` of `elf.h`), in the format of a core
    /// file, into `room`, of [`REGISTER_SET_BYTES_MAX`]; returns its length.
    pub(crate) fn register_set(&self, note: u32, room: &mut [u8]) -> Result<usize, Errno> {
        let mut vector = libc::iovec {
            iov_base: room.as_mut_ptr().cast(),
            iov_len: room.len(),
        };
        // SAFETY: the kernel writes at most `iov_len` bytes to `room`, and their number to
        // `iov_len`; both outlive the call.
        unsafe {
            self.request(
                libc::PTRACE_GETREGSET,
                note as usize as *mut _,
                (&raw mut vector).cast(),
            )?
        };
        Ok(vector.iov_len)
    }

    /// Sets one register set of a stopped thread.
    pub(crate) fn put_register_set(&self, note: u32, bytes: &[u8]) -> Result<(), Errno> {
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

    /// The signals that a stopped thread blocks, one bit each; inside `ppoll(2)` and similar calls,
    /// those it blocked before.
    pub(crate) fn blocked_signals(&self) -> Result<u64, Errno> {
        let mut mask = 0u64;
        // SAFETY: the kernel writes eight bytes, the size given by the second argument, to `mask`.
        unsafe { self.request(GETSIGMASK, 8 as *mut _, (&raw mut mask).cast())? };
        Ok(mask)
    }

    /// Sets the signals that a stopped thread blocks; SIGKILL and SIGSTOP cannot be blocked.
    pub(crate) fn block_signals(&self, mask: u64) -> Result<(), Errno> {
        // SAFETY: the kernel reads eight bytes, the size given by the second argument, from `mask`.
        unsafe { self.request(SETSIGMASK, 8 as *mut _, (&raw const mask).cast_mut().cast()) }
    }

    /// The address of a stopped thread's `struct rseq`, `rseq(2)`; `None` without one, and before
    /// Linux 5.13.
    pub(crate) fn rseq_area(&self) -> Option<u64> {
        // `struct __ptrace_rseq_configuration` has the address, sizes, signature and flags.
        let mut configuration = [0u64; 3];
        // SAFETY: the kernel writes at most as many bytes as the second argument gives, the size of
        // `configuration`.
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

    /// The restartable sequences of a stopped thread; `None` without any, and before Linux 5.13.
    pub(crate) fn rseq_configuration(&self) -> Option<RseqArea> {
        // `struct __ptrace_rseq_configuration`: address, size, signature, flags, padding.
        let mut words = [0u64; 3];
        // SAFETY: the kernel writes at most as many bytes as the second argument gives, the size of
        // `words`.
        let outcome = unsafe {
            self.request(
                GET_RSEQ_CONFIGURATION,
                size_of_val(&words) as *mut _,
                words.as_mut_ptr().cast(),
            )
        };
        outcome.ok().filter(|()| words[0] != 0).map(|()| RseqArea {
            address: words[0],
            bytes: words[1] as u32,
            signature: (words[1] >> 32) as u32,
        })
    }

    /// Copies the signal of this index that waits for a stopped thread, or with `shared` for any
    /// thread of its process; false when there is none.
    pub(crate) fn peek_signal(
        &self,
        shared: bool,
        index: u64,
        into: &mut [u8; 128],
    ) -> Result<bool, Errno> {
        // `struct ptrace_peeksiginfo_args`: offset, flags, number.
        let mut arguments = [index, 1 << 32 | u64::from(shared)];
        // SAFETY: the kernel reads 16 bytes of `arguments` and writes one `siginfo_t` (128 bytes).
        let count = unsafe {
            libc::ptrace(
                PEEK_SIGINFO,
                self.tid,
                arguments.as_mut_ptr().cast::<libc::c_void>(),
                into.as_mut_ptr().cast::<libc::c_void>(),
            )
        };
        match count {
            -1 => Err(last_errno()),
            count => Ok(count > 0),
        }
    }

    /// Whether system calls of a stopped thread are turned into signals
    /// (`PR_SET_SYSCALL_USER_DISPATCH`); false before Linux 6.4, which does not report it.
    pub(crate) fn dispatches_calls(&self) -> bool {
        // `struct ptrace_sud_config` has mode, selector, offset and length.
        let mut configuration = [0u64; 4];
        // SAFETY: the kernel writes as many bytes as the second argument gives, the size of
        // `configuration`.
        let outcome = unsafe {
            self.request(
                GET_SYSCALL_USER_DISPATCH_CONFIG,
                size_of_val(&configuration) as *mut _,
                configuration.as_mut_ptr().cast(),
            )
        };
        outcome.is_ok() && configuration[0] != 0
    }

    /// The child that a stopped thread has just created ([`Change::Vfork`]).
    pub(crate) fn created(&self) -> Result<Self, Errno> {
        let mut number: libc::c_ulong = 0;
        // SAFETY: PTRACE_GETEVENTMSG writes one `unsigned long`, to which the pointer is valid.
        unsafe {
            self.request(
                libc::PTRACE_GETEVENTMSG,
                null_mut(),
                (&raw mut number).cast(),
            )?
        };
        Ok(Self::known(number as u32))
    }

    /// Copies the seccomp filter of a stopped thread with this index, the oldest first, into
    /// `room`; `NOENT` after the last.
    pub(crate) fn filter<'a>(
        &self,
        index: usize,
        room: &'a mut FilterRoom,
    ) -> Result<&'a [FilterInstruction], Errno> {
        // SAFETY: the kernel writes one filter, of at most FILTER_INSTRUCTIONS_MAX instructions,
        // for which there is room.
        let count = unsafe {
            libc::ptrace(
                SECCOMP_GET_FILTER,
                self.tid,
                index as *mut libc::c_void,
                room.as_mut_ptr().cast::<libc::c_void>(),
            )
        };
        match usize::try_from(count) {
            Ok(count) => Ok(&room[..count.min(FILTER_INSTRUCTIONS_MAX)]),
            Err(_) => Err(last_errno()),
        }
    }

    /// Writes eight bytes to the memory of a stopped thread, whatever the access rights there.
    pub(crate) fn poke(&self, address: u64, bytes: [u8; 8]) -> Result<(), Errno> {
        let word = u64::from_ne_bytes(bytes) as usize;
        // SAFETY: PTRACE_POKEDATA takes two numbers; it writes to the tracee's memory, not to ours.
        unsafe {
            self.request(
                libc::PTRACE_POKEDATA,
                address as usize as *mut _,
                word as *mut _,
            )
        }
    }

    /// The next change of state, or `None` if there is none yet. An end is left for the parent to
    /// wait for, which may be this process.
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

    /// Waits for a change of state without consuming it: [`Self::take`] consumes it, or another
    /// thread of this process whose tracee it may be by now. (A wait for the own tracees alone
    /// would not be woken when this thread is replaced by one that is not traced: `de_thread` in
    /// `fs/exec.c`.)
    pub(crate) fn await_change(&self) -> Result<(), Errno> {
        let flags = libc::WSTOPPED | libc::WEXITED | libc::WNOWAIT;
        self.wait_for(flags).map(drop)
    }

    /// Consumes a change of state of a child of this process, if there is one; once its end is
    /// consumed, the child no longer exists.
    pub(crate) fn take(&self) -> Result<Option<Change>, Errno> {
        self.wait_for(libc::WSTOPPED | libc::WEXITED | libc::WNOHANG)
    }

    fn wait_for(&self, flags: i32) -> Result<Option<Change>, Errno> {
        loop {
            // SAFETY: all members of `siginfo_t` are integers or pointers, for which zeros are
            // valid; they mean that there is nothing to report.
            let mut info: libc::siginfo_t = unsafe { std::mem::zeroed() };
            // SAFETY: `info` is a valid place for the struct that the kernel fills.
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
            // SAFETY: `waitid` fills the members of SIGCHLD or leaves zeros, so both are
            // initialized.
            let (pid, status) = unsafe { (info.si_pid(), info.si_status()) };
            if pid == 0 {
                return Ok(None);
            }
            match Change::decode(info.si_code, status) {
                // Other events were not requested, but they stop the thread all the same.
                None => self.resume(Resume::Free, 0)?,
                change => return Ok(change),
            }
        }
    }

    /// Makes a `ptrace(2)` request on this thread.
    ///
    /// # Safety
    ///
    /// `address` and `data` must be what `request` requires: numbers, or pointers valid for what
    /// the kernel reads or writes through them.
    unsafe fn request(
        &self,
        request: Request,
        address: *mut libc::c_void,
        data: *mut libc::c_void,
    ) -> Result<(), Errno> {
        // SAFETY: the caller guarantees arguments that fit `request`, and the kernel dereferences
        // no others.
        match unsafe { libc::ptrace(request, self.tid, address, data) } {
            -1 => Err(last_errno()),
            _ => Ok(()),
        }
    }
}

impl Change {
    /// Decodes `si_code` and `si_status` of `waitid(2)`.
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

/// The list of robust futexes of a thread (`get_robust_list(2)`): its head and that one's length.
pub(crate) fn robust_list(tid: u32) -> Result<[u64; 2], Errno> {
    let mut list = [0u64; 2];
    let [head, length] = &mut list;
    // SAFETY: the kernel writes a pointer to `head` and a `size_t` to `length`.
    let result = unsafe {
        libc::syscall(
            libc::SYS_get_robust_list,
            libc::c_long::from(tid),
            &raw mut *head,
            &raw mut *length,
        )
    };
    match result {
        -1 => Err(last_errno()),
        _ => Ok(list),
    }
}

fn last_errno() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}
