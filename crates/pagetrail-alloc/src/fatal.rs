//! The last message of a program that misuses its heap: one line on standard error, then
//! `abort(3)`. Nothing is allocated.

/// A line that is put together without a heap.
struct Line {
    bytes: [u8; 200],
    length: usize,
}

impl Line {
    fn text(&mut self, text: &str) {
        let room = &mut self.bytes[self.length..];
        let length = text.len().min(room.len());
        room[..length].copy_from_slice(&text.as_bytes()[..length]);
        self.length += length;
    }

    fn address(&mut self, address: usize) {
        self.text("0x");
        let digits = (usize::BITS - address.leading_zeros()).div_ceil(4).max(1);
        for digit in (0..digits).rev() {
            let value = (address >> (digit * 4)) & 0xf;
            let at = value..value + 1;
            self.text(&"0123456789abcdef"[at]);
        }
    }
}

/// Writes a line to standard error: `pagetrail-alloc: `, a text that may name an address, and what
/// follows it.
pub(crate) fn say(before: &str, address: Option<usize>, after: &str) {
    let mut line = Line {
        bytes: [0; 200],
        length: 0,
    };
    line.text("pagetrail-alloc: ");
    line.text(before);
    if let Some(address) = address {
        line.address(address);
    }
    line.text(after);
    line.text("\n");
    // Whatever descriptor 2 is, writing to it is harmless; closed, it fails.
    let _ = rustix::io::write(rustix::stdio::stderr(), &line.bytes[..line.length]);
}

/// Says what happened at an address, and ends the program.
#[cold]
pub(crate) fn abort(what: &str, address: usize, why: &str) -> ! {
    say(what, Some(address), why);
    std::process::abort()
}
