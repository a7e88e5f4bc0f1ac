//! The fields of `/proc/PID/status` (`proc_pid_status(5)`) that attaching and watching need.

use std::fs::File;
use std::io::{self, Read};

/// A process's, or a thread's, state at one instant.
#[derive(Debug, Default, Clone)]
pub(crate) struct Status {
    /// One letter: R, S, D, T, t, Z, X, ...
    pub(crate) state: char,
    /// PID of the tracer, 0 without one.
    pub(crate) tracer: u32,
    /// Whether it has an address space of its own; kernel threads have none, zombies no longer.
    pub(crate) has_memory: bool,
    /// Kilobytes swapped out.
    pub(crate) swap_kib: u64,
    /// 0 without seccomp, 1 strict, 2 filter.
    pub(crate) seccomp: u32,
    /// How many seccomp filters it has, 0 also before Linux 5.9.
    pub(crate) filters: u32,
    /// Signals pending for the thread or the process that are not blocked, one bit each.
    pub(crate) deliverable_signals: u64,
}

impl Status {
    /// The state of a process.
    pub(crate) fn of(pid: u32) -> io::Result<Self> {
        Ok(Self::parse(&text(&format!("/proc/{pid}/status"))?))
    }

    /// The state of one thread.
    pub(crate) fn of_thread(pid: u32, tid: u32) -> io::Result<Self> {
        Ok(Self::parse(&text(&format!(
            "/proc/{pid}/task/{tid}/status"
        ))?))
    }

    fn parse(text: &str) -> Self {
        let mut status = Self::default();
        let (mut pending, mut blocked) = (0, 0);
        for line in text.lines() {
            let Some((key, value)) = line.split_once(':') else {
                continue;
            };
            let value = value.trim();
            let number = || {
                value
                    .split(' ')
                    .next()
                    .and_then(|n| n.parse().ok())
                    .unwrap_or(0)
            };
            let mask = || u64::from_str_radix(value, 16).unwrap_or(0);
            match key {
                "State" => status.state = value.chars().next().unwrap_or('?'),
                "TracerPid" => status.tracer = number() as u32,
                "VmSize" => status.has_memory = true,
                "VmSwap" => status.swap_kib = number(),
                "Seccomp" => status.seccomp = number() as u32,
                "Seccomp_filters" => status.filters = number() as u32,
                "SigPnd" | "ShdPnd" => pending |= mask(),
                "SigBlk" => blocked = mask(),
                _ => {}
            }
        }
        status.deliverable_signals = pending & !blocked;
        status
    }
}

/// The text of a file. With room for all of it the kernel makes it once; `read_to_string` would read eight times.
///
/// A name in it may be any bytes: the program chooses it, and the kernel cuts it after 15 (`TASK_COMM_LEN`), also within
/// a letter. Bytes that are not UTF-8 are replaced.
fn text(path: &str) -> io::Result<String> {
    let mut bytes = Vec::with_capacity(1 << 14);
    File::open(path)?.read_to_end(&mut bytes)?;
    // Without a copy where it is UTF-8, as nearly always.
    Ok(String::from_utf8(bytes)
        .unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned()))
}

/// The fields of `proc_pid_stat(5)` after the name, the first being the state; empty where they cannot be read.
///
/// The name before them stands in parentheses and may be any bytes, parentheses and spaces included.
pub(crate) fn stat_fields(pid: u32) -> Vec<String> {
    let text = text(&format!("/proc/{pid}/stat")).unwrap_or_default();
    let fields = text.rsplit(')').next().unwrap_or_default();
    fields.split_whitespace().map(String::from).collect()
}

/// The thread IDs of a process, the main thread first.
pub(crate) fn threads(pid: u32) -> io::Result<Vec<u32>> {
    let mut tids: Vec<u32> = std::fs::read_dir(format!("/proc/{pid}/task"))?
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    tids.sort_unstable_by_key(|&tid| (tid != pid, tid));
    Ok(tids)
}

/// Whether a thread other than the main one is inside `execve(2)` (`proc_pid_syscall(5)`).
pub(crate) fn is_in_execve(pid: u32) -> bool {
    let calls = [libc::SYS_execve, libc::SYS_execveat].map(|call| call.to_string());
    threads(pid)
        .unwrap_or_default()
        .iter()
        .filter(|&&tid| tid != pid)
        .any(|tid| {
            let text = text(&format!("/proc/{pid}/task/{tid}/syscall")).unwrap_or_default();
            text.split(' ')
                .next()
                .is_some_and(|call| calls.iter().any(|known| known == call))
        })
}

/// Child processes alive now (`proc_pid_task_children`, CONFIG_PROC_CHILDREN); empty where not offered.
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

/// How much of a command line is read: a process may have megabytes of them.
const COMMAND_LINE_BYTES_MAX: u64 = 1 << 16;

/// The command line of a process, cut where it is very long; its name in brackets where there is none.
pub(crate) fn command_line(pid: u32) -> Vec<String> {
    let mut bytes = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/cmdline")) {
        let _ = file.take(COMMAND_LINE_BYTES_MAX).read_to_end(&mut bytes);
    }
    let words: Vec<String> = bytes
        .split(|&b| b == 0)
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect();
    match words.iter().rposition(|word| !word.is_empty()) {
        Some(last) => words[..=last].to_vec(),
        None => text(&format!("/proc/{pid}/comm"))
            .map(|name| vec![format!("[{}]", name.trim_end())])
            .unwrap_or_default(),
    }
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
        // Replaced: a name that ends within a letter, as the kernel cuts it, and one that is no UTF-8 at all.
        for name in [&b"abcdefghijklmn\xc3"[..], b"n\xff) S 1", b"\xd0"] {
            let (send, receive) = std::sync::mpsc::channel::<()>();
            let (tell, told) = std::sync::mpsc::channel();
            let name = std::ffi::CString::new(name).unwrap();
            let thread = std::thread::spawn(move || {
                rustix::thread::set_name(&name).unwrap();
                tell.send(rustix::thread::gettid()).unwrap();
                let _ = receive.recv();
            });
            let tid = told.recv().unwrap().as_raw_pid() as u32;
            let status = Status::of_thread(std::process::id(), tid).unwrap();
            assert!(status.has_memory && status.state == 'S' || status.state == 'R');
            // By its number a thread has a `stat` of its own.
            assert_eq!(
                stat_fields(tid)[1].parse(),
                Ok(rustix::process::getppid().unwrap().as_raw_pid())
            );
            drop(send);
            thread.join().unwrap();
        }
    }

    #[test]
    fn deliverable_signals_are_pending_and_not_blocked() {
        let status = Status::parse(
            "State:\tS (sleeping)\nSigPnd:\t0000000000000003\nShdPnd:\t0000000000000004\nSigBlk:\t0000000000000001\n",
        );
        assert_eq!(status.deliverable_signals, 6);
    }
}
