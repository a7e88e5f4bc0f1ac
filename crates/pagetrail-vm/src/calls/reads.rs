//! What the kernel reads of the program's memory for a system call. Pure, except that it reads the
//! program's lists and texts.
//!
//! The kernel's reads set no accessed bit in the program's page tables. What the kernel writes
//! counts as accessed, too, and is only in [`super::written`]; so is an unknown call, which may
//! have written anywhere.

use super::lists::{MSGHDR_BYTES, Message, Vector};
use super::table;
use crate::sys::call::Call;
use crate::sys::program_memory::read_text;

/// An input of a call. Arguments count from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Input {
    /// A fixed number of bytes at an argument.
    Bytes(usize, u64),
    /// The bytes at an argument; another argument is their number.
    Sized(usize, usize),
    /// The elements of a size at an argument; another argument is their number.
    Array(usize, usize, u64),
    /// The bytes at an argument; the call returns their number.
    Returned(usize),
    /// The text at an argument, which ends with a zero byte.
    Text(usize),
    /// A list of buffers, and the buffers; the arguments with the list and its length.
    Vector(usize, usize),
    /// The `struct msghdr` at an argument, and what it names.
    Message(usize),
}

/// Yields what the kernel has read for a call, as address and length.
pub(super) fn by(call: &Call, result: i64, mut each: impl FnMut(u64, u64)) {
    let argument = |n: usize| call.arguments[n];
    for input in table::row(call.number).inputs(&call.arguments) {
        match *input {
            Input::Bytes(at, bytes) => each(argument(at), bytes),
            Input::Sized(at, bytes) => each(argument(at), argument(bytes)),
            Input::Array(at, count, bytes) => {
                each(argument(at), argument(count).saturating_mul(bytes));
            }
            Input::Returned(at) => each(argument(at), u64::try_from(result).unwrap_or(0)),
            Input::Text(at) => {
                if let Ok(text) = read_text(argument(at)) {
                    each(argument(at), text.len() as u64 + 1);
                }
            }
            Input::Vector(at, count) => vector(
                Vector {
                    address: argument(at),
                    count: argument(count),
                },
                &mut each,
            ),
            Input::Message(at) => {
                let message = Message::read(argument(at));
                each(argument(at), MSGHDR_BYTES);
                each(message.name.0, message.name.1);
                vector(message.vector, &mut each);
                each(message.control.0, message.control.1);
            }
        }
    }
}

/// Yields a list of buffers, and the buffers.
fn vector(vector: Vector, each: &mut impl FnMut(u64, u64)) {
    each(vector.address, vector.bytes());
    vector
        .buffers()
        .for_each(|(address, bytes)| each(address, bytes));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spans(number: i64, arguments: [u64; 6], result: i64) -> Vec<(u64, u64)> {
        let call = Call {
            number: number as u64,
            arguments,
        };
        let mut spans = Vec::new();
        by(&call, result, |address, bytes| spans.push((address, bytes)));
        spans
    }

    #[test]
    fn what_a_call_takes_is_named() {
        let write = [1, 0x1000, 4096, 0, 0, 0];
        assert_eq!(spans(libc::SYS_write, write, 17), [(0x1000, 17)]);
        assert_eq!(spans(libc::SYS_write, write, -5), [(0x1000, 0)]);
        assert_eq!(
            spans(libc::SYS_bind, [3, 0x2000, 16, 0, 0, 0], 0),
            [(0x2000, 16)]
        );
        assert_eq!(spans(libc::SYS_getpid, [0x1000; 6], 0), []);
    }

    #[test]
    fn lists_at_the_end_of_the_address_space_are_read_without_a_panic() {
        for number in [libc::SYS_writev, libc::SYS_readv, libc::SYS_pwritev2] {
            let arguments = [0, 8u64.wrapping_neg(), 2, 0, 0, 0];
            assert_eq!(spans(number, arguments, -14), [(arguments[1], 32)]);
        }
        let arguments = [0, u64::MAX, 0, 0, 0, 0];
        let expected = [(u64::MAX, 56), (0, 0), (0, 0), (0, 0)];
        assert_eq!(spans(libc::SYS_sendmsg, arguments, -14), expected);
    }

    #[test]
    fn texts_and_lists_are_read_from_the_program() {
        let text = c"/etc/passwd".as_ptr() as u64;
        assert_eq!(
            spans(libc::SYS_openat, [0, text, 0, 0, 0, 0], -2),
            [(text, 12)]
        );
        assert_eq!(spans(libc::SYS_open, [16, 0, 0, 0, 0, 0], -14), []);
        let list: [u64; 4] = [0x1000, 10, 0x5000, 20];
        let at = list.as_ptr() as u64;
        let buffers = [(at, 32), (0x1000, 10), (0x5000, 20)];
        assert_eq!(spans(libc::SYS_writev, [0, at, 2, 0, 0, 0], 30), buffers);
        assert_eq!(spans(libc::SYS_readv, [0, at, 2, 0, 0, 0], 30), [(at, 32)]);
        let message: [u64; 7] = [0x9000, 16, at, 2, 0x7000, 24, 0];
        let header = message.as_ptr() as u64;
        let mut expected = vec![(header, 56), (0x9000, 16)];
        expected.extend(buffers);
        expected.push((0x7000, 24));
        assert_eq!(
            spans(libc::SYS_sendmsg, [0, header, 0, 0, 0, 0], 30),
            expected
        );
    }
}
