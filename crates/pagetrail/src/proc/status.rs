//! The fields of `/proc/PID/status` (`proc_pid_status(5)`) that attaching and tracking need.

use super::command_line::command_line;
use super::text;
use crate::sys::own_vec::OwnVec;
use rustix::io::Errno;
use std::fmt;
use std::fs::File;
use std::io::{self, Read};

/// The state of a process or thread at one instant.
#[derive(Debug, Default, Clone)]
pub(crate) struct Status {
    /// The state letter: R, S, D, T, t, Z, X, ...
    pub(crate) state: char,
    /// The PID of the tracer, 0 without one.
    pub(crate) tracer: u32,
    /// Whether it has an address space; kernel threads and zombies have none.
    pub(crate) has_memory: bool,
    /// The amount of memory swapped out, in KiB.
    pub(crate) swap_kib: u64,
    /// The amount of memory that is pinned for as long as somebody wants (`mm->pinned_vm`: buffers
    /// registered with io_uring, RDMA, VFIO, AF_XDP), in KiB.
    pub(crate) pinned_kib: u64,
    /// The seccomp mode: 0 without seccomp, 1 strict, 2 filter.
    pub(crate) seccomp: u32,
    /// The number of seccomp filters; 0 also before Linux 5.9.
    pub(crate) filters: u32,
}

impl Status {
    /// The state of a process: that of its main thread or, if that has ended before others, of a
    /// thread that runs on.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        let main = Self::read(format_args!("/proc/{pid}/status"))?;
        if main.has_memory || main.state != 'Z' {
            return Ok(main);
        }
        let other = with_memory(pid).and_then(|tid| Self::of_thread(pid, tid).ok());
        Ok(other.unwrap_or(main))
    }

    /// The state of one thread. Allocates nothing.
    pub(crate) fn of_thread(pid: u32, tid: u32) -> io::Result<Self> {
        Self::read(format_args!("/proc/{pid}/task/{tid}/status"))
    }

    /// Reads a file line by line. A process name in it may be any bytes: the program chooses it,
    /// and the kernel truncates it to 15 bytes (`TASK_COMM_LEN`), possibly within a character.
    fn read(path: fmt::Arguments<'_>) -> io::Result<Self> {
        let mut status = Self::default();
        text::lines(path, |line| status.take(line))?;
        Ok(status)
    }

    /// Takes in what a line says.
    fn take(&mut self, line: &[u8]) {
        let Some(colon) = line.iter().position(|&byte| byte == b':') else {
            return;
        };
        let value = line[colon + 1..].trim_ascii();
        let number = || {
            let word = value.split(|&byte| byte == b' ').next();
            let number = word.and_then(|word| std::str::from_utf8(word).ok()?.parse::<u64>().ok());
            number.unwrap_or(0)
        };
        match &line[..colon] {
            b"State" => self.state = value.first().map_or('?', |&state| state.into()),
            b"TracerPid" => self.tracer = number() as u32,
            b"VmSize" => self.has_memory = true,
            b"VmSwap" => self.swap_kib = number(),
            b"VmPin" => self.pinned_kib = number(),
            b"Seccomp" => self.seccomp = number() as u32,
            b"Seccomp_filters" => self.filters = number() as u32,
            _ => {}
        }
    }
}

