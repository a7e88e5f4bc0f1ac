//! [`load`]: maps a program's file and its interpreter, and makes its first stack, as Linux does
//! (fs/binfmt_elf.c).

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::io::Errno;

use super::elf::{Elf, FILE_HEADER, Segment};
use super::find::Found;
use super::stack::{self, Contents, aux};
use crate::error::{Error, Result};
use crate::memory::mapping::{Mmap, PRIVATE};
use crate::memory::{Memory, PAGE};
use crate::sys::call::call;
use crate::sys::program_memory;

/// The addresses where Linux puts a program that may be loaded anywhere (`ELF_ET_DYN_BASE`, and 28
/// random bits of pages). The sanitizers' run-time libraries rely on them.
const ANYWHERE: u64 = 0x5555_5555_4000;
const ANYWHERE_BYTES: u64 = 1 << 40;
/// The least distance from this process's own file, which is there as well: each has a heap after
/// it.
const APART: u64 = ANYWHERE_BYTES / 4;
/// `ADDR_NO_RANDOMIZE`.
const NO_RANDOMIZE: u64 = 0x004_0000;
/// The length of a stack that the kernel maps at once, below what is on it.
const STACK_BYTES_AT_ONCE: u64 = 128 << 10;
/// The length that arguments may always have.
const ARGUMENTS_BYTES_MIN: u64 = 128 << 10;

/// Where a loaded program starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Loaded {
    pub(crate) entry: u64,
    pub(crate) stack_pointer: u64,
}

/// A file that has been mapped.
struct Image {
    elf: Elf,
    /// The offset that is added to the file's addresses.
    bias: u64,
    headers: u64,
    end: u64,
    interpreter: Option<Vec<u8>>,
    executable_stack: bool,
}

impl Image {
    fn entry(&self) -> u64 {
        self.elf.entry.wrapping_add(self.bias)
    }
}

/// Loads a program.
pub(crate) fn load(memory: &mut Memory, found: &Found, environment: &[OsString]) -> Result<Loaded> {
    let own = std::fs::read("/proc/self/auxv").map_err(Error::system("read /proc/self/auxv"))?;
    let mut random = [0; 24];
    let filled = rustix::rand::getrandom(&mut random[..], rustix::rand::GetRandomFlags::empty());
    filled.map_err(|error| Error::system("get random bytes")(error.into()))?;
    let [placing, for_program @ ..] = random.as_chunks::<8>().0 else {
        return Err(Error::Lacks("random bytes"));
    };
    let program_at = anywhere(stack::own_headers(&own), u64::from_le_bytes(*placing));
    let program = map(memory, &found.file, &found.path, program_at)?;
    memory.set_break(program.end);
    let interpreter = match &program.interpreter {
        Some(path) => {
            let path = Path::new(OsStr::from_bytes(path));
            let file = File::open(path).map_err(failed(path))?;
            Some(map(memory, &file, path, 0)?)
        }
        None => None,
    };
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
    let vdso = memory.vdso.as_ref();
    auxiliary.extend(vdso.map(|vdso| (aux::VDSO, vdso.header())));
    let contents = Contents {
        arguments: &found.arguments,
        environment,
        path: found.path.as_os_str(),
        random: for_program.concat().try_into().unwrap_or_default(),
        auxiliary,
    };
    Ok(Loaded {
        entry: interpreter.as_ref().map_or(program.entry(), Image::entry),
        stack_pointer: make_stack(memory, &contents, &found.path, program.executable_stack)?,
    })
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> Error {
    let program = path.to_owned();
    move |source| Error::Program { program, source }
}

/// Maps a file. `anywhere` is the address for a file that may be loaded anywhere; 0 lets the kernel
/// choose.
fn map(memory: &mut Memory, file: &File, path: &Path, anywhere: u64) -> Result<Image> {
    let no_program = || failed(path)(Errno::NOEXEC.into());
    let (elf, segments) = headers(file).map_err(failed(path))?;
    let loaded = || segments.iter().filter(|segment| segment.is_loaded());
    let start = loaded().map(|segment| segment.address & !(PAGE - 1)).min();
    let end = loaded()
        .filter_map(|segment| segment.address.checked_add(segment.memory_bytes))
        .max();
    let (start, end) = start.zip(end).ok_or_else(no_program)?;
    // The whole address range is mapped first, so that the segments stay together.
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
    let interpreter = interpreter(file, &segments).map_err(failed(path))?;
    Ok(Image {
        elf,
        bias,
        headers,
        end: end.wrapping_add(bias),
        executable_stack: segments.iter().any(Segment::wants_executable_stack),
        interpreter,
    })
}

/// Reads the headers of a program, all of whose parts can be mapped.
fn headers(file: &File) -> io::Result<(Elf, Vec<Segment>)> {
    let no_program = || io::Error::from(Errno::NOEXEC);
    let mut header = [0; FILE_HEADER];
    let read = file.read_exact_at(&mut header, 0);
    let elf = read.ok().and_then(|()| Elf::parse(&header));
    let elf = elf.ok_or_else(no_program)?;
    let mut headers = vec![0; elf.headers_bytes().ok_or_else(no_program)?];
    file.read_exact_at(&mut headers, elf.headers_at)?;
    let segments = Segment::parse_all(&headers);
    let mut loaded = segments.iter().filter(|segment| segment.is_loaded());
    match loaded.all(Segment::is_mappable) {
        true => Ok((elf, segments)),
        false => Err(no_program()),
    }
}

/// Reads the path of a program's interpreter, if it has one.
fn interpreter(file: &File, segments: &[Segment]) -> io::Result<Option<Vec<u8>>> {
    let Some(segment) = segments.iter().find(|segment| segment.is_interpreter()) else {
        return Ok(None);
    };
    let mut path = vec![0; segment.file_bytes.min(4096) as usize];
    file.read_exact_at(&mut path, segment.offset)?;
    let end = path.iter().position(|byte| *byte == 0);
    path.truncate(end.unwrap_or(path.len()));
    Ok(Some(path))
}

/// Whether a file is a program that can be loaded, as far as its headers say, and its interpreter
/// is there.
pub(crate) fn is_loadable(file: &File) -> bool {
    let Ok((_, segments)) = headers(file) else {
        return false;
    };
    match interpreter(file, &segments) {
        Ok(None) => true,
        Ok(Some(path)) => {
            let interpreter = File::open(Path::new(OsStr::from_bytes(&path)));
            interpreter.is_ok_and(|interpreter| headers(&interpreter).is_ok())
        }
        Err(_) => false,
    }
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
        memory
            .note_written(file_end, zeros.len() as u64)
            .map_err(io::Error::other)?;
    }
    Ok(())
}

