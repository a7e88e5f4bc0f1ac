//! [`Hash`]: BLAKE3 of what it names.

mod pages;

use std::fmt;

/// 256 bits of BLAKE3.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Hash(pub(crate) [u8; Self::BYTES]);

impl Hash {
    pub(crate) const BYTES: usize = 32;

    /// The hash of some bytes.
    pub fn of(bytes: &[u8]) -> Self {
        Self(*blake3::hash(bytes).as_bytes())
    }

    /// From 64 hexadecimal digits.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let text = text.as_bytes();
        if text.len() != 2 * Self::BYTES {
            return None;
        }
        let mut bytes = [0; Self::BYTES];
        for (byte, digits) in bytes.iter_mut().zip(text.chunks_exact(2)) {
            let digit = |at: usize| (digits[at] as char).to_digit(16);
            *byte = (digit(0)? << 4 | digit(1)?) as u8;
        }
        Some(Self(bytes))
    }

    /// Its first eight bytes, for tables.
    pub(crate) fn short(&self) -> u64 {
        self.0
            .iter()
            .take(8)
            .fold(0, |n, &byte| n << 8 | u64::from(byte))
    }
}

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}..", self.short())
    }
}