/// The text of a file. The buffer has room for all of it, so that the kernel generates it once;
/// `read_to_string` would read eight times.
///
/// A process name in it may be any bytes: the program chooses it, and the kernel truncates it to 15
/// bytes (`TASK_COMM_LEN`), possibly within a character. Bytes that are not UTF-8 are replaced.
fn whole(path: &str) -> io::Result<String> {
    let mut bytes = Vec::with_capacity(1 << 14);
    File::open(path)?.read_to_end(&mut bytes)?;
    // Valid UTF-8, as almost always, is not copied.
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// The fields of `proc_pid_stat(5)` after the name, beginning with the state; empty if they cannot
/// be read.
///
/// The name before them is in parentheses and may be any bytes, including parentheses and spaces.
pub(crate) fn stat_fields(pid: u32) -> Vec<String> {
    let text = whole(&format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = text.rsplit(')').next().unwrap_or_default();
    fields.split_whitespace().map(String::from).collect()
}

/// The page faults of a process that needed no input (field 10 of `proc_pid_stat(5)`, `minflt`).
/// `None` if they cannot be read. Does not allocate, as a collect must not.
pub(crate) fn minor_faults(pid: u32) -> Option<u64> {
    // The name has 15 bytes at most, and the numbers before the field 20 each.
    let mut room = [0; 512];
    let text = text::read(format_args!("/proc/{pid}/stat"), &mut room).ok()?;
    // The name is in parentheses, and may have some itself; the state, which is field 3, follows.
    let name_end = text.iter().rposition(|&byte| byte == b')')?;
    field(&text[name_end + 1..], 10 - 3)
}

/// The pages of a process that are in memory and of no file (`proc_pid_statm(5)`: resident, less
/// shared): exact within some pages for each processor. `None` if they cannot be read. Does not
/// allocate.
pub(crate) fn anonymous_pages(pid: u32) -> Option<u64> {
    let mut room = [0; 256];
    let text = text::read(format_args!("/proc/{pid}/statm"), &mut room).ok()?;
    Some(field(text, 1)?.saturating_sub(field(text, 2)?))
}

/// A number in a text, the first being 0.
fn field(text: &[u8], number: usize) -> Option<u64> {
    let mut fields = text.split(u8::is_ascii_whitespace);
    let field = fields
        .by_ref()
        .filter(|field| !field.is_empty())
        .nth(number)?;
    std::str::from_utf8(field).ok()?.parse().ok()
}

/// The thread IDs of a process, the main thread first.
pub(crate) fn threads(pid: u32) -> io::Result<Vec<u32>> {
    Ok(list_threads(pid)?.to_vec())
}

/// Whether a process may have memory that is swapped out.
///
/// True also where its state cannot be read (no descriptor is left): then markers are taken for
/// swapped pages, which are false positives, and no swapped page is missed.
pub(crate) fn may_be_swapped(pid: u32) -> bool {
    Status::of(pid).map_or(true, |status| status.swap_kib > 0)
}

/// The thread IDs of a process, the main thread first. Allocates nothing.
pub(crate) fn list_threads(pid: u32) -> Result<OwnVec<u32>, Errno> {
    let mut tids = OwnVec::new();
    text::numbers(format_args!("/proc/{pid}/task"), |tid| tids.push(tid))?;
    tids.sort_unstable_by_key(|&tid| (tid != pid, tid));
    Ok(tids)
}

/// A thread other than the main one that has memory.
fn with_memory(pid: u32) -> Option<u32> {
    let has_memory = |&tid: &u32| Status::of_thread(pid, tid).is_ok_and(|status| status.has_memory);
    let tids = list_threads(pid).ok()?;
    let mut others = tids.iter().copied().filter(|&tid| tid != pid);
    others.find(has_memory)
}

/// The ID under which `/proc` and `process_vm_readv(2)` show the memory of a process: its PID or,
/// once the main thread has ended before others, the ID of a thread that runs on.
///
/// A main thread that has ended stays as a zombie, without memory, until all others have ended
/// (`pthread_exit(3)` in `main`). `/proc/TID` of any thread leads to the same files as that of the
/// main thread. Allocates nothing.
pub(crate) fn memory_id(pid: u32) -> u32 {
    // The link needs memory to exist.
    match text::read_link(format_args!("/proc/{pid}/exe")) {
        Err(Errno::NOENT | Errno::SRCH) => with_memory(pid).unwrap_or(pid),
        _ => pid,
    }
}

/// Whether a thread other than the main one is inside `execve(2)` (`proc_pid_syscall(5)`).
#[cfg(all(feature = "attach", target_arch = "x86_64"))]
pub(crate) fn is_in_execve(pid: u32) -> bool {
    let calls = [libc::SYS_execve, libc::SYS_execveat].map(|call| call.to_string());
    threads(pid)
        .unwrap_or_default()
        .iter()
        .filter(|&&tid| tid != pid)
        .any(|tid| {
            let text = whole(&format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
            text.split(' ')
                .next()
                .is_some_and(|call| calls.iter().any(|known| known == call))
        })
}

/// The child processes that are alive (`proc_pid_task_children`, CONFIG_PROC_CHILDREN); empty if
/// the kernel does not list them.
pub(crate) fn children(pid: u32) -> Vec<u32> {
    threads(pid)
        .unwrap_or_default()
        .iter()
        .filter_map(|tid| std::fs::read_to_string(format!("/proc/{pid}/task/{tid}/children")).ok())
        .flat_map(|text| {
            text.split_whitespace()
                .filter_map(|pid| pid.parse().ok())
                .collect::<Vec<_>>()
        })
        .collect()
}

/// The command line of a process, or its name in brackets if it has none.
pub(crate) fn command_or_name(pid: u32) -> Vec<String> {
    let words = command_line(pid);
    if !words.is_empty() {
        return words;
    }
    whole(&format!("/proc/{pid}/comm"))
        .map(|name| vec![format!("[{}]", name.trim_end())])
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_status_makes_sense() {
        let status = Status::of(std::process::id()).unwrap();
        assert!(status.has_memory);
        assert!("RS".contains(status.state));
        assert!(threads(std::process::id()).unwrap()[0] == std::process::id());
    }

    #[test]
    fn a_name_may_be_any_bytes() {
        // Invalid bytes are replaced: a name truncated within a character, as the kernel does it,
        // and one that is no UTF-8 at all.
        for name in [&b"abcdefghijklmn\xc3"[..], b"n\xff) S 1", b"\xd0"] {
            let (send, receive) = std::sync::mpsc::channel::<()>();
            let (tid_to, tid_from) = std::sync::mpsc::channel();
            let name = std::ffi::CString::new(name).unwrap();
            let thread = std::thread::spawn(move || {
                rustix::thread::set_name(&name).unwrap();
                tid_to.send(rustix::thread::gettid()).unwrap();
                let _ = receive.recv();
            });
            let tid = tid_from.recv().unwrap().as_raw_pid() as u32;
            let status = Status::of_thread(std::process::id(), tid).unwrap();
            assert!(status.has_memory && status.state == 'S' || status.state == 'R');
            // A thread has a `stat` under its own number.
            let parent = rustix::process::getppid().map_or(0, |parent| parent.as_raw_pid());
            assert_eq!(stat_fields(tid)[1].parse(), Ok(parent));
            // It may fault meanwhile.
            let faults = || stat_fields(tid)[10 - 3].parse::<u64>().unwrap();
            let (before, seen, after) = (faults(), minor_faults(tid).unwrap(), faults());
            assert!((before..=after).contains(&seen), "{before} {seen} {after}");
            drop(send);
            thread.join().unwrap();
        }
    }
}
