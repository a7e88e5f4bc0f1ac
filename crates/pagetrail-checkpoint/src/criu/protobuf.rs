//! CRIU's image files as far as all of them are alike: after two magic numbers come messages of
//! protocol buffers, each after its length. Pure, and bounded by the bytes that are there.

use std::ops::ControlFlow;

/// Two magic numbers, before all images but raw ones.
pub(super) const HEAD_BYTES: usize = 8;

/// The kinds of fields of protocol buffers.
const NUMBER: u64 = 0;
const EIGHT_BYTES: u64 = 1;
const BYTES: u64 = 2;
const FOUR_BYTES: u64 = 5;

/// A field's value.
#[derive(Clone, Copy)]
pub(super) enum Value<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn take<'a>(input: &mut &'a [u8], count: u64) -> Option<&'a [u8]> {
    let (head, rest) = input.split_at_checked(usize::try_from(count).ok()?)?;
    *input = rest;
    Some(head)
}

fn number(input: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = take(input, 1)?[0];
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// Shows all fields of a message; `None` if it is none.
pub(super) fn fields<'a>(
    mut message: &'a [u8],
    mut each: impl FnMut(u64, Value<'a>),
) -> Option<()> {
    while !message.is_empty() {
        let key = number(&mut message)?;
        let value = match key & 7 {
            NUMBER => Value::Number(number(&mut message)?),
            BYTES => {
                let count = number(&mut message)?;
                Value::Bytes(take(&mut message, count)?)
            }
            kind @ (EIGHT_BYTES | FOUR_BYTES) => {
                take(&mut message, if kind == EIGHT_BYTES { 8 } else { 4 })?;
                continue;
            }
            _ => return None,
        };
        each(key >> 3, value);
    }
    Some(())
}

/// Shows the messages of an image.
pub(super) fn messages<'a>(
    image: &'a [u8],
    mut each: impl FnMut(&'a [u8]) -> ControlFlow<()>,
) -> Option<()> {
    let mut rest = image.get(HEAD_BYTES..)?;
    while !rest.is_empty() {
        let length = take(&mut rest, 4)?.try_into().ok()?;
        let message = take(&mut rest, u32::from_le_bytes(length).into())?;
        if each(message).is_break() {
            return None;
        }
    }
    Some(())
}

/// A field of a message of protocol buffers that holds a number.
pub(super) fn field(out: &mut Vec<u8>, number: u8, value: u64) {
    out.push(number << 3);
    let mut value = value;
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Appends a message, after its length.
pub(super) fn message(out: &mut Vec<u8>, body: &[u8]) {
    out.extend((body.len() as u32).to_le_bytes());
    out.extend(body);
}
