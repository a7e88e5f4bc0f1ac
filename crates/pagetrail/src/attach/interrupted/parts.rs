//! Finishing a transfer that has several parts, or whose call cannot be repeated as it is:
//! pieces of memory (`writev(2)`, `sendmsg(2)`, `recvmsg(2)`), messages (`sendmmsg(2)`,
//! `recvmmsg(2)`), a file (`sendfile(2)`), a terminal's least number of bytes.
//!
//! The pieces are transferred by one simple call after the other. How much was transferred is in
//! the upper half of `rdi`, as for a plain transfer; the piece under way is in `r9`, which none of
//! the calls looks at. What the registers have to be at the end is in the slot, so a slot serves
//! only calls with these arguments from this place.

use super::descriptor::Descriptor;
use super::{Rest, TRANSFER_MAX};
use crate::attach::code::{Assembler, SLOT_BYTES};
use crate::attach::restart;
use crate::sys::ptrace::Registers;
use crate::sys::remote_memory;

/// The most pieces or messages of one call (`UIO_MAXIOV` in `include/uapi/linux/uio.h`).
const PIECES_MAX: u64 = 1024;
/// `sizeof(struct iovec)`.
const PIECE_BYTES: u64 = 16;
/// `sizeof(struct mmsghdr)`.
const MESSAGE_BYTES: u64 = 64;
/// Flags of `sendmsg(2)` that mean the same for each piece.
const SEND_FLAGS: u64 =
    (libc::MSG_NOSIGNAL | libc::MSG_MORE | libc::MSG_DONTROUTE | libc::MSG_CONFIRM) as u64;
/// Flags of `recvmsg(2)` under which the rest may be received piece by piece.
const RECEIVE_FLAGS: u64 = (libc::MSG_WAITALL | libc::MSG_NOSIGNAL | libc::MSG_CMSG_CLOEXEC) as u64;

/// What a slot was made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Constants {
    /// Where the program goes on.
    place: u64,
    /// Where the list of pieces ends.
    end: u64,
    /// What these registers have to be then.
    rsi: u64,
    rdx: u64,
    r10: u64,
    r8: u64,
    r9: u64,
}

impl Constants {
    fn words(self) -> [u64; 7] {
        let Self {
            place,
            end,
            rsi,
            rdx,
            r10,
            r8,
            r9,
        } = self;
        [place, end, rsi, rdx, r10, r8, r9]
    }
}

/// What a call transfers in units, by its arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unit {
    /// Bytes of the piece of `rdx` bytes at `rsi`.
    Byte,
    /// Messages of the `rdx` that are described at `rsi`.
    Message,
    /// Bytes of a file, `r10` in all.
    FileByte,
}

impl Unit {
    fn of(call: i64) -> Self {
        match call {
            libc::SYS_sendmmsg | libc::SYS_recvmmsg => Self::Message,
            libc::SYS_sendfile => Self::FileByte,
            _ => Self::Byte,
        }
    }

    fn asked(self, registers: &Registers) -> u64 {
        match self {
            Self::Byte | Self::Message => registers.rdx,
            Self::FileByte => registers.r10,
        }
    }

    /// The arguments of the call that transfers the rest.
    fn advance(self, registers: &mut Registers, done: u64) {
        registers.rdi += done << 32;
        match self {
            Self::Byte => {
                registers.rsi += done;
                registers.rdx -= done;
            }
            Self::Message => {
                registers.rsi += done * MESSAGE_BYTES;
                registers.rdx -= done;
            }
            Self::FileByte => registers.r10 -= done,
        }
        // As for a plain transfer: the kernel decides when the thread goes on.
        registers.rax = restart::ERESTARTNOHAND as u64;
    }
}

/// The registers of a thread that was stopped within the call of a slot, of which `done` units were
/// transferred; `None` where it is in none.
pub(super) fn go_on(
    thread: Descriptor,
    slot: &[u8; SLOT_BYTES],
    found: &Registers,
) -> Option<Registers> {
    let call = found.orig_rax as i64;
    let is_slot = slot == &code(call, constants_in(slot));
    let unit = Unit::of(call);
    if !is_slot || found.rax >= unit.asked(found) {
        return None;
    }
    forget_interruption(call, thread);
    let mut registers = *found;
    unit.advance(&mut registers, found.rax);
    Some(registers)
}

