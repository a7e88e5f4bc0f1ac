//! Going on with system calls that a stop has interrupted, where the kernel does not see to it:
//! transfers that were cut short, and waits ([`wait`]) whose time would begin anew.
//!
//! A blocking `write(2)` to a pipe, a `send(2)` on a stream, a `recv(2)` with `MSG_WAITALL` is
//! whole unless a signal interrupts it. A stop does so as well, and the kernel has no code for it:
//! what was transferred so far is the result (`pipe_write` in `fs/pipe.c`, `tcp_sendmsg_locked`). A
//! thread that is found with such a result makes the rest of the transfer by code of ours in
//! padding ([`code`]), which adds up what was transferred and goes on where the call would have
//! returned. All that changes is in the thread's registers, so nothing is needed from the tracker
//! once it has set them, and a stop that cuts the rest short as well is mended in the same way. If
//! a handler runs meanwhile, or is to run when the thread goes on, the call returns what there is,
//! as it would have.
//!
//! The slot stays: nobody can tell when the last thread has left it. A call that returns because of
//! an error that comes up between the two parts returns what was transferred before, as it should,
//! but the error is not reported again by the next call.

mod descriptor;
mod parts;
mod plain;
mod wait;

use super::code::{self, SLOT_BYTES};
use super::filter;
use crate::proc::text;
use crate::sys::ptrace::{Registers, Tracee, USER32_CS};
use crate::sys::remote_memory;
use descriptor::Descriptor;

/// The `syscall` instruction.
const SYSCALL: [u8; 2] = [0x0f, 0x05];
/// Length of the `syscall` instruction, in bytes.
const SYSCALL_BYTES: u64 = SYSCALL.len() as u64;
/// The most that one call transfers (`MAX_RW_COUNT` in `include/linux/fs.h`).
const TRANSFER_MAX: u64 = 0x7fff_f000;
/// How many slots are left free for what comes later.
const SPARE_SLOTS: usize = 2;

/// How a thread goes on.
pub(super) enum GoingOn {
    /// The kernel sees to it, or there is nothing to do.
    ByItself,
    With(Registers),
    /// With a call that stays short: nothing can be done about it.
    Short(Short),
}

/// A call that a stop has cut short.
#[derive(Clone, Copy, Debug)]
pub(super) struct Short {
    tid: u32,
    call: u64,
    result: u64,
}

impl Short {
    /// Says so.
    pub(super) fn warn(self, pid: u32) {
        let Self { tid, call, result } = self;
        tracing::warn!(
            pid,
            tid,
            call,
            "a stop has cut a system call short: it returns {result}"
        );
    }
}

/// Whether a thread is blocked in a call that a stop would cut short (`proc_pid_syscall(5)`): a
/// better moment may come, with less to do.
pub(super) fn is_transferring(pid: u32, tid: u32) -> bool {
    let mut room = [0; 256];
    let path = format_args!("/proc/{pid}/task/{tid}/syscall");
    // Of one that runs it says so, without a number.
    let text: &[u8] = text::read(path, &mut room).unwrap_or_default();
    let mut words = text.split(|&byte| byte == b' ');
    let call = words.next().and_then(text::number).map(i64::from);
    let mut argument = |index| words.nth(index).and_then(text::hex).unwrap_or(0);
    let waits_for_all = |flags| flags & libc::MSG_WAITALL as u64 != 0;
    match call {
        Some(
            libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_pwritev2
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_sendfile
            | libc::SYS_recvmmsg
            | libc::SYS_getrandom,
        ) => true,
        Some(libc::SYS_recvfrom) => waits_for_all(argument(3)),
        Some(libc::SYS_recvmsg) => waits_for_all(argument(2)),
        _ => false,
    }
}

/// How the rest of a call is made.
struct Rest {
    /// The system call.
    call: i64,
    /// The code that makes it, and goes back to the program.
    slot: [u8; SLOT_BYTES],
    /// With which the thread enters it; the place is not set yet.
    registers: Registers,
}

