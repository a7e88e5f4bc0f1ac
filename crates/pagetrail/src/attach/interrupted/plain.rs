//! Finishing a transfer of one piece of memory: all state is in the registers, so one slot serves
//! all threads that come back to the same place.

use super::descriptor::Descriptor;
use super::{Rest, TRANSFER_MAX};
use crate::attach::code::{Assembler, SLOT_BYTES};
use crate::attach::restart;
use crate::sys::ptrace::Registers;

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

/// The registers of a thread that was stopped within the call of a slot; `None` where it is in
/// none.
pub(super) fn go_on(slot: &[u8; SLOT_BYTES], found: &Registers) -> Option<Registers> {
    let shape = Shape::of(found.orig_rax as i64)?;
    let inside = slot == &code(shape, place_in(shape, slot));
    if !inside || found.rax >= shape.length(found) {
        return None;
    }
    let mut registers = *found;
    shape.advance(&mut registers, found.rax);
    Some(registers)
}

/// How a transfer is finished; `None` where the call would have returned as well without a stop.
pub(super) fn rest(descriptor: Descriptor, found: &Registers) -> Option<Rest> {
    let call = found.orig_rax as i64;
    let shape = Shape::of(call)?;
    if found.rax >= shape.length(found)
        || shape.before(found) != 0
        || shape.length(found) > TRANSFER_MAX
        || !would_be_whole(call, descriptor, found.r10)
    {
        return None;
    }
    let mut registers = *found;
    shape.advance(&mut registers, found.rax);
    Some(Rest {
        call,
        slot: code(shape, found.rip),
        registers,
    })
}

/// Whether a call would not have returned before all is transferred, unless by an error, the end of
/// a stream or a signal. `flags`: of a call on a socket.
fn would_be_whole(call: i64, descriptor: Descriptor, flags: u64) -> bool {
    const NEVER: u64 = (libc::MSG_DONTWAIT | libc::MSG_OOB | libc::MSG_PEEK) as u64;
    match call {
        libc::SYS_getrandom => true,
        libc::SYS_read => descriptor.yields_without_end(),
        libc::SYS_write => descriptor.writers_wait() || descriptor.is_waiting_stream(),
        libc::SYS_sendto => flags & NEVER == 0 && descriptor.is_waiting_stream(),
        libc::SYS_recvfrom => {
            let for_all = flags & NEVER == 0 && flags & libc::MSG_WAITALL as u64 != 0;
            for_all && descriptor.is_waiting_stream()
        }
        _ => false,
    }
}

/// Where the code of a slot has the place to which it goes back.
const PLACE_FROM_END: usize = 10;

fn place_in(shape: Shape, slot: &[u8]) -> u64 {
    let end = instructions(shape, 0).offset() as usize;
    let mut place = [0; 8];
    place.copy_from_slice(&slot[end - PLACE_FROM_END..end - PLACE_FROM_END + 8]);
    u64::from_le_bytes(place)
}

/// The code that makes a call, and afterwards leaves the registers as one call would have that
/// transferred everything.
fn code(shape: Shape, place: u64) -> [u8; SLOT_BYTES] {
    instructions(shape, place).slot()
}

/// Instructions without the padding of a slot; none changes the flags.
fn instructions(shape: Shape, place: u64) -> Assembler {
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
    code
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
