//! System calls: what is passed on to the kernel as it is, and what is not.
//!
//! The program's calls are this process's calls. Those are different that concern memory ([`crate::memory::mapping`]),
//! processes ([`process`]), threads ([`threads`]), signals ([`signals`]), descriptors that are the machine's ([`descriptors`]), files about
//! the program itself ([`identity`]), or the processor; and those that the
//! machine does not do, which fail as on a kernel that lacks them ([`ABSENT`]): programs try, and go on.
//! What the kernel writes meanwhile is in [`written`], what it reads in [`reads`].

mod descriptors;
mod identity;
mod maps;
mod process;
mod reads;
mod signals;
mod threads;
mod written;

use crate::error::Result;
use crate::guest::Guest;
use crate::memory::mapping::Mmap;
use crate::memory::{Memory, pages_around};
use crate::sys::call::Call;
use crate::sys::program_memory::read;
use crate::sys::signal::forward_unless_signalled;
use written::Expected;

const ENOSYS: i64 = -(libc::ENOSYS as i64);
const EPERM: i64 = -(libc::EPERM as i64);
const EINVAL: i64 = -(libc::EINVAL as i64);
const ENODEV: i64 = -(libc::ENODEV as i64);
const ENOMEM: i64 = -(libc::ENOMEM as i64);

const PR_SET_SYSCALL_USER_DISPATCH: libc::c_int = 59;
/// Not in the C library's crate yet.
const SYS_MAP_SHADOW_STACK: libc::c_long = 453;

/// Calls that an older kernel does not have either: programs do without them.
const ABSENT: &[libc::c_long] = &[
    // The kernel would look at the host's instruction pointer, not at the program's.
    libc::SYS_rseq,
    // Their writes would come later, and from elsewhere.
    libc::SYS_io_uring_setup,
    libc::SYS_io_setup,
    libc::SYS_userfaultfd,
    libc::SYS_remap_file_pages,
    libc::SYS_pkey_alloc,
    libc::SYS_pkey_mprotect,
    SYS_MAP_SHADOW_STACK,
    libc::SYS_mseal,
    libc::SYS_modify_ldt,
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_restart_syscall,
    // They would see the machine's own calls. A kernel without CONFIG_SECCOMP has none.
    libc::SYS_seccomp,
];

/// How the program goes on after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Behind the call, with this result.
    Return(i64),
    /// The same, and the processor must look at the page tables anew.
    ReturnAndFlush(i64),
    /// Its registers are set already.
    Entered,
    /// The thread has ended.
    Ended,
}

/// Does what the program asks for.
pub(crate) fn perform(guest: &mut Guest, call: &Call) -> Result<Next> {
    let number = call.number as i64;
    if ABSENT.contains(&number) {
        return Ok(Next::Return(ENOSYS));
    }
    let stack_pointer = guest.processor.raw().rsp;
    let mut memory = guest.memory();
    if memory.is_in_stack_reservation(stack_pointer) {
        // Buffers are above it.
        memory.grow_stack(stack_pointer);
    }
    if let Some(result) = on_memory(&mut memory, call)? {
        return Ok(Next::ReturnAndFlush(result));
    }
    drop(memory);
    if let Some(next) = signals::perform(guest, call)? {
        return Ok(next);
    }
    let [a, b, ..] = call.arguments;
    if number == libc::SYS_set_tid_address {
        guest.cleared_at_end = a;
    }
    let expected = expect(guest, call);
    let result = match number {
        libc::SYS_arch_prctl => arch_prctl(guest, a, b)?,
        libc::SYS_prctl => prctl(guest, call)?,
        libc::SYS_personality => personality(guest, call),
        libc::SYS_clone | libc::SYS_clone3 | libc::SYS_fork | libc::SYS_vfork => {
            return process::clone(guest, call);
        }
        libc::SYS_execve | libc::SYS_execveat => process::execute(guest, call)?,
        libc::SYS_exit => return threads::exit(guest, a as i32),
        libc::SYS_exit_group => match process::exit(guest, a as i32)? {},
        libc::SYS_close | libc::SYS_dup2 | libc::SYS_dup3 | libc::SYS_close_range => {
            descriptors::perform(guest, call)
        }
        // Limits are another for a moment while the machine makes descriptors.
        libc::SYS_getrlimit | libc::SYS_setrlimit | libc::SYS_prlimit64 => {
            let _table = guest.threads.table();
            forward_unless_signalled(call)
        }
        libc::SYS_unshare => process::unshare(guest, call),
        libc::SYS_mincore
        | libc::SYS_msync
        | libc::SYS_mlock
        | libc::SYS_mlock2
        | libc::SYS_munlock => on_mapped(guest, call),
        libc::SYS_readlink | libc::SYS_readlinkat => identity::read_link(guest, call),
        _ => identity::perform(guest, call).unwrap_or_else(|| forward_unless_signalled(call)),
    };
    note(guest, call, expected.as_ref(), result);
    Ok(Next::Return(result))
}

