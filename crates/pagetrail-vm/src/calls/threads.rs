//! Threads: `clone(2)` with `CLONE_THREAD`, and `exit(2)`.
//!
//! A thread of the program is one of the kernel's threads, with its own vCPU. When it ends, the
//! kernel clears its word and releases its robust futexes by itself, since it knows both.

use std::io::{self, Write};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

use super::Next;
use super::process::{self, Wanted};
use crate::error::{Error, Result};
use crate::guest::Guest;
use crate::processor::entry::PROCESSORS_MAX;
use crate::processor::{Processor, Saved};
use crate::sys::call::{Call, call};
use crate::sys::program_memory::{read_word, write};
use crate::sys::{signal, thread};
use crate::vcpu_threads::{RunState, VcpuThread};

const EAGAIN: i64 = -(libc::EAGAIN as i64);
const EINVAL: i64 = -(libc::EINVAL as i64);
const EPERM: i64 = -(libc::EPERM as i64);

/// What a thread must share with the others, as in every C library and Go.
const SHARED: u64 = (libc::CLONE_VM
    | libc::CLONE_FS
    | libc::CLONE_FILES
    | libc::CLONE_SIGHAND
    | libc::CLONE_THREAD) as u64;
/// Other flags that a thread may have.
const MORE: u64 = (libc::CLONE_SYSVSEM
    | libc::CLONE_SETTLS
    | libc::CLONE_PARENT_SETTID
    | libc::CLONE_CHILD_SETTID
    | libc::CLONE_CHILD_CLEARTID
    | libc::CLONE_DETACHED
    | libc::CLONE_PARENT
    | libc::CLONE_IO
    | libc::CLONE_PTRACE
    | libc::CLONE_UNTRACED) as u64;

/// Starts a thread. All signals must be blocked.
pub(super) fn start(guest: &mut Guest, wanted: &Wanted) -> Result<Next> {
    let needed = libc::CLONE_VM | libc::CLONE_SIGHAND;
    if wanted.flags & needed as u64 != needed as u64 {
        return Ok(Next::Return(EINVAL));
    }
    let kept_apart = SHARED & !wanted.flags;
    // The low byte would be an exit signal, which a thread does not send.
    if kept_apart != 0 || wanted.flags & !(SHARED | MORE | 0xff) != 0 {
        return Ok(Next::Return(EINVAL));
    }
    if guest.is_vforked {
        return Ok(Next::Return(EAGAIN));
    }
    if wanted.has(libc::CLONE_SETTLS) && wanted.storage >= crate::memory::USER_END {
        return Ok(Next::Return(EPERM));
    }
    let Some(processor) = processor(guest) else {
        return Ok(Next::Return(EAGAIN));
    };
    signal::enable_kicks();
    let mut context = guest.processor.at_call();
    context.rax = 0;
    if wanted.stack != 0 {
        context.rsp = wanted.stack;
    }
    let saved = guest.processor.save(context)?;
    let (sender, started) = sync_channel(1);
    // The state is bound to this thread until the new one runs.
    let run_state = Arc::new(RunState::of_this_thread());
    let descriptor = processor.descriptor();
    let child = guest.for_new_thread(processor, run_state);
    let wanted = *wanted;
    let spawned = thread::spawn(move || run(child, &wanted, &saved, &sender));
    let Ok(stack) = spawned else {
        // The vCPU has been dropped with the closure.
        guest.forget_descriptor(descriptor);
        return Ok(Next::Return(EAGAIN));
    };
    let Ok(number) = started.recv() else {
        return Err(Error::Stopped("a thread did not start".into()));
    };
    guest.threads.table().keep_stack(number, stack);
    Ok(Next::Return(number.into()))
}

/// Takes a free vCPU, or creates one. Returns `None` where no more can be created.
fn processor(guest: &Guest) -> Option<Processor> {
    let mut table = guest.threads.table();
    let id = match table.processor() {
        Ok(processor) => return Some(processor),
        Err(id) => id,
    };
    let limit = guest.vm.processors_max().min(PROCESSORS_MAX);
    let why = if id < limit {
        // The ID counts also if this fails: KVM may have the vCPU.
        table.count_processor();
        match guest.add_processor(id) {
            Ok(processor) => return Some(processor),
            Err(error) => error.to_string(),
        }
    } else {
        format!("it has {limit} vCPUs, and KVM permits no more")
    };
    if table.should_report_limit() {
        let _ = writeln!(
            io::stderr(),
            "pagetrail: no more threads in the virtual machine: {why}"
        );
    }
    None
}

