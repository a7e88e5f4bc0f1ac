//! What the kernel writes to the program's memory for a system call. Pure, except that it reads the
//! program's lists of buffers and checks what a descriptor is.
//!
//! The processor logs none of these writes. A call that the table does not list may have written
//! anywhere, and so may a listed one with an unknown option. [`oracle`] compares the table with
//! what calls do.

pub(super) mod options;
#[cfg(test)]
mod oracle;

use super::lists::{MSGHDR_BYTES, Message, Vector};
use super::table;
use crate::sys::call::{Call, call};
use crate::sys::signal::NOT_STARTED;

/// An output of a call. Arguments count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Output {
    /// A fixed number of bytes at an argument.
    Bytes(usize, u64),
    /// The bytes at an argument; another argument is their number.
    Sized(usize, usize),
    /// The elements of a size at an argument; another argument is their number.
    Array(usize, usize, u64),
    /// A byte per page at an argument; another argument is the length of the pages in bytes.
    PerPage(usize, usize),
    /// Bits at an argument, in whole words; another argument is their number.
    Bits(usize, usize),
    /// The elements of a size at an argument: as many as the call returns, and no more than another
    /// argument.
    Filled(usize, usize, u64),
    /// The bytes at an argument; another argument points to a 32-bit word with their number, which
    /// is written, too.
    Counted(usize, usize),
    /// The buffers of a list; the arguments with the list and its length.
    Vector(usize, usize),
    /// The `struct msghdr` at an argument, and its buffers.
    Message(usize),
    /// The file of the first argument, which may be the memory of a process (`/proc/PID/mem`).
    ProcessFile {
        /// The argument with the offset in the file; without one, the file's position counts.
        offset: Option<usize>,
        /// Whether the second argument is a list of buffers, and the third its length.
        is_list: bool,
    },
}

/// What a call is about to write. This is looked up before the call, when lists of buffers are as
/// the kernel will read them.
#[derive(Debug)]
pub(crate) struct Expected {
    call: Call,
    /// `None` where the call is unknown.
    outputs: Option<&'static [Output]>,
    /// The buffers of lists, and of lengths in the program's memory, as they are before the call.
    listed: Vec<(u64, u64)>,
    /// The position of a file of `/proc` to which the call writes.
    position: Option<u64>,
}

impl Expected {
    /// Looks up a call.
    pub(crate) fn of(made: &Call) -> Self {
        let mut expected = Self {
            call: *made,
            outputs: table::row(made.number).outputs(&made.arguments),
            listed: Vec::new(),
            position: None,
        };
        let (argument, listed) = (|n: usize| made.arguments[n], &mut expected.listed);
        for output in expected.outputs.unwrap_or_default() {
            let mut each = |address, bytes| listed.push((address, bytes));
            match *output {
                Output::Vector(at, count) => vector(argument(at), argument(count), &mut each),
                Output::Message(at) => message(argument(at), &mut each),
                Output::Counted(at, length) => counted(argument(at), argument(length), &mut each),
                Output::ProcessFile { .. } if is_about_processes(argument(0)) => {
                    expected.position = Some(position_of(argument(0)).unwrap_or(0));
                }
                _ => {}
            }
        }
        expected
    }

    /// Yields what the call has written, as address and length. Returns false where that is not
    /// known. `takes` says whether all of a buffer can be written to, so that the kernel has not
    /// stopped in its middle.
    pub(crate) fn written(
        &self,
        result: i64,
        takes: impl Fn(u64, u64) -> bool,
        mut each: impl FnMut(u64, u64),
    ) -> bool {
        let Some(outputs) = self.outputs else {
            return false;
        };
        let argument = |n: usize| self.call.arguments[n];
        if !left_buffers_alone(result) {
            self.listed
                .iter()
                .for_each(|(address, bytes)| each(*address, *bytes));
        }
        for output in outputs {
            match *output {
                Output::Bytes(at, bytes) => each(argument(at), bytes),
                Output::Sized(at, bytes) => each(argument(at), argument(bytes)),
                Output::Array(at, count, bytes) => {
                    each(argument(at), argument(count).saturating_mul(bytes));
                }
                Output::PerPage(at, bytes) => each(argument(at), argument(bytes).div_ceil(4096)),
                Output::Bits(at, count) => each(
                    argument(at),
                    (argument(count) & 0xffff_ffff).div_ceil(64) * 8,
                ),
                Output::Filled(at, room, unit) => {
                    let room = argument(room).saturating_mul(unit);
                    each(
                        argument(at),
                        filled(argument(at), room, unit, result, &takes),
                    );
                }
                Output::Vector(..) | Output::Message(_) | Output::Counted(..)
                    if left_buffers_alone(result) => {}
                Output::Vector(at, count) => vector(argument(at), argument(count), &mut each),
                Output::Message(at) => message(argument(at), &mut each),
                Output::Counted(at, length) => counted(argument(at), argument(length), &mut each),
                Output::ProcessFile { offset, is_list } => {
                    let offset = offset.map(argument);
                    if !self.through_file(offset, is_list, result, &mut each) {
                        return false;
                    }
                }
            }
        }
        true
    }

