//! Processes: their creation, the execution of other programs, and their end.
//!
//! A child of `fork(2)` runs in its own virtual machine, over its copy of the memory. A child of
//! `vfork(2)` runs on this thread's vCPU while the thread waits, as the kernel has it. Another
//! program (`execve(2)`) runs natively, unless it is followed ([`crate::follow`]).
//! [`super::threads`] has the part of `clone(2)` that is about threads.

use std::convert::Infallible;
use std::io;

use kvm_bindings::kvm_regs;

use super::{Next, identity, threads};
use crate::error::Result;
use crate::follow;
use crate::guest::Guest;
use crate::processor::Saved;
use crate::rounds::link::MessageKind;
use crate::sys::call::{Call, call};
use crate::sys::child::{self, Side};
use crate::sys::program_memory::{read, write};
use crate::sys::signal;

const EINVAL: i64 = -(libc::EINVAL as i64);
const EPERM: i64 = -(libc::EPERM as i64);
const EAGAIN: i64 = -(libc::EAGAIN as i64);
const EFAULT: i64 = -(libc::EFAULT as i64);
const E2BIG: i64 = -(libc::E2BIG as i64);

/// A request for a new process or thread: the arguments of `clone(2)`, whichever call they came by.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Wanted {
    pub(super) flags: u64,
    pub(super) stack: u64,
    pub(super) parent_id: u64,
    pub(super) child_id: u64,
    pub(super) storage: u64,
    /// The address where the descriptor of the child is stored.
    descriptor_at: u64,
}

/// `struct clone_args`: flags, pidfd, child_tid, parent_tid, exit_signal, stack, stack_size, tls,
/// and since later set_tid, set_tid_size, cgroup.
const CLONE_ARGS: usize = 11;
/// The length of the first version of the structure.
const CLONE_ARGS_BYTES_MIN: u64 = 64;
/// The bits of the flags that are the exit signal in the older calls.
const SIGNAL: u64 = 0xff;

impl Wanted {
    /// The arguments of `clone(2)`.
    fn by_arguments([flags, stack, parent_id, child_id, storage, _]: [u64; 6]) -> Self {
        Self {
            flags: flags & 0xffff_ffff,
            stack,
            parent_id,
            child_id,
            storage,
            descriptor_at: parent_id,
        }
    }

    /// A child with these flags, and nothing else set.
    fn by_flags(flags: libc::c_int) -> Self {
        Self {
            flags: flags as u64,
            ..Self::default()
        }
    }

    /// The arguments of `clone3(2)`, after the checks that the kernel makes first (kernel/fork.c).
    /// The error is the kernel's.
    fn by_structure(words: &[u64; CLONE_ARGS]) -> std::result::Result<Self, i64> {
        let [
            flags,
            descriptor_at,
            child_id,
            parent_id,
            signal,
            stack,
            stack_bytes,
            storage,
            ..,
        ] = *words;
        let wants_ids = words[8] != 0 || words[9] != 0;
        let thread_or_sibling = (libc::CLONE_THREAD | libc::CLONE_PARENT) as u64;
        if flags & (SIGNAL | libc::CLONE_DETACHED as u64) != 0
            || signal > 64
            || (stack == 0) != (stack_bytes == 0)
            || wants_ids
            || flags & thread_or_sibling != 0 && signal != 0
        {
            return Err(EINVAL);
        }
        Ok(Self {
            flags: flags | signal,
            stack: stack.wrapping_add(stack_bytes),
            parent_id,
            child_id,
            storage,
            descriptor_at,
        })
    }

    pub(super) fn has(&self, flag: libc::c_int) -> bool {
        self.flags & flag as u32 as u64 != 0
    }

    /// Whether the flags contradict each other (kernel/fork.c).
    fn is_contradictory(&self) -> bool {
        let shares_signals = self.has(libc::CLONE_SIGHAND);
        self.has(libc::CLONE_FS)
            && self.flags & (libc::CLONE_NEWNS | libc::CLONE_NEWUSER) as u64 != 0
            || self.has(libc::CLONE_THREAD) && !shares_signals
            || shares_signals && !self.has(libc::CLONE_VM)
            || shares_signals && self.flags & CLEAR_HANDLERS != 0
            || self.has(libc::CLONE_PIDFD)
                && (self.has(libc::CLONE_DETACHED)
                    || self.has(libc::CLONE_PARENT_SETTID) && self.descriptor_at == self.parent_id)
    }
}