/// How a stopped thread goes on with the call that its stop has interrupted. Allocates nothing.
pub(super) fn go_on(tracee: &Tracee, pid: u32, found: &Registers) -> GoingOn {
    // Numbers of calls, and the code, are those of 64-bit mode.
    if (found.orig_rax as i64) < 0 || found.cs == USER32_CS {
        return GoingOn::ByItself;
    }
    let tid = tracee.tid();
    let slot = slot_at(pid, found);
    let slot = slot.as_ref();
    if let Some(within) = slot.and_then(|slot| wait::go_on(tid, slot, found)) {
        return GoingOn::With(within);
    }
    if let Some(rest) = wait::rest(tid, found) {
        let entered = enter(tracee, pid, rest);
        return entered.map_or(GoingOn::ByItself, GoingOn::With);
    }
    // Only a call that has transferred something was cut short.
    if found.rax as i64 <= 0 || is_about_to_begin(pid, found) {
        return GoingOn::ByItself;
    }
    let number = found.rdi as i32;
    let descriptor = Descriptor { pid, tid, number };
    let within = slot.and_then(|slot| {
        plain::go_on(slot, found).or_else(|| parts::go_on(descriptor, slot, found))
    });
    if let Some(within) = within {
        return GoingOn::With(within);
    }
    let rest = plain::rest(descriptor, found).or_else(|| parts::rest(descriptor, found));
    let Some(rest) = rest else {
        return GoingOn::ByItself;
    };
    let short = Short {
        tid,
        call: found.orig_rax,
        result: found.rax,
    };
    enter(tracee, pid, rest).map_or(GoingOn::Short(short), GoingOn::With)
}

/// Whether a thread is about to make its call again after an earlier stop, and was stopped anew
/// before it left the kernel: that has put the number of the call in the place of a result, and has
/// gone back to the instruction (`arch_do_signal_or_restart` in `arch/x86/kernel/signal.c`).
fn is_about_to_begin(pid: u32, found: &Registers) -> bool {
    let mut code = [0; SYSCALL.len()];
    found.rax == found.orig_rax
        && remote_memory::read(pid, found.rip, &mut code) == Ok(code.len())
        && code == SYSCALL
}

/// The registers of a stopped thread as the program would have them: in the wait that it has begun,
/// if code of ours goes on with that.
pub(super) fn of_program(pid: u32, found: Registers) -> Registers {
    let within = slot_at(pid, &found).and_then(|slot| wait::of_program(&slot, &found));
    within.unwrap_or(found)
}

/// The slot that a stopped thread is in, if it is in any.
fn slot_at(pid: u32, found: &Registers) -> Option<[u8; SLOT_BYTES]> {
    let mut slot = [0; SLOT_BYTES];
    let start = found.rip.checked_sub(SYSCALL_BYTES)?;
    (remote_memory::read(pid, start, &mut slot) == Ok(SLOT_BYTES)).then_some(slot)
}

/// The registers with which the thread makes the rest of a call; `None` where there is no place for
/// the code.
fn enter(tracee: &Tracee, pid: u32, rest: Rest) -> Option<Registers> {
    let place = placed(tracee, pid, &rest)?;
    let mut registers = rest.registers;
    registers.rip = place + SYSCALL_BYTES;
    Some(registers)
}

/// Puts the code into padding, unless it is there already; says where.
fn placed(tracee: &Tracee, pid: u32, rest: &Rest) -> Option<u64> {
    if !filter::allow(tracee, pid, &[rest.call], false) {
        return None;
    }
    let (place, there) = code::find(pid, Some(&rest.slot), SPARE_SLOTS).ok()?;
    (there || code::write(tracee, place, &rest.slot).is_ok()).then_some(place)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ptrace;

    #[test]
    fn the_number_of_a_call_to_come_is_no_result() {
        let code = [SYSCALL, SYSCALL].concat();
        let mut registers = ptrace::no_registers();
        (registers.rax, registers.orig_rax) = (libc::SYS_write as u64, libc::SYS_write as u64);
        registers.rip = code.as_ptr() as u64;
        let pid = std::process::id();
        assert!(is_about_to_begin(pid, &registers));
        // After the instruction it is one.
        registers.rip += 1;
        assert!(!is_about_to_begin(pid, &registers));
        registers.rip -= 1;
        registers.rax += 1;
        assert!(!is_about_to_begin(pid, &registers));
    }
}