    /// Yields what was written through a file of `/proc`: at the position before the call, and at
    /// the position now, since another thread may have written in between. Returns false where that
    /// is not known.
    fn through_file(
        &self,
        offset: Option<u64>,
        is_list: bool,
        result: i64,
        each: &mut impl FnMut(u64, u64),
    ) -> bool {
        /// The offset with which `pwritev2(2)` uses the file's position.
        const HERE: u64 = u64::MAX;
        let Some(before) = self.position.filter(|_| !left_buffers_alone(result)) else {
            return true;
        };
        // The whole length counts: fs/proc/base.c does not return what it has written when it comes
        // to a buffer that it cannot read.
        let [_, list, count, ..] = self.call.arguments;
        let wanted = match is_list {
            true => Vector {
                address: list,
                count,
            }
            .buffers()
            .fold(0, |sum: u64, (_, bytes)| sum.saturating_add(bytes)),
            false => count,
        };
        if let Some(offset) = offset.filter(|offset| *offset != HERE) {
            each(offset, wanted);
            return true;
        }
        each(before, wanted);
        let after = position_of(self.call.arguments[0]);
        after.into_iter().for_each(|after| {
            each(after.saturating_sub(wanted), wanted);
        });
        after.is_some()
    }
}

/// How many bytes of a buffer a call has filled.
fn filled(at: u64, room: u64, unit: u64, result: i64, takes: &impl Fn(u64, u64) -> bool) -> u64 {
    let Ok(returned) = u64::try_from(result) else {
        // The result does not count what was copied before the kernel came to an address that it
        // could not write to, nor what a disk transferred before it failed.
        return if left_buffers_alone(result) { 0 } else { room };
    };
    let returned = returned.saturating_mul(unit).min(room);
    // A piece that was copied in part is not counted, either.
    match returned < room && !takes(at, room) {
        true => room,
        false => returned,
    }
}

/// Whether a call has failed before it accessed its buffers.
fn left_buffers_alone(result: i64) -> bool {
    const EARLY: [i32; 5] = [
        libc::EAGAIN,
        libc::EINTR,
        libc::EBADF,
        libc::ENOSYS,
        libc::ENOENT,
    ];
    result == NOT_STARTED || EARLY.iter().any(|error| result == -i64::from(*error))
}

/// Whether a descriptor is of a file of `/proc`, wherever that is mounted.
fn is_about_processes(descriptor: u64) -> bool {
    const PROC: u64 = 0x9fa0;
    let mut status = [0u64; 15];
    call(libc::SYS_fstatfs, &[descriptor, status.as_mut_ptr() as u64]) == 0 && status[0] == PROC
}

/// The position of a file.
fn position_of(descriptor: u64) -> Option<u64> {
    let at = call(libc::SYS_lseek, &[descriptor, 0, libc::SEEK_CUR as u64]);
    // A position may be an address. Only the last 4,095 values are error numbers.
    (!(-4095..0).contains(&at)).then_some(at as u64)
}

/// Yields a buffer, and the word with its length.
fn counted(at: u64, length: u64, each: &mut impl FnMut(u64, u64)) {
    // After the call the word has the length that was written; where there was less room, it has
    // the length that would have been written.
    each(at, read_word_32(length));
    each(length, 4);
}

fn read_word_32(at: u64) -> u64 {
    let mut bytes = [0; 4];
    match crate::sys::program_memory::read(at, &mut bytes) {
        Ok(()) => u32::from_le_bytes(bytes).into(),
        Err(_) => 0,
    }
}

