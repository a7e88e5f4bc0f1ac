//! Files about the program itself, of which the kernel would show those of the machine: the
//! program's file, its mappings, and its auxiliary vector.
//!
//! `/proc/self/exe` is replaced by the program's path in the call. The kernel opens `maps`, `smaps`
//! and `auxv`, and the descriptor is then replaced by one of a copy without the machine's part, as
//! of the moment of opening.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::MemfdFlags;

use super::{maps, table};
use crate::guest::Guest;
use crate::sys::call::{Call, call};
use crate::sys::program_memory::{read_text, write};
use crate::sys::signal::forward_unless_signalled;

const EFAULT: i64 = -(libc::EFAULT as i64);

/// A file of `/proc` that is about the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Own {
    /// The program's file.
    Program,
    /// The program's mappings.
    Mappings,
    /// The program's auxiliary vector.
    Auxiliary,
}

/// `PR_GET_AUXV` (Linux 6.4), which the crate `libc` lacks.
pub(super) const PR_GET_AUXV: i32 = 0x4155_5856;

/// Performs a call on a file about the program; `None` for any other file, which is the kernel's.
pub(super) fn perform(guest: &Guest, call: &Call) -> Option<i64> {
    let path = table::row(call.number).followed_path(&call.arguments)?;
    match own_file(call, path)? {
        Own::Program => {
            let follow = guest.follow.as_deref();
            let target = match follow.and_then(|follow| follow.another_path(guest.path())) {
                Some(path) => CString::new(path),
                None => CString::new(guest.path().as_os_str().as_bytes()),
            };
            let target = target.ok()?;
            let mut call = *call;
            call.arguments[path.argument] = target.as_ptr() as u64;
            Some(forward_unless_signalled(&call))
        }
        own if path.opens => {
            let opened = forward_unless_signalled(call);
            Some(if opened < 0 {
                opened
            } else {
                without_machine(guest, own, opened)
            })
        }
        _ => None,
    }
}

/// Whether a call names the program's file as one about the process (`/proc/self/exe`).
pub(crate) fn is_own_program(call: &Call) -> bool {
    let path = table::row(call.number).followed_path(&call.arguments);
    path.and_then(|path| own_file(call, path)) == Some(Own::Program)
}

/// The file about the program that a call names.
fn own_file(call: &Call, path: table::Path) -> Option<Own> {
    let directory = path.directory.map(|argument| call.arguments[argument]);
    own(directory, call.arguments[path.argument])
}

/// Which of these files a path names.
fn own(directory: Option<u64>, path: u64) -> Option<Own> {
    let text = read_text(path).ok()?;
    let own = match text.rsplit(|byte| *byte == b'/').next()? {
        b"exe" => Own::Program,
        b"maps" | b"smaps" => Own::Mappings,
        b"auxv" => Own::Auxiliary,
        _ => return None,
    };
    let whole = match text.first()? {
        b'/' => text,
        _ => [&directory_path(directory)?[..], b"/", &text].concat(),
    };
    is_about(&whole, std::process::id()).then_some(own)
}

fn directory_path(directory: Option<u64>) -> Option<Vec<u8>> {
    let link = match directory.map(|number| number as i32) {
        None | Some(libc::AT_FDCWD) => "/proc/self/cwd".to_owned(),
        Some(number) => format!("/proc/self/fd/{number}"),
    };
    let path = std::fs::read_link(link).ok()?;
    Some(OsString::from(path).into_vec())
}

/// Whether a path is that of a file about this process.
fn is_about(path: &[u8], pid: u32) -> bool {
    let pid = pid.to_string();
    let parts = path.split(|byte| *byte == b'/');
    let parts: Vec<&[u8]> = parts.filter(|part| !matches!(*part, b"" | b".")).collect();
    match parts[..] {
        [b"proc", process, _] | [b"proc", process, b"task", _, _] => {
            process == b"self" || process == b"thread-self" || process == pid.as_bytes()
        }
        _ => false,
    }
}

/// Replaces what a descriptor reads by the program's part of it.
fn without_machine(guest: &Guest, own: Own, opened: i64) -> i64 {
    match replace(guest, own, opened) {
        Ok(()) => opened,
        Err(error) => {
            call(libc::SYS_close, &[opened as u64]);
            -i64::from(error.raw_os_error().unwrap_or(libc::EIO))
        }
    }
}

fn replace(guest: &Guest, kind: Own, opened: i64) -> io::Result<()> {
    let status = call(libc::SYS_fcntl, &[opened as u64, libc::F_GETFL as u64]);
    if status & i64::from(libc::O_PATH) != 0 {
        return Ok(());
    }
    let text = std::fs::read(format!("/proc/self/fd/{opened}"))?;
    let own = {
        let memory = guest.memory();
        match kind {
            Own::Auxiliary => memory.auxiliary.clone(),
            _ => maps::own_part(&text, &memory.areas, &memory.names()),
        }
    };
    let mut copy = File::from(rustix::fs::memfd_create("maps", MemfdFlags::CLOEXEC)?);
    copy.write_all(&own)?;
    // Opened again, for an offset of 0 and without the right to write.
    let copy = File::open(format!("/proc/self/fd/{}", copy.as_raw_fd()))?;
    let flags = call(libc::SYS_fcntl, &[opened as u64, libc::F_GETFD as u64]);
    let flags = match flags & i64::from(libc::FD_CLOEXEC) {
        0 => 0,
        _ => libc::O_CLOEXEC,
    };
    let moved = [copy.as_raw_fd() as u64, opened as u64, flags as u64];
    match call(libc::SYS_dup3, &moved) {
        error @ ..0 => Err(io::Error::from_raw_os_error(-error as i32)),
        _ => Ok(()),
    }
}