/// Reads the structure of `clone3(2)`. An older program passes a shorter one, and a newer one a
/// longer one whose rest must be zero. The error is the kernel's.
fn clone_args(at: u64, bytes: u64) -> std::result::Result<[u64; CLONE_ARGS], i64> {
    let mut words = [0; CLONE_ARGS];
    if bytes > crate::memory::PAGE {
        return Err(E2BIG);
    }
    if bytes < CLONE_ARGS_BYTES_MIN {
        return Err(EINVAL);
    }
    let mut given = vec![0; bytes as usize];
    read(at, &mut given).map_err(|_| EFAULT)?;
    let (known, more) = given.split_at(given.len().min(CLONE_ARGS * 8));
    if more.iter().any(|byte| *byte != 0) {
        return Err(E2BIG);
    }
    for (word, bytes) in words.iter_mut().zip(known.chunks(8)) {
        let mut whole = [0; 8];
        whole[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(whole);
    }
    Ok(words)
}

/// The flags that the machine implements, or that change nothing that a program sees.
const DONE: u64 = (libc::CLONE_VM
    | libc::CLONE_VFORK
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_SETTID
    | libc::CLONE_CHILD_CLEARTID
    | libc::CLONE_SETTLS
    | libc::CLONE_PIDFD
    | libc::CLONE_PTRACE
    | libc::CLONE_UNTRACED
    | libc::CLONE_DETACHED) as u64;
/// The flags that are passed to the kernel.
const PASSED_ON: u64 = (libc::CLONE_PARENT
    | libc::CLONE_FS
    | libc::CLONE_SYSVSEM
    | libc::CLONE_IO
    | libc::CLONE_NEWNS
    | libc::CLONE_NEWUTS
    | libc::CLONE_NEWIPC
    | libc::CLONE_NEWUSER
    | libc::CLONE_NEWPID
    | libc::CLONE_NEWNET
    | libc::CLONE_NEWCGROUP) as u64;
/// `CLONE_CLEAR_SIGHAND`.
const CLEAR_HANDLERS: u64 = 1 << 32;

/// `fork(2)`.
pub(super) fn fork(guest: &mut Guest, _: &Call) -> Result<Next> {
    start(guest, &Wanted::by_flags(libc::SIGCHLD))
}

/// `vfork(2)`.
pub(super) fn vfork(guest: &mut Guest, _: &Call) -> Result<Next> {
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | libc::SIGCHLD;
    start(guest, &Wanted::by_flags(flags))
}

/// `clone(2)`.
pub(super) fn clone(guest: &mut Guest, made: &Call) -> Result<Next> {
    start(guest, &Wanted::by_arguments(made.arguments))
}

/// `clone3(2)`.
pub(super) fn clone3(guest: &mut Guest, made: &Call) -> Result<Next> {
    let [at, bytes, ..] = made.arguments;
    match clone_args(at, bytes).and_then(|words| Wanted::by_structure(&words)) {
        Ok(wanted) => start(guest, &wanted),
        Err(error) => Ok(Next::Return(error)),
    }
}

/// Starts a thread or a process.
fn start(guest: &mut Guest, wanted: &Wanted) -> Result<Next> {
    if wanted.is_contradictory() {
        return Ok(Next::Return(EINVAL));
    }
    // As in the kernel, no signal may arrive in between: it would reach both.
    if !signal::block_all() {
        return Ok(Next::Return(signal::NOT_STARTED));
    }
    let next = if wanted.has(libc::CLONE_THREAD) {
        threads::start(guest, wanted)?
    } else {
        start_process(guest, wanted)?
    };
    guest.signals.set_mask(guest.signals.mask);
    Ok(next)
}

fn start_process(guest: &mut Guest, wanted: &Wanted) -> Result<Next> {
    let passed_on = wanted.flags & (PASSED_ON | SIGNAL);
    if let Some(error) = refusal(guest, wanted, passed_on) {
        return Ok(Next::Return(error));
    }
    let context = guest.processor.at_call();
    let mut child = context;
    child.rax = 0;
    if wanted.stack != 0 {
        child.rsp = wanted.stack;
    }
    let saved = guest.processor.save(child)?;
    match wanted.has(libc::CLONE_VM) {
        true => run_vfork_child(guest, wanted, &saved, context, passed_on as i32),
        false => fork_child(guest, wanted, &saved, passed_on as i32),
    }
}

/// The error for what the machine does not support, such as an older kernel would return, so that a
/// program that only tries goes on.
fn refusal(guest: &Guest, wanted: &Wanted, passed_on: u64) -> Option<i64> {
    let is_known = wanted.flags & !(DONE | PASSED_ON | SIGNAL | CLEAR_HANDLERS) == 0;
    let shares = wanted.has(libc::CLONE_VM) && !wanted.has(libc::CLONE_VFORK);
    let is_plain = passed_on & !(libc::CLONE_IO as u64) == libc::SIGCHLD as u64;
    if shares {
        // Two processes that share memory and run at the same time: LeakSanitizer does this.
        Some(EPERM)
    } else if !is_known || wanted.flags & SIGNAL > 64 {
        Some(EINVAL)
    } else if !is_plain && !wanted.has(libc::CLONE_VM) && !guest.threads.table().is_one() {
        // The C library frees its locks, which other threads may hold, only in the child of its own
        // fork(2).
        Some(EAGAIN)
    } else if wanted.has(libc::CLONE_PIDFD) && !is_writable(wanted.descriptor_at) {
        Some(EFAULT)
    } else {
        None
    }
}

/// Whether a number can be stored at an address.
fn is_writable(at: u64) -> bool {
    let mut bytes = [0; 4];
    read(at, &mut bytes)
        .and_then(|()| write(at, &bytes))
        .is_ok()
}

/// Stores the descriptor of the child in the program's memory.
fn put_descriptor(guest: &Guest, at: u64, descriptor: i32) -> Result<()> {
    let _ = write(at, &descriptor.to_le_bytes());
    guest.note_written(at, 4)
}

/// Runs a child of `vfork(2)` with the state `child`. The parent then continues with `context`.
fn run_vfork_child(
    guest: &mut Guest,
    wanted: &Wanted,
    child: &Saved,
    context: kvm_regs,
    flags: i32,
) -> Result<Next> {
    let mut parent = guest.processor.save(context)?;
    let described = wanted.flags as i32 & libc::CLONE_PIDFD;
    let made = guest.run_vfork_child(child, flags | described, &|guest| {
        begin_child(guest, wanted)
    });
    if let Ok((_, Some(descriptor))) = made {
        put_descriptor(guest, wanted.descriptor_at, descriptor)?;
    }
    let result = result_of(made.map(|(pid, _)| pid));
    parent.context.rax = result as u64;
    guest.restore(&parent)?;
    note_id(guest, wanted, result)?;
    Ok(Next::Entered)
}

fn fork_child(guest: &mut Guest, wanted: &Wanted, child: &Saved, flags: i32) -> Result<Next> {
    match guest.fork(flags) {
        Ok(Side::Child) => {
            guest.become_child(child)?;
            begin_child(guest, wanted)?;
            Ok(Next::Entered)
        }
        Ok(Side::Parent(pid)) => {
            if wanted.has(libc::CLONE_PIDFD) {
                // The child cannot have been waited for: all signals are blocked in this thread,
                // and no other thread knows its PID.
                let descriptor = call(libc::SYS_pidfd_open, &[pid as u64, 0]);
                put_descriptor(guest, wanted.descriptor_at, descriptor as i32)?;
            }
            note_id(guest, wanted, pid.into())?;
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

/// Performs what `clone(2)` does in the child, before the child continues.
fn begin_child(guest: &mut Guest, wanted: &Wanted) -> Result<()> {
    if wanted.flags & CLEAR_HANDLERS != 0 {
        guest.signals.clear_handlers();
    }
    if wanted.has(libc::CLONE_SETTLS) {
        guest.processor.set_bases(Some(wanted.storage), None)?;
    }
    if wanted.has(libc::CLONE_CHILD_SETTID) {
        // As in the kernel, an invalid address is ignored.
        let _ = write(wanted.child_id, &std::process::id().to_le_bytes());
        guest.note_written(wanted.child_id, 4)?;
    }
    if wanted.has(libc::CLONE_CHILD_CLEARTID) {
        call(libc::SYS_set_tid_address, &[wanted.child_id]);
    }
    guest.signals.set_mask(guest.signals.mask);
    Ok(())
}

/// Stores the child's PID in the parent's memory, where that was requested.
fn note_id(guest: &Guest, wanted: &Wanted, pid: i64) -> Result<()> {
    if wanted.has(libc::CLONE_PARENT_SETTID) && pid > 0 {
        let _ = write(wanted.parent_id, &(pid as i32).to_le_bytes());
        guest.note_written(wanted.parent_id, 4)?;
    }
    Ok(())
}

/// `unshare(2)`. What the program's threads share with each other stays shared, since the machine
/// shares it, too.
pub(super) fn unshare(guest: &Guest, made: &Call) -> i64 {
    let apart = libc::CLONE_FILES | libc::CLONE_VM | libc::CLONE_SIGHAND | libc::CLONE_THREAD;
    let [flags, ..] = made.arguments;
    let is_alone = guest.is_vforked || guest.threads.table().is_one();
    if flags & apart as u64 != 0 && !is_alone {
        return EINVAL;
    }
    call(libc::SYS_unshare, &[flags & !(apart as u64)])
}

/// `execve(2)`, which ends the virtual machine where it succeeds. The program is a guest again if
/// it is followed.
pub(super) fn execute(guest: &mut Guest, made: &Call) -> Result<i64> {
    if let Some(result) = follow::execute(guest, made)? {
        return Ok(result);
    }
    let stopped = guest.send_round_stopped(MessageKind::PreExec)?;
    // The new program has no handler for kicks.
    signal::set_exact_mask(guest.signals.mask);
    let result =
        identity::perform(guest, made).unwrap_or_else(|| signal::forward_unless_signalled(made));
    drop(stopped);
    guest.signals.set_mask(guest.signals.mask);
    Ok(result)
}

/// `exit_group(2)`.
pub(super) fn exit(guest: &Guest, status: i32) -> Result<Infallible> {
    guest.send_final_round()?;
    child::exit(status)
}
