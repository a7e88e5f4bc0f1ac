//! [`load`]: a program's file and its interpreter's become mappings, and its first stack is made, as Linux does it
//! (fs/binfmt_elf.c).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use pagetrail::PageRange;
use rustix::io::Errno;

use super::elf::{Elf, FILE_HEADER, Segment};
use super::find::Found;
use super::stack::{self, Contents, aux};
use crate::error::{Error, Result};
use crate::memory::mapping::{Mmap, PRIVATE};
use crate::memory::{Memory, PAGE};
use crate::sys::program_memory;

/// Where a program goes that may go anywhere: far from this process's own file, and with room for its heap.
const ANYWHERE: u64 = 0x2000_0000_0000;
/// What is left free below a stack: a program that needs more runs into nothing else.
const GUARD_BYTES: u64 = 1 << 20;
const STACK_BYTES_MIN: u64 = 128 << 10;
const STACK_BYTES_MAX: u64 = 256 << 20;
const STACK_BYTES_DEFAULT: u64 = 8 << 20;

/// Where a loaded program begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loaded {
    pub(crate) entry: u64,
    pub(crate) stack_pointer: u64,
}

/// A file that has become mappings.
struct Image {
    elf: Elf,
    /// What is added to its addresses.
    bias: u64,
    headers: u64,
    end: u64,
    interpreter: Option<Vec<u8>>,
}

impl Image {
    fn entry(&self) -> u64 {
        self.elf.entry.wrapping_add(self.bias)
    }
}

/// Loads a program.
pub(crate) fn load(memory: &mut Memory, found: &Found, environment: &[OsString]) -> Result<Loaded> {
    let program = map(memory, &found.file, &found.path, ANYWHERE)?;
    memory.set_break(program.end);
    let interpreter = match &program.interpreter {
        Some(path) => {
            let path = Path::new(OsStr::from_bytes(path));
            let file = File::open(path).map_err(failed(path))?;
            Some(map(memory, &file, path, 0)?)
        }
        None => None,
    };
    let own = std::fs::read("/proc/self/auxv").map_err(Error::system("read /proc/self/auxv"))?;
    let mut auxiliary = stack::inherited(&own);
    auxiliary.extend([
        (aux::HEADERS, program.headers),
        (aux::HEADER_COUNT, program.elf.headers_count.into()),
        (
            aux::BASE,
            interpreter.as_ref().map_or(0, |image| image.bias),
        ),
        (aux::ENTRY, program.entry()),
    ]);
    let mut random = [0; 16];
    let filled = rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty());
    filled.map_err(|error| Error::system("get random bytes")(error.into()))?;
    let contents = Contents {
        arguments: &found.arguments,
        environment,
        path: found.path.as_os_str(),
        random,
        auxiliary,
    };
    Ok(Loaded {
        entry: interpreter.as_ref().map_or(program.entry(), Image::entry),
        stack_pointer: make_stack(memory, &contents, &found.path)?,
    })
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let program = path.to_owned();
    move |source| Error::Program { program, source }
}

/// Maps a file; `anywhere` is where it goes if it has no addresses of its own, 0 for wherever there is room.
fn map(memory: &mut Memory, file: &File, path: &Path, anywhere: u64) -> Result<Image> {
    let no_program = || failed(path)(Errno::NOEXEC.into());
    let mut header = [0; FILE_HEADER];
    let read = file.read_exact_at(&mut header, 0);
    let elf = read
        .ok()
        .and_then(|()| Elf::parse(&header))
        .ok_or_else(no_program)?;
    let mut headers = vec![0; elf.headers_bytes().ok_or_else(no_program)?];
    file.read_exact_at(&mut headers, elf.headers_at)
        .map_err(failed(path))?;
    let segments = Segment::parse_all(&headers);

    let loaded = || segments.iter().filter(|segment| segment.is_loaded());
    let start = loaded().map(|segment| segment.address & !(PAGE - 1)).min();
    let end = loaded()
        .filter_map(|segment| segment.address.checked_add(segment.memory_bytes))
        .max();
    let (start, end) = start.zip(end).ok_or_else(no_program)?;
    // All of its addresses at once, so that its parts are not apart.
    let flags = PRIVATE | libc::MAP_NORESERVE as u64;
    let span = Mmap {
        address: if elf.anywhere { anywhere } else { start },
        flags: match elf.anywhere {
            true => flags,
            false => flags | libc::MAP_FIXED_NOREPLACE as u64,
        },
        ..Mmap::anonymous(end - start, libc::PROT_NONE)
    };
    let at = done(memory.mmap(span)?).map_err(failed(path))?;
    let bias = at.wrapping_sub(start);
    for segment in loaded() {
        map_segment(memory, file, segment, bias).map_err(failed(path))?;
    }
    let first = loaded().find(|segment| {
        let in_file = segment.offset..segment.offset + segment.file_bytes;
        in_file.contains(&elf.headers_at)
    });
    let headers = first.map_or(0, |segment| {
        bias.wrapping_add(segment.address + elf.headers_at - segment.offset)
    });
    let interpreter = segments.iter().find(|segment| segment.is_interpreter());
    let interpreter = interpreter.map(|segment| {
        let mut path = vec![0; segment.file_bytes.min(4096) as usize];
        file.read_exact_at(&mut path, segment.offset)?;
        path.truncate(
            path.iter()
                .position(|byte| *byte == 0)
                .unwrap_or(path.len()),
        );
        Ok(path)
    });
    Ok(Image {
        elf,
        bias,
        headers,
        end: end.wrapping_add(bias),
        interpreter: interpreter.transpose().map_err(failed(path))?,
    })
}