/// Yields the buffers of a list. Which of them the kernel filled does not matter much: it may write
/// to all of them.
fn vector(address: u64, count: u64, each: &mut impl FnMut(u64, u64)) {
    Vector { address, count }
        .buffers()
        .for_each(|(address, bytes)| each(address, bytes));
}

/// Yields a `struct msghdr`, and what it names.
fn message(at: u64, each: &mut impl FnMut(u64, u64)) {
    let message = Message::read(at);
    each(at, MSGHDR_BYTES);
    each(message.name.0, message.name.1);
    vector(message.vector.address, message.vector.count, each);
    each(message.control.0, message.control.1);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(
        number: i64,
        arguments: [u64; 6],
        result: i64,
        takes: bool,
    ) -> Option<Vec<(u64, u64)>> {
        let call = Call {
            number: number as u64,
            arguments,
        };
        let mut spans = Vec::new();
        let each = |address, bytes| spans.push((address, bytes));
        let is_known = Expected::of(&call).written(result, |_, _| takes, each);
        is_known.then(|| {
            spans.sort_unstable();
            spans.dedup();
            spans
        })
    }

    fn spans(number: i64, arguments: [u64; 6], result: i64) -> Option<Vec<(u64, u64)>> {
        written(number, arguments, result, true)
    }

    #[test]
    fn what_a_call_fills_is_named() {
        assert_eq!(
            spans(libc::SYS_read, [3, 0x1000, 4096, 0, 0, 0], 17),
            Some(vec![(0x1000, 17)])
        );
        assert_eq!(
            spans(libc::SYS_read, [3, 0x1000, 4096, 0, 0, 0], -11),
            Some(vec![(0x1000, 0)])
        );
        assert_eq!(
            spans(libc::SYS_fstat, [1, 0x2000, 0, 0, 0, 0], 0),
            Some(vec![(0x2000, 144)])
        );
        assert_eq!(
            spans(libc::SYS_write, [1, 0x1000, 5, 0, 0, 0], 5),
            Some(vec![])
        );
        assert_eq!(
            spans(libc::SYS_ioctl, [1, 0x5413, 0x3000, 0, 0, 0], 0),
            Some(vec![(0x3000, 8)])
        );
        let bits = spans(libc::SYS_select, [40001, 0x1000, 0, 0, 0, 0], 1);
        assert!(bits.is_some_and(|spans| spans.contains(&(0x1000, 5008))));
    }

    #[test]
    fn a_call_that_failed_in_its_middle_may_have_filled_all() {
        let read = [3, 0x1000, 9000, 0, 0, 0];
        let failed = -i64::from(libc::EFAULT);
        let all = Some(vec![(0x1000, 9000)]);
        assert_eq!(written(libc::SYS_read, read, failed, true), all);
        assert_eq!(written(libc::SYS_read, read, 4000, false), all);
        let part = Some(vec![(0x1000, 4000)]);
        assert_eq!(written(libc::SYS_read, read, 4000, true), part);
        assert_eq!(written(libc::SYS_read, read, 9000, false), all);
    }

    #[test]
    fn what_is_not_known_is_not_guessed() {
        assert_eq!(
            spans(libc::SYS_ioctl, [1, 0xc010_6401, 0x3000, 0, 0, 0], 0),
            None
        );
        assert_eq!(spans(libc::SYS_fcntl, [1, 999, 0x3000, 0, 0, 0], 0), None);
        assert_eq!(spans(libc::SYS_prctl, [999, 0x3000, 0, 0, 0, 0], 0), None);
        assert_eq!(spans(9999, [0; 6], 0), None);
    }

    #[test]
    fn buffers_are_read_from_the_programs_lists() {
        let list: [u64; 4] = [0x1000, 10, 0x5000, 20];
        let at = list.as_ptr() as u64;
        let expected = vec![(0x1000, 10), (0x5000, 20)];
        assert_eq!(
            spans(libc::SYS_readv, [0, at, 2, 0, 0, 0], 30),
            Some(expected)
        );
        let message: [u64; 7] = [0x9000, 16, at, 2, 0x7000, 24, 0];
        let header = message.as_ptr() as u64;
        let mut expected = vec![
            (header, 56),
            (0x9000, 16),
            (0x1000, 10),
            (0x5000, 20),
            (0x7000, 24),
        ];
        expected.sort_unstable();
        assert_eq!(
            spans(libc::SYS_recvmsg, [0, header, 0, 0, 0, 0], 30),
            Some(expected)
        );
    }
}