/// The address for a program that may be loaded anywhere, when this process's own file is at `own`.
fn anywhere(own: u64, random: u64) -> u64 {
    // Without randomization by the kernel, the address is always the same here, too.
    let random = match call(libc::SYS_personality, &[0xffff_ffff]) as u64 & NO_RANDOMIZE {
        0 => random % (ANYWHERE_BYTES - 2 * APART),
        _ => 0,
    };
    let offset = own.wrapping_sub(ANYWHERE).wrapping_add(APART + random) % ANYWHERE_BYTES;
    ANYWHERE + (offset & !(PAGE - 1))
}

fn make_stack(
    memory: &mut Memory,
    contents: &Contents<'_>,
    path: &Path,
    is_executable: bool,
) -> Result<u64> {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Stack).current;
    let top = memory.reserve_stack().map_err(failed(path))?;
    let (pointer, contents) = stack::build(top, contents);
    let permitted = limit.map_or(u64::MAX, |limit| (limit / 2).max(ARGUMENTS_BYTES_MIN));
    if top - pointer > permitted || !memory.is_in_stack_reservation(pointer) {
        // As under Linux, arguments may take only a fraction of the stack's limit.
        return Err(failed(path)(Errno::TOOBIG.into()));
    }
    let execute = match is_executable {
        true => libc::PROT_EXEC,
        false => 0,
    };
    let protection = (libc::PROT_READ | libc::PROT_WRITE | execute) as u64;
    if !memory.begin_stack(pointer.saturating_sub(STACK_BYTES_AT_ONCE), protection) {
        return Err(failed(path)(Errno::NOMEM.into()));
    }
    program_memory::write(pointer, &contents).map_err(|error| failed(path)(error.into()))?;
    memory.note_written(pointer, contents.len() as u64)?;
    Ok(pointer)
}

/// Converts the result of a system call.
fn done(result: i64) -> io::Result<u64> {
    u64::try_from(result).map_err(|_| io::Error::from_raw_os_error(-result as i32))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_go_where_linux_puts_them_and_not_near_our_own_file() {
        for own in [
            0,
            0x40_0000,
            ANYWHERE,
            ANYWHERE + (700 << 30),
            0x7fff_0000_0000,
        ] {
            for random in [0, 1 << 39, u64::MAX, 0x1234_5678_9abc_def0] {
                let at = anywhere(own, random);
                assert!(
                    (ANYWHERE..ANYWHERE + ANYWHERE_BYTES).contains(&at),
                    "{at:x}"
                );
                assert_eq!(at % PAGE, 0);
                let apart = at.abs_diff(own);
                assert!(
                    apart >= APART - PAGE || !(ANYWHERE..1 << 47).contains(&own),
                    "{at:x} {own:x}"
                );
            }
        }
    }
}