/// `recvmmsg(2)` leaves what interrupted it as an error of the socket, which the next call reports.
fn forget_interruption(call: i64, thread: Descriptor) {
    if call == libc::SYS_recvmmsg {
        thread.take_error();
    }
}

/// How a transfer is finished of which `found.rax` units were made; `None` where the call would
/// have returned as well without a stop, or where nothing can be done about it.
pub(super) fn rest(descriptor: Descriptor, found: &Registers) -> Option<Rest> {
    if found.rdi >> 32 != 0 {
        return None;
    }
    let waiting_stream = || descriptor.is_waiting_stream();
    match found.orig_rax as i64 {
        libc::SYS_writev => written_pieces(descriptor, found),
        // At the current position and without flags it is the same call.
        libc::SYS_pwritev2 if found.r10 == u64::MAX && found.r9 == 0 => {
            written_pieces(descriptor, found)
        }
        libc::SYS_readv if descriptor.yields_without_end() => {
            let list = List::new(found.rsi, found.rdx)?;
            pieces(descriptor.pid, found, list, libc::SYS_read, found.r10)
        }
        libc::SYS_sendmsg if found.rdx & !SEND_FLAGS == 0 && waiting_stream() => {
            let message = Message::read(descriptor.pid, found.rsi)?;
            // What comes along is sent once, with the first bytes; of other families than these it
            // could say how to send the rest.
            if message.control_bytes != 0 && !descriptor.is_unix() {
                return None;
            }
            let flags = found.rdx | libc::MSG_NOSIGNAL as u64;
            pieces(descriptor.pid, found, message.list, libc::SYS_sendto, flags)
        }
        libc::SYS_recvmsg
            if found.rdx & libc::MSG_WAITALL as u64 != 0
                && found.rdx & !RECEIVE_FLAGS == 0
                && waiting_stream() =>
        {
            let message = Message::read(descriptor.pid, found.rsi)?;
            // What came along ends a transfer.
            if message.control_bytes != 0 {
                return None;
            }
            pieces(
                descriptor.pid,
                found,
                message.list,
                libc::SYS_recvfrom,
                found.rdx,
            )
        }
        call @ (libc::SYS_sendmmsg | libc::SYS_recvmmsg) => {
            const NEVER: u64 =
                (libc::MSG_DONTWAIT | libc::MSG_WAITFORONE | libc::MSG_PEEK | libc::MSG_ERRQUEUE)
                    as u64;
            let whole = found.r10 & NEVER == 0
                && found.rdx <= PIECES_MAX
                && descriptor.has_waiting_messages()
                && (call == libc::SYS_sendmmsg || has_time(descriptor.pid, found.r8));
            let rest = whole.then(|| single(found, found.rdx)).flatten();
            if rest.is_some() {
                forget_interruption(call, descriptor);
            }
            rest
        }
        libc::SYS_sendfile if found.r10 <= TRANSFER_MAX && waiting_stream() => {
            single(found, found.r10)
        }
        libc::SYS_read => {
            let wanted = descriptor.terminal_minimum()?.min(found.rdx);
            let mut asked = *found;
            asked.rdx = wanted;
            let mut rest = single(&asked, wanted)?;
            rest.slot = code(libc::SYS_read, constants(found, PIECE_BYTES));
            Some(rest)
        }
        _ => None,
    }
}

/// Whether the remaining time of a `recvmmsg(2)`, which the kernel has written back, is not over.
fn has_time(pid: u32, timeout: u64) -> bool {
    let mut time = [0; 16];
    timeout == 0
        || (remote_memory::read(pid, timeout, &mut time) == Ok(time.len()) && time != [0; 16])
}

fn written_pieces(descriptor: Descriptor, found: &Registers) -> Option<Rest> {
    let list = List::new(found.rsi, found.rdx)?;
    let (call, flags) = match descriptor.writers_wait() {
        true => (libc::SYS_write, found.r10),
        false if descriptor.is_waiting_stream() => (libc::SYS_sendto, libc::MSG_NOSIGNAL as u64),
        false => return None,
    };
    pieces(descriptor.pid, found, list, call, flags)
}

/// A list of pieces in the memory of the target.
#[derive(Clone, Copy, Debug)]
struct List {
    at: u64,
    count: u64,
}

impl List {
    fn new(at: u64, count: u64) -> Option<Self> {
        (count <= PIECES_MAX).then_some(Self { at, count })
    }

    fn end(self) -> u64 {
        self.at + self.count * PIECE_BYTES
    }

