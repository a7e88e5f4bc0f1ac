//! Reading and parsing `/proc/PID/maps` (`proc_pid_maps(5)`).

use crate::page_set::PageRange;
use crate::proc::status::memory_id;
use crate::region::{Permissions, Region};
use std::fs::File;
use std::io::{self, Read, Seek};

/// The longest text of mappings that is read, in bytes: a million mappings with names of common
/// length. A process chooses their number and their names, of up to 4 KiB each.
const TEXT_BYTES_MAX: u64 = 128 << 20;

/// The mappings of one process, re-read on demand; parsing happens only when the text has changed.
#[derive(Debug)]
pub(crate) struct Maps {
    file: File,
    text: Vec<u8>,
    previous: Vec<u8>,
}

impl Maps {
    /// Opens the mappings of `pid`, or of this process.
    pub(crate) fn open(pid: Option<u32>) -> io::Result<Self> {
        let path = pid.map_or("/proc/self/maps".into(), |pid| {
            format!("/proc/{}/maps", memory_id(pid))
        });
        // Large enough that a few hundred mappings come with one read(2), and thus from one
        // instant.
        Ok(Self {
            file: File::open(path)?,
            text: Vec::with_capacity(1 << 16),
            previous: Vec::new(),
        })
    }

    /// The current mappings, or `None` if they have not changed since the last call.
    ///
    /// A process that has ended has no mappings.
    pub(crate) fn changed(&mut self) -> io::Result<Option<Vec<Region>>> {
        std::mem::swap(&mut self.text, &mut self.previous);
        self.text.clear();
        self.file.rewind()?;
        read_at_most(&self.file, TEXT_BYTES_MAX, &mut self.text)?;
        if self.text == self.previous {
            return Ok(None);
        }
        Ok(Some(parse(&self.text)))
    }
}

impl Region {
    /// The mappings of a process, including the kernel's own, in ascending order; empty if the
    /// process has ended.
    ///
    /// # Errors
    ///
    /// `/proc/PID/maps` cannot be opened or read: there is no such process, or permission is
    /// missing.
    pub fn of_process(pid: u32) -> io::Result<Vec<Self>> {
        Ok(Maps::open(Some(pid))?.changed()?.unwrap_or_default())
    }
}

/// Reads all of a file, unless it is longer than `max` bytes.
fn read_at_most(file: impl Read, max: u64, text: &mut Vec<u8>) -> io::Result<()> {
    file.take(max + 1).read_to_end(text)?;
    if text.len() as u64 > max {
        text.clear();
        return Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "the process has more mappings than {} MiB of text can list",
                max >> 20
            ),
        ));
    }
    Ok(())
}

/// The number of mappings from which on a process is close to the limit (`vm.max_map_count`).
pub(crate) fn crowd() -> usize {
    let text = std::fs::read_to_string("/proc/sys/vm/max_map_count").unwrap_or_default();
    // The kernel's default: `DEFAULT_MAX_MAP_COUNT` in include/linux/mm.h.
    let most: usize = text.trim().parse().unwrap_or(65_530);
    most - most / 4
}

/// The mappings of this process, read once.
pub(crate) fn own() -> io::Result<Vec<Region>> {
    Ok(parse(&std::fs::read("/proc/self/maps")?))
}

/// Parses mappings and skips other lines: the kernel may add fields, never lines of another form.
fn parse(text: &[u8]) -> Vec<Region> {
    text.split(|&b| b == b'\n').filter_map(parse_line).collect()
}

/// Parses a line such as `559e79e77000-559e79e98000 rw-p 00000000 00:00 0        [heap]`.
fn parse_line(line: &[u8]) -> Option<Region> {
    let mut rest = line;
    let mut field = || {
        let from = rest.iter().position(|&b| b != b' ')?;
        let text = &rest[from..];
        let len = text.iter().position(|&b| b == b' ').unwrap_or(text.len());
        rest = &text[len..];
        std::str::from_utf8(&text[..len]).ok()
    };
    let (start, end) = field()?.split_once('-')?;
    let permissions = Permissions::parse(field()?)?;
    let offset = hex(field()?)?;
    let (major, minor) = field()?.split_once(':')?;
    let inode = field()?.parse().ok()?;
    let name = rest.trim_ascii_start();
    Some(Region {
        range: PageRange::new(hex(start)?, hex(end)?)?,
        permissions,
        offset,
        device: (hex(major)? as u32, hex(minor)? as u32),
        inode,
        name: String::from_utf8_lossy(name).into_owned(),
    })
}

fn hex(text: &str) -> Option<u64> {
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_may_hold_spaces_and_any_bytes() {
        let text = b"7f00-7f01 rw-p 00001000 fe:01 42   /tmp/a b (deleted)\n\
                     8000-9000 rw-s 00000000 00:01 7    /memfd:\xff (deleted)\n\
                     a000-b000 r--p 00000000 00:00 0 \n\
                     /SYSV\n";
        let regions = parse(text);
        assert_eq!(regions.len(), 3);
        assert_eq!(regions[0].name, "/tmp/a b (deleted)");
        assert_eq!(regions[0].device, (0xfe, 1));
        assert_eq!(regions[0].offset, 0x1000);
        assert_eq!(regions[1].name, "/memfd:\u{fffd} (deleted)");
        assert!(regions[1].permissions.shared);
        assert_eq!(regions[2].name, "");
        assert!(!regions[2].permissions.write);
    }

    #[test]
    fn a_text_without_end_is_refused() {
        let mut text = Vec::new();
        assert!(read_at_most(io::repeat(b'a'), 1 << 20, &mut text).is_err());
        assert!(text.capacity() < 4 << 20);
        read_at_most(&b"8000-9000"[..], 9, &mut text).unwrap();
        assert_eq!(text, b"8000-9000");
    }

    #[test]
    fn own_mappings_contain_this_stack() {
        let here = 0u8;
        let address = &raw const here as u64;
        let mut maps = Maps::open(None).unwrap();
        let regions = maps.changed().unwrap().unwrap();
        assert!(
            regions
                .iter()
                .any(|r| r.range.contains(address) && r.permissions.write)
        );
    }
}
