//! Processes: children, other programs, the end.
//!
//! A child of `fork(2)` runs in a machine of its own, over its copy of the memory; a child of `vfork(2)` runs on this
//! thread's processor while that waits, as the kernel has it. Another program (`execve(2)`) runs natively. What `clone(2)`
//! says of threads is in [`super::threads`].

use std::convert::Infallible;
use std::io;

use kvm_bindings::kvm_regs;

use super::{Next, identity, threads};
use crate::error::{Error, Result};
use crate::guest::Guest;
use crate::processor::Saved;
use crate::rounds::link::Kind;
use crate::sys::call::{Call, call};
use crate::sys::child::{self, Side};
use crate::sys::program_memory::{read_word, write};
use crate::sys::signal;

const EINVAL: i64 = -(libc::EINVAL as i64);

/// What a new process or thread is to be like: the arguments of `clone(2)`, whichever call they came by.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    pub(super) flags: u64,
    pub(super) stack: u64,
    pub(super) parent_id: u64,
    pub(super) child_id: u64,
    pub(super) storage: u64,
    /// Where a descriptor of the child goes.
    descriptor_at: u64,
}

impl Wanted {
    fn by(made: &Call) -> Option<Self> {
        let [a, b, c, d, e, _] = made.arguments;
        Some(match made.number as i64 {
            libc::SYS_fork => Self {
                flags: libc::SIGCHLD as u64,
                ..Self::default()
            },
            libc::SYS_vfork => Self {
                flags: (libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD) as u64,
                ..Self::default()
            },
            libc::SYS_clone => Self {
                flags: a,
                stack: b,
                parent_id: c,
                child_id: d,
                storage: e,
                descriptor_at: c,
            },
            // struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls.
            _ => {
                let word = |n: u64| read_word(a + n * 8).ok();
                let stack = word(5)?;
                Self {
                    flags: word(0)? | word(4)?,
                    stack: if stack == 0 { 0 } else { stack + word(6)? },
                    parent_id: word(3)?,
                    child_id: word(2)?,
                    storage: word(7)?,
                    descriptor_at: word(1)?,
                }
            }
        })
    }

    pub(super) fn has(&self, flag: libc::c_int) -> bool {
        self.flags & flag as u32 as u64 != 0
    }
}

/// Flags that a child process may have here.
const CHILD_FLAGS: u64 = (libc::CLONE_VM
    | libc::CLONE_VFORK
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_SETTID
    | libc::CLONE_CHILD_CLEARTID
    | libc::CLONE_SETTLS
    | libc::CLONE_PIDFD
    | libc::SIGCHLD) as u64;
/// `CLONE_CLEAR_SIGHAND`.
const CLEAR_HANDLERS: u64 = 1 << 32;

/// `fork(2)`, `vfork(2)`, `clone(2)`, `clone3(2)`.
pub(super) fn clone(guest: &mut Guest, made: &Call) -> Result<Next> {
    let Some(wanted) = Wanted::by(made) else {
        return Ok(Next::Return(-i64::from(libc::EFAULT)));
    };
    // As with the kernel, no signal comes between: it would come to both.
    if !signal::hold() {
        return Ok(Next::Return(signal::NOT_BEGUN));
    }
    let next = if wanted.has(libc::CLONE_THREAD) {
        threads::start(guest, &wanted)?
    } else {
        start_process(guest, &wanted)?
    };
    guest.signals.set_mask(guest.signals.mask);
    Ok(next)
}

fn start_process(guest: &mut Guest, wanted: &Wanted) -> Result<Next> {
    if wanted.flags & !(CHILD_FLAGS | CLEAR_HANDLERS) != 0
        || wanted.has(libc::CLONE_VM) && !wanted.has(libc::CLONE_VFORK)
        || wanted.has(libc::CLONE_PIDFD) && !wanted.has(libc::CLONE_VM)
    {
        return Err(Error::Unsupported(format!(
            "clone with flags {:#x}",
            wanted.flags
        )));
    }
    if wanted.flags & 0xff != libc::SIGCHLD as u64 && wanted.flags & 0xff != 0 {
        return Ok(Next::Return(EINVAL));
    }
    let context = guest.processor.at_call();
    let mut child = context;
    child.rax = 0;
    if wanted.stack != 0 {
        child.rsp = wanted.stack;
    }
    let saved = guest.processor.save(child)?;
    match wanted.has(libc::CLONE_VM) {
        true => vfork(guest, wanted, &saved, context),
        false => fork(guest, wanted, &saved),
    }
}

