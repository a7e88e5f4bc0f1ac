//! [`PerfMap`]: the names of a JIT compiler's functions, which it writes to `/tmp/perf-PID.map`
//! (`tools/perf/Documentation/jit-interface.txt`).
//!
//! The file belongs to the tracked process and may hold anything: it is bounded, and what makes no
//! sense is skipped.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::PathBuf;

/// Most of a file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 256 << 20;
/// The root directory of a process, in its directory of `proc(5)`.
const ROOT: &str = "root";
const FUNCTIONS_MAX: usize = 1 << 21;
const LINE_BYTES_MAX: u64 = 4096;
const NAME_CHARS_MAX: usize = 512;

/// Functions by address.
#[derive(Debug, Default)]
pub(crate) struct PerfMap {
    /// Bytes of the file that were read.
    read_bytes: u64,
    /// Start, end and name, by start; later entries of the file replace earlier ones of the same
    /// start.
    functions: std::collections::BTreeMap<u64, (u64, String)>,
}

impl PerfMap {
    /// Reads what the compiler has added since the last call.
    pub(crate) fn update(&mut self, pid: u32) {
        let Some(mut file) = open(pid) else { return };
        let length = file.metadata().map_or(0, |meta| meta.len());
        if length < self.read_bytes {
            // Another program in the same process began anew.
            *self = Self::default();
        }
        if length == self.read_bytes || self.read_bytes >= FILE_BYTES_MAX {
            return;
        }
        if file.seek(SeekFrom::Start(self.read_bytes)).is_ok() {
            let left = FILE_BYTES_MAX - self.read_bytes;
            self.read(BufReader::new(file.take(left)));
        }
    }

    /// Reads lines until the last whole one.
    fn read(&mut self, mut lines: impl BufRead) {
        let mut line = Vec::new();
        loop {
            line.clear();
            let Ok(length) = (&mut lines)
                .take(LINE_BYTES_MAX)
                .read_until(b'\n', &mut line)
            else {
                return;
            };
            let is_long = length as u64 == LINE_BYTES_MAX;
            if !line.ends_with(b"\n") && !is_long {
                return;
            }
            self.read_bytes += length as u64;
            if self.functions.len() < FUNCTIONS_MAX
                && let Some((start, end, name)) = parse(&line)
            {
                self.functions.insert(start, (end, name));
            }
        }
    }

    /// The name of the function at an address.
    pub(crate) fn name(&self, address: u64) -> Option<&str> {
        let (_, (end, name)) = self.functions.range(..=address).next_back()?;
        (address < *end).then_some(name)
    }
}

/// Start, end and name.
fn parse(line: &[u8]) -> Option<(u64, u64, String)> {
    let line = String::from_utf8_lossy(line);
    let mut parts = line.trim_end().splitn(3, ' ');
    let mut number = || {
        let digits = parts.next()?;
        u64::from_str_radix(digits.strip_prefix("0x").unwrap_or(digits), 16).ok()
    };
    let start = number()?;
    let end = start.checked_add(number()?)?;
    let name: String = parts.next()?.trim().chars().take(NAME_CHARS_MAX).collect();
    (end > start && !name.is_empty()).then_some((start, end, name))
}

/// Where the file of a process is, by its PID here and in its own namespace.
pub(crate) fn path(pid: u32, inner: u32) -> PathBuf {
    format!("/proc/{pid}/{ROOT}/tmp/perf-{inner}.map").into()
}

/// Opens the file as the process sees it, if it is a regular one that the process's user or the
/// administrator owns.
fn open(pid: u32) -> Option<File> {
    let own = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let inner = status.lines().find_map(|line| line.strip_prefix("NSpid:"));
    let inner = inner.and_then(|pids| pids.split_whitespace().next_back()?.parse().ok());
    let inner: u32 = inner.unwrap_or(pid);
    // A symbolic link, a pipe or a device could lead elsewhere, or never end.
    let file = OpenOptions::new()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK | libc::O_NOCTTY)
        .open(path(pid, inner))
        .ok()?;
    let meta = file.metadata().ok()?;
    (meta.is_file() && (meta.uid() == own || meta.uid() == 0)).then_some(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_are_found_and_damaged_lines_skipped() {
        let mut map = PerfMap::default();
        let text = "1000 20 first one\nnonsense\n2000 0 empty\nffffffffffffffff 10 wraps\n\
                    0x1020 10 second\n1000 8 newer\n-3 4 x\n3000 10\n4000 10 half";
        map.read(text.as_bytes());
        assert_eq!(map.name(0x1000), Some("newer"));
        assert_eq!(map.name(0x1008), None);
        assert_eq!(map.name(0x102f), Some("second"));
        assert_eq!(map.name(0x2000), None);
        assert_eq!(map.name(0x4000), None, "the line is not whole");
        assert_eq!(map.read_bytes as usize, text.len() - "4000 10 half".len());
    }

    #[test]
    fn no_file_is_too_strange() {
        let mut random = fastrand::Rng::with_seed(3);
        for _ in 0..2000 {
            let bytes: Vec<u8> = (0..random.usize(0..200))
                .map(|_| match random.u8(0..4) {
                    0 => random.u8(..),
                    1 => b' ',
                    2 => b'\n',
                    _ => b"0123456789abcdef"[random.usize(0..16)],
                })
                .collect();
            let mut map = PerfMap::default();
            map.read(&bytes[..]);
            map.name(random.u64(..));
            assert!(map.read_bytes as usize <= bytes.len());
        }
        let mut map = PerfMap::default();
        map.read(&vec![b'a'; 3 * LINE_BYTES_MAX as usize][..]);
        assert!(map.functions.is_empty());
    }
}
