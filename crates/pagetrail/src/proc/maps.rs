//! Reading and parsing `/proc/PID/maps` (`proc_pid_maps(5)`).

use crate::page_set::{PageRange, PageSet};
use crate::proc::status::memory_id;
use crate::region::{Permissions, Region};
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek};

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
    /// An address space that has ended has no mappings, and is said to have none in each call: it
    /// may have ended before the first, while the process executes one program after the other.
    pub(crate) fn changed(&mut self) -> io::Result<Option<Vec<Region>>> {
        std::mem::swap(&mut self.text, &mut self.previous);
        self.text.clear();
        self.file.rewind()?;
        read_at_most(&self.file, TEXT_BYTES_MAX, &mut self.text)?;
        if self.text == self.previous && !self.text.is_empty() {
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

/// The shared mappings of `pid` (`None`: of this process) that can never be made writable; none if
/// the kernel does not report that.
pub(crate) fn read_only(pid: Option<u32>) -> PageSet {
    let pid = pid.unwrap_or_else(std::process::id);
    let file = File::open(format!("/proc/{}/smaps", memory_id(pid)));
    file.map_or_else(
        |_| PageSet::new(),
        |file| read_only_in(BufReader::new(file)),
    )
}

/// [`read_only`] in a text like that of `proc_pid_smaps(5)`. The text is not kept: it has some 700
/// bytes for each mapping.
fn read_only_in(mut text: impl BufRead) -> PageSet {
    let mut found = PageSet::new();
    let (mut mapping, mut line) = (None, Vec::new());
    while matches!(text.read_until(b'\n', &mut line), Ok(1..)) {
        if let Some(flags) = line.strip_prefix(b"VmFlags:") {
            // "ms" is VM_MAYSHARE, "mw" is VM_MAYWRITE.
            let has = |wanted: &[u8]| flags.split(|byte| *byte == b' ').any(|flag| flag == wanted);
            if has(b"ms") && !has(b"mw") {
                found.extend(mapping.take());
            }
        } else if line.first().is_some_and(|byte| !byte.is_ascii_uppercase()) {
            mapping = parse_line(line.trim_ascii_end()).map(|region| region.range);
        }
        line.clear();
    }
    found
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
    fn read_only_are_shared_mappings_of_which_all_writes_are_refused() {
        let text = b"8000-9000 r--s 00000000 fe:01 42   /tmp/ro\nRss:  4 kB\n\
                     VmFlags: rd mr me ms sd \n\
                     a000-b000 r--s 00000000 fe:01 42   /tmp/rw\n\
                     VmFlags: rd sh mr mw me ms sd \n\
                     c000-d000 r--p 00000000 fe:01 42   /tmp/private\n\
                     VmFlags: rd mr mw me sd \n";
        let found = read_only_in(&text[..]);
        assert_eq!(
            found,
            PageSet::from(PageRange::new(0x8000, 0x9000).unwrap())
        );
    }

    #[test]
    fn a_text_without_end_is_refused() {
        let mut text = Vec::new();
        assert!(read_at_most(io::repeat(b'a'), 1 << 20, &mut text).is_err());
        assert!(text.capacity() < 4 << 20);
        read_at_most(&b"8000-9000"[..], 9, &mut text).unwrap();
        assert_eq!(text, b"8000-9000");
    }

    /// The file is of the shell's address space, which ends while the process lives on: of a
    /// process that has ended, reading fails instead.
    #[test]
    fn an_address_space_that_has_ended_has_no_mappings_from_the_first_call_on() {
        use std::process::{Command, Stdio};
        let mut shell = Command::new("sh");
        shell.args(["-c", "echo; read line; exec sleep 600"]);
        shell.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = shell.spawn().unwrap();
        // The shell runs, and it is not this program's address space that is opened.
        let mut said = [0];
        let output = child.stdout.as_mut().unwrap();
        output.read_exact(&mut said).unwrap();
        let mut maps = Maps::open(Some(child.id())).unwrap();
        // Its end lets the shell go on.
        drop(child.stdin.take());
        let command = format!("/proc/{}/cmdline", child.id());
        let is_sleep = || std::fs::read(&command).is_ok_and(|words| words.starts_with(b"sleep\0"));
        for _ in 0..6000 {
            if is_sleep() {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        assert!(is_sleep());
        let seen: Vec<_> = (0..2).map(|_| maps.changed().unwrap()).collect();
        child.kill().unwrap();
        child.wait().unwrap();
        let counts: Vec<_> = seen
            .iter()
            .map(|found| found.as_ref().map(Vec::len))
            .collect();
        assert_eq!(counts, [Some(0), Some(0)]);
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
