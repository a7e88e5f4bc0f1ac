//! Finishing transfers that a stop has cut short.
//!
//! A blocking `write(2)` to a pipe, a `send(2)` on a stream, a `recv(2)` with `MSG_WAITALL` is
//! whole unless a signal interrupts it. A stop does so as well, and the kernel has no code for it:
//! what was transferred so far is the result (`pipe_write` in `fs/pipe.c`, `tcp_sendmsg_locked`). A
//! thread that is found with such a result makes the rest of the transfer by code of ours in
//! padding ([`code`]), which adds up what was transferred and goes on where the call would have
//! returned. All state of it is in the thread's registers, so nothing is needed from the tracker
//! once it has set them, one slot serves all threads that come back to the same place, and a stop
//! that cuts the rest short as well is mended in the same way. If a handler runs meanwhile, or is
//! to run when the thread goes on, the call returns what there is, as it would have.
//!
//! The slot stays: nobody can tell when the last thread has left it. A call that returns because of
//! an error that comes up between the two parts returns what was transferred before, as it should,
//! but the error is not reported again by the next call.

use super::code::{self, Assembler, SLOT_BYTES};
use super::{filter, restart};
use crate::sys::ptrace::{Registers, Tracee};
use crate::sys::remote_memory;
use rustix::fs::{AtFlags, CWD, FileType, StatxFlags};
use rustix::net::{SocketType, sockopt};
use rustix::process::{Pid, PidfdFlags, PidfdGetfdFlags, pidfd_getfd, pidfd_open};

/// Length of the `syscall` instruction, in bytes.
const SYSCALL_BYTES: u64 = 2;
/// The most that one call transfers (`MAX_RW_COUNT` in `include/linux/fs.h`).
const TRANSFER_MAX: u64 = 0x7fff_f000;

/// Whether a thread is blocked in a call that a stop would cut short (`proc_pid_syscall(5)`): a
/// better moment may come. If the tracker is killed between the stop and what [`finish`] does about
/// it, the call stays short.
pub(super) fn is_under_way(pid: u32, tid: u32) -> bool {
    let path = format!("/proc/{pid}/task/{tid}/syscall");
    // Of one that runs it says so, without a number.
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let call = text.split(' ').next().and_then(|call| call.parse().ok());
    let argument = |index: usize| {
        let word = text.split(' ').nth(1 + index).unwrap_or_default();
        u64::from_str_radix(word.trim_start_matches("0x"), 16).unwrap_or(0)
    };
    let waits_for_all = |flags| flags & libc::MSG_WAITALL as u64 != 0;
    match call {
        Some(
            libc::SYS_write
            | libc::SYS_writev
            | libc::SYS_sendto
            | libc::SYS_sendmsg
            | libc::SYS_sendmmsg
            | libc::SYS_sendfile
            | libc::SYS_getrandom,
        ) => true,
        Some(libc::SYS_recvfrom) => waits_for_all(argument(3)),
        Some(libc::SYS_recvmsg) => waits_for_all(argument(2)),
        _ => false,
    }
}

/// Where a call has its arguments. The argument of 32 bits leaves room in its register for how much
/// was transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    /// Descriptor, address, length: `rdi`, `rsi`, `rdx`.
    Stream,
    /// Address, length, flags: `rdi`, `rsi`, `rdx`.
    Random,
}

impl Shape {
    fn of(call: i64) -> Option<Self> {
        match call {
            libc::SYS_write | libc::SYS_read | libc::SYS_sendto | libc::SYS_recvfrom => {
                Some(Self::Stream)
            }
            libc::SYS_getrandom => Some(Self::Random),
            _ => None,
        }
    }

    /// How much the call is still to transfer.
    fn length(self, registers: &Registers) -> u64 {
        match self {
            Self::Stream => registers.rdx,
            Self::Random => registers.rsi,
        }
    }

    /// How much was transferred before this call.
    fn before(self, registers: &Registers) -> u64 {
        match self {
            Self::Stream => registers.rdi >> 32,
            Self::Random => registers.rdx >> 32,
        }
    }

    /// Registers with which the rest is transferred.
    fn advance(self, registers: &mut Registers, done: u64) {
        match self {
            Self::Stream => {
                registers.rdi += done << 32;
                registers.rsi += done;
                registers.rdx -= done;
            }
            Self::Random => {
                registers.rdx += done << 32;
                registers.rdi += done;
                registers.rsi -= done;
            }
        }
        // The kernel decides when the thread goes on, as for any call that was interrupted: it
        // makes the call before this place if no handler is to run; else the handler returns to
        // code that finds `EINTR` here.
        registers.rax = restart::ERESTARTNOHAND as u64;
    }
}