/// Runs the thread from its first instruction to its last.
fn run(mut guest: Guest, wanted: &Wanted, saved: &Saved, started: &SyncSender<u32>) {
    let ended = begin(&mut guest, wanted, saved).and_then(|number| {
        // The thread that started this one waits.
        let _ = started.send(number);
        guest.signals.set_mask(guest.signals.mask);
        guest.run()
    });
    if let Err(error) = ended {
        crate::end_with(&error);
    }
    let Guest {
        processor, threads, ..
    } = guest;
    signal::unset_stop_byte();
    threads.table().give_back(processor);
}

fn begin(guest: &mut Guest, wanted: &Wanted, saved: &Saved) -> Result<u32> {
    guest.run_state.bind_to_this_thread();
    guest.processor.bind_to_this_thread();
    guest.threads.table().add(VcpuThread {
        run_state: guest.run_state.clone(),
        descriptor: guest.processor.descriptor(),
    });
    guest.restore(saved)?;
    if wanted.has(libc::CLONE_SETTLS) {
        guest.processor.set_bases(Some(wanted.storage), None)?;
    }
    let number = guest.run_state.thread();
    for (flag, address) in [
        (libc::CLONE_PARENT_SETTID, wanted.parent_id),
        (libc::CLONE_CHILD_SETTID, wanted.child_id),
    ] {
        if wanted.has(flag) {
            // As in the kernel, an invalid address is ignored.
            let _ = write(address, &number.to_le_bytes());
            guest.note_written(address, 4)?;
        }
    }
    if wanted.has(libc::CLONE_CHILD_CLEARTID) {
        call(libc::SYS_set_tid_address, &[wanted.child_id]);
        guest.cleared_at_end = wanted.child_id;
    }
    Ok(number)
}

/// `set_tid_address(2)`.
pub(super) fn set_tid_address(guest: &mut Guest, made: &Call) -> i64 {
    guest.cleared_at_end = made.arguments[0];
    signal::forward_unless_signalled(made)
}

/// `exit(2)`: ends this thread, and with the last thread the process.
pub(super) fn exit(guest: &mut Guest, status: i32) -> Result<Next> {
    // A signal that has arrived at this thread may be for the process.
    if !signal::block_all() {
        return Ok(Next::Return(signal::NOT_STARTED));
    }
    if guest.is_vforked {
        match process::exit(guest, status)? {}
    }
    let last = guest.threads.table().remove(&guest.run_state, status);
    if let Some(status) = last {
        match process::exit(guest, status)? {}
    }
    note_what_the_kernel_will_write(guest)?;
    if thread::id() == std::process::id() {
        thread::exit(status);
    }
    Ok(Next::Ended)
}

/// Notes that the kernel will clear a word when the thread is gone, and will mark the robust
/// futexes that it held.
fn note_what_the_kernel_will_write(guest: &Guest) -> Result<()> {
    if guest.log().is_none() && !guest.keeps_own() {
        return Ok(());
    }
    let (mut list, mut bytes) = (0u64, 0u64);
    let (list_at, bytes_at) = (&raw mut list as u64, &raw mut bytes as u64);
    call(libc::SYS_get_robust_list, &[0, list_at, bytes_at]);
    // struct robust_list_head: the list, which is empty if it points to itself; an offset; the
    // futex that is being taken.
    let is_empty =
        list == 0 || read_word(list) == Ok(list) && read_word(list + 16).unwrap_or_default() == 0;
    let (thread, address) = (guest.run_state.thread(), guest.cleared_at_end);
    if let Some(log) = guest.log() {
        log.note_thread_end(thread, address, !is_empty);
    }
    guest.memory().mark_thread_end(thread, address, !is_empty)
}
