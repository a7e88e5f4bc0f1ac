//! [`Text`]: a C string in an array of fixed size, formatted without allocating. What does not fit
//! is cut off between two characters.

use std::ffi::c_char;
use std::fmt::{self, Display, Write};

/// A string of up to `N - 1` bytes and its terminating zero.
#[derive(Clone, Copy)]
pub(crate) struct Text<const N: usize> {
    bytes: [u8; N],
    length: usize,
}

impl<const N: usize> Text<N> {
    pub(crate) const fn new() -> Self {
        Self {
            bytes: [0; N],
            length: 0,
        }
    }

    pub(crate) fn of(value: impl Display) -> Self {
        let mut text = Self::new();
        text.set(value);
        text
    }

    /// Replaces what was there.
    pub(crate) fn set(&mut self, value: impl Display) {
        *self = Self::new();
        // It refuses what does not fit, which ends the formatting: that is all.
        let _ = write!(self, "{value}");
    }

    pub(crate) fn as_ptr(&self) -> *const c_char {
        self.bytes.as_ptr().cast()
    }

    pub(crate) fn chars(&self) -> [c_char; N] {
        self.bytes.map(|byte| byte as c_char)
    }
}

impl<const N: usize> Write for Text<N> {
    fn write_str(&mut self, part: &str) -> fmt::Result {
        let room = N - 1 - self.length;
        let cut = (0..=room.min(part.len()))
            .rev()
            .find(|&at| part.is_char_boundary(at))
            .unwrap_or(0);
        self.bytes[self.length..self.length + cut].copy_from_slice(&part.as_bytes()[..cut]);
        self.length += cut;
        if cut == part.len() {
            Ok(())
        } else {
            Err(fmt::Error)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_does_not_fit_is_cut_between_characters() {
        let text = Text::<6>::of("abcdef");
        assert_eq!(&text.bytes, b"abcde\0");
        let text = Text::<6>::of(format_args!("{}{}", "ab\u{e9}", "\u{e9}x"));
        assert_eq!(&text.bytes, "ab\u{e9}\0\0".as_bytes());
        let mut text = Text::<6>::of("abcde");
        text.set("x");
        assert_eq!(&text.bytes, b"x\0\0\0\0\0");
    }
}