/// The registers with which a stopped thread finishes the transfer that its stop has cut short;
/// `None` where there is none, or where nothing can be done about it.
pub(super) fn finish(tracee: &Tracee, pid: u32, found: &Registers) -> Option<Registers> {
    let call = found.orig_rax as i64;
    let shape = Shape::of(call).filter(|_| call >= 0)?;
    let done = found.rax;
    // A negative result is larger than any length.
    if done == 0 || done >= shape.length(found) {
        return None;
    }
    let mut registers = *found;
    let at = found.rip - SYSCALL_BYTES;
    let mut slot = [0; SLOT_BYTES];
    let inside = remote_memory::read(pid, at, &mut slot) == Ok(SLOT_BYTES)
        && slot == code(shape, place_in(shape, &slot)).as_slice();
    if inside {
        shape.advance(&mut registers, done);
        return Some(registers);
    }
    if shape.before(found) != 0
        || shape.length(found) > TRANSFER_MAX
        || !would_be_whole(tracee.tid(), pid, call, found)
    {
        return None;
    }
    let slot = code(shape, found.rip);
    let place = filter::allow(tracee, pid, &[call], false)
        .then(|| code::find(pid, Some(&slot)).ok())
        .flatten()
        .and_then(|(place, there)| {
            let written = there || code::write(tracee, place, &slot).is_ok();
            written.then_some(place)
        });
    let Some(place) = place else {
        tracing::warn!(
            pid,
            tid = tracee.tid(),
            "a stop has cut a system call short: it returns {done} bytes of {}",
            shape.length(found)
        );
        return None;
    };
    shape.advance(&mut registers, done);
    registers.rip = place + SYSCALL_BYTES;
    Some(registers)
}

/// Whether a call would not have returned before all is transferred, unless by an error, the end of
/// a stream or a signal.
fn would_be_whole(tid: u32, pid: u32, call: i64, registers: &Registers) -> bool {
    const NEVER: u64 = (libc::MSG_DONTWAIT | libc::MSG_OOB | libc::MSG_PEEK) as u64;
    let number = registers.rdi as i32;
    let flags = registers.r10;
    match call {
        libc::SYS_getrandom => return true,
        libc::SYS_sendto if flags & NEVER != 0 => return false,
        libc::SYS_recvfrom if flags & NEVER != 0 || flags & libc::MSG_WAITALL as u64 == 0 => {
            return false;
        }
        _ => {}
    }
    let Some((kind, major, minor)) = kind(pid, tid, number) else {
        return false;
    };
    // Memory devices (`drivers/char/mem.c`): zero, full, random, urandom.
    if call == libc::SYS_read {
        return kind == FileType::CharacterDevice && major == 1 && matches!(minor, 5 | 7 | 8 | 9);
    }
    let waits = || !is_non_blocking(pid, tid, number);
    match kind {
        FileType::Fifo | FileType::CharacterDevice => call == libc::SYS_write && waits(),
        FileType::Socket => is_stream(pid, number) && waits(),
        // Nothing but a fatal signal interrupts writing to a file.
        _ => false,
    }
}

/// What a descriptor of a thread is, with its device number, without asking a network.
fn kind(pid: u32, tid: u32, number: i32) -> Option<(FileType, u32, u32)> {
    let path = format!("/proc/{pid}/task/{tid}/fd/{number}");
    let found = rustix::fs::statx(CWD, path, AtFlags::STATX_DONT_SYNC, StatxFlags::TYPE).ok()?;
    let kind = FileType::from_raw_mode(found.stx_mode.into());
    Some((kind, found.stx_rdev_major, found.stx_rdev_minor))
}

/// Whether a descriptor is not to be waited for; true where that cannot be found out.
fn is_non_blocking(pid: u32, tid: u32, number: i32) -> bool {
    let path = format!("/proc/{pid}/task/{tid}/fdinfo/{number}");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let flags = text.lines().find_map(|line| line.strip_prefix("flags:"));
    flags
        .and_then(|flags| i32::from_str_radix(flags.trim(), 8).ok())
        .is_none_or(|flags| flags & libc::O_NONBLOCK != 0)
}

fn is_stream(pid: u32, number: i32) -> bool {
    let copy = Pid::from_raw(pid as i32)
        .and_then(|process| pidfd_open(process, PidfdFlags::empty()).ok())
        .and_then(|process| pidfd_getfd(process, number, PidfdGetfdFlags::empty()).ok());
    copy.is_some_and(|socket| sockopt::socket_type(socket) == Ok(SocketType::STREAM))
}