    /// Where the piece is described that `done` bytes of all lead into, its address, and how many
    /// bytes of it are left.
    fn after(self, pid: u32, done: u64) -> Option<(u64, u64, u64)> {
        let mut room = [0; (PIECES_MAX * PIECE_BYTES) as usize];
        let bytes = &mut room[..(self.count * PIECE_BYTES) as usize];
        if remote_memory::read(pid, self.at, bytes) != Ok(bytes.len()) {
            return None;
        }
        let (mut before, mut found) = (0u64, None);
        for (at, piece) in (self.at..)
            .step_by(PIECE_BYTES as usize)
            .zip(bytes.chunks_exact(16))
        {
            let (address, length) = (word(&piece[..8]), word(&piece[8..]));
            let after = before
                .checked_add(length)
                .filter(|&sum| sum <= TRANSFER_MAX)?;
            if found.is_none() && done < after {
                found = Some((at, address + (done - before), after - done));
            }
            before = after;
        }
        found
    }
}

/// What matters here of a `struct msghdr`.
struct Message {
    list: List,
    control_bytes: u64,
}

impl Message {
    fn read(pid: u32, at: u64) -> Option<Self> {
        let mut bytes = [0; 48];
        if remote_memory::read(pid, at, &mut bytes) != Ok(bytes.len()) {
            return None;
        }
        Some(Self {
            list: List::new(word(&bytes[16..24]), word(&bytes[24..32]))?,
            control_bytes: word(&bytes[40..48]),
        })
    }
}

fn word(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .rev()
        .fold(0, |value, &byte| value << 8 | u64::from(byte))
}

/// The rest of a transfer of pieces, by one `call` with these `flags` each.
fn pieces(pid: u32, found: &Registers, list: List, call: i64, flags: u64) -> Option<Rest> {
    let (piece, address, length) = list.after(pid, found.rax)?;
    let mut registers = *found;
    (registers.rsi, registers.rdx) = (address, length);
    (registers.r10, registers.r8, registers.r9) = (flags, 0, piece);
    registers.rdi += found.rax << 32;
    registers.rax = restart::ERESTARTNOHAND as u64;
    registers.orig_rax = call as u64;
    Some(Rest {
        call,
        slot: code(call, constants(found, list.end())),
        registers,
    })
}

/// The rest of a transfer that one more call of the same kind makes.
fn single(found: &Registers, asked: u64) -> Option<Rest> {
    let call = found.orig_rax as i64;
    let mut registers = *found;
    if found.rax >= asked {
        return None;
    }
    Unit::of(call).advance(&mut registers, found.rax);
    // The only piece is the last.
    registers.r9 = 0;
    Some(Rest {
        call,
        slot: code(call, constants(found, PIECE_BYTES)),
        registers,
    })
}

fn constants(found: &Registers, end: u64) -> Constants {
    Constants {
        place: found.rip,
        end,
        rsi: found.rsi,
        rdx: found.rdx,
        r10: found.r10,
        r8: found.r8,
        r9: found.r9,
    }
}

/// Where [`code`] has its constants.
const CONSTANTS_AT: usize = 0x81;

fn constants_in(slot: &[u8; SLOT_BYTES]) -> Constants {
    let at = |index: usize| word(&slot[CONSTANTS_AT + 8 * index..][..8]);
    Constants {
        place: at(0),
        end: at(1),
        rsi: at(2),
        rdx: at(3),
        r10: at(4),
        r8: at(5),
        r9: at(6),
    }
}