fn map_segment(memory: &mut Memory, file: &File, segment: &Segment, bias: u64) -> io::Result<()> {
    let start = segment.address.wrapping_add(bias);
    let within = start % PAGE;
    let file_end = start + segment.file_bytes;
    let end = (start + segment.memory_bytes).next_multiple_of(PAGE);
    let mut anonymous_from = start - within;
    if segment.file_bytes > 0 {
        let mapping = Mmap {
            address: start - within,
            bytes: segment.file_bytes + within,
            protection: segment.protection(),
            flags: (libc::MAP_PRIVATE | libc::MAP_FIXED) as u64,
            descriptor: file.as_raw_fd() as u64,
            offset: segment.offset.checked_sub(within).ok_or(Errno::NOEXEC)?,
        };
        done(memory.mmap(mapping).map_err(io::Error::other)?)?;
        anonymous_from = file_end.next_multiple_of(PAGE);
    }
    if anonymous_from < end {
        let rest = Mmap {
            address: anonymous_from,
            protection: segment.protection(),
            flags: PRIVATE | libc::MAP_FIXED as u64,
            ..Mmap::anonymous(end - anonymous_from, libc::PROT_NONE)
        };
        done(memory.mmap(rest).map_err(io::Error::other)?)?;
    }
    let is_writable = segment.protection() & libc::PROT_WRITE as u64 != 0;
    if is_writable && segment.memory_bytes > segment.file_bytes && anonymous_from > file_end {
        let zeros = vec![0; (anonymous_from - file_end) as usize];
        program_memory::write(file_end, &zeros)?;
        memory.wrote(file_end, zeros.len() as u64);
    }
    Ok(())
}

fn make_stack(memory: &mut Memory, contents: &Contents<'_>, path: &Path) -> Result<u64> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
    let bytes = limit.unwrap_or(STACK_BYTES_DEFAULT);
    let bytes = bytes
        .clamp(STACK_BYTES_MIN, STACK_BYTES_MAX)
        .next_multiple_of(PAGE);
    let mapping = Mmap {
        flags: PRIVATE | (libc::MAP_NORESERVE | libc::MAP_STACK) as u64,
        ..Mmap::anonymous(GUARD_BYTES + bytes, libc::PROT_NONE)
    };
    let guard = done(memory.mmap(mapping)?).map_err(failed(path))?;
    let start = guard + GUARD_BYTES;
    let writable = (libc::PROT_READ | libc::PROT_WRITE) as u64;
    done(memory.mprotect(start, bytes, writable)?).map_err(failed(path))?;
    let (pointer, contents) = stack::build(start + bytes, contents);
    if pointer < start + bytes / 2 {
        // As Linux has it: no more than a part of the stack may be arguments.
        return Err(failed(path)(Errno::TOOBIG.into()));
    }
    program_memory::write(pointer, &contents).map_err(|error| failed(path)(error.into()))?;
    memory.wrote(pointer, contents.len() as u64);
    memory.stack = PageRange::new(start, start + bytes);
    Ok(pointer)
}

/// The result of a system call as Rust has it.
fn done(result: i64) -> io::Result<u64> {
    u64::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result as i32))
}