/// What a call is about to write, while the program is recorded.
fn expect(guest: &Guest, call: &Call) -> Option<Expected> {
    guest.log().map(|_| Expected::of(call))
}

/// Adds to the round what the kernel has done for a call.
fn note(guest: &Guest, call: &Call, expected: Option<&Expected>, result: i64) {
    let (Some(log), Some(expected)) = (guest.log(), expected) else {
        return;
    };
    let takes = |address, bytes| is_writable(guest, address, bytes);
    let is_known = expected.written(result, takes, |address, bytes| log.note(address, bytes));
    if !is_known {
        log.note_unknown(call.number, &guest.memory());
    }
    if log.tracks_accesses() {
        reads::by(call, result, |address, bytes| {
            log.note_read(address, bytes);
        });
    }
}

/// Whether the kernel can write to all of a buffer.
fn is_writable(guest: &Guest, address: u64, bytes: u64) -> bool {
    let Some(range) = pages_around(address, bytes) else {
        return true;
    };
    // The end of a file may lie before that of its mapping.
    guest.memory().areas.writable_bytes_in(range) == range.bytes()
        && read(range.end() - 1, &mut [0]).is_ok()
}

/// Calls on what is mapped, which they leave as it is. They fail where something is not, and so they do where it is the machine's.
fn on_mapped(guest: &Guest, call: &Call) -> i64 {
    let result = forward_unless_signalled(call);
    let [address, bytes, ..] = call.arguments;
    let asked = pages_around(address, bytes);
    match asked {
        Some(range) if result >= 0 && !guest.memory().areas.cover(range) => ENOMEM,
        _ => result,
    }
}

/// Calls that change what is mapped.
fn on_memory(memory: &mut Memory, call: &Call) -> Result<Option<i64>> {
    let [a, b, c, d, e, f] = call.arguments;
    Ok(Some(match call.number as i64 {
        libc::SYS_mmap => memory.mmap(Mmap {
            address: a,
            bytes: b,
            protection: c,
            flags: d,
            descriptor: e,
            offset: f,
        })?,
        libc::SYS_munmap => memory.munmap(a, b),
        libc::SYS_mprotect => memory.mprotect(a, b, c)?,
        libc::SYS_mremap => memory.mremap(call.arguments)?,
        libc::SYS_madvise => memory.madvise(a, b, c),
        libc::SYS_brk => memory.brk(a)?,
        libc::SYS_shmat => memory.attach(a, b, c)?,
        libc::SYS_shmdt => memory.detach(a)?,
        _ => return Ok(None),
    }))
}

fn arch_prctl(guest: &mut Guest, code: u64, address: u64) -> Result<i64> {
    const SET_GS: u64 = 0x1001;
    const SET_FS: u64 = 0x1002;
    const GET_FS: u64 = 0x1003;
    const GET_GS: u64 = 0x1004;
    const GET_CPUID: u64 = 0x1011;
    const SET_CPUID: u64 = 0x1012;
    let processor = &guest.processor;
    match code {
        SET_FS | SET_GS if address >= crate::memory::USER_END => Ok(EPERM),
        SET_FS => processor.set_bases(Some(address), None).map(|()| 0),
        SET_GS => processor.set_bases(None, Some(address)).map(|()| 0),
        GET_FS | GET_GS => {
            let (fs, gs) = processor.bases()?;
            let base = if code == GET_FS { fs } else { gs };
            Ok(identity::write_or_fault(address, &base.to_le_bytes()))
        }
        // CPUID is never made to fault.
        GET_CPUID => Ok(1),
        SET_CPUID => Ok(ENODEV),
        // Shadow stacks, more of the extended state: not offered.
        _ => Ok(EINVAL),
    }
}

fn personality(guest: &Guest, call: &Call) -> i64 {
    /// `READ_IMPLIES_EXEC`; the argument that only asks.
    const READING_EXECUTES: u32 = 0x40_0000;
    const ASK: u32 = u32::MAX;
    let (result, wanted) = (call.forward(), call.arguments[0] as u32);
    if result >= 0 && wanted != ASK {
        guest.memory().reading_executes = wanted & READING_EXECUTES != 0;
    }
    result
}

fn prctl(guest: &Guest, call: &Call) -> Result<i64> {
    match call.arguments[0] as i32 {
        // As a kernel without CONFIG_SECCOMP.
        libc::PR_SET_SECCOMP | libc::PR_GET_SECCOMP => Ok(EINVAL),
        identity::PR_GET_AUXV => Ok(identity::auxiliary(guest, call)),
        // It would be this process's own layout.
        libc::PR_SET_MM => Ok(EPERM),
        // The kernel would look at the machine's calls. As kernels have it that do not know it.
        PR_SET_SYSCALL_USER_DISPATCH => Ok(EINVAL),
        _ => Ok(call.forward()),
    }
}