/// The code that makes a `call` for each piece that is left, and afterwards leaves the registers as
/// the program's own call would have; the flags stay as well.
fn code(call: i64, constants: Constants) -> [u8; SLOT_BYTES] {
    let mut code = Assembler::default();
    let again = code.here();
    code.syscall();
    code.put(&[0x48, 0x89, 0xc1]); // mov rcx, rax
    code.put(&[0x9f]); // lahf
    code.put(&[0x0f, 0x90, 0xc0]); // seto al
    code.put(&[0x49, 0x89, 0xc3]); // mov r11, rax
    code.put(&[0x48, 0x85, 0xc9]); // test rcx, rcx
    let failed = code.jump_if(0x78); // js
    code.put(&[0x48, 0x89, 0xc8]); // mov rax, rcx
    code.put(&[0x48, 0xc1, 0xe0, 0x20]); // shl rax, 32
    code.put(&[0x48, 0x01, 0xc7]); // add rdi, rax
    code.put(&[0x48, 0x39, 0xd1]); // cmp rcx, rdx
    let short = code.jump_if(0x75); // jne
    let next = code.here();
    code.put(&[0x49, 0x83, 0xc1, PIECE_BYTES as u8]); // add r9, 16
    load(&mut code, [0x48, 0x8b, 0x05], 1); // mov rax, [the end]
    code.put(&[0x49, 0x39, 0xc1]); // cmp r9, rax
    let over = code.jump_if(0x74); // je
    code.put(&[0x49, 0x8b, 0x31]); // mov rsi, [r9]
    code.put(&[0x49, 0x8b, 0x51, 0x08]); // mov rdx, [r9 + 8]
    code.put(&[0x48, 0x85, 0xd2]); // test rdx, rdx
    code.jump_back(0x74, next); // je: an empty piece
    code.eax(call);
    code.jump_back(0xeb, again);
    for end in [failed, short, over] {
        code.lands(end);
    }
    code.put(&[0x48, 0x89, 0xf9]); // mov rcx, rdi
    code.put(&[0x48, 0xc1, 0xe9, 0x20]); // shr rcx, 32: all that was transferred
    code.put(&[0x89, 0xff]); // mov edi, edi
    load(&mut code, [0x48, 0x8b, 0x35], 2); // mov rsi, [..]
    load(&mut code, [0x48, 0x8b, 0x15], 3); // mov rdx, [..]
    load(&mut code, [0x4c, 0x8b, 0x15], 4); // mov r10, [..]
    load(&mut code, [0x4c, 0x8b, 0x05], 5); // mov r8, [..]
    load(&mut code, [0x4c, 0x8b, 0x0d], 6); // mov r9, [..]
    code.put(&[0x4c, 0x89, 0xd8]); // mov rax, r11
    code.put(&[0x04, 0x7f]); // add al, 127: overflows if al is 1
    code.put(&[0x9e]); // sahf
    code.put(&[0x48, 0x89, 0xc8]); // mov rax, rcx
    load(&mut code, [0x48, 0x8b, 0x0d], 0); // mov rcx, [the place], as after the call itself
    code.put(&[0xff, 0xe1]); // jmp rcx
    debug_assert_eq!(code.offset() as usize, CONSTANTS_AT);
    for word in constants.words() {
        code.put(&word.to_le_bytes());
    }
    code.slot()
}

/// An instruction that loads a constant by its distance.
fn load(code: &mut Assembler, opcode: [u8; 3], index: usize) {
    code.put(&opcode);
    let distance = CONSTANTS_AT + 8 * index - (code.offset() as usize + 4);
    code.put(&(distance as u32).to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::ptrace;

    #[test]
    fn a_slot_says_what_it_was_made_for() {
        let constants = Constants {
            place: 1 << 40,
            end: 2,
            rsi: 3,
            rdx: 4,
            r10: 5,
            r8: 6,
            r9: u64::MAX,
        };
        let slot: [u8; SLOT_BYTES] = code(libc::SYS_write, constants);
        assert_eq!(constants_in(&slot), constants);
    }

    #[test]
    fn the_rest_of_pieces_begins_within_one() {
        let (first, second) = ([1u8; 10], [2u8; 20]);
        let list: Vec<u64> = vec![
            first.as_ptr() as u64,
            10,
            7, // An empty piece may lie anywhere.
            0,
            second.as_ptr() as u64,
            20,
        ];
        let pieces = List::new(list.as_ptr() as u64, 3).unwrap();
        let at = |done| pieces.after(std::process::id(), done);
        assert_eq!(at(4), Some((pieces.at, list[0] + 4, 6)));
        assert_eq!(at(10), Some((pieces.at + 32, list[4], 20)));
        assert_eq!(at(29), Some((pieces.at + 32, list[4] + 19, 1)));
        assert_eq!(at(30), None);
    }

    #[test]
    fn messages_and_files_are_counted_in_their_units() {
        let mut registers = ptrace::no_registers();
        (registers.rdi, registers.rsi, registers.rdx, registers.r10) = (3, 1000, 9, 100);
        let mut messages = registers;
        Unit::Message.advance(&mut messages, 2);
        assert_eq!((messages.rsi, messages.rdx), (1000 + 128, 7));
        Unit::FileByte.advance(&mut registers, 30);
        assert_eq!(
            (registers.rsi, registers.r10, registers.rdi >> 32),
            (1000, 70, 30)
        );
    }
}
