//! What `/proc` says of a process besides its memory: who it is, its threads' names, its open
//! descriptors.

use crate::error::{Error, Result};
use crate::format::manifest::{Descriptor, Process};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::Read;

/// More descriptors than this are not looked at while the process stands still.
const DESCRIPTORS_AT_REST: usize = 256;
/// The most bytes of paths of one process's descriptors that are kept; those after them are empty.
/// A process may have a million descriptors, each of a file whose path has 4 KiB.
const TARGETS_BYTES_MAX: usize = 64 << 20;
/// Where the position and the flags of a descriptor are (`proc_pid_fdinfo(5)`), in bytes.
const FDINFO_BYTES: u64 = 512;

/// Who a process is; constant until it replaces its program.
#[derive(Clone, Debug)]
pub(crate) struct Identity {
    pid: u32,
    start_ticks: u64,
    executable: String,
    command: Vec<String>,
    auxv: Vec<u8>,
}

impl Identity {
    pub(crate) fn of(pid: u32) -> Result<Self> {
        let id = pagetrail::Memory::of(pid)?.proc_id();
        let auxv =
            fs::read(format!("/proc/{id}/auxv")).map_err(|error| {
                match Errno::from_io_error(&error) {
                    Some(Errno::NOENT | Errno::SRCH) => pagetrail::Error::Gone { pid }.into(),
                    _ => Error::io(format!("cannot read the auxiliary vector of process {pid}"))(
                        error,
                    ),
                }
            })?;
        let executable = fs::read_link(format!("/proc/{id}/exe"));
        Ok(Self {
            pid,
            start_ticks: start_ticks(pid).ok_or(pagetrail::Error::NoSuchProcess { pid })?,
            executable: executable
                .map_or_else(|_| String::new(), |path| path.display().to_string()),
            command: pagetrail::command_line(id),
            auxv,
        })
    }

    /// A program that was started by this command, and is not the one that `/proc` shows for the
    /// process: the kernel has no auxiliary vector of it.
    pub(crate) fn of_command(pid: u32, command: Vec<String>) -> Result<Self> {
        Ok(Self {
            pid,
            start_ticks: start_ticks(pid).ok_or(pagetrail::Error::NoSuchProcess { pid })?,
            executable: command.first().cloned().unwrap_or_default(),
            command,
            auxv: Vec::new(),
        })
    }

    /// The part of a manifest that this is.
    pub(crate) fn process(&self) -> Process {
        let this = self.clone();
        Process {
            pid: this.pid,
            start_ticks: this.start_ticks,
            executable: this.executable,
            command: this.command,
            auxv: this.auxv,
            ..Process::default()
        }
    }
}

/// When a process started, in clock ticks since boot (`proc_pid_stat(5)`, field 22).
pub(crate) fn start_ticks(pid: u32) -> Option<u64> {
    let stat = fs::read(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in parentheses that may hold any bytes.
    let stat = String::from_utf8_lossy(&stat);
    let fields = stat.rsplit_once(')')?.1;
    fields.split_whitespace().nth(19)?.parse().ok()
}

/// The name of a thread.
pub(crate) fn thread_name(pid: u32, tid: u32) -> String {
    let name = fs::read(format!("/proc/{pid}/task/{tid}/comm")).unwrap_or_default();
    String::from_utf8_lossy(name.trim_ascii_end()).into_owned()
}

/// The open descriptors of a process that stands still; `None` when there are so many that it
/// should not wait for them.
pub(crate) fn descriptors_at_rest(pid: u32) -> Option<Vec<Descriptor>> {
    let numbers = numbers(pid);
    (numbers.len() <= DESCRIPTORS_AT_REST).then(|| describe(pid, &numbers))
}

/// The open descriptors; those that come and go meanwhile may be missing.
pub(crate) fn descriptors(pid: u32) -> Vec<Descriptor> {
    describe(pid, &numbers(pid))
}

/// The numbers of the descriptors, ascending.
fn numbers(pid: u32) -> Vec<u32> {
    let mut numbers: Vec<u32> = fs::read_dir(format!("/proc/{pid}/fd"))
        .into_iter()
        .flatten()
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
        .collect();
    numbers.sort_unstable();
    numbers
}

fn describe(pid: u32, numbers: &[u32]) -> Vec<Descriptor> {
    let mut bytes_left = TARGETS_BYTES_MAX;
    let each = numbers.iter().filter_map(|&number| {
        let mut target = fs::read_link(format!("/proc/{pid}/fd/{number}")).ok()?;
        bytes_left = bytes_left.saturating_sub(target.as_os_str().len());
        if bytes_left == 0 {
            target.clear();
        }
        let info = first_lines(&format!("/proc/{pid}/fdinfo/{number}"));
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name));
        Some(Descriptor {
            number,
            target: target.display().to_string(),
            position: field("pos:").map_or(0, |text| text.trim().parse().unwrap_or(0)),
            flags: field("flags:")
                .map_or(0, |text| u32::from_str_radix(text.trim(), 8).unwrap_or(0)),
        })
    });
    each.collect()
}

/// The first lines of a file of `/proc/PID/fdinfo`: of an epoll descriptor it has a line for each
/// file that is waited for.
fn first_lines(path: &str) -> String {
    let mut text = Vec::new();
    if let Ok(file) = File::open(path) {
        // A descriptor that was closed meanwhile has no lines.
        let _ = file.take(FDINFO_BYTES).read_to_end(&mut text);
    }
    String::from_utf8_lossy(&text).into_owned()
}