/// The child begins with `child`; the parent, when it goes on, with `context`.
fn vfork(guest: &mut Guest, wanted: &Wanted, child: &Saved, context: kvm_regs) -> Result<Next> {
    let mut parent = guest.processor.save(context)?;
    let described = wanted.has(libc::CLONE_PIDFD);
    let made = guest.run_vfork_child(child, described, &|guest| begin_child(guest, wanted));
    if let Ok((_, Some(descriptor))) = made {
        let _ = write(wanted.descriptor_at, &descriptor.to_le_bytes());
        if let Some(log) = guest.log() {
            log.note(wanted.descriptor_at, 4);
        }
    }
    let result = result_of(made.map(|(pid, _)| pid));
    parent.context.rax = result as u64;
    guest.restore(&parent)?;
    note_id(guest, wanted, result);
    Ok(Next::Entered)
}

fn fork(guest: &mut Guest, wanted: &Wanted, child: &Saved) -> Result<Next> {
    match guest.fork() {
        Ok(Side::Child) => {
            guest.become_child(child)?;
            begin_child(guest, wanted)?;
            Ok(Next::Entered)
        }
        Ok(Side::Parent(pid)) => {
            note_id(guest, wanted, pid.into());
            Ok(Next::Return(pid.into()))
        }
        Err(error) => Ok(Next::Return(result_of(Err(error)))),
    }
}

fn result_of(pid: io::Result<i32>) -> i64 {
    match pid {
        Ok(pid) => pid.into(),
        Err(error) => -i64::from(error.raw_os_error().unwrap_or(libc::EAGAIN)),
    }
}

/// What `clone(2)` was asked for in the child, before that goes on.
fn begin_child(guest: &mut Guest, wanted: &Wanted) -> Result<()> {
    if wanted.flags & CLEAR_HANDLERS != 0 {
        guest.signals.clear_handlers();
    }
    if wanted.has(libc::CLONE_SETTLS) {
        guest.processor.set_bases(Some(wanted.storage), None)?;
    }
    if wanted.has(libc::CLONE_CHILD_SETTID) {
        // As with the kernel, an address that is not there is the program's loss.
        let _ = write(wanted.child_id, &std::process::id().to_le_bytes());
        if let Some(log) = guest.log() {
            log.note(wanted.child_id, 4);
        }
    }
    if wanted.has(libc::CLONE_CHILD_CLEARTID) {
        call(libc::SYS_set_tid_address, &[wanted.child_id]);
    }
    guest.signals.set_mask(guest.signals.mask);
    Ok(())
}

/// Tells the parent its child's number, where it has asked for it.
fn note_id(guest: &Guest, wanted: &Wanted, pid: i64) {
    if wanted.has(libc::CLONE_PARENT_SETTID) && pid > 0 {
        let _ = write(wanted.parent_id, &(pid as i32).to_le_bytes());
        if let Some(log) = guest.log() {
            log.note(wanted.parent_id, 4);
        }
    }
}

/// `execve(2)`: from there on nothing is left of the machine.
pub(super) fn execute(guest: &mut Guest, made: &Call) -> Result<i64> {
    let stopped = guest.send_parting_round(Kind::Parting)?;
    // The program that comes has no kicks.
    signal::set_exact_mask(guest.signals.mask);
    let result =
        identity::perform(guest, made).unwrap_or_else(|| signal::pass_on_unless_arrived(made));
    drop(stopped);
    guest.signals.set_mask(guest.signals.mask);
    Ok(result)
}

/// `exit_group(2)`.
pub(super) fn exit(guest: &Guest, status: i32) -> Result<Infallible> {
    guest.part()?;
    child::exit(status)
}
