//! System calls: which the kernel performs as the program made them, and which the machine
//! performs.
//!
//! The program's calls are this process's calls, with the pointers that the program passed. The
//! machine performs those that concern memory ([`crate::memory::mapping`]), processes
//! ([`process`]), threads ([`threads`]), signals ([`signals`]), the machine's own descriptors
//! ([`descriptors`]), files about the program itself ([`identity`]), or the processor
//! ([`special`]), and those that are about the machine ([`own`]). Calls that it does not support
//! fail with `ENOSYS`, as on a kernel that lacks them: programs then do without.
//!
//! [`table`] has a row per call. What the kernel writes for a call is found by [`written`], what it
//! reads by [`reads`].

mod descriptor_calls;
mod descriptors;
mod identity;
mod lists;
mod maps;
pub(crate) mod own;
mod process;
mod reads;
mod signals;
mod special;
pub(crate) mod table;
mod threads;
mod written;

pub(crate) use identity::is_own_program;

use crate::error::Result;
use crate::guest::Guest;
use crate::memory::pages_around;
use crate::sys::call::Call;
use crate::sys::program_memory::read;
use crate::sys::signal::forward_unless_signalled;
use table::Policy;
use written::Expected;

const ENOSYS: i64 = -(libc::ENOSYS as i64);
const EPERM: i64 = -(libc::EPERM as i64);
const EINVAL: i64 = -(libc::EINVAL as i64);
const ENODEV: i64 = -(libc::ENODEV as i64);
const ENOMEM: i64 = -(libc::ENOMEM as i64);

/// How the thread continues after a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// The call returns this result.
    Return(i64),
    /// The call returns this result, and the virtual processor flushes its TLB first.
    ReturnAndFlush(i64),
    /// The registers are already set.
    Entered,
    /// The thread has ended.
    Ended,
}

/// Whether a call that is under way may count as one that has not begun: not one after which the
/// program has other mappings or threads, or goes on elsewhere. None of those waits for long.
pub(crate) fn may_begin_anew(call: &Call) -> bool {
    match table::row(call.number).policy {
        Policy::Memory(_) => false,
        // A thread that ends has no registers after that.
        Policy::Control(_) => {
            [libc::SYS_exit, libc::SYS_exit_group].contains(&(call.number as i64))
        }
        Policy::Forward | Policy::Absent | Policy::Perform(_) => true,
    }
}

/// Performs a system call of the program.
pub(crate) fn perform(guest: &mut Guest, call: &Call) -> Result<Next> {
    let counted = descriptor_calls::begin(guest, call);
    let next = perform_uncounted(guest, call);
    counted.end(guest);
    next
}

fn perform_uncounted(guest: &mut Guest, call: &Call) -> Result<Next> {
    let row = table::row(call.number);
    let policy = row.policy;
    if matches!(policy, Policy::Absent) {
        return Ok(Next::Return(ENOSYS));
    }
    let stack_pointer = guest.processor.raw().rsp;
    let mut memory = guest.memory();
    if memory.is_in_stack_reservation(stack_pointer) {
        // The call's buffers may be on the stack, above the stack pointer. The kernel does not grow
        // this stack for them.
        memory.grow_stack(stack_pointer);
    }
    if let Policy::Memory(perform) = policy {
        return Ok(Next::ReturnAndFlush(perform(&mut memory, call.arguments)?));
    }
    drop(memory);
    if matches!(policy, Policy::Forward) && row.leaves_memory_alone() {
        let made = identity::perform(guest, call);
        return Ok(Next::Return(
            made.unwrap_or_else(|| forward_unless_signalled(call)),
        ));
    }
    let expected = expect(guest, call);
    let result = match policy {
        Policy::Control(perform) => return perform(guest, call),
        Policy::Perform(perform) => perform(guest, call)?,
        _ => identity::perform(guest, call).unwrap_or_else(|| forward_unless_signalled(call)),
    };
    note(guest, call, expected.as_ref(), result)?;
    Ok(Next::Return(result))
}

/// What a call is about to write, while somebody needs to know.
fn expect(guest: &Guest, call: &Call) -> Option<Expected> {
    (guest.log().is_some() || guest.keeps_own()).then(|| Expected::of(call))
}

/// Adds what the kernel wrote and read for a call to the round, and to the program's own set.
fn note(guest: &Guest, call: &Call, expected: Option<&Expected>, result: i64) -> Result<()> {
    let keeps_own = guest.keeps_own();
    let Some(expected) = expected else {
        // The set has been started during the call.
        return match keeps_own {
            true => guest.memory().mark_all(),
            false => Ok(()),
        };
    };
    let takes = |address, bytes| is_writable(guest, address, bytes);
    let mut written = Vec::new();
    let is_known = expected.written(result, takes, |address, bytes| {
        written.push((address, bytes));
    });
    for (address, bytes) in written {
        guest.note_written(address, bytes)?;
    }
    if !is_known {
        if let Some(log) = guest.log() {
            log.note_unknown(call.number, &guest.memory());
        }
        guest.memory().mark_all()?;
    }
    if keeps_own {
        own::record_unrecorded(guest)?;
    }
    let log = guest.log().filter(|log| log.tracks_accesses());
    if log.is_none() && !keeps_own {
        return Ok(());
    }
    let mut noted = Ok(());
    reads::by(call, result, |address, bytes| {
        if let Some(log) = log {
            log.note_read(address, bytes);
        }
        if keeps_own && noted.is_ok() {
            noted = guest.memory().mark_read(address, bytes);
        }
    });
    noted
}

/// Whether the kernel can write to all of a buffer.
fn is_writable(guest: &Guest, address: u64, bytes: u64) -> bool {
    let Some(range) = pages_around(address, bytes) else {
        return true;
    };
    // A file may be shorter than its mapping.
    guest.memory().areas.writable_bytes_in(range) == range.bytes()
        && read(range.end() - 1, &mut [0]).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_that_change_mappings_or_threads_do_not_begin_anew() {
        let may = |number| {
            may_begin_anew(&Call {
                number: number as u64,
                arguments: [0; 6],
            })
        };
        for once in [
            libc::SYS_mmap,
            libc::SYS_mremap,
            libc::SYS_brk,
            libc::SYS_clone3,
            libc::SYS_fork,
            libc::SYS_rt_sigreturn,
        ] {
            assert!(!may(once), "{once}");
        }
        for again in [libc::SYS_read, libc::SYS_futex, libc::SYS_exit] {
            assert!(may(again), "{again}");
        }
    }
}