/// `readlink(2)`.
pub(super) fn read_link(guest: &Guest, call: &Call) -> i64 {
    let [path, buffer, bytes, ..] = call.arguments;
    read_own_link(guest, call, (None, path), (buffer, bytes))
}

/// `readlinkat(2)`.
pub(super) fn read_link_at(guest: &Guest, call: &Call) -> i64 {
    let [directory, path, buffer, bytes, ..] = call.arguments;
    read_own_link(guest, call, (Some(directory), path), (buffer, bytes))
}

/// Reads `/proc/self/exe` as a link to the program; the kernel reads any other link.
fn read_own_link(
    guest: &Guest,
    call: &Call,
    (directory, path): (Option<u64>, u64),
    (buffer, bytes): (u64, u64),
) -> i64 {
    if own(directory, path) != Some(Own::Program) {
        return call.forward();
    }
    if bytes as i32 <= 0 {
        return -i64::from(libc::EINVAL);
    }
    let target = guest.path().as_os_str().as_bytes();
    let target = &target[..target.len().min(bytes as usize)];
    match write_or_fault(buffer, target) {
        0 => target.len() as i64,
        error => error,
    }
}

/// `prctl(2)` with `PR_GET_AUXV`: as long as the kernel's vector, with zeros after the end.
pub(super) fn auxiliary(guest: &Guest, made: &Call) -> i64 {
    let [option, at, bytes, ..] = made.arguments;
    if made.arguments[3..5] != [0, 0] {
        return -i64::from(libc::EINVAL);
    }
    let length = call(libc::SYS_prctl, &[option, 0, 0, 0, 0]);
    let Ok(whole) = usize::try_from(length) else {
        return length;
    };
    let mut vector = guest.memory().auxiliary.clone();
    vector.resize(whole, 0);
    vector.truncate(bytes.min(whole as u64) as usize);
    match write_or_fault(at, &vector) {
        0 => length,
        error => error,
    }
}

/// Writes to the program's memory, and returns a result as the kernel does.
pub(super) fn write_or_fault(address: u64, bytes: &[u8]) -> i64 {
    write(address, bytes).map_or(EFAULT, |()| 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_about_the_program_are_found_by_their_paths() {
        let about = |path: &str| is_about(path.as_bytes(), 77);
        for path in [
            "/proc/self/maps",
            "/proc/77/exe",
            "/proc//self/./smaps",
            "/proc/thread-self/maps",
            "/proc/self/task/78/maps",
        ] {
            assert!(about(path), "{path}");
        }
        for path in [
            "/proc/78/maps",
            "/proc/maps",
            "/tmp/maps",
            "/proc/self/../1/maps",
            "/proc/self/task/maps",
            "/x/proc/self/maps",
        ] {
            assert!(!about(path), "{path}");
        }
    }

    #[test]
    fn paths_are_those_of_calls_that_follow_links() {
        let text = c"/proc/self/exe";
        let own_file_of = |number: i64, arguments: [u64; 6]| {
            let call = Call {
                number: number as u64,
                arguments,
            };
            let path = table::row(call.number).followed_path(&call.arguments)?;
            own_file(&call, path)
        };
        let path = text.as_ptr() as u64;
        let here = libc::AT_FDCWD as u32 as u64;
        assert_eq!(
            own_file_of(libc::SYS_open, [path, 0, 0, 0, 0, 0]),
            Some(Own::Program)
        );
        assert_eq!(
            own_file_of(libc::SYS_newfstatat, [here, path, 0, 0, 0, 0]),
            Some(Own::Program)
        );
        let link_itself = libc::AT_SYMLINK_NOFOLLOW as u64;
        assert_eq!(
            own_file_of(libc::SYS_newfstatat, [here, path, 0, link_itself, 0, 0]),
            None
        );
        assert_eq!(own_file_of(libc::SYS_unlink, [path, 0, 0, 0, 0, 0]), None);
        assert_eq!(own_file_of(libc::SYS_open, [16, 0, 0, 0, 0, 0]), None);
        let relative = c"self/maps".as_ptr() as u64;
        let proc = File::open("/proc").unwrap();
        let directory = proc.as_raw_fd() as u64;
        assert_eq!(
            own_file_of(libc::SYS_openat, [directory, relative, 0, 0, 0, 0]),
            Some(Own::Mappings)
        );
        assert_eq!(own_file_of(libc::SYS_open, [relative, 0, 0, 0, 0, 0]), None);
    }
}