/// Where the code of a slot has the place to which it goes back.
const PLACE_FROM_END: usize = 10;

fn place_in(shape: Shape, slot: &[u8]) -> u64 {
    let end = bytes(shape, 0).len();
    let mut place = [0; 8];
    place.copy_from_slice(&slot[end - PLACE_FROM_END..end - PLACE_FROM_END + 8]);
    u64::from_le_bytes(place)
}

/// The code that makes a call, and afterwards leaves the registers as one call would have that
/// transferred everything.
fn code(shape: Shape, place: u64) -> Vec<u8> {
    let mut code = Assembler::default();
    code.put(&bytes(shape, place));
    code.slot()
}

/// Instructions without the padding of a slot; none changes the flags.
fn bytes(shape: Shape, place: u64) -> Vec<u8> {
    let mut code = Assembler::default();
    code.syscall();
    code.put(&[0x49, 0x89, 0xd3]); // mov r11, rdx
    code.put(&[0x48, 0x99]); // cqo: rdx = -1 if the result is an error, else 0
    code.put(&[0x48, 0x89, 0xd1]); // mov rcx, rdx
    code.put(&[0x4c, 0x89, 0xda]); // mov rdx, r11
    // How much was transferred before, in r11, and the argument as it was.
    match shape {
        Shape::Stream => {
            code.put(&[0x48, 0x0f, 0xcf]); // bswap rdi
            code.put(&[0x41, 0x89, 0xfb]); // mov r11d, edi
            code.put(&[0x41, 0x0f, 0xcb]); // bswap r11d
            code.put(&[0x48, 0x0f, 0xcf]); // bswap rdi
            code.put(&[0x89, 0xff]); // mov edi, edi
        }
        Shape::Random => {
            code.put(&[0x49, 0x0f, 0xcb]); // bswap r11
            code.put(&[0x45, 0x89, 0xdb]); // mov r11d, r11d
            code.put(&[0x41, 0x0f, 0xcb]); // bswap r11d
            code.put(&[0x89, 0xd2]); // mov edx, edx
        }
    }
    let no_error = code.jump_if_rcx_zero();
    code.put(&[0xb8, 0, 0, 0, 0]); // mov eax, 0
    code.lands(no_error);
    code.put(&[0x4a, 0x8d, 0x04, 0x18]); // lea rax, [rax + r11]
    match shape {
        Shape::Stream => {
            code.put(&[0x4a, 0x8d, 0x14, 0x1a]); // lea rdx, [rdx + r11]
            code.put(&[0x49, 0xf7, 0xd3]); // not r11
            code.put(&[0x4a, 0x8d, 0x74, 0x1e, 0x01]); // lea rsi, [rsi + r11 + 1]
        }
        Shape::Random => {
            code.put(&[0x4a, 0x8d, 0x34, 0x1e]); // lea rsi, [rsi + r11]
            code.put(&[0x49, 0xf7, 0xd3]); // not r11
            code.put(&[0x4a, 0x8d, 0x7c, 0x1f, 0x01]); // lea rdi, [rdi + r11 + 1]
        }
    }
    // As after the call itself: the kernel leaves the place there.
    code.put(&[0x48, 0xb9]); // movabs rcx, imm64
    code.put(&place.to_le_bytes());
    code.put(&[0xff, 0xe1]); // jmp rcx
    code.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ptrace;

    #[test]
    fn the_rest_of_a_transfer_is_what_is_left() {
        let mut registers = ptrace::no_registers();
        registers.orig_rax = libc::SYS_write as u64;
        (registers.rdi, registers.rsi, registers.rdx) = (7, 0x1000, 100);
        Shape::Stream.advance(&mut registers, 40);
        assert_eq!((registers.rsi, registers.rdx), (0x1028, 60));
        // A handler that is to run ends the call: the kernel must see which one it was.
        assert_eq!(registers.rax as i64, restart::ERESTARTNOHAND);
        assert_eq!(registers.orig_rax as i64, libc::SYS_write);
        assert_eq!(registers.rdi as u32, 7);
        Shape::Stream.advance(&mut registers, 10);
        assert_eq!(Shape::Stream.before(&registers), 50);
        assert_eq!(registers.rdx, 50);
    }

    #[test]
    fn code_says_where_it_goes_back() {
        for shape in [Shape::Stream, Shape::Random] {
            let code = code(shape, 0x1234_5678_9abc);
            assert_eq!(code.len(), SLOT_BYTES);
            assert_eq!(place_in(shape, &code), 0x1234_5678_9abc);
        }
    }
}
