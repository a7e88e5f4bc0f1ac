//! Reading files of `/proc` without the allocator: for code that goes on when this process is
//! killed ([`crate::sys::survivor`]).

use rustix::fd::OwnedFd;
use rustix::fs::{CWD, Mode, OFlags, RawDir, openat, readlinkat_raw};
use rustix::io::Errno;
use std::ffi::CStr;
use std::fmt::{self, Write};
use std::mem::MaybeUninit;

/// Longer than any path in `/proc` whose parts are numbers and the kernel's names.
const PATH_BYTES: usize = 96;
/// How much is read at once, and the longest part of a line that is looked at.
const CHUNK_BYTES: usize = 1 << 13;

/// A path that needs no allocation.
struct Path {
    bytes: [u8; PATH_BYTES],
    len: usize,
}

impl Path {
    fn new(path: fmt::Arguments<'_>) -> Result<Self, Errno> {
        let mut found = Self {
            bytes: [0; PATH_BYTES],
            len: 0,
        };
        found.write_fmt(path).map_err(|_| Errno::NAMETOOLONG)?;
        Ok(found)
    }

    fn as_c_str(&self) -> Result<&CStr, Errno> {
        CStr::from_bytes_until_nul(&self.bytes).map_err(|_| Errno::NAMETOOLONG)
    }
}

impl Write for Path {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let end = self.len + text.len();
        // The last byte stays zero.
        if end >= PATH_BYTES {
            return Err(fmt::Error);
        }
        self.bytes[self.len..end].copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// Calls `with` on a path.
pub(crate) fn at<T>(
    path: fmt::Arguments<'_>,
    with: impl FnOnce(&CStr) -> Result<T, Errno>,
) -> Result<T, Errno> {
    with(Path::new(path)?.as_c_str()?)
}

fn open(path: fmt::Arguments<'_>) -> Result<OwnedFd, Errno> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    at(path, |path| openat(CWD, path, flags, Mode::empty()))
}

/// Whether the target of a symbolic link can be read.
pub(crate) fn read_link(path: fmt::Arguments<'_>) -> Result<(), Errno> {
    let mut target = [0u8; 16];
    at(path, |path| {
        readlinkat_raw(CWD, path, &mut target[..]).map(drop)
    })
}

/// The beginning of a file, as much as there is room for.
pub(crate) fn read<'a>(path: fmt::Arguments<'_>, room: &'a mut [u8]) -> Result<&'a [u8], Errno> {
    let file = open(path)?;
    let mut len = 0;
    while len < room.len() {
        match rustix::io::read(&file, &mut room[len..]) {
            Ok(0) => break,
            Ok(count) => len += count,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(&room[..len])
}

/// Calls `each` on the lines of a file, of long ones on their beginning.
pub(crate) fn lines(path: fmt::Arguments<'_>, mut each: impl FnMut(&[u8])) -> Result<(), Errno> {
    let file = open(path)?;
    let mut room = [0; CHUNK_BYTES];
    // What is in the room is one line's beginning; of a long one the rest is left out.
    let (mut len, mut is_rest) = (0, false);
    loop {
        let count = match rustix::io::read(&file, &mut room[len..]) {
            Ok(count) => count,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        };
        let mut from = 0;
        while let Some(end) = room[from..len + count].iter().position(|&b| b == b'\n') {
            if !std::mem::take(&mut is_rest) {
                each(&room[from..from + end]);
            }
            from += end + 1;
        }
        room.copy_within(from..len + count, 0);
        len = len + count - from;
        if len == CHUNK_BYTES || count == 0 && len > 0 {
            if !is_rest {
                each(&room[..len]);
            }
            (len, is_rest) = (0, true);
        }
        if count == 0 {
            return Ok(());
        }
    }
}

/// Calls `each` on the names in a directory that are numbers.
pub(crate) fn numbers(
    path: fmt::Arguments<'_>,
    mut each: impl FnMut(u32) -> Result<(), Errno>,
) -> Result<(), Errno> {
    let directory = open(path)?;
    let mut room = [MaybeUninit::uninit(); CHUNK_BYTES];
    let mut entries = RawDir::new(directory, &mut room);
    while let Some(entry) = entries.next() {
        if let Some(number) = number(entry?.file_name().to_bytes()) {
            each(number)?;
        }
    }
    Ok(())
}

/// A decimal number.
pub(crate) fn number(text: &[u8]) -> Option<u32> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// A hexadecimal number, with or without `0x`.
pub(crate) fn hex(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    u64::from_str_radix(text.trim_start_matches("0x"), 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_whatever_is_read_at_once() {
        let file = std::env::temp_dir().join(format!("pagetrail-lines-{}", std::process::id()));
        let long = "l".repeat(3 * CHUNK_BYTES);
        let lengths = [0, 5, CHUNK_BYTES - 1, 70, CHUNK_BYTES, 1];
        let mut text: String = lengths.map(|length| "a".repeat(length) + "\n").concat();
        text += &(long + "\nend");
        std::fs::write(&file, &text).unwrap();
        let mut found = Vec::new();
        let outcome = lines(format_args!("{}", file.display()), |line| {
            found.push(line.len());
        });
        std::fs::remove_file(&file).unwrap();
        outcome.unwrap();
        let mut expected = lengths.to_vec();
        expected.extend([CHUNK_BYTES, 3]);
        assert_eq!(found, expected);
    }

    #[test]
    fn long_paths_are_refused() {
        let name = "x".repeat(PATH_BYTES);
        assert_eq!(
            read(format_args!("/proc/{name}"), &mut [0; 8]),
            Err(Errno::NAMETOOLONG)
        );
    }

    #[test]
    fn threads_and_words_are_found() {
        let mut threads = Vec::new();
        numbers(format_args!("/proc/self/task"), |tid| {
            threads.push(tid);
            Ok(())
        })
        .unwrap();
        assert!(threads.contains(&std::process::id()));
        assert_eq!(hex(b"0x1f"), Some(31));
        assert_eq!(number(b".."), None);
    }
}
